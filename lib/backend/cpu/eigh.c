/* Symmetric eigenproblem of the CPU backend: LAPACK through linalg. */
#include "backend/cpu/cpu.h"
#include "linalg/eigh.h"

mla_status mla_cpu_eigh(mla_backend *be, double *a, double *w, size_t n, mla_err *err)
{
    (void)be;
    return mla_eigh(a, w, n, err);
}
