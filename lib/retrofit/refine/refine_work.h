/* Scratch of refine_local.c, and what refine_slots.c does of it: the heads' own keys and queries of layout absorbed-rope. */
#ifndef MLA_RETROFIT_REFINE_WORK_H
#define MLA_RETROFIT_REFINE_WORK_H
#include "retrofit/refine/attend.h"
#include "retrofit/refine/refine_local.h"

struct mla_local_work {
    size_t nd;  /* decoded values per group: n, or (H + G) d */
    size_t w;   /* rotary values, layout absorbed-rope; else 0 */
    float *P;   /* (H, Q, T) probabilities of Q queries, kept from forward to backward */
    float *S;   /* (MLA_HEAD_BLOCK, T) */
    float *Yc;  /* (T, groups, n) y - mu */
    float *Yh;  /* (T, groups, nd) decoded */
    float *dY;  /* (T, groups, nd) its derivative */
    float *c;   /* (T, groups, r) */
    float *dc;  /* its derivative */
    float *K;   /* (G, T, d) keys as attention sees them; absorbed-rope: (H, T, d + w) = [decoded | z] */
    float *dK;  /* (T, d + w) */
    float *o;   /* (Q, H, d) o^, then dL/do^ */
    float *A;   /* (Q, H, d) gamma o (o^ - o) */
    float *B;   /* (Q, H, d) A W_O^T W_O */
    float *Q;   /* absorbed-rope: (T, H, d + w) = [q unrotated | Rq q] */
    float *kr;  /* absorbed-rope: (T, G, d) rotated keys */
    float *z, *dz, *dq; /* absorbed-rope: (T, w), (T, w), (Q, w) */
};

static inline mla_span mla_local_span(const mla_local_row *row) { return (mla_span){row->T, row->phase, row->stride}; }

/* Rotates dims [0, rot) of x by position t's angle, or back (s = -1: the transpose, attention factor included). */
void mla_local_rotate(float *x, const mla_local *p, size_t t, float s);

/* kr, z, Q of a row, and K from Yh. */
void mla_slots_inputs(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f);
mla_head mla_slots_head(const mla_local *p, const mla_local_work *w, const mla_local_row *row, size_t h);
/* dY, and the gradients of Er and Rq, from dL/do^ in w->o. Er and Rq move only within the maps that commute with the rotation,
 * and only where they are not zero: every pair keeps its frequency. */
void mla_slots_back(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f, mla_factors *grad);
#endif
