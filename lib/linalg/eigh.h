/* Symmetric eigenproblem in fp64 with proof: residuals are checked against bounds derived from the arithmetic. */
#ifndef MLA_LINALG_EIGH_H
#define MLA_LINALG_EIGH_H
#include <stddef.h>

#include "base/err.h"

/* a (n,n) symmetric (the lower triangle in row-major order is read) -> row i of a = eigenvector i, w (n) ascending.
 * Sign: the component of largest magnitude is positive, the lowest index deciding ties. Deterministic for one BLAS
 * build and CPU: one BLAS thread. Refuses non-finite input (MLA_EINVAL); MLA_EINTERNAL when neither dsyevd nor dsyev
 * converges, or when ||A V - V W||_F > 64 n u ||A||_F or ||V'V - I||_F > 64 n u (u = 2^-53; LAPACK's own test
 * thresholds are 30-50 n u in such norms). */
MLA_CHECKED mla_status mla_eigh(double *a, double *w, size_t n, mla_err *err);
#endif
