/* Other forms of given factors: the closed form's gauge (unit variances, coordinates in the order of what they add), and
 * factors rounded for storage. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/chol.h"
#include "linalg/wide.h"
#include "retrofit/solve/absorbed.h"
#include "retrofit/refine/refine.h"
#include "tensor/fp.h"

/* What the factors of group a are made for: the covariance of the features, decoded rows. */
typedef struct {
    const mla_solution *s;
    size_t a, n, nd, r;
    const double *C;
    mla_pool *pool;
} frame;

static frame frame_of(const mla_solution *s, const mla_factors *f, size_t a, mla_pool *pool)
{
    return (frame){.s = s, .a = a, .pool = pool, .n = f->n, .nd = f->nd, .r = f->r, .C = s->absorbed ? s->absorbed->C : s->C + a * f->n * f->n};
}

static void product(double *c, const double *m, const double *d, size_t rows, size_t r, mla_pool *pool)
{
    mla_dgemm_wide(&(mla_dgemm_args){.M = rows, .N = r, .K = rows, .alpha = 1, .a = m, .lda = rows, .b = d, .ldb = r, .c = c, .ldc = r}, pool);
}

/* X (nd, r) = metric of what is decoded, times D: Lambda; or each head's query metric and the values'. */
static void weigh(double *X, const double *D, const frame *fr)
{
    const mla_absorbed *ab = fr->s->absorbed;
    size_t r = fr->r;
    if (!ab) {
        product(X, fr->s->Lambda + fr->a * fr->n * fr->n, D, fr->n, r, fr->pool);
        return;
    }
    size_t d = ab->rot->d, keys = ab->rot->H * d;
    for (size_t h = 0; h < ab->rot->H; h++) product(X + h * d * r, ab->Q + h * d * d, D + h * d * r, d, r, fr->pool);
    for (size_t i = 0; i < keys * r; i++) X[i] *= ab->balance;
    product(X + keys * r, ab->L, D + keys * r, ab->rot->G * d, r, fr->pool);
}

/* With L L^T = E C E^T and V the eigenvectors of L^T D^T Lambda D L: E' = V^T L^-1 E, D' = D L V.
 * E (r, n), D (nd, r) in fp64, in place; buf (max(n, nd) r + 2 r r). */
static mla_status regauge(double *E, double *D, const frame *fr, const mla_eigen *eigen, double *buf, mla_err *err)
{
    size_t n = fr->n, nd = fr->nd, r = fr->r;
    double *X = buf, *L = X + (n > nd ? n : nd) * r, *M = L + r * r, *w = mla_alloc(r, 1, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "gauge of rank %zu", r);
    mla_dgemm_wide(&(mla_dgemm_args){.M = r, .N = n, .K = n, .alpha = 1, .a = E, .lda = n, .b = fr->C, .ldb = n, .c = X, .ldc = n}, fr->pool);
    mla_dgemm_wide(&(mla_dgemm_args){.tb = true, .M = r, .N = r, .K = n, .alpha = 1, .a = X, .lda = n, .b = E, .ldb = n, .c = L, .ldc = r}, fr->pool);
    mla_status st = mla_chol(L, r, err);
    if (st != MLA_OK) {
        mla_free(w);
        return st;
    }
    mla_lower_solve(E, L, r, n, fr->pool);
    mla_dgemm_wide(&(mla_dgemm_args){.M = nd, .N = r, .K = r, .alpha = 1, .a = D, .lda = r, .b = L, .ldb = r, .c = X, .ldc = r}, fr->pool);
    memcpy(D, X, nd * r * sizeof *D);
    weigh(X, D, fr);
    mla_dgemm_wide(&(mla_dgemm_args){.ta = true, .M = r, .N = r, .K = nd, .alpha = 1, .a = D, .lda = r, .b = X, .ldb = r, .c = M, .ldc = r}, fr->pool);
    for (size_t i = 0; i < r; i++)
        for (size_t j = 0; j < i; j++) M[i * r + j] = M[j * r + i] = 0.5 * (M[i * r + j] + M[j * r + i]);
    if ((st = mla_eigen_solve(eigen, M, w, r, err)) == MLA_OK) {
        for (size_t i = 0; i < r; i++) memcpy(L + i * r, M + (r - 1 - i) * r, r * sizeof *L); /* L: eigenvectors, largest first */
        mla_dgemm_wide(&(mla_dgemm_args){.M = r, .N = n, .K = r, .alpha = 1, .a = L, .lda = r, .b = E, .ldb = n, .c = X, .ldc = n}, fr->pool);
        memcpy(E, X, n * r * sizeof *E);
        mla_dgemm_wide(&(mla_dgemm_args){.tb = true, .M = nd, .N = r, .K = r, .alpha = 1, .a = D, .lda = r, .b = L, .ldb = r, .c = X, .ldc = r}, fr->pool);
        memcpy(D, X, nd * r * sizeof *D);
    }
    mla_free(w);
    return st;
}

mla_status mla_refine_gauge(mla_factors *f, const mla_solution *s, mla_pool *pool, const mla_eigen *eigen, mla_err *err)
{
    size_t n = f->n, nd = f->nd, r = f->r;
    double *E = mla_alloc_raw(n + nd + (n > nd ? n : nd) + 2 * r, r, sizeof *E);
    if (!E) return mla_fail(err, MLA_ENOMEM, "gauge of layer %zu", s->layer);
    double *D = E + n * r;
    mla_status st = MLA_OK;
    for (size_t a = 0; st == MLA_OK && a < f->groups; a++) {
        float *Ef = f->E + a * r * n, *Df = f->D + a * nd * r;
        frame fr = frame_of(s, f, a, pool);
        for (size_t i = 0; i < r * n; i++) E[i] = Ef[i];
        for (size_t i = 0; i < r * nd; i++) D[i] = Df[i];
        mla_err why;
        st = regauge(E, D, &fr, eigen, D + nd * r, &why);
        if (st == MLA_EINVAL) { /* a coordinate without variance */
            st = MLA_OK;
            continue;
        }
        if (st != MLA_OK) *err = why;
        for (size_t i = 0; st == MLA_OK && i < r * n; i++) Ef[i] = (float)E[i];
        for (size_t i = 0; st == MLA_OK && i < r * nd; i++) Df[i] = (float)D[i];
    }
    mla_free(E);
    return st;
}

/* D (nd, r) := D (E C R^T) (R C R^T)^-1; buf (n r + nd r + 2 r r). */
static mla_status follow_encoder(double *D, const double *E, const double *R, const frame *fr, double *buf, mla_err *err)
{
    size_t n = fr->n, nd = fr->nd, r = fr->r;
    double *X = buf, *W = X + n * r, *A = W + nd * r, *B = A + r * r;
    mla_dgemm_wide(&(mla_dgemm_args){.tb = true, .M = n, .N = r, .K = n, .alpha = 1, .a = fr->C, .lda = n, .b = R, .ldb = n, .c = X, .ldc = r}, fr->pool);
    mla_dgemm_wide(&(mla_dgemm_args){.M = r, .N = r, .K = n, .alpha = 1, .a = R, .lda = n, .b = X, .ldb = r, .c = A, .ldc = r}, fr->pool);
    mla_dgemm_wide(&(mla_dgemm_args){.M = r, .N = r, .K = n, .alpha = 1, .a = E, .lda = n, .b = X, .ldb = r, .c = B, .ldc = r}, fr->pool);
    mla_status st = mla_chol(A, r, err);
    if (st == MLA_OK) st = mla_chol_solve_wide(A, r, B, r, fr->pool, err); /* rows of E C R^T are right-hand sides */
    if (st != MLA_OK) return st;
    mla_dgemm_wide(&(mla_dgemm_args){.M = nd, .N = r, .K = r, .alpha = 1, .a = D, .lda = r, .b = B, .ldb = r, .c = W, .ldc = r}, fr->pool);
    memcpy(D, W, nd * r * sizeof *D);
    return MLA_OK;
}

mla_status mla_refine_round(mla_factors *out, const mla_factors *f, const mla_solution *s, bool bf16, mla_pool *pool, mla_err *err)
{
    size_t n = f->n, nd = f->nd, r = f->r;
    mla_status st = mla_factors_copy(out, f, err);
    if (st != MLA_OK || !bf16) return st;
    double *D = mla_alloc_raw(3 * n + 2 * nd + 2 * r, r, sizeof *D);
    if (!D) {
        mla_factors_free(out);
        return mla_fail(err, MLA_ENOMEM, "rounded factors of layer %zu", s->layer);
    }
    double *E = D + nd * r, *R = E + n * r;
    for (size_t a = 0; a < f->groups; a++) {
        float *Eo = out->E + a * r * n, *Do = out->D + a * nd * r;
        frame fr = frame_of(s, f, a, pool);
        for (size_t i = 0; i < nd * r; i++) D[i] = Do[i];
        for (size_t i = 0; i < n * r; i++) {
            E[i] = Eo[i];
            R[i] = Eo[i] = mla_bf16_f32(mla_f32_bf16(Eo[i]));
        }
        mla_err why;
        (void)!follow_encoder(D, E, R, &fr, R + n * r, &why); /* refused: directions without energy keep D */
        for (size_t i = 0; i < nd * r; i++) Do[i] = mla_bf16_f32(mla_f32_bf16((float)D[i]));
    }
    mla_free(D);
    return MLA_OK;
}
