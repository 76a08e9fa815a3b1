/* dpotrf and dpotrs: a row-major lower triangle is a column-major upper one, rows of b are columns of LAPACK's B. */
#include "linalg/chol.h"

#include <lapacke.h>

#include "linalg/gemm.h"

#define MAX_DIM 46340 /* squares fit lapack_int */

mla_status mla_chol(double *a, size_t n, mla_err *err)
{
    if (n > MAX_DIM) return mla_fail(err, MLA_EUNSUPPORTED, "Cholesky factor of %zu: at most %d", n, MAX_DIM);
    if (n == 0) return MLA_OK;
    mla_blas_pin();
    lapack_int info = LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'U', (lapack_int)n, a, (lapack_int)n);
    if (info > 0) return mla_fail(err, MLA_EINVAL, "Cholesky factor of %zu: leading minor %d is not positive", n, (int)info);
    if (info < 0) return mla_fail(err, MLA_EINVAL, "Cholesky factor of %zu: the matrix has values that are not finite", n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) a[i * n + j] = 0;
    return MLA_OK;
}

mla_status mla_chol_solve(const double *l, size_t n, double *b, size_t rows, mla_err *err)
{
    if (n > MAX_DIM || rows > MAX_DIM) return mla_fail(err, MLA_EUNSUPPORTED, "Cholesky solve of %zu for %zu rows: at most %d", n, rows, MAX_DIM);
    if (n == 0 || rows == 0) return MLA_OK;
    mla_blas_pin();
    lapack_int info = LAPACKE_dpotrs(LAPACK_COL_MAJOR, 'U', (lapack_int)n, (lapack_int)rows, l, (lapack_int)n, b, (lapack_int)n);
    if (info) return mla_fail(err, MLA_EINVAL, "Cholesky solve of %zu: the operands have values that are not finite", n);
    return MLA_OK;
}
