/* Attention-weighted moments of one layer on one row of tokens (one sequence from position 0): token weights, the
 * query metric, head overlaps and gate moments of stats.h, added to a layer's sums.
 *
 * Cost per head: two (T,T,d) products beside the attention itself. With rotated key dims in the latent the query metric
 * needs every query in every key's frame: two keys are drawn per query by their weight, which is unbiased. Work is cut by head and by fixed tiles:
 * sums do not depend on the thread count. */
#ifndef MLA_RETROFIT_MOMENTS_H
#define MLA_RETROFIT_MOMENTS_H
#include <stddef.h>

#include "base/err.h"
#include "base/par.h"
#include "retrofit/stats/stats.h"

typedef struct {            /* host f32, dense */
    size_t T;
    const float *q, *q_rot; /* (T, H, d) */
    const float *k_rot;     /* (T, G, d) */
    const float *v;         /* (T, G, d) */
    const float *o;         /* (T, H, d) before the gate */
    const float *gate;      /* (T, H, d) pre-sigmoid; NULL when ungated */
    const float *inv2;      /* (T, G) layout P: 1 / rms^2 of every key before its norm; NULL otherwise */
} mla_row;

typedef struct {
    double attn_scale;
    size_t rot;              /* rotated dims per head */
    const double *inv_freq;  /* (rot/2) */
    const float *gain;       /* (dk) layout P: gain of the keys' norm on the latent's dims; NULL otherwise */
    double rope_gain;        /* attention_factor of the RoPE kind: in-frame queries carry it */
} mla_moment_opts;

typedef struct mla_moments mla_moments; /* scratch for rows of up to max_T tokens */
MLA_CHECKED mla_status mla_moments_new(mla_moments **out, const mla_layer_stats *shape, size_t max_T, mla_pool *pool, mla_err *err);
void mla_moments_free(mla_moments *m); /* NULL is fine */

/* Adds gate moments only (the short first pass that settles R). */
void mla_moments_gate(mla_moments *m, mla_layer_stats *l, const mla_row *row);

/* Adds M, kappa and GG; w (T) receives the token weights of this row. R (H, d, d): roots of the value metric. */
void mla_moments_add(mla_moments *m, mla_layer_stats *l, const mla_row *row, const double *R, const mla_moment_opts *o, double *w);
#endif
