/* Hopper decode kernels built for latent 512: page-sharing and row-splitting (decode_walk.cuh); more rows: decode_trio512.cu. */
#include "cuda/decode_walk.cuh"

#define SOLO(N, RB, FP8, NW) {512, N, RB, FP8, NW, NW, 1, (const void *)decode_solo<512, N, RB, FP8, NW, false, 1>}
#define ROWS(N, RB, FP8, NW) {512, N * NW, RB, FP8, NW, 1, 1, (const void *)decode_solo<512, N, RB, FP8, NW, true, 1>}
extern const DecodeKernel mla_decode_k512[] = {
    SOLO(16, 1, false, 2),
    SOLO(16, 1, true, 3),
    SOLO(24, 1, false, 2),
    SOLO(32, 1, false, 2),
    ROWS(32, 1, true, 2),
    SOLO(24, 4, false, 2),
    SOLO(24, 4, true, 3),
    ROWS(24, 4, false, 2),
    ROWS(24, 4, true, 2),
    {},
};
