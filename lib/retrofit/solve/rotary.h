/* Which part of the keys stays rotary when heads share it. Dims beyond the rotated ones (partial RoPE) have no position and
 * pass by untouched.
 *
 * A rotation multiplies the pair of frequency f, read as a complex number k_gf of KV head g, by exp(i theta_f s): mixing
 * heads within one frequency commutes with it (TransMLA's RoRoPE; complex and weighted here). Per block of `fold`
 * neighbouring frequencies (1: a single one; more is FreqFold, which lets them turn as the block's first):
 *   m_gf = 1/2 tr M_g over the pair,  K = E[k k^H] uncentred (a constant key turns, so its mean is no constant),
 *   diag(m)^1/2 K diag(m)^1/2 = U diag(energy) U^H:  z_i = u_i^H diag(m)^1/2 k,  k = sum_i diag(m)^-1/2 u_i z_i.
 * A component kept as a slot costs two cached values and is exact. What is not kept meets an unrotated query: the best
 * position-free stand-in for q^T R_(s-t) k is (A_h q)^T k with A_h = E[R_(t-s)], the mean over where head h looks
 * (weights of the query metric). Its square share 1 - |a|^2 of the energy is lost: gain_i = energy_i (1 - |a|^2). */
#ifndef MLA_RETROFIT_ROTARY_H
#define MLA_RETROFIT_ROTARY_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "model/factors.h"
#include "retrofit/stats/stats.h"

typedef struct {
    size_t width;   /* w: rotary values per token, even */
    size_t fold;    /* frequencies per block; divides half */
    bool even_all;  /* the same number of slots in every block (w a multiple of the blocks' 2), as one table of
                       frequencies for all layers needs; otherwise the slots of largest gain */
    double gain;    /* attention_factor of the RoPE kind */
} mla_rotary_opts;

typedef struct {
    size_t H, G, d, half, fold, q, blocks, w; /* q = G fold components per block */
    double *energy, *lost;  /* (blocks, q), descending energy; lost: share of it that a position-free key loses */
    double *enc, *dec;      /* (blocks, q, q, 2): row i: what gives z_i; what z_i gives back */
    double *a;              /* (H, half, 2): A_h, times gain^2 */
    size_t *slot;           /* (w/2): b q + i, by i, then b */
    bool *kept;             /* (blocks, q) */
    double *T;              /* (G d, G d): what is left of the keys beside the slots */
} mla_rotary;

MLA_CHECKED mla_status mla_rotary_new(mla_rotary **out, const mla_layer_stats *l, const mla_rotary_opts *o, mla_err *err);
void mla_rotary_free(mla_rotary *r); /* NULL is fine */
/* Energy that turning away from the rotation loses, on statistics of the same shape. */
MLA_CHECKED mla_status mla_rotary_loss(double *out, const mla_rotary *r, const mla_layer_stats *l, mla_err *err);
/* Er and Rq of the factors. */
void mla_rotary_maps(const mla_rotary *r, mla_factors *f);
/* x (d, cols; ld) := A_h x, or A_h^T x. */
void mla_rotary_query(const mla_rotary *r, size_t h, bool transposed, double *x, size_t ld, size_t cols);
#endif
