/* Hopper decode kernels built for latent 1792: page-sharing, row-splitting and pair (decode_solo.cuh, decode_pair.cuh). */
#include "cuda/decode_pair.cuh"
#include "cuda/decode_solo.cuh"

#define SOLO(N, RB, FP8, NW) {1792, N, RB, FP8, NW, NW, 0, (const void *)decode_solo<1792, N, RB, FP8, NW, false>}
#define ROWS(N, RB, FP8, NW) {1792, N * NW, RB, FP8, NW, 1, 0, (const void *)decode_solo<1792, N, RB, FP8, NW, true>}
#define PAIR(N, RB, FP8, DROP) {1792, N, RB, FP8, 2, 0, DROP, (const void *)decode_pair<1792, N, RB, FP8, DROP>}
extern const DecodeKernel mla_decode_k1792[] = {
    PAIR(16, 1, false, 14),
    PAIR(16, 1, true, 0),
    PAIR(24, 1, false, 14),
    PAIR(24, 1, true, 0),
    {},
};
