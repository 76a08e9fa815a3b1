/* EXL3 matrices on the device: what trellis.cu and trellis_few.cu share. Private to cuda/. */
#ifndef MLA_CUDA_TRELLIS_CUH
#define MLA_CUDA_TRELLIS_CUH
#include <cuda_fp16.h>

#include "cuda/be.cuh"

struct Trellis {
    const uint8_t *tiles; /* (in128 / 16, out128 / 16, 16 twice_k bytes) */
    const float *su, *sv; /* (in128), (out128), sv over 128 */
    int in128, out128, twice_k, codebook;
};

enum { SIDE = 128 };

/* 128 values of a warp, four a lane (128-point order: lane 4 i .. 4 i + 3), transformed, unscaled. */
static __device__ __forceinline__ void hadamard(float (&v)[4])
{
    const int lane = threadIdx.x % 32;
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
#pragma unroll
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float o = __shfl_xor_sync(~0u, v[k], h);
            v[k] = lane & h ? o - v[k] : v[k] + o;
        }
}

/* A few tokens with 16-bit products, in trellis_few_room of scratch. */
bool trellis_few_fits(const mla_cuda *c, const Trellis *t, size_t T);
size_t trellis_few_room(const Trellis *t, size_t T);
mla_status trellis_few(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, char *room, mla_err *err);
/* a->y = sv H mid, mid (T, out128) the sum of (parts, T, out128) in order; bias, and what is there, as a says. */
mla_status trellis_out(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, const float *mid, size_t parts, mla_err *err);
#endif
