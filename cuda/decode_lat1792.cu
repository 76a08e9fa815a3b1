/* Hopper decode kernels built for latent 1792: page-sharing, row-splitting and pair (decode_walk.cuh, decode_pair.cuh). */
#include "cuda/decode_pair.cuh"
#include "cuda/decode_walk.cuh"

#define SOLO(N, RB, FP8, NW) {1792, N, RB, FP8, NW, NW, 0, 1, (const void *)decode_solo<1792, N, RB, FP8, NW, false, 1>}
#define ROWS(N, RB, FP8, NW) {1792, N * NW, RB, FP8, NW, 1, 0, 1, (const void *)decode_solo<1792, N, RB, FP8, NW, true, 1>}
#define PAIR(N, RB, FP8, DROP) {1792, N, RB, FP8, 2, 0, DROP, 1, (const void *)decode_pair<1792, N, RB, FP8, DROP>}
/* two blocks, half of the latents each */
#define SOLO2(N, RB, NW) {1792, N, RB, false, NW, NW, 0, 2, (const void *)decode_solo<896, N, RB, false, NW, false, 2>}
extern const DecodeKernel mla_decode_k1792[] = {
    SOLO2(16, 1, 2),
    PAIR(16, 1, true, 0),
    SOLO2(24, 1, 2),
    PAIR(24, 1, true, 0),
    {},
};
