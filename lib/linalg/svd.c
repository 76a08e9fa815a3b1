/* dgesdd on the transposed view: a row-major (m,n) array is a column-major (n,m) one, so LAPACK's left factor is our
 * right one and nothing is transposed in memory. */
#include "linalg/svd.h"

#include <lapacke.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"

#define U 0x1p-53
#define MAX_DIM 46340 /* squares fit lapack_int */

static mla_status solve(double *t, const double *a, size_t m, size_t n, double *u, double *s, double *vt, mla_err *err)
{
    size_t k = m < n ? m : n;
    memcpy(t, a, m * n * sizeof *t);
    lapack_int info = LAPACKE_dgesdd(LAPACK_COL_MAJOR, 'S', (lapack_int)n, (lapack_int)m, t, (lapack_int)n, s, vt, (lapack_int)n, u, (lapack_int)k);
    if (info > 0) {
        double *superb = mla_alloc(k, 1, sizeof *superb);
        if (!superb) return mla_fail(err, MLA_ENOMEM, "svd (%zu, %zu)", m, n);
        memcpy(t, a, m * n * sizeof *t);
        info = LAPACKE_dgesvd(LAPACK_COL_MAJOR, 'S', 'S', (lapack_int)n, (lapack_int)m, t, (lapack_int)n, s, vt, (lapack_int)n, u,
                              (lapack_int)k, superb);
        mla_free(superb);
    }
    if (info == LAPACK_WORK_MEMORY_ERROR) return mla_fail(err, MLA_ENOMEM, "svd (%zu, %zu): workspace", m, n);
    if (info) return mla_fail(err, MLA_EINTERNAL, "svd (%zu, %zu): neither dgesdd nor dgesvd converges (info %d)", m, n, (int)info);
    return MLA_OK;
}

static double norm_f(const double *x, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++) s = fma(x[i], x[i], s);
    return sqrt(s);
}

/* ||Q'Q - I||_F of the k columns (or rows) of q; t (k,k) scratch */
static double off_orthogonal(const double *q, bool columns, size_t k, size_t n, double *t)
{
    mla_dgemm_args g = {.ta = columns, .tb = !columns, .M = k, .N = k, .K = n, .alpha = 1, .a = q, .b = q, .c = t,
                        .lda = columns ? k : n, .ldb = columns ? k : n, .ldc = k};
    mla_dgemm(&g);
    for (size_t i = 0; i < k; i++) t[i * k + i] -= 1;
    return norm_f(t, k * k);
}

/* t (m,n): scratch, at least (k,k) */
static mla_status prove(const double *a, size_t m, size_t n, const double *u, const double *s, const double *vt, double *t, mla_err *err)
{
    size_t k = m < n ? m : n;
    double tol = 64 * (double)(m > n ? m : n) * U, na = norm_f(a, m * n);
    double qu = off_orthogonal(u, true, k, m, t), qv = off_orthogonal(vt, false, k, n, t);
    double *us = mla_alloc_raw(m, k, sizeof *us);
    if (!us) return mla_fail(err, MLA_ENOMEM, "svd (%zu, %zu)", m, n);
    for (size_t i = 0; i < m * k; i++) us[i] = u[i] * s[i % k];
    memcpy(t, a, m * n * sizeof *t);
    mla_dgemm(&(mla_dgemm_args){.M = m, .N = n, .K = k, .alpha = -1, .beta = 1, .a = us, .b = vt, .c = t, .lda = k, .ldb = n, .ldc = n});
    mla_free(us);
    double res = norm_f(t, m * n);
    if (res <= tol * na && qu <= tol && qv <= tol) return MLA_OK;
    return mla_fail(err, MLA_EINTERNAL, "svd (%zu, %zu): residual %.3g of %.3g, orthogonality %.3g and %.3g exceed %.3g", m, n, res, na, qu, qv, tol);
}

static void fix_signs(double *u, double *vt, size_t m, size_t n, size_t k)
{
    for (size_t i = 0; i < k; i++) {
        double *r = vt + i * n;
        size_t top = 0;
        for (size_t j = 1; j < n; j++)
            if (fabs(r[j]) > fabs(r[top])) top = j;
        if (!(r[top] < 0)) continue;
        for (size_t j = 0; j < n; j++) r[j] = -r[j];
        for (size_t j = 0; j < m; j++) u[j * k + i] = -u[j * k + i];
    }
}

mla_status mla_svd(const double *a, size_t m, size_t n, double *u, double *s, double *vt, mla_err *err)
{
    mla_status st;
    if (m == 0 || n == 0) return mla_fail(err, MLA_EINVAL, "svd (%zu, %zu): empty", m, n);
    if (m > MAX_DIM || n > MAX_DIM) return mla_fail(err, MLA_EUNSUPPORTED, "svd (%zu, %zu): at most %d", m, n, MAX_DIM);
    for (size_t i = 0; i < m * n; i++)
        if (!isfinite(a[i])) return mla_fail(err, MLA_EINVAL, "svd (%zu, %zu): element (%zu, %zu) is not finite", m, n, i / n, i % n);
    double *t = mla_alloc_raw(m, n, sizeof *t);
    if (!t) return mla_fail(err, MLA_ENOMEM, "svd (%zu, %zu)", m, n);
    mla_blas_pin();
    if ((st = solve(t, a, m, n, u, s, vt, err)) == MLA_OK && (st = prove(a, m, n, u, s, vt, t, err)) == MLA_OK)
        fix_signs(u, vt, m, n, m < n ? m : n);
    mla_free(t);
    return st;
}
