/* The device first, the host when it is small or the device cannot. */
#include "retrofit/solve/eigen.h"

#include "linalg/eigh.h"

mla_status mla_eigen_solve(const mla_eigen *e, double *a, double *w, size_t n, mla_err *err)
{
    if (!e->be || n < MLA_EIGEN_MIN) return mla_eigh(a, w, n, err);
    mla_status st = e->be->ops->eigh(e->be, a, w, n, err);
    if (st == MLA_OK || st == MLA_EINVAL) return st;
    mla_warn(e->log, "%s; solved on the host", err->msg);
    return mla_eigh(a, w, n, err);
}
