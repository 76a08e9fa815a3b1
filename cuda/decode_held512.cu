/* Hopper decode kernels built for bf16 latents 512 and many query rows (decode_held.cuh). */
#include "cuda/decode_held.cuh"

#define HELD512(N) {512, N, 1, false, 3, HELD, 1, (const void *)decode_held<N, 1>, (const void *)decode_held<N, 2>}
extern const DecodeKernel mla_decode_held512[] = {
    HELD512(32),
    HELD512(48),
    {},
};
