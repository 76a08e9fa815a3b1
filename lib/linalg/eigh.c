/* dsyevd with scaling, residual checks, a second algorithm, and canonical signs. */
#include "linalg/eigh.h"

#include <lapacke.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"

#define U64 0x1p-53

static void canonical_signs(double *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double *r = v + i * n;
        size_t best = 0;
        for (size_t j = 1; j < n; j++)
            if (fabs(r[j]) > fabs(r[best])) best = j;
        if (r[best] < 0)
            for (size_t j = 0; j < n; j++) r[j] = -r[j];
    }
}

/* Largest entries of V A - diag(w) V and V V^T - I; s, t: scratch (n,n). */
static void residuals(double *eig, double *orth, const double *V, const double *A, const double *w, size_t n, double *s)
{
    *eig = *orth = 0;
    mla_dgemm(false, false, n, n, n, 1, V, n, A, n, 0, s, n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double e = fabs(s[i * n + j] - w[i] * V[i * n + j]);
            if (!(e <= *eig)) *eig = e;
        }
    mla_dgemm(false, true, n, n, n, 1, V, n, V, n, 0, s, n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double e = fabs(s[i * n + j] - (i == j));
            if (!(e <= *orth)) *orth = e;
        }
}

mla_status mla_eigh(double *a, double *w, size_t n, mla_err *err)
{
    if (n == 0) return MLA_OK;
    mla_blas_pin();
    double big = 0, *A = mla_alloc_raw(2 * n, n, sizeof *A);
    if (!A) return mla_fail(err, MLA_ENOMEM, "eigenproblem of size %zu", n);
    double *s = A + n * n;
    mla_status st = MLA_OK;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double v = a[i * n + j];
            if (!isfinite(v)) {
                st = mla_fail(err, MLA_EFORMAT, "matrix of size %zu: entry (%zu, %zu) is not finite", n, i, j);
                goto done;
            }
            if (fabs(v) > big) big = fabs(v);
            A[i * n + j] = A[j * n + i] = v;
        }
    double scale = big > 0 ? big : 1;
    for (size_t i = 0; i < n * n; i++) A[i] /= scale;
    for (int attempt = 0; attempt < 2; attempt++) {
        memcpy(a, A, n * n * sizeof *a);
        /* symmetric: column-major and row-major are the same matrix; columns of V come out as our rows */
        lapack_int rc = attempt == 0 ? LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int)n, a, (lapack_int)n, w)
                                     : LAPACKE_dsyev(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int)n, a, (lapack_int)n, w);
        double eig = INFINITY, orth = INFINITY, bound = 64 * (double)n * U64;
        if (rc == 0) residuals(&eig, &orth, a, A, w, n, s);
        if (rc == 0 && eig <= bound * (double)n && orth <= bound) {
            for (size_t i = 0; i < n; i++) w[i] *= scale;
            canonical_signs(a, n);
            st = MLA_OK;
            break;
        }
        st = mla_fail(err, MLA_EINTERNAL, "eigenproblem of size %zu: LAPACK status %d, residual %.3g, orthogonality %.3g, bound %.3g", n,
                      (int)rc, eig, orth, bound);
    }
done:
    mla_free(A);
    return st;
}
