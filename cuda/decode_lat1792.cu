/* Hopper decode kernels built for latent 1792. */
#include "cuda/decode_sm90.cuh"

#define K(N, RB, FP8, DROP) {1792, N, RB, FP8, 1, DROP, (const void *)decode_sm90<1792, N, RB, FP8, 1, DROP>}
extern const DecodeKernel mla_decode_k1792[] = {
    K(16, 1, false, 14), K(16, 1, true, 0),
    K(24, 1, false, 14), K(24, 1, true, 0),
    {},
};
