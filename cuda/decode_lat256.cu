/* Hopper decode kernels built for latent 256: page-sharing and row-splitting (decode_walk.cuh). */
#include "cuda/decode_walk.cuh"

#define SOLO(N, RB, FP8, NW) {256, N, RB, FP8, NW, NW, 1, (const void *)decode_solo<256, N, RB, FP8, NW, false, 1>}
#define ROWS(N, RB, FP8, NW) {256, N * NW, RB, FP8, NW, 1, 1, (const void *)decode_solo<256, N, RB, FP8, NW, true, 1>}
extern const DecodeKernel mla_decode_k256[] = {
    SOLO(16, 1, false, 2),
    SOLO(16, 1, true, 3),
    SOLO(24, 1, false, 2),
    SOLO(24, 1, true, 3),
    SOLO(32, 1, false, 2),
    SOLO(32, 1, true, 3),
    SOLO(48, 1, false, 2),
    SOLO(48, 1, true, 2),
    SOLO(24, 4, false, 2),
    SOLO(24, 4, true, 3),
    ROWS(48, 1, false, 2),
    ROWS(48, 1, true, 2),
    {},
};
