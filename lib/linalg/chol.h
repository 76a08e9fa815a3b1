/* Cholesky factor and solve in fp64. */
#ifndef MLA_LINALG_CHOL_H
#define MLA_LINALG_CHOL_H
#include <stddef.h>

#include "base/err.h"

/* a (n,n) symmetric positive definite (lower triangle read) -> a = L, lower, with A = L L'; the upper triangle becomes 0.
 * MLA_EINVAL names the first leading minor that is not positive (or not finite). */
MLA_CHECKED mla_status mla_chol(double *a, size_t n, mla_err *err);
/* Rows of b (rows,n) are right-hand sides: row <- A^-1 row, with l from mla_chol. */
MLA_CHECKED mla_status mla_chol_solve(const double *l, size_t n, double *b, size_t rows, mla_err *err);
#endif
