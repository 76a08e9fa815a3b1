/* Solving with a symmetric positive definite matrix (LAPACK dpotrf, dpotrs). */
#ifndef MLA_LINALG_CHOL_H
#define MLA_LINALG_CHOL_H
#include <stddef.h>

#include "base/err.h"

/* b (n, m), row-major, becomes a^-1 b; a (n,n) is overwritten by its factor. MLA_EFORMAT when a is not positive definite. */
MLA_CHECKED mla_status mla_chol_solve(double *a, size_t n, double *b, size_t m, mla_err *err);
#endif
