/* Hopper decode kernels built for latent 768: page-sharing and row-splitting (decode_walk.cuh). */
#include "cuda/decode_walk.cuh"

#define SOLO(N, RB, FP8, NW) {768, N, RB, FP8, NW, NW, 1, (const void *)decode_solo<768, N, RB, FP8, NW, false, 1>}
#define ROWS(N, RB, FP8, NW) {768, N * NW, RB, FP8, NW, 1, 1, (const void *)decode_solo<768, N, RB, FP8, NW, true, 1>}
extern const DecodeKernel mla_decode_k768[] = {
    SOLO(16, 1, false, 2),
    SOLO(16, 1, true, 2),
    SOLO(24, 1, false, 2),
    SOLO(24, 1, true, 2),
    ROWS(24, 1, false, 2),
    ROWS(24, 1, true, 2),
    SOLO(24, 4, false, 2),
    SOLO(24, 4, true, 2),
    {},
};
