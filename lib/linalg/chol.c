/* Cholesky solve, column-major on the transposes. */
#include "linalg/chol.h"

#include <lapacke.h>

#include "base/alloc.h"
#include "linalg/gemm.h"

mla_status mla_chol_solve(double *a, size_t n, double *b, size_t m, mla_err *err)
{
    if (n == 0 || m == 0) return MLA_OK;
    mla_blas_pin();
    double *x = mla_alloc_raw(n, m, sizeof *x); /* column-major right-hand sides */
    if (!x) return mla_fail(err, MLA_ENOMEM, "solve of size %zu x %zu", n, m);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++) x[j * n + i] = b[i * m + j];
    mla_status st = MLA_OK;
    lapack_int rc = LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'L', (lapack_int)n, a, (lapack_int)n);
    if (rc == 0) rc = LAPACKE_dpotrs(LAPACK_COL_MAJOR, 'L', (lapack_int)n, (lapack_int)m, a, (lapack_int)n, x, (lapack_int)n);
    if (rc != 0) st = mla_fail(err, MLA_EFORMAT, "matrix of size %zu is not positive definite (pivot %d)", n, (int)rc);
    for (size_t i = 0; st == MLA_OK && i < n; i++)
        for (size_t j = 0; j < m; j++) b[i * m + j] = x[j * n + i];
    mla_free(x);
    return st;
}
