/* The plain attention kernel: any shapes, any stored type, any architecture; one block per query and head.
 * Semantics of mla_attn_args (backend/backend.h), with a batch dimension for decode. */
#ifndef MLA_CUDA_ATTN_CUH
#define MLA_CUDA_ATTN_CUH
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "cuda/decode_dev.cuh"
#include "tensor/dtype.h"
#include "tensor/log2code.h"

struct AttnView {
    const void *data;
    const int32_t *pages;    /* device, (B, pages_stride); NULL: slot = token */
    long long pages_stride;
    long long row, col, head_stride;
    int page_tokens;
    mla_dtype dtype;         /* F32, BF16, F8_E4M3; divisors: F32, F16, U8 (tensor/log2code.h) */
    float scale;
};

struct AttnP {
    int B, T, H, dk, dk2, dv, kh, k2h, vh;
    DecodeRows q, q2, o;
    AttnView k, k2, v;
    AttnView div;            /* divisors of the first product (layout p), divh heads; divh 0: none */
    int divh;
    const float *qb;         /* added before it is divided, at q's strides; NULL: 0 */
    const int32_t *len;      /* device (B), tokens cached with the T new ones; NULL: pos0 + T */
    long long pos0;
    float scale;
    float *lse;              /* (B, T, H) or NULL */
};

/* Queues o (and lse). dv <= 2048. */
mla_status attn_plain(const AttnP *a, cudaStream_t stream, mla_err *err);
/* p2 (pos0 + T) f64 += sum over t and h of p^2, in the order t, h; lse from attn_plain of the same call, B = 1. */
mla_status attn_p2(const AttnP *a, double *p2, cudaStream_t stream, mla_err *err);
/* probs (H, T, pos0 + T): the probabilities, 0 after the query; lse as for attn_p2. */
mla_status attn_probs(const AttnP *a, float *probs, cudaStream_t stream, mla_err *err);

static __device__ __forceinline__ float e4m3_value(uint8_t b)
{
    const uint32_t e = (b >> 3) & 15, m = b & 7;
    const float v = (b & 0x7f) == 0x7f ? __int_as_float(0x7fc00000)
                  : e ? __int_as_float(((e + 120u) << 23) | (m << 20))
                      : (float)m * 0.001953125f;
    return b & 0x80 ? -v : v;
}
static __device__ __forceinline__ float view_value(const AttnView &v, size_t i)
{
    if (v.dtype == MLA_F32) return ((const float *)v.data)[i] * v.scale;
    if (v.dtype == MLA_BF16) return __bfloat162float(((const __nv_bfloat16 *)v.data)[i]) * v.scale;
    return e4m3_value(((const uint8_t *)v.data)[i]) * v.scale;
}
/* 1 over the divisor at element i. */
static __device__ __forceinline__ float view_inverse(const AttnView &v, size_t i)
{
    const float d = v.dtype == MLA_F32   ? ((const float *)v.data)[i]
                    : v.dtype == MLA_F16 ? __half2float(((const __half *)v.data)[i])
                                         : (float)exp2(((double)((const uint8_t *)v.data)[i] - MLA_LOG2_ONE) / MLA_LOG2_STEPS);
    return 1.f / d;
}
/* First element of token s, head `head`. */
static __device__ __forceinline__ size_t view_row(const AttnView &v, int b, long long s, int head)
{
    const long long slot = v.pages ? (long long)v.pages[b * v.pages_stride + s / v.page_tokens] * v.page_tokens + s % v.page_tokens : s;
    return (size_t)(slot * v.row + v.col + head * v.head_stride);
}
#endif
