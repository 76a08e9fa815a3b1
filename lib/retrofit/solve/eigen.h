/* Where eigenproblems are solved: on a device from MLA_EIGEN_MIN values on, otherwise by the host's LAPACK (linalg/eigh.h). */
#ifndef MLA_RETROFIT_EIGEN_H
#define MLA_RETROFIT_EIGEN_H
#include <stddef.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"

#define MLA_EIGEN_MIN 512 /* smaller ones take the host less time than the way to a device and back */

typedef struct {     /* zeroed: the host */
    mla_backend *be;
    mla_log *log;    /* told when the device fails and the host solves instead; NULL: silent */
} mla_eigen;
/* As mla_eigh. A device that runs out of memory, does not converge or cannot prove its answer is replaced by the host. */
MLA_CHECKED mla_status mla_eigen_solve(const mla_eigen *e, double *a, double *w, size_t n, mla_err *err);
#endif
