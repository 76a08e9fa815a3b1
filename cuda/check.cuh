/* CUDA return codes become the toolkit's errors: what was attempted, then the runtime's own words. Launches that may come
 * early. */
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
/* Queues a kernel that begins with grid_wait (cuda/ptx.cuh), before which it touches nothing that others write: on Hopper
 * and later its blocks may be launched while the kernel before still runs. */
template <class... P, class... A>
static inline mla_status cu_early(const char *what, mla_err *err, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A... args)
{
    int dev = 0, major = 0;
    mla_status st = cu_ok(cudaGetDevice(&dev), what, err);
    if (!st) st = cu_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev), what, err);
    /* Blocks of two kernels share a multiprocessor only when both want it divided alike. */
    if (!st) st = cu_ok(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), what, err);
    if (st) return st;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid, cfg.blockDim = block, cfg.dynamicSmemBytes = shared, cfg.stream = stream;
    cfg.attrs = &early, cfg.numAttrs = major >= 9;
    return cu_ok(cudaLaunchKernelEx(&cfg, kernel, P(args)...), what, err);
}
#endif
