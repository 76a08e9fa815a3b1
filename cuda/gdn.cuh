/* One step of the gated delta rule for many sequences at once: the state is read and written once for T new tokens.
 * Heads of 128 x 128, state fp32; the same function as the backend's gdn (backend.h, mla_gdn_args), with a batch. */
#ifndef MLA_CUDA_GDN_CUH
#define MLA_CUDA_GDN_CUH
#include <cuda_runtime.h>

#include "base/err.h"

enum { GDN_D = 128 };

struct GdnStep {
    const float *qkv;             /* (B, T, (2 nk + nv) 128), after the convolution */
    const float *a, *b;           /* (B, T, nv) */
    const float *A_log, *dt_bias; /* (nv) */
    float *o;                     /* (B, T, nv, 128) */
    float *state;                 /* (B, nv, 128, 128), read and replaced */
    size_t B, T, nk, nv;
};
mla_status gdn_step(const GdnStep *p, cudaStream_t stream, mla_err *err);
#endif
