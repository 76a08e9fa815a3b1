/* CUDA return codes become the toolkit's errors: what was attempted, then the runtime's own words. */
#ifndef MLA_CUDA_CHECK_CUH
#define MLA_CUDA_CHECK_CUH
#include <cuda_runtime.h>

#include "base/err.h"

static inline mla_status cu_ok(cudaError_t e, const char *what, mla_err *err)
{
    if (e == cudaSuccess) return MLA_OK;
    return mla_fail(err, e == cudaErrorMemoryAllocation ? MLA_ENOMEM : MLA_EINTERNAL, "%s: CUDA error %d, %s", what, (int)e,
                    cudaGetErrorString(e));
}
#endif
