/* Hopper decode kernels built for e4m3 latents 512 (decode_trio.cuh). */
#include "cuda/decode_trio.cuh"

#define TRIO1(N) {512, N, 1, true, 4, TRIO, 1, (const void *)decode_trio<512, N>}
extern const DecodeKernel mla_decode_trio512[] = {
    TRIO1(24),
    TRIO1(32),
    TRIO1(48),
    {},
};
