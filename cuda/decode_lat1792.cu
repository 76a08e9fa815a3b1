/* Hopper decode kernels built for latent 1792: clusters and pairs (decode_walk.cuh, decode_pair.cuh). */
#include "cuda/decode_pair.cuh"
#include "cuda/decode_walk.cuh"

#define PAIR(N) {1792, N, 1, true, 2, 0, 1, (const void *)decode_pair<1792, N>}
/* two blocks, half of the latents each */
#define SOLO2(N) {1792, N, 1, false, 2, 2, 2, (const void *)decode_solo<896, N, 1, false, 2, false, 2>}
extern const DecodeKernel mla_decode_k1792[] = {
    SOLO2(16),
    PAIR(16),
    SOLO2(24),
    PAIR(24),
    {},
};
