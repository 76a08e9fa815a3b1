/* Other forms of given factors: the closed form's gauge (unit variances, coordinates in the order of what they add), and
 * factors rounded for storage. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/chol.h"
#include "linalg/eigh.h"
#include "linalg/gemm.h"
#include "retrofit/refine.h"
#include "tensor/fp.h"

/* With L L^T = E C E^T and V the eigenvectors of L^T D^T Lambda D L: E' = V^T L^-1 E, D' = D L V.
 * E (r, n), D (n, r) in fp64, in place; buf (n r + 2 r r). */
static mla_status regauge(double *E, double *D, const double *C, const double *Lambda, size_t n, size_t r, double *buf, mla_err *err)
{
    double *X = buf, *L = X + n * r, *M = L + r * r, *w = mla_alloc(r, 1, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "gauge of rank %zu", r);
    mla_dgemm(&(mla_dgemm_args){.M = r, .N = n, .K = n, .alpha = 1, .a = E, .lda = n, .b = C, .ldb = n, .c = X, .ldc = n});
    mla_dgemm(&(mla_dgemm_args){.tb = true, .M = r, .N = r, .K = n, .alpha = 1, .a = X, .lda = n, .b = E, .ldb = n, .c = L, .ldc = r});
    mla_status st = mla_chol(L, r, err);
    if (st != MLA_OK) {
        mla_free(w);
        return st;
    }
    for (size_t i = 0; i < r; i++) /* E := L^-1 E by forward substitution */
        for (size_t k = 0; k <= i; k++)
            for (size_t j = 0; j < n; j++) E[i * n + j] = k < i ? E[i * n + j] - L[i * r + k] * E[k * n + j] : E[i * n + j] / L[i * r + i];
    mla_dgemm(&(mla_dgemm_args){.M = n, .N = r, .K = r, .alpha = 1, .a = D, .lda = r, .b = L, .ldb = r, .c = X, .ldc = r});
    memcpy(D, X, n * r * sizeof *D);
    mla_dgemm(&(mla_dgemm_args){.M = n, .N = r, .K = n, .alpha = 1, .a = Lambda, .lda = n, .b = D, .ldb = r, .c = X, .ldc = r});
    mla_dgemm(&(mla_dgemm_args){.ta = true, .M = r, .N = r, .K = n, .alpha = 1, .a = D, .lda = r, .b = X, .ldb = r, .c = M, .ldc = r});
    for (size_t i = 0; i < r; i++)
        for (size_t j = 0; j < i; j++) M[i * r + j] = M[j * r + i] = 0.5 * (M[i * r + j] + M[j * r + i]);
    if ((st = mla_eigh(M, w, r, err)) == MLA_OK) {
        for (size_t i = 0; i < r; i++) memcpy(L + i * r, M + (r - 1 - i) * r, r * sizeof *L); /* L: eigenvectors, largest first */
        mla_dgemm(&(mla_dgemm_args){.M = r, .N = n, .K = r, .alpha = 1, .a = L, .lda = r, .b = E, .ldb = n, .c = X, .ldc = n});
        memcpy(E, X, n * r * sizeof *E);
        mla_dgemm(&(mla_dgemm_args){.tb = true, .M = n, .N = r, .K = r, .alpha = 1, .a = D, .lda = r, .b = L, .ldb = r, .c = X, .ldc = r});
        memcpy(D, X, n * r * sizeof *D);
    }
    mla_free(w);
    return st;
}

mla_status mla_refine_gauge(mla_factors *f, const mla_solution *s, mla_err *err)
{
    size_t n = f->n, r = f->r;
    double *E = mla_alloc_raw(3 * n + 2 * r, r, sizeof *E);
    if (!E) return mla_fail(err, MLA_ENOMEM, "gauge of layer %zu", s->layer);
    double *D = E + n * r;
    mla_status st = MLA_OK;
    for (size_t a = 0; st == MLA_OK && a < f->groups; a++) {
        float *Ef = f->E + a * r * n, *Df = f->D + a * n * r;
        for (size_t i = 0; i < r * n; i++) E[i] = Ef[i], D[i] = Df[i];
        mla_err why;
        st = regauge(E, D, s->C + a * n * n, s->Lambda + a * n * n, n, r, D + n * r, &why);
        if (st == MLA_EINVAL) { /* a coordinate without variance */
            st = MLA_OK;
            continue;
        }
        if (st != MLA_OK) *err = why;
        for (size_t i = 0; st == MLA_OK && i < r * n; i++) Ef[i] = (float)E[i], Df[i] = (float)D[i];
    }
    mla_free(E);
    return st;
}

/* D (n, r) := D (E C R^T) (R C R^T)^-1; buf (2 n r + 2 r r). */
static mla_status follow_encoder(double *D, const double *E, const double *R, const double *C, size_t n, size_t r, double *buf, mla_err *err)
{
    double *X = buf, *W = X + n * r, *A = W + n * r, *B = A + r * r;
    mla_dgemm(&(mla_dgemm_args){.tb = true, .M = n, .N = r, .K = n, .alpha = 1, .a = C, .lda = n, .b = R, .ldb = n, .c = X, .ldc = r});
    mla_dgemm(&(mla_dgemm_args){.M = r, .N = r, .K = n, .alpha = 1, .a = R, .lda = n, .b = X, .ldb = r, .c = A, .ldc = r});
    mla_dgemm(&(mla_dgemm_args){.M = r, .N = r, .K = n, .alpha = 1, .a = E, .lda = n, .b = X, .ldb = r, .c = B, .ldc = r});
    mla_status st = mla_chol(A, r, err);
    if (st == MLA_OK) st = mla_chol_solve(A, r, B, r, err); /* rows of E C R^T are right-hand sides */
    if (st != MLA_OK) return st;
    mla_dgemm(&(mla_dgemm_args){.M = n, .N = r, .K = r, .alpha = 1, .a = D, .lda = r, .b = B, .ldb = r, .c = W, .ldc = r});
    memcpy(D, W, n * r * sizeof *D);
    return MLA_OK;
}

mla_status mla_refine_round(mla_factors *out, const mla_factors *f, const mla_solution *s, bool bf16, mla_err *err)
{
    size_t n = f->n, r = f->r, all = f->groups * n * r;
    mla_status st = mla_factors_new(out, f->layout, f->groups, n, r, err);
    if (st != MLA_OK) return st;
    memcpy(out->E, f->E, all * sizeof *f->E);
    memcpy(out->D, f->D, all * sizeof *f->D);
    memcpy(out->mu, f->mu, f->groups * n * sizeof *f->mu);
    if (!bf16) return MLA_OK;
    double *D = mla_alloc_raw(5 * n + 2 * r, r, sizeof *D);
    if (!D) {
        mla_factors_free(out);
        return mla_fail(err, MLA_ENOMEM, "rounded factors of layer %zu", s->layer);
    }
    double *E = D + n * r, *R = E + n * r;
    for (size_t a = 0; a < f->groups; a++) {
        float *Eo = out->E + a * r * n, *Do = out->D + a * n * r;
        for (size_t i = 0; i < n * r; i++) {
            D[i] = Do[i];
            E[i] = Eo[i];
            R[i] = Eo[i] = mla_bf16_f32(mla_f32_bf16(Eo[i]));
        }
        (void)follow_encoder(D, E, R, s->C + a * n * n, n, r, R + n * r, NULL); /* refused: directions without energy keep D */
        for (size_t i = 0; i < n * r; i++) Do[i] = mla_bf16_f32(mla_f32_bf16((float)D[i]));
    }
    mla_free(D);
    return MLA_OK;
}
