/* The factors of one retrofitted attention layer: c = E (y - mu), y ~ D c + mu, per group of KV heads.
 * G KV heads, H query heads, d head dim.
 *
 * Group a holds KV heads [a G/g, (a+1) G/g). Its features y_a (n) are, in this order,
 *   layout N:       the NoPE dims of its heads' keys (after k_norm), head by head, then its heads' values;
 *   layout P:       the NoPE dims of its heads' keys before k_norm, head by head, then its heads' values;
 *   layout rebuild: its heads' whole keys before RoPE (k_norm applied where the model has one), then its values;
 *   layout absorbed-rope (one group): the same.
 * n = (G/g) (d_key + d) with d_key = d - rot (N, P) or d (others). Layout absorbed-rope decodes something else than y: per
 * query head the key that its unrotated query meets, then per KV head the value: D has (H + G) d rows, of which mu has
 * only the values' part. Beside the latent it caches w rotary values z = Er k with k (G d) the rotated keys; head h of KV
 * head g meets them with Rq_g q, q rotated. Er and Rq mix heads within one frequency, so they commute with the rotation.
 * Rows of E are sorted by eigenvalue: any prefix is
 * the best smaller rank (nested). */
#ifndef MLA_MODEL_FACTORS_H
#define MLA_MODEL_FACTORS_H
#include <stddef.h>

#include "base/err.h"
#include "model/config.h"

typedef struct {
    mla_layout layout;
    size_t groups, n, r;  /* per group: n features, r latent values */
    size_t nd;            /* rows of D per group: n, in layout absorbed-rope (H + G) d */
    float *E;             /* (groups, r, n) */
    float *D;             /* (groups, nd, r) */
    float *mu;            /* (groups, n) */
    size_t heads;         /* layout P: KV heads with a centre; 0: none */
    float *center;        /* layout P: (heads) what divisors are stored relative to; NULL: 1 */
    size_t w, d;          /* layout absorbed-rope: rotary values per token, head dim; else 0 */
    float *Er, *Rq;       /* (w, G d), (G, w, d); else NULL */
} mla_factors;

/* Feature count per group for a layout of this model; MLA_EINVAL when groups does not divide the KV heads. */
MLA_CHECKED mla_status mla_factors_dims(const mla_config *c, mla_layout layout, size_t groups, size_t *n, mla_err *err);
MLA_CHECKED mla_status mla_factors_new(mla_factors *out, mla_layout layout, size_t groups, size_t n, size_t r, mla_err *err);
/* Layout absorbed-rope of a model of this shape: w even, 2 to G d; r at most n = 2 G d. */
MLA_CHECKED mla_status mla_factors_new_absorbed(mla_factors *out, const mla_config *c, size_t w, size_t r, mla_err *err);
MLA_CHECKED mla_status mla_factors_copy(mla_factors *out, const mla_factors *f, mla_err *err);
void mla_factors_free(mla_factors *f); /* zeroed struct is fine */
/* Gives f centres of its divisors, all 1. */
MLA_CHECKED mla_status mla_factors_centers(mla_factors *f, size_t heads, mla_err *err);
/* Exact full-rank factors: E = D = I, mu = 0. Layout absorbed-rope: w = G rot, every
 * rotated dim in a slot, and r = 2 G d - w, the latent of what is left. */
void mla_factors_identity(mla_factors *f);
/* Layout absorbed-rope: which frequency each pair of rotary values (s, s + w/2) turns with, from the rows of Er: freq (w/2)
 * receives the first of the *fold neighbouring frequencies that the pair mixes (1: it mixes heads only); the model rotates
 * the first rot dims of a head. MLA_EFORMAT when a pair does not commute with the rotation. */
MLA_CHECKED mla_status mla_factors_slots(size_t *freq, size_t *fold, const mla_factors *f, size_t rot, mla_err *err);
/* Values cached per token by a layer with these factors: groups*r (+ G*rot rotary keys in layout N, w in absorbed-rope). */
size_t mla_factors_cached(const mla_config *c, const mla_factors *f);
#endif
