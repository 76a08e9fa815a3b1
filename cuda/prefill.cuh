/* Causal prefill attention on Hopper's tensor cores: bf16 operands, fp32 sums and softmax, head width 256.
 *
 * o[t,h] = sum_s softmax(scale q[t,h] . k[s, h kh/H])_s v[s, h vh/H] over s <= pos0 + t. Keys are taken in blocks that start
 * at multiples of 80 from token 0 and a row's running maximum is its own, so a query's bits depend neither on the other
 * queries of the call nor on how a prompt is cut. */
#ifndef MLA_CUDA_PREFILL_CUH
#define MLA_CUDA_PREFILL_CUH
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "base/err.h"

enum { PREFILL_D = 256 };

struct PrefillP {
    const __nv_bfloat16 *q, *k, *v; /* (T, H, 256), (S, kh, 256), (S, vh, 256) dense, unused dims zero; S = pos0 + T */
    float *o;                       /* (T, H, dv), rows ldo apart; dv even, o 8-byte aligned, ldo even */
    float *lse;                     /* (T, H) natural log-sum-exp, or NULL */
    size_t T, pos0, H, kh, vh, dv, ldo;
    float scale;
};

/* Whether this device has the kernel. */
bool prefill_here(void);
mla_status prefill_run(const PrefillP *p, cudaStream_t stream, mla_err *err);
#endif
