/* Factors of the shared-rotary layout for all layers of a model: closed form (shared_solve.h), then all maps moved together by
 * first-order steps against each layer's own output (shared_local.h), kept where that lowers the loss on held-out rows.
 *
 * Adam (adam.h), MLA_ADAM_SLOTS rows a step: same bytes whatever the thread count. */
#ifndef MLA_RETROFIT_SHARED_FIT_H
#define MLA_RETROFIT_SHARED_FIT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/par.h"
#include "base/str.h"
#include "io/json.h"
#include "model/shared.h"
#include "retrofit/build/recipe.h"
#include "retrofit/shared_rotary/shared_rows.h"

typedef struct {
    size_t layer;
    double kept;            /* share of the query-weighted rotary energy that the shared keys hold */
    double closed, refined; /* loss over energy of the layer's output on held-out rows; refined < 0: not refined */
    bool accepted;
} mla_shared_result;

typedef struct {
    size_t layers, rank, keys; /* keys: R */
    mla_shared *factors;       /* in depth order */
    mla_shared_result *result;
    size_t heads;              /* KV heads */
    double *energy;            /* (layers, heads): share of the rotary energy that 1, 2, .. shared keys hold */
} mla_shared_fit;

typedef struct {
    mla_shared_rows_opts rows;
    mla_pool *pool;
    const mla_recipe *recipe;  /* resolved: layout, rank by budget, rotary_keys, balance, refine_steps */
    const int32_t *fit, *held; /* whole rows are used; held may be NULL: every 8th row of fit is held back */
    size_t n_fit, n_held;
} mla_shared_fit_opts;

MLA_CHECKED mla_status mla_shared_fit_all(mla_shared_fit *out, const mla_shared_fit_opts *o, mla_err *err);
void mla_shared_fit_free(mla_shared_fit *f); /* zeroed struct is fine */
/* [{layer, rank, rotary_keys, rotary_energy_kept_by_keys [..], closed_form_loss, refined_loss}] */
void mla_shared_fit_to_json(const mla_shared_fit *f, mla_jv *arr);
void mla_shared_fit_table(const mla_shared_fit *f, mla_str *out);
#endif
