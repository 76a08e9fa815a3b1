/* Row operations item by item, for kernels of their own (rows.cu) and beside the small layers of a recorded step (heads.cu): the
 * same bits. What others may have written in the same launch is read past L1. */
#ifndef MLA_CUDA_ROW_OPS_CUH
#define MLA_CUDA_ROW_OPS_CUH
#include <cuda_fp8.h>

#include "backend/backend.h"
#include "cuda/attn.cuh"

struct RowRope { /* an item: a pair; len != NULL: cos and sin begin at token 0, the T rows below len are taken */
    float *x;
    size_t ldx, heads, stride, half, T;
    const float *cs, *sn;
    const int32_t *len;
    __nv_bfloat16 *rounded; /* (T, heads, 2 half): the result once more; NULL: not */
};
struct RowKvWrite { /* an item: a value; len != NULL: the T tokens below it */
    AttnView v;
    const float *x;
    size_t ldx, width, pos0, T;
    const int32_t *len;
};
struct RowCopy { /* an item: a value of y (rows, d) */
    float *y;
    const float *x;
    size_t ldy, ldx, d;
};

static __device__ __forceinline__ void rope_item(const RowRope &p, size_t t, size_t h, size_t k)
{
    const size_t row = p.len ? (size_t)*p.len - p.T + t : t;
    float *v = p.x + t * p.ldx + h * p.stride;
    const float c = p.cs[row * p.half + k], s = p.sn[row * p.half + k], a = __ldcg(v + k), b = __ldcg(v + k + p.half), x = a * c - b * s, y = b * c + a * s;
    v[k] = x;
    v[k + p.half] = y;
    if (!p.rounded) return;
    __nv_bfloat16 *r = p.rounded + (t * p.heads + h) * 2 * p.half + k;
    r[0] = __float2bfloat16_rn(x), r[p.half] = __float2bfloat16_rn(y);
}
/* Where token t's row begins; a value of it, stored. */
static __device__ __forceinline__ size_t kv_row(const RowKvWrite &p, size_t t) { return view_row(p.v, 0, (long long)((p.len ? (size_t)*p.len - p.T : p.pos0) + t), 0); }
static __device__ __forceinline__ void kv_store(const AttnView &v, size_t at, float x)
{
    const float y = x / v.scale;
    if (v.dtype == MLA_F32) ((float *)v.data)[at] = y;
    else if (v.dtype == MLA_BF16) ((__nv_bfloat16 *)v.data)[at] = __float2bfloat16_rn(y);
    else ((uint8_t *)v.data)[at] = __nv_cvt_float_to_fp8(y, __NV_SATFINITE, __NV_E4M3);
}
static __device__ __forceinline__ float gated(float x, float gate) { return x * (1.f / (1.f + expf(-gate))); }

static inline RowRope row_rope(const mla_rope_args *a)
{
    return RowRope{(float *)a->x, a->ldx, a->heads, a->head_stride, a->rot / 2, a->T, (const float *)a->cos, (const float *)a->sin, a->at ? (const int32_t *)a->at->len : nullptr, nullptr};
}
static inline RowKvWrite row_kv_write(const mla_kv_write_args *a, const AttnView &v)
{
    return RowKvWrite{v, (const float *)a->x, a->ldx, a->width, a->pos0, a->T, a->at ? (const int32_t *)a->at->len : nullptr};
}
#endif
