/* Hopper decode kernels built for latent 512. */
#include "cuda/decode_sm90.cuh"

#define K(N, RB, FP8, DROP) {512, N, RB, FP8, 1, DROP, (const void *)decode_sm90<512, N, RB, FP8, 1, DROP>}
extern const DecodeKernel mla_decode_k512[] = {
    K(16, 1, false, 0), K(16, 1, true, 0),
    K(24, 1, false, 0), K(24, 1, true, 0),
    K(32, 1, false, 0), K(32, 1, true, 0),
    K(48, 1, false, 0), K(48, 1, true, 0),
    K(64, 1, false, 0), K(64, 1, true, 0),
    K(24, 4, false, 0), K(24, 4, true, 0),
    K(48, 4, false, 0), K(48, 4, true, 0),
    {},
};
