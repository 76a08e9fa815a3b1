/* dsyevd on the trace-normalised matrix, dsyev when it does not converge, then the proof. */
#include "linalg/eigh.h"

#include <lapacke.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"

#define U 0x1p-53

/* Symmetric, so row-major and column-major are one; the caller's lower triangle is column-major's upper one. */
static mla_status solve(double *v, double *w, const double *a, size_t n, mla_err *err)
{
    memcpy(v, a, n * n * sizeof *v);
    lapack_int info = LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'U', (lapack_int)n, v, (lapack_int)n, w);
    if (info == LAPACK_WORK_MEMORY_ERROR) return mla_fail(err, MLA_ENOMEM, "eigenproblem of %zu: workspace", n);
    if (info == 0) return MLA_OK;
    memcpy(v, a, n * n * sizeof *v);
    info = LAPACKE_dsyev(LAPACK_COL_MAJOR, 'V', 'U', (lapack_int)n, v, (lapack_int)n, w);
    if (info == LAPACK_WORK_MEMORY_ERROR) return mla_fail(err, MLA_ENOMEM, "eigenproblem of %zu: workspace", n);
    if (info) return mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: neither dsyevd nor dsyev converges (info %d)", n, (int)info);
    return MLA_OK;
}

static double norm_f(const double *x, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++) s = fma(x[i], x[i], s);
    return sqrt(s);
}

/* Rows of v are eigenvectors. t: (n,n) scratch. */
static mla_status prove(const double *a, const double *v, const double *w, double *t, size_t n, mla_err *err)
{
    double tol = 64 * (double)n * U, na = norm_f(a, n * n);
    mla_dgemm(&(mla_dgemm_args){.M = n, .N = n, .K = n, .alpha = 1, .a = v, .b = a, .c = t, .lda = n, .ldb = n, .ldc = n});
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) t[i * n + j] -= w[i] * v[i * n + j];
    double res = norm_f(t, n * n);
    mla_dgemm(&(mla_dgemm_args){.tb = true, .M = n, .N = n, .K = n, .alpha = 1, .a = v, .b = v, .c = t, .lda = n, .ldb = n, .ldc = n});
    for (size_t i = 0; i < n; i++) t[i * n + i] -= 1;
    double ortho = norm_f(t, n * n);
    if (res <= tol * na && ortho <= tol) return MLA_OK;
    return mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: residual %.3g of %.3g and orthogonality %.3g exceed %.3g", n, res, na, ortho, tol);
}

static void fix_signs(double *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double *r = v + i * n;
        size_t top = 0;
        for (size_t j = 1; j < n; j++)
            if (fabs(r[j]) > fabs(r[top])) top = j;
        if (r[top] < 0)
            for (size_t j = 0; j < n; j++) r[j] = -r[j];
    }
}

mla_status mla_eigh(double *a, double *w, size_t n, mla_err *err)
{
    mla_status st = MLA_OK;
    double *v = NULL, *t = NULL, trace = 0;
    int e = 0; /* the matrix is scaled by 2^-e: exact unless a value underflows next to a trace 2^1000 times larger */
    if (n == 0) return MLA_OK;
    if (n > 46340) return mla_fail(err, MLA_EUNSUPPORTED, "eigenproblem of %zu: at most 46340", n); /* n^2 fits lapack_int */
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            if (!isfinite(a[i * n + j])) return mla_fail(err, MLA_EINVAL, "eigenproblem of %zu: element (%zu, %zu) is not finite", n, i, j);
            a[j * n + i] = a[i * n + j];
        }
    v = mla_alloc_raw(n, n, sizeof *v);
    t = mla_alloc_raw(n, n, sizeof *t);
    if (!v || !t) {
        st = mla_fail(err, MLA_ENOMEM, "eigenproblem of %zu", n);
        goto done;
    }
    mla_blas_pin();
    for (size_t i = 0; i < n; i++) trace += fabs(a[i * n + i]);
    if (trace > 0 && isfinite(trace)) (void)frexp(trace / (double)n, &e);
    for (size_t i = 0; i < n * n; i++) a[i] = ldexp(a[i], -e);
    if ((st = solve(v, w, a, n, err)) != MLA_OK || (st = prove(a, v, w, t, n, err)) != MLA_OK) goto done;
    fix_signs(v, n);
    memcpy(a, v, n * n * sizeof *a);
    for (size_t i = 0; i < n; i++) w[i] = ldexp(w[i], e);
done:
    mla_free(v);
    mla_free(t);
    return st;
}
