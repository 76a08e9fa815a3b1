/* Hopper decode kernels built for latent 512 and many query rows (decode_trio.cuh). */
#include "cuda/decode_trio.cuh"

#define TRIO1(N) {512, N, 1, false, 3, TRIO, 0, 1, (const void *)decode_trio<512, N, false, 1>}
/* two blocks, half of the latents each */
#define TRIO2(N, FP8) {512, N, 1, FP8, 3, TRIO, 0, 2, (const void *)decode_trio<256, N, FP8, 2>}
extern const DecodeKernel mla_decode_trio512[] = {
    TRIO1(48),
    TRIO2(64, false),
    TRIO2(96, false),
    TRIO2(96, true),
    {},
};
