/* The local problem of one attention layer on one row of tokens (a sequence from position 0): how far the layer's own output
 * moves when its cached keys and values go through factors, and the gradient of that with respect to E, D and mu (and Er, Rq).
 *
 * Queries, gates and features y are those of the original model. Per group a: c = E (y - mu), y^ = D c + mu. Keys of y^ are
 * rotated (rebuild), stand beside the exact rotary keys (N), or do so times the norm's gain over their own divisor (P); in layout
 * absorbed-rope a head's key is [K_h c | Er RoPE(k)] and its query [q | Rq RoPE(q)]; then, for query t and head h of KV head g,
 *   o^_th = sum_s softmax_s(scale q_th . k^_sg) v^_sg
 *   e_t   = sum_h W_h (gamma_th o (o^_th - o_th)),      loss = sum_t |e_t|^2 = sum_t a_t^T (W_O^T W_O) a_t
 * Gradients are the closed expressions of these lines read backwards: softmax, rotation (transposed), decoder, encoder.
 * Everything is f32 over one-threaded products; one row is one piece of work, so sums over rows in row order do not depend
 * on the number of threads. */
#ifndef MLA_RETROFIT_REFINE_LOCAL_H
#define MLA_RETROFIT_REFINE_LOCAL_H
#include <stddef.h>

#include "base/err.h"
#include "model/config.h"
#include "model/factors.h"

typedef struct {              /* one layer; arrays are borrowed */
    mla_layout layout;
    size_t H, G, d, rot, groups, n; /* n features per group */
    size_t max_T;
    float scale;              /* of the logits */
    const float *cos, *sin;   /* (max_T, rot/2), attention factor included */
    const float *WW;          /* (H d, H d) = W_O^T W_O */
    const float *gain;        /* (d - rot) layout P: gain of the keys' norm; NULL otherwise */
} mla_local;

typedef struct {              /* one row, dense f32 */
    size_t T;
    const float *q;           /* (T, H, d) rotated */
    const float *y;           /* (T, groups, n): each group's keys, then its values (factors.h) */
    const float *k_rot;       /* (T, G, rot) rotated keys, layouts N and P; NULL otherwise */
    const float *inv_rms;     /* (T, G) layout P: 1 over the divisor of each key; NULL otherwise */
    const float *gamma;       /* (T, H, d) sigmoid of the gate; NULL when ungated */
    const float *o;           /* (T, H, d) the original output before the gate */
    size_t phase, stride;     /* only queries phase, phase + stride, ... count; 0, 1: all */
} mla_local_row;

typedef struct mla_local_work mla_local_work; /* scratch of one worker */
/* For factors of r latent values per group and, in layout absorbed-rope, `rotary` rotary ones (else 0; targets need none). */
MLA_CHECKED mla_status mla_local_work_new(mla_local_work **out, const mla_local *p, size_t r, size_t rotary, mla_err *err);
void mla_local_work_free(mla_local_work *w); /* NULL is fine */

/* o (T, H, d) of the original layer from q, y (and k_rot): the target. Queries as above (stride 1). */
void mla_local_target(float *o, const mla_local *p, mla_local_work *w, const mla_local_row *row);

/* w (T): the weight of each token, sum_{h,t} p_ts^2, with attention as in mla_local_target. */
void mla_local_weights(double *w, const mla_local *p, mla_local_work *work, const mla_local_row *row);

/* sum_t |W_O (gamma o o_t)|^2: what losses are relative to. */
double mla_local_energy(const mla_local *p, mla_local_work *w, const mla_local_row *row);

/* Loss of f; grad NULL: loss alone. grad (E, D, mu, Er, Rq in the shapes of f) is overwritten with the loss's derivative; that
 * of Er and Rq is taken within the maps that commute with the rotation. */
double mla_local_loss(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f, mla_factors *grad);
#endif
