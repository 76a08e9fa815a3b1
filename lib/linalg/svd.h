/* Thin singular value decomposition in fp64, checked. For comparison methods and tests: the product's own route needs
 * only mla_eigh. */
#ifndef MLA_LINALG_SVD_H
#define MLA_LINALG_SVD_H
#include <stddef.h>

#include "base/err.h"

/* a (m,n) = u (m,k) diag(s (k), descending) vt (k,n), k = min(m,n), all row-major, a untouched. The component of largest
 * magnitude of every row of vt is positive (lowest index on ties). One BLAS thread. Refuses non-finite input
 * (MLA_EINVAL); MLA_EINTERNAL when neither dgesdd nor dgesvd converges, or when ||A - U S V'||_F > 64 max(m,n) u ||A||_F
 * or ||U'U - I||_F or ||V'V - I||_F > 64 max(m,n) u (u = 2^-53). */
MLA_CHECKED mla_status mla_svd(const double *a, size_t m, size_t n, double *u, double *s, double *vt, mla_err *err);
#endif
