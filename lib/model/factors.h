/* The factors of one retrofitted attention layer: c = E (y - mu), y ~ D c + mu, per group of KV heads.
 *
 * Group a holds KV heads [a G/g, (a+1) G/g). Its features y_a (n) are, in this order,
 *   layout N:       the NoPE dims of its heads' keys (after k_norm), head by head, then its heads' values;
 *   layout P:       the NoPE dims of its heads' keys before k_norm, head by head, then its heads' values;
 *   layout rebuild: its heads' whole keys before RoPE (k_norm applied where the model has one), then its values.
 * n = (G/g) (d_key + d) with d_key = d - rot (N, P) or d (rebuild). Rows of E are sorted by eigenvalue: any prefix is
 * the best smaller rank (nested). */
#ifndef MLA_MODEL_FACTORS_H
#define MLA_MODEL_FACTORS_H
#include <stddef.h>

#include "base/err.h"
#include "model/config.h"

typedef struct {
    mla_layout layout;
    size_t groups, n, r;  /* per group: n features, r latent values */
    float *E;             /* (groups, r, n) */
    float *D;             /* (groups, n, r) */
    float *mu;            /* (groups, n) */
    size_t heads;         /* layout P: KV heads with a centre; 0: none */
    float *center;        /* layout P: (heads) what divisors are stored relative to; NULL: 1 */
} mla_factors;

/* Feature count per group for a layout of this model; MLA_EINVAL when groups does not divide the KV heads. */
MLA_CHECKED mla_status mla_factors_dims(const mla_config *c, mla_layout layout, size_t groups, size_t *n, mla_err *err);
MLA_CHECKED mla_status mla_factors_new(mla_factors *out, mla_layout layout, size_t groups, size_t n, size_t r, mla_err *err);
void mla_factors_free(mla_factors *f); /* zeroed struct is fine */
/* Gives f centres of its divisors, all 1. */
MLA_CHECKED mla_status mla_factors_centers(mla_factors *f, size_t heads, mla_err *err);
/* A copy of f. */
MLA_CHECKED mla_status mla_factors_copy(mla_factors *out, const mla_factors *f, mla_err *err);
/* Exact full-rank factors: E = D = I, mu = 0. */
void mla_factors_identity(mla_factors *f);
/* Values cached per token by a layer with these factors: groups*r, and what the layout keeps beside it. */
size_t mla_factors_cached(const mla_config *c, const mla_factors *f);
#endif
