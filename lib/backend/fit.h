/* Operations that a local fit is made of (retrofit/refine/device.h): products of many matrices at once, strided copies, a causal
 * softmax and its derivative, sums of products, Adam. All on f32 in device memory unless said otherwise, row-major, strides in
 * elements; queued like every operation, the same bits every run.
 *
 * mla_fit_plain is the reference on host memory, one-threaded; the host's own fits (retrofit/refine) share its numeric cores.
 * This header is valid C++ and CUDA. */
#ifndef MLA_BACKEND_FIT_H
#define MLA_BACKEND_FIT_H
#include <math.h>

#include "backend/backend.h"
#ifdef __CUDACC__
#define MLA_ANYWHERE __host__ __device__
#else
#define MLA_ANYWHERE
#endif
#ifdef __cplusplus
extern "C" {
#endif

enum { MLA_FIT_PARTS = 8 };  /* rows of tokens side by side, at most */

typedef struct { /* C_i (M,N; ldc) = alpha op(A_i) op(B_i) + beta C_i for i < count; beta 0: C is not read */
    bool ta, tb;             /* op(A) is (M,K), stored (K,M) when ta; op(B) (K,N), stored (N,K) when tb */
    size_t M, N, K, count;
    float alpha, beta;
    const mla_mem *a, *b;
    mla_mem *c;
    size_t lda, ldb, ldc;
    size_t sa, sb, sc;       /* between matrices; 0: the same one every time (not c) */
} mla_product_args;

typedef struct { /* y[p][i][j][k] = x_p[i][j][k] for p < parts, i < n[0], j < n[1], k < n[2] */
    mla_mem *y;
    const mla_mem *x[MLA_FIT_PARTS];
    size_t rows[MLA_FIT_PARTS]; /* of part p: where j is not below it, y becomes 0 and x is not read */
    size_t parts, yp;        /* yp: between parts of y */
    size_t n[3], ys[3], xs[3];
    bool bf16, to16;         /* x holds bf16; y does, rounded to nearest, ties to even */
} mla_spread_args;

typedef struct { /* x (parts, heads, Q, T), logits -> probabilities, in place: query i of part p stands at token first[p] + i stride */
    mla_mem *x;              /* and keeps keys up to its own; later keys, and queries behind the T tokens, become 0 */
    size_t parts, heads, Q, T, stride, first[MLA_FIT_PARTS];
} mla_softmax_args;

typedef struct { /* one step from gradient g, all (n): adam.h says what it does */
    mla_mem *x, *m, *v;
    const mla_mem *g;
    size_t n;
    double rate, fix1, fix2; /* learning rate; 1 - beta^t of both moments */
} mla_adam_args;

typedef struct { /* g (count, w, cols) becomes its part within the maps that commute with a rotation of `rot` dims, where x is not 0 */
    mla_mem *g;
    const mla_mem *x;        /* the maps: rows (s, s + w/2) are a pair of rotary values, columns heads of d dims, pairs (j, j + rot/2) */
    size_t count, w, cols, d, rot;
} mla_commute_args;

typedef struct mla_fit_ops {
    mla_status (*product)(mla_backend *, const mla_product_args *, mla_err *);
    mla_status (*spread)(mla_backend *, const mla_spread_args *, mla_err *);
    /* y (rows, d; ld) *= row (rows) col (d) */
    mla_status (*scale)(mla_backend *, mla_mem *y, size_t ld, size_t rows, size_t d, const mla_mem *row, const mla_mem *col, mla_err *);
    mla_status (*softmax)(mla_backend *, const mla_softmax_args *, mla_err *);
    /* s (rows, T) = p o (s - rowsum(p o s)): from dL/dp of probabilities p to dL/dlogits */
    mla_status (*softmax_back)(mla_backend *, mla_mem *s, const mla_mem *p, size_t rows, size_t T, mla_err *);
    /* out, f64 (parts): sums of a o b over n elements of each part, in fp64 */
    mla_status (*dots)(mla_backend *, mla_mem *out, const mla_mem *a, const mla_mem *b, size_t parts, size_t n, mla_err *);
    mla_status (*adam)(mla_backend *, const mla_adam_args *, mla_err *);
    mla_status (*commute)(mla_backend *, const mla_commute_args *, mla_err *);
} mla_fit_ops;

extern const mla_fit_ops mla_fit_plain;

/* Causal softmax of one row of logits x (width): keys 0 to t; the rest becomes 0. */
void mla_softmax_causal(float *x, size_t t, size_t width);
/* dS = P o (dP - rowsum(P o dP)) over rows of n keys, ld apart, in place in S (dP on entry). */
void mla_softmax_back(float *S, const float *P, size_t rows, size_t n, size_t ld);
/* commute of one map (w, cols). */
void mla_commute(float *g, const float *x, size_t w, size_t cols, size_t d, size_t rot);

#define MLA_ADAM_BETA1 0.9
#define MLA_ADAM_BETA2 0.999
/* One parameter, its moments and its gradient. */
static inline MLA_ANYWHERE void mla_adam_move(float *x, float *m, float *v, float g, double rate, double fix1, double fix2)
{
    *m = (float)(MLA_ADAM_BETA1 * *m + (1 - MLA_ADAM_BETA1) * g);
    *v = (float)(MLA_ADAM_BETA2 * *v + (1 - MLA_ADAM_BETA2) * g * g);
    double s = sqrt(*v / fix2);
    if (s > 0) *x -= (float)(rate * (*m / fix1) / s);
}
/* The four entries of one pair of rows (im apart) and one pair of columns (y apart): (re x, re y; im x, im y) = (a, -b; b, a). */
static inline MLA_ANYWHERE void mla_commute_pair(float *g, const float *x, size_t im, size_t y)
{
    float a = 0.5f * (g[0] + g[im + y]), b = 0.5f * (g[im] - g[y]);
    if (x[0] == 0 && x[im] == 0) a = b = 0; /* another frequency */
    g[0] = g[im + y] = a;
    g[im] = b;
    g[y] = -b;
}

#ifdef __cplusplus
}
#endif
#endif
