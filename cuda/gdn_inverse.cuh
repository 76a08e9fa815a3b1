/* (I + A)^-1 of strictly lower A (64 x 64) in shared memory, by two warps: 16 x 16 blocks by substitution in fp32, then two rounds of
 * [[X, 0], [B, Y]]^-1 = [[X^-1, 0], [-Y^-1 B X^-1, Y^-1]] with tf32 products. */
#ifndef MLA_CUDA_GDN_INVERSE_CUH
#define MLA_CUDA_GDN_INVERSE_CUH
#include <stdint.h>

#include "cuda/ptx.cuh"

/* A matrix of 64 x 64 below its diagonal: three blocks of 32 x 32, the two on the diagonal and the one under the first; sizes that spread
 * what a warp reads and writes over the banks. */
enum { LD = 40, BLOCK = 32 * LD + 4, SECOND = BLOCK, BELOW = 2 * BLOCK, MATRIX = 3 * BLOCK };

#ifdef MLA_HOPPER
static __device__ __forceinline__ uint32_t tf32(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
/* d (16 M x 8 N) = a (16 M x 8 K) b (8 K x 8 N), both rows of LD. */
template <int M, int N, int K> static __device__ __forceinline__ void product(float (&d)[M][N][4], const float *a, const float *b)
{
    const int g = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) d[m][n][0] = d[m][n][1] = d[m][n][2] = d[m][n][3] = 0.f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        uint32_t x[M][4], y[N][2];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[m][e] = tf32(a[(16 * m + g + 8 * (e & 1)) * LD + 8 * k + c + 4 * (e >> 1)]);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) y[n][e] = tf32(b[(8 * k + c + 4 * e) * LD + 8 * n + g]);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
                asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(d[m][n][0]), "+f"(d[m][n][1]), "+f"(d[m][n][2]), "+f"(d[m][n][3])
                             : "r"(x[m][0]), "r"(x[m][1]), "r"(x[m][2]), "r"(x[m][3]), "r"(y[n][0]), "r"(y[n][1]));
    }
}
template <int M, int N> static __device__ __forceinline__ void put(float *to, const float (&d)[M][N][4], float by)
{
    const int g = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) *(float2 *)(to + (16 * m + g + 8 * e) * LD + 8 * n + 2 * c) = make_float2(by * d[m][n][2 * e], by * d[m][n][2 * e + 1]);
}
/* m: strictly lower A, zeros above it in its diagonal blocks -> (I + A)^-1. By two warps (z = 0 and 1) per value head, and the
 * whole block at the barriers; work: whether this warp has a head. */
static __device__ __forceinline__ void invert(float *m, int z, bool work)
{
    if (work) { /* a lane per column of the two 16 x 16 blocks on the diagonal of block z */
        const int col = threadIdx.x & 15;
        float *at = m + z * SECOND, *block = at + (threadIdx.x & 16) * (LD + 1), x[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float s = i == col ? 1.f : 0.f;
#pragma unroll
            for (int j = 0; j < i; j += 4) {
                const float4 r = *(const float4 *)(block + i * LD + j);
                const float row[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (j + e < i) s = fmaf(-row[e], x[j + e], s);
            }
            x[i] = s;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; i++) block[i * LD + col] = x[i];
        __syncwarp();
        float d[1][2][4], *below = at + 16 * LD; /* -Y^-1 B X^-1 in the place of B, 16 wide */
        product<1, 2, 2>(d, below, at);
        __syncwarp();
        put(below, d, 1.f);
        __syncwarp();
        product<1, 2, 2>(d, below + 16, below);
        __syncwarp();
        put(below, d, -1.f);
    }
    __syncthreads();
    float d[1][4][4], *mine = m + BELOW + 16 * z * LD; /* the same, 32 wide: a warp has 16 of the rows */
    if (work) {
        product<1, 4, 4>(d, mine, m);
        __syncwarp();
        put(mine, d, 1.f);
    }
    __syncthreads();
    if (work) product<1, 4, 4>(d, m + SECOND + 16 * z * LD, m + BELOW);
    __syncthreads();
    if (work) put(mine, d, -1.f);
}
#endif
#endif
