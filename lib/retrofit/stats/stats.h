/* Statistics of one full-attention layer: everything the closed-form solution needs, as plain sums in fp64.
 *
 * Notation (one layer): H query heads, G KV heads, m = H/G, d head dim, dk = key dims that enter the latent (d - rot in
 * layouts N and P, d in rebuild), p softmax probabilities, gamma = sigmoid(gate) (1 when ungated), W_h the o_proj columns of
 * head h. Features y = [keys of all KV heads (G dk) | values of all KV heads (G d)], n = G (dk + d).
 *   w_s = sum_{h,t} p_ts^2                                   token weights
 *   wsum = sum w_s; sum = sum w_s (y_s - shift); C = sum w_s (y_s - shift)(y_s - shift)^T
 *   M_g = 1/d sum_{h in g} sum_{t,s} p_ts^2 |R_h (v_s - o_t)|^2 q q^T      q in the key's frame, dims of dk
 *   in layout P of keys before their norm: q times the norm's gain, each token's term times 1 / rms_s^2
 * divisor_g = sum_s log2 rms of head g's key before its norm (layout P)
 *   kappa_hh' = sum_{t,s} p^h_ts p^h'_ts
 *   Q_h = 1/d sum_{t,s} p_ts^2 |R_h (v_s - o_t)|^2 q q^T, q before its rotation; only where keys in the latent turn
 *   turn_hf = sum_{t,s} p_ts^2 |R_h (v_s - o_t)|^2 |q_f|^2 (cos, sin, 1)(theta_f (s - t)), q_f the pair of frequency f; likewise
 *   GG = sum_t gamma_t gamma_t^T over heads (blocks: one of H d, or G of m d when H d is large)
 * R_h^T R_h = E[gamma_h gamma_h^T] o (W_h^T W_h) turns a value error into an error of the layer's output.
 * Sums of two runs add (after moving to one shift): statistics are mergeable. Sources: design notes, algorithms 7.1-7.3. */
#ifndef MLA_RETROFIT_STATS_H
#define MLA_RETROFIT_STATS_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/par.h"
#include "model/config.h"

typedef struct {
    size_t layer;
    size_t H, G, d, dk, n;
    size_t gate_blocks, gate_dim; /* GG: gate_blocks x (gate_dim, gate_dim); 0 blocks: ungated */
    size_t half;                  /* frequencies whose keys turn in the latent; 0 in layout N: no Q, no turn */
    double tokens, wsum;
    double *shift, *sum;          /* (n) */
    double *C;                    /* (n, n) */
    double *M;                    /* (G, dk, dk) */
    double *kappa;                /* (H, H) */
    double *GG;
    double *divisor;              /* (G) in layout P; NULL otherwise */
    double *Q;                    /* (H, dk, dk) */
    double *turn;                 /* (H, half, 3) */
} mla_layer_stats;

typedef struct {
    mla_layout layout;
    size_t layers;                /* full-attention layers, in depth order */
    mla_layer_stats *layer;
    bool plain;                   /* every token weighs 1 and M, kappa, GG stay zero: for the published objectives only */
    double tokens;                /* corpus tokens seen */
    size_t rows, row_tokens;
    unsigned char base_digest[32], corpus_digest[32];
} mla_stats;

/* The layout whose statistics serve `l`: whole keys before RoPE for rebuild, absorbed-rope and deepseek alike. */
mla_layout mla_stats_layout(mla_layout l);
/* Zeroed statistics shaped for the model and mla_stats_layout(layout); rot of the model decides dk. pool: who writes the zeros (gigabytes of
 * new memory at 16 layers of a 27B shape); NULL: one thread. */
MLA_CHECKED mla_status mla_stats_new(mla_stats *out, const mla_config *c, mla_layout layout, mla_pool *pool, mla_err *err);
/* Whether b is of the same layout, layers and shapes as a, and of the same kind of weights; MLA_EINVAL says what differs. */
MLA_CHECKED mla_status mla_stats_same_shape(const mla_stats *a, const mla_stats *b, mla_err *err);
void mla_stats_free(mla_stats *s); /* zeroed struct is fine */
void mla_stats_clear(mla_stats *s, mla_pool *pool); /* as mla_stats_new leaves it, in the memory that is there */
/* a += b. Both must have the same shapes; differing shifts are reconciled. The corpus digest becomes
 * sha256(a's digest | b's digest); a with no tokens yet takes b's digests. */
MLA_CHECKED mla_status mla_stats_merge(mla_stats *a, const mla_stats *b, mla_err *err);

/* Weighted mean (n) and covariance (n, n) of a layer. */
void mla_stats_mean(const mla_layer_stats *l, double *mu);
void mla_stats_cov(const mla_layer_stats *l, double *cov);

/* One array of a layer, for whoever stores or compares statistics: name, address, count. */
typedef struct {
    const char *name;
    double *data;
    size_t count;
} mla_stats_array;
#define MLA_STATS_ARRAYS 9
/* Allocates the arrays of a layer whose sizes are set, with no values yet; divisors: layout P. */
MLA_CHECKED mla_status mla_stats_alloc(mla_layer_stats *l, bool divisors, mla_err *err);
/* How many there are: two more where keys turn in the latent, one more (divisors) in layout P. */
size_t mla_stats_arrays(const mla_layer_stats *l, mla_stats_array out[MLA_STATS_ARRAYS]);
#endif
