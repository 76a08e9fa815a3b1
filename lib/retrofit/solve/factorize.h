/* Statistics to factors, all layers: solutions (several layers at a time), ranks under the recipe's budget, factors in
 * their stored precision, and what they lose: predicted, and measured on held-out statistics. */
#ifndef MLA_RETROFIT_FACTORIZE_H
#define MLA_RETROFIT_FACTORIZE_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/par.h"
#include "io/json.h"
#include "model/model.h"
#include "retrofit/solve/nested.h"
#include "retrofit/solve/probe.h"
#include "retrofit/build/recipe.h"
#include "retrofit/refine/refine.h"
#include "retrofit/solve/solve.h"

typedef struct {
    size_t layer, rank;         /* rank: values per token over all groups */
    size_t rotary;              /* absorbed-rope: rotary values per token; else 0 */
    double predicted, held_out; /* share of the layer's weighted energy that is lost; negative: not known, not measured */
    double exact;               /* the same on the fit's own statistics, with the factors as stored (bf16); negative: not measured */
    double energy;              /* total, in squared output units; 0: exact factors, nothing was measured */
    double k_share;             /* of the latent */
    size_t floored;
    bool refined;               /* `local` was measured */
    mla_refined local;          /* error of the layer's own output before and after local refinement */
    double *spectrum;           /* (n_spectrum) descending over all groups, for plots */
    size_t n_spectrum;
} mla_layer_result;

typedef struct {
    size_t layers;
    double balance;             /* of keys and values, as it was used */
    char *refined;              /* how layers were moved after solving; NULL: none was */
    size_t rotary_width;        /* absorbed-rope: as chosen, the largest of all layers; else 0 */
    bool deepseek;              /* made for layout deepseek: one width, one rank, slots of every frequency alike */
    bool shares;                /* absorbed-rope: each layer has a width of its own choice */
    size_t freq_fold;
    bool f32;                   /* stored precision of encoders and decoders: f32, else bf16 */
    mla_factors *factors;       /* in depth order */
    mla_layer_result *result;
    mla_nested *nested;         /* (layers) where asked for, else NULL */
} mla_factorization;

typedef struct {
    const mla_model *model;
    const mla_recipe *recipe;   /* resolved */
    const mla_stats *fit, *held;/* held may be NULL */
    mla_pool *pool;
    mla_eigen eigen;            /* where the eigenproblems are solved */
    mla_probe *probe;           /* needed for allocation by probe and the scan of the balance, otherwise NULL */
    bool nested;                /* keep what prefixes of these ranks need */
    mla_refiner *refiner;       /* NULL: no local refinement */
    const char *dir;            /* where refined layers are kept for a resumed build; NULL: nowhere */
    mla_log *log;
} mla_factorize_opts;
MLA_CHECKED mla_status mla_factorize(mla_factorization *out, const mla_factorize_opts *o, mla_err *err);
/* Full rank: the exact identity for every layer, which needs no statistics. */
MLA_CHECKED mla_status mla_factorize_identity(mla_factorization *out, const mla_model *m, const mla_recipe *r, mla_err *err);
void mla_factorization_free(mla_factorization *f); /* zeroed struct is fine */
/* layers: [{layer, rank, predicted_loss, held_out_loss, stored_loss, energy, key_share}] */
void mla_factorization_to_json(const mla_factorization *f, mla_jv *arr);
/* The same as a plain table. */
void mla_factorization_table(const mla_factorization *f, mla_str *out);
#endif
