/* The weights of the objective: what an error of a cached key or value costs at the layer's output.
 *
 *   F_hh' = E[gamma_h gamma_h'^T] o (W_h^T W_h')          (H d, H d), PSD; ungated: W_O^T W_O
 *   L_gg' = sum_{h in g, h' in g'} kappa_hh' F_hh'         value metric (G d, G d)
 *   Lambda = blockdiag(b M_1 .. b M_G, L)                  b = balance (1 = first-order theory)
 * Source: design notes, algorithms 7.2. When H d is large only the blocks within a KV group are kept (the same rule
 * as the gate moments, mla_metric_blocks). */
#ifndef MLA_RETROFIT_METRIC_H
#define MLA_RETROFIT_METRIC_H
#include <stddef.h>

#include "base/err.h"
#include "retrofit/stats/stats.h"

/* Blocks in which head-by-head matrices of (H d)^2 are kept: 1 of H d, or G of (H/G) d above 2048 dims. */
void mla_metric_blocks(size_t H, size_t G, size_t d, size_t *blocks, size_t *dim);

/* WW (blocks, dim, dim) = W_O^T W_O from wo (D, H d) f32, fp64 sums. */
MLA_CHECKED mla_status mla_metric_wo_gram(double *WW, const float *wo, size_t D, const mla_layer_stats *l, mla_err *err);

/* F in place: WW[i] *= GG[i] / tokens when the layer is gated. */
void mla_metric_gate(double *WW, const mla_layer_stats *l);

/* L (G d, G d) from F; cross-group parts are zero when blocks > 1. */
void mla_metric_value(double *L, const double *F, const mla_layer_stats *l);

/* R (d, d): symmetric square root of F_hh (negative rounding errors clipped to 0), from wo (D, H d) f32 and the gate moments of l
 * alone. Head by head it takes H d^2 D products where all of F takes H d dim D. Several threads may call it at once. */
MLA_CHECKED mla_status mla_metric_root(double *R, const float *wo, size_t D, size_t h, const mla_layer_stats *l, mla_err *err);
#endif
