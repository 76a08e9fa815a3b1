/* Device functions that the row operations and the kernels which take them in share, so that both give the same bits. */
#ifndef MLA_CUDA_ROWS_CUH
#define MLA_CUDA_ROWS_CUH
#include <cuda_bf16.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/ptx.cuh"

enum { ROW = 256, SHORT = 256 }; /* threads of a block that takes a row; values of a row that one warp takes */

/* Of the block's first ROW threads. */
static __device__ __forceinline__ double block_sum(double x)
{
    __shared__ double part[ROW / 32];
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    bar_sync(15, ROW);
    x = 0.0;
    for (int i = 0; i < ROW / 32; i++) x += part[i];
    bar_sync(15, ROW);
    return x;
}
static __device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }
/* The same where the result is rounded to bf16: within 2^-17 of itself down to x = -88. */
static __device__ __forceinline__ float silu_fast(float x) { return __fdividef(x, 1.f + exp2_fast(-1.44269504088896f * x)); }

/* Eight neighbouring bf16 values. */
static __device__ __forceinline__ void widen8(float (&v)[8], uint4 x)
{
    const uint32_t u[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 4; e++) v[2 * e] = __uint_as_float(u[e] << 16), v[2 * e + 1] = __uint_as_float(u[e] & 0xffff0000u);
}
static __device__ __forceinline__ uint4 round8(const float (&v)[8])
{
    uint32_t r[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * e], v[2 * e + 1]);
        r[e] = *(const uint32_t *)&two;
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
}

/* Eight neighbouring values from L2 (what an earlier kernel wrote while this one was being launched is not in L1). */
static __device__ __forceinline__ void load8(float (&v)[8], const float *x, bool vec)
{
    if (vec) {
        const float4 a = __ldcg((const float4 *)x), b = __ldcg((const float4 *)x + 1);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else
        for (int j = 0; j < 8; j++) v[j] = __ldcg(x + j);
}

/* Squares of eight values, summed in fp32; such sums are added in fp64. */
static __device__ __forceinline__ double square8(const float (&v)[8])
{
    float s = 0.f;
#pragma unroll
    for (int j = 0; j < 8; j++) s = fmaf(v[j], v[j], s);
    return (double)s;
}
/* From every thread's part of the sum of squares. */
static __device__ __forceinline__ float inv_rms(double s, size_t d, double eps) { return (float)rsqrt(block_sum(s) / (double)d + eps); }
/* 1 / rms of a row by ROW threads: thread i takes groups i, i + ROW, ... of eight values. */
static __device__ __forceinline__ float row_scale(const float *x, size_t d, double eps)
{
    const bool vec = (uintptr_t)x % 16 == 0;
    double s = 0.0;
#pragma unroll 4
    for (size_t i = threadIdx.x * (size_t)8; i + 8 <= d; i += ROW * 8) {
        float v[8];
        load8(v, x + i, vec);
        s += square8(v);
    }
    if (threadIdx.x == 0)
        for (size_t i = d / 8 * 8; i < d; i++) s = fma((double)__ldcg(x + i), (double)__ldcg(x + i), s);
    return inv_rms(s, d, eps);
}
#endif
