/* Kernels whose warpgroups of O hold tiles of 64 latents x N query rows: what they write. */
#ifndef MLA_CUDA_DECODE_COLUMNS_CUH
#define MLA_CUDA_DECODE_COLUMNS_CUH
#include <cuda_bf16.h>

#ifdef MLA_HOPPER
/* Column n, times factor[n], to element rows[n] of `to` on, -1: nowhere; at(i, hi): where the thread's latents of tile i lie from
 * there, its first and its second eight. c: the lane's column pair. Short code: it runs once a sequence, from a cold instruction cache. */
template <bool F32, int N, int TILES, typename At>
static __device__ __forceinline__ void write_columns(const float (&acc)[TILES][N / 2], char *to, const long long *rows, const float *factor, int c, At at)
{
#pragma unroll
    for (int k = 0; k < N / 4; k++) {
        const int e = 4 * (k >> 1) + (k & 1), n = 8 * (k >> 1) + 2 * c + (k & 1);
        const long long begin = rows[n];
        const float f = factor[n];
        if (begin < 0) continue;
        char *row = to + begin * (F32 ? 4 : 2);
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int hi = 0; hi < 2; hi++) {
                const float y = acc[i][e + 2 * hi] * f;
                if (F32) ((float *)row)[at(i, hi)] = y;
                else ((__nv_bfloat16 *)row)[at(i, hi)] = __float2bfloat16_rn(y);
            }
    }
}
#endif
#endif
