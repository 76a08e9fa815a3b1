/* Symmetric eigenproblem in fp64 (LAPACK dsyevd, dsyev when that does not converge), checked before it is believed. */
#ifndef MLA_LINALG_EIGH_H
#define MLA_LINALG_EIGH_H
#include <stddef.h>

#include "base/err.h"

/* a (n,n) symmetric in (both triangles; the lower one is used); out: row i = eigenvector i, w (n) ascending.
 * Scaled by the largest entry before solving. Signs: the component of largest magnitude is positive, lowest index on
 * ties. Refused with MLA_EFORMAT when a is not finite; MLA_EINTERNAL when |A v - w v| or |V V^T - I| exceeds
 * 64 n u (n u |A|): a wrong decomposition never leaves this function. One thread. */
MLA_CHECKED mla_status mla_eigh(double *a, double *w, size_t n, mla_err *err);
#endif
