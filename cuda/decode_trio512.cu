/* Hopper decode kernels built for latent 512 and many query rows, or e4m3 (decode_trio.cuh, decode_twin.cuh). */
#include "cuda/decode_trio.cuh"
#include "cuda/decode_twin.cuh"

#define TRIO1(N, FP8) {512, N, 1, FP8, 4, TRIO, 0, 1, (const void *)decode_trio<512, N, FP8, 1>}
#define TWIN2(N) {512, N, 1, false, 3, TWIN, 0, 2, (const void *)decode_twin<256, N, false, 2>}
extern const DecodeKernel mla_decode_trio512[] = {
    TRIO1(24, true),
    TRIO1(32, true),
    TRIO1(48, false),
    TRIO1(48, true),
    TWIN2(64),
    TWIN2(96),
    {},
};
