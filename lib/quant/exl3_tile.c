/* EXL3: states from a tail-biting bit ring, values from three computed codebooks.
 *
 * Bits run MSB first inside u32 words (word w = u16[2w] | u16[2w+1] << 16). Step t adds D(t) bits: K, or for half-integer
 * K floor(K) plus bit t % 16 of 0xAAAA. The state after step t is the last 16 bits, around the ring of 256 K bits. */
#include "quant/exl3_tile.h"

#include "quant/parts.h"

/* Rounds an exact f32 sum to f16 precision, ties to even. Good for |x| < 2^15 whose f16 is normal or that f16 holds
 * exactly; both codebooks' sums are: multiples of 2^-13 or of 2^-18, below 16. */
static inline float round_f16(float x)
{
    uint32_t u = mla_f32_bits(x);
    return mla_bits_f32((u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu);
}

/* f16 bits of a normal number (the codebooks make no other), widened by moving the exponent. */
static inline float widen(uint32_t h) { return mla_bits_f32((h & 0x8000u) << 16 | ((h & 0x7fffu) + 0x1c000u) << 13); }

static inline float value_of(uint32_t s, mla_qcodebook codebook)
{
    if (codebook == MLA_QC_MUL1) {
        uint32_t x = s * 0x83dcd12du;
        float n = 1024.0f + (float)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)); /* f16 bits 0x6400 + sum */
        return round_f16(n * widen(0x1eee) + widen(0xc931)); /* product and sum are exact in f32: 22 bits */
    }
    uint32_t x = codebook == MLA_QC_MCG ? s * 0xcbac1fedu : s * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return round_f16(widen(x & 0xffff) + widen(x >> 16));
}

float mla_exl3_value(uint16_t state, mla_qcodebook codebook) { return value_of(state, codebook); }

/* The 256 states of a tile, in stream order. */
static void states_of(uint32_t *state, const void *stored, unsigned twice_k)
{
    uint32_t word[65];
    unsigned nwords = 4 * twice_k, nbits = 128 * twice_k, whole = twice_k / 2, half = twice_k & 1;
    for (unsigned w = 0; w < nwords; w++) word[w] = mla_qword(stored, w); /* little-endian: two u16 in order are one u32 */
    word[nwords] = word[0]; // cppcheck-suppress uninitvar ; twice_k >= 1: there are at least 4 words
    unsigned end = 0; /* S(t) */
    for (unsigned t = 0; t < 256; t++) {
        end += whole + (half & 0xAAAAu >> t % 16);
        unsigned p = end >= 16 ? end - 16 : end + nbits - 16;
        uint64_t two = (uint64_t)word[p / 32] << 32 | word[p / 32 + 1];
        state[t] = (uint32_t)(two >> (48 - p % 32)) & 0xffffu;
    }
}

void mla_exl3_tile(float *dst, size_t ld, const void *stored, unsigned twice_k, mla_qcodebook codebook)
{
    uint32_t state[256];
    float v[256];
    states_of(state, stored, twice_k);
    /* one loop per codebook, so that each is straight-line arithmetic over the tile */
    if (codebook == MLA_QC_MUL1) for (unsigned t = 0; t < 256; t++) v[t] = value_of(state[t], MLA_QC_MUL1);
    else if (codebook == MLA_QC_MCG) for (unsigned t = 0; t < 256; t++) v[t] = value_of(state[t], MLA_QC_MCG);
    else for (unsigned t = 0; t < 256; t++) v[t] = value_of(state[t], MLA_QC_3INST);
    for (unsigned l = 0; l < 32; l++) {
        float *d = dst + l % 4 * 2 * ld + l / 4;
        const float *s = v + 8 * l; /* stream index 8 l + j: row bits 0 and 3 from j, column bit 3 from j */
        d[0] = s[0], d[ld] = s[1], d[8 * ld] = s[2], d[9 * ld] = s[3];
        d[8] = s[4], d[ld + 8] = s[5], d[8 * ld + 8] = s[6], d[9 * ld + 8] = s[7];
    }
}
