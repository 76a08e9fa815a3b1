/* The layouts that a model can take, side by side at equal bytes, before one is chosen: the KL divergence from the base on
 * held-out text with all layers compressed by the closed form (no allocation, no refinement: both lower it, see docs/retrofit.md), and
 * the predicted loss. One set of statistics serves every layout that is compared here: those of models that rotate whole heads. */
#ifndef MLA_RETROFIT_COMPARE_H
#define MLA_RETROFIT_COMPARE_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "io/json.h"
#include "retrofit/build/build.h"

#define MLA_COMPARE_LAYOUTS 3

typedef struct {
    mla_layout layout;
    bool possible;
    char why[256];            /* when it is not */
    size_t latent, rotary;    /* values per token and layer (deepseek: the constant among the latent ones) */
    double predicted;         /* mean share of the layers' energy, in the layout's own measure */
    double kld;               /* negative: not measured (folded frequencies) */
} mla_compared;

/* out: one entry per layout, in order of the table. o: as for a build; o->recipe's layout is not read, o->stats may name
 * statistics of layout rebuild, whole-model statistics are collected otherwise. */
MLA_CHECKED mla_status mla_compare_layouts(mla_compared out[MLA_COMPARE_LAYOUTS], const mla_build_opts *o, mla_err *err);
void mla_compared_to_json(const mla_compared c[MLA_COMPARE_LAYOUTS], mla_jv *arr);
void mla_compared_table(const mla_compared c[MLA_COMPARE_LAYOUTS], mla_str *out);
#endif
