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

/* A few tokens with 16-bit products: y2 (T, out128) = x2 V, x2 (T, in128) transformed. */
bool trellis_few_fits(const Trellis *t, size_t T);
mla_status trellis_few(mla_cuda *c, const Trellis *t, const float *x2, float *y2, size_t T, mla_err *err);
#endif
