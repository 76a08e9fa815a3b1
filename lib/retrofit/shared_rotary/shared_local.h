/* The local problem of the shared-rotary layout on one row of text: how far the layer's output moves when its cached values
 * come from factors (model/shared.h), and the gradient of that with respect to all of them.
 *
 *   loss = sum_t |W_O (gamma_t o (o^_t - o_t))|^2,  o^ from c = E x, z = RoPE(KR x), K_h c, V_h c + mu_h, RoPE(Q2_h q)
 * Closed expressions read backwards (softmax, rotation transposed, maps); f32 over one-threaded products. One row is one
 * piece of work: sums over rows in row order do not depend on the number of threads. */
#ifndef MLA_RETROFIT_SHARED_LOCAL_H
#define MLA_RETROFIT_SHARED_LOCAL_H
#include <stddef.h>

#include "base/err.h"
#include "model/shared.h"
#include "retrofit/shared_rotary/shared_rows.h"

typedef struct {            /* borrowed */
    size_t G, max_T;
    float scale;
    const float *cos, *sin; /* (max_T, rot/2) */
    const float *WW;        /* (H d, H d) = W_O^T W_O */
} mla_shared_problem;

typedef struct mla_shared_work mla_shared_work;
MLA_CHECKED mla_status mla_shared_work_new(mla_shared_work **out, const mla_shared_problem *p, const mla_shared *shape, mla_err *err);
void mla_shared_work_free(mla_shared_work *w); /* NULL is fine */

/* Loss of s; *energy (may be NULL) the same with o^ = 0; grad (may be NULL, shapes of s) is overwritten. */
double mla_shared_loss(const mla_shared_problem *p, mla_shared_work *w, const mla_shared_row *row, const mla_shared *s, double *energy,
                       mla_shared *grad);
/* In place: the first `rot` dims of `heads` vectors `stride` apart in each of T rows ld apart turn by their position; back:
 * the transpose. */
void mla_shared_turn(const mla_shared_problem *p, float *x, const size_t shape[4] /* T, ld, heads, stride */, size_t rot, bool back);
#endif
