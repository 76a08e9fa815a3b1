/* Ranks of all layers under the recipe's budget: uniform, by the spectra, or by rounds of probing (probe.h), each at the
 * ranks of the round before: sensitivities belong to the rank they were measured at. */
#ifndef MLA_RETROFIT_ROUNDS_H
#define MLA_RETROFIT_ROUNDS_H
#include "retrofit/solve/probe.h"
#include "retrofit/build/recipe.h"

typedef struct {
    const mla_model *model;
    const mla_recipe *recipe;   /* resolved */
    const mla_solution *sol;    /* (layers) */
    size_t layers;
    mla_probe *probe;           /* for allocation by probe, otherwise NULL */
    const char *dir;            /* where sensitivities are kept for a resumed build; NULL: nowhere */
} mla_rounds_opts;

/* rank (layers): latent values per token over all groups. */
MLA_CHECKED mla_status mla_choose_ranks(size_t *rank, const mla_rounds_opts *o, mla_err *err);
#endif
