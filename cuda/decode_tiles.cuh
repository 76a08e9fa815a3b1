/* MLA decode for Hopper, products of a page: S from keys and queries, O from values and P, e4m3 widened on its way; factors and limits
 * of S's columns. */
#ifndef MLA_CUDA_DECODE_TILES_CUH
#define MLA_CUDA_DECODE_TILES_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "cuda/ptx.cuh"
#include "cuda/wgmma.cuh"

#ifdef MLA_HOPPER
static __device__ __forceinline__ int tok8(int g) { return g ^ ((g & 1) << 2); }

template <bool FP8> static __device__ __forceinline__ uint32_t pack2(float x, float y)
{
    if (FP8) {
        __half2 h = __floats2half2_rn(x, y);
        return *(uint32_t *)&h;
    }
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&h;
}
/* S += the box's keys times q over STEPS k-steps of 16; box and q: descriptor low words. bf16 box: 64 latents. */
template <int N, int STEPS, uint32_t GROUP = 1024>
static __device__ __forceinline__ void qk_bf16(float (&s)[N / 2], uint32_t box, uint32_t q)
{
#pragma unroll
    for (int k = 0; k < STEPS; k++) Wgmma<N>::template ss<false, 0>(s, wgmma_at<GROUP>(box, k * 32), wgmma_at(q, k * 32));
}

/* S += two token rows' raw bytes times q over STEPS k-steps: word k of a thread's 4 STEPS bytes feeds k-step k. Fragments
 * alternate between two register sets, so that one pair of wgmmas runs while the next is widened. */
template <int N, int STEPS>
static __device__ __forceinline__ void qk_fp8_row(float (&s)[N / 2], uint32_t (&a)[2][2][4], uint32_t lo, uint32_t hi, uint32_t q, bool first)
{
    uint32_t x[4], y[4];
    if (STEPS == 4) {
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(lo));
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(hi));
    } else {
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(lo));
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(hi));
    }
#pragma unroll
    for (int b = 0; b < STEPS / 2; b++) {
        if (STEPS == 2) wgmma_wait<0>();
        else if (!first) wgmma_wait<1>();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t u = x[2 * b + i], v = y[2 * b + i];
            e4m3x4_f16(a[b][i][0], a[b][i][2], u);
            e4m3x4_f16(a[b][i][1], a[b][i][3], v);
        }
        if (first && b == 0) wgmma_pin(s);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2; i++) Wgmma<N>::template rs<true>(s, a[b][i], wgmma_at(q, (2 * b + i) * 32));
        wgmma_commit();
    }
}

/* Bytes of a box of 128 latents for k-step ks (16 tokens, in the order of tok8), four latents of four tokens a thread. */
static __device__ __forceinline__ void pv_load(uint32_t (&v)[4], uint32_t box, int ks, int w, int g, int c)
{
    const uint32_t off = (g & 3) * 4, ch = 2 * w + (g >> 2);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int tk = tok8(2 * c + (e & 1)) + 8 * (e >> 1); /* within 16 tokens; 16 ks keeps the swizzle's phase */
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v[e]) : "r"(box + ks * 2048 + tk * 128 + ((ch ^ (tk & 7)) << 4) + off));
    }
}
/* acc (2 tiles of 64 latents) += box^T P^T for 16 tokens: bytes of token pairs are interleaved, then widened. */
static __device__ __forceinline__ void pv_frags(uint32_t (&a)[2][4], const uint32_t (&v)[4])
{
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t x = __byte_perm(v[0], v[1], u ? 0x7362 : 0x5140), y = __byte_perm(v[2], v[3], u ? 0x7362 : 0x5140);
        e4m3x4_f16(a[u][0], a[u][1], x);
        e4m3x4_f16(a[u][2], a[u][3], y);
    }
}

/* Over the 8 lanes g of a warp: the largest, or the sum. */
template <bool MAX> static __device__ __forceinline__ float2 over_rows(float2 y)
{
#pragma unroll
    for (int o = 4; o < 32; o <<= 1) {
        const float ax = __shfl_xor_sync(~0u, y.x, o), ay = __shfl_xor_sync(~0u, y.y, o);
        y.x = MAX ? fmaxf(y.x, ax) : y.x + ax;
        y.y = MAX ? fmaxf(y.y, ay) : y.y + ay;
    }
    return y;
}
/* A thread's sums of S, columns 8j + 2c + {0, 1}: times the columns' scales. */
template <int M> static __device__ __forceinline__ void scale_columns(float (&s)[M], const float *scales, int c)
{
#pragma unroll
    for (int j = 0; j < M / 4; j++) {
        const float2 k = ((const float2 *)scales)[4 * j + c];
        s[4 * j] *= k.x, s[4 * j + 1] *= k.y, s[4 * j + 2] *= k.x, s[4 * j + 3] *= k.y;
    }
}
/* Tokens at or beyond a column's limit take no part; s[4j] and s[4j + 1] are of `token`, the other two of the eighth after it. */
template <int M> static __device__ __forceinline__ void mask_columns(float (&s)[M], const int *limits, int c, int token)
{
#pragma unroll
    for (int j = 0; j < M / 4; j++) {
        const int2 k = ((const int2 *)limits)[4 * j + c];
        if (token >= k.x) s[4 * j] = -CUDART_INF_F;
        if (token >= k.y) s[4 * j + 1] = -CUDART_INF_F;
        if (token + 8 >= k.x) s[4 * j + 2] = -CUDART_INF_F;
        if (token + 8 >= k.y) s[4 * j + 3] = -CUDART_INF_F;
    }
}
#endif
#endif
