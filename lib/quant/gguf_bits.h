/* Where the fields of ggml blocks stand: shared by the decoders (gguf_blocks.c) and the codes (coded_gguf.c).
 * Inside the quant layer only. */
#ifndef MLA_QUANT_GGUF_BITS_H
#define MLA_QUANT_GGUF_BITS_H
#include <stdint.h>

#include "tensor/fp.h"

static inline uint16_t u16le(const unsigned char *b) { return (uint16_t)(b[0] | b[1] << 8); }
static inline uint32_t u32le(const unsigned char *b) { return u16le(b) | (uint32_t)u16le(b + 2) << 16; }
static inline float f16(const unsigned char *b) { return mla_f16_f32(u16le(b)); }
/* Nibble j of 16 bytes: low halves are values 0..15, high halves 16..31. */
static inline unsigned nibble(const unsigned char *q, unsigned j) { return q[j % 16] >> 4 * (j / 16) & 15u; }
/* Two-bit value j of 64 bytes: 32 bytes give four planes of 32 values, then the next 32 bytes. */
static inline unsigned crumb(const unsigned char *q, unsigned j) { return q[32 * (j / 128) + j % 32] >> 2 * (j % 128 / 32) & 3u; }

/* Six-bit scale and minimum of group k < 8 from the 12 bytes s. */
static inline void scale_min(const unsigned char *s, unsigned k, unsigned *sc, unsigned *mn)
{
    *sc = k < 4 ? s[k] & 63u : (s[k + 4] & 15u) | (unsigned)(s[k - 4] >> 6) << 4;
    *mn = k < 4 ? s[k + 4] & 63u : (unsigned)(s[k + 4] >> 4) | (unsigned)(s[k] >> 6) << 4;
}

/* Scale of group k < 16 of a Q3_K block from its 12 bytes s. */
static inline int q3_scale(const unsigned char *s, unsigned k)
{
    return (int)((s[k % 8] >> 4 * (k / 8) & 15u) + 16 * (s[8 + k % 4] >> 2 * (k / 4) & 3u)) - 32;
}

/* Scale of group k < 8 of an IQ4_XS block. */
static inline int iq4_scale(const unsigned char *b, unsigned k)
{
    return (int)((b[4 + k / 2] >> 4 * (k % 2) & 15u) + 16 * ((unsigned)u16le(b + 2) >> 2 * k & 3u)) - 32;
}

static const int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* MXFP4 of ggml: twice the e2m1 values times half the e8m0 scale. */
static const int8_t TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static inline float half_e8m0(unsigned char b) { return mla_bits_f32(b < 2 ? 0x00200000u << b : (uint32_t)(b - 1) << 23); }
#endif
