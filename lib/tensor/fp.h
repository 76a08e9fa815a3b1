/* Bit-level conversions between f32 and the short float formats: the one copy of each in the toolkit.
 * All round to nearest, ties to even. bf16, f16 and e4m3 are subsets of f32, so widening is exact. */
#ifndef MLA_TENSOR_FP_H
#define MLA_TENSOR_FP_H
#include <stdint.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif

static inline uint32_t mla_f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float mla_bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

static inline float mla_bf16_f32(uint16_t h) { return mla_bits_f32((uint32_t)h << 16); }
static inline uint16_t mla_f32_bf16(float x)
{
    uint32_t u = mla_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u); /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float mla_f16_f32(uint16_t h);
uint16_t mla_f32_f16(float x); /* overflow gives infinity */

/* OCP FP8 e4m3fn: 1-4-3, bias 7, subnormals of 2^-9, max 448, 0x7f/0xff NaN, no infinity.
 * Narrowing rounds first, then saturates: finite and infinite values beyond 448 become +-448, NaN stays NaN. */
float mla_e4m3_f32(uint8_t b);
uint8_t mla_f32_e4m3(float x);

/* OCP E8M0 scale byte: 2^(b - 127); 0xff is NaN. */
static inline float mla_e8m0_f32(uint8_t b)
{
    return b == 0xff ? mla_bits_f32(0x7fc00000u) : b == 0 ? 0x1p-127f : mla_bits_f32((uint32_t)b << 23);
}

#ifdef __cplusplus
}
#endif
#endif
