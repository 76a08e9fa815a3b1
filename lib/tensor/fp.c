/* f16 and e4m3 reference codecs, by integer arithmetic only, so that every machine gives the same bits. */
#include "tensor/fp.h"

float mla_f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31) return mla_bits_f32(sign | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0));
    if (e) return mla_bits_f32(sign | ((e + 112) << 23) | (m << 13));
    float v = (float)m * 0x1p-24f;
    return sign ? -v : v;
}

/* Rounds the float with the bits u, not negative, to `mbits` stored mantissa bits with the smallest exponent emin (subnormals below it).
 * Returns the value as an integer multiple of 2^q, q = max(exponent, emin) - mbits, ties to even. */
static uint32_t round_to(uint32_t u, int mbits, int emin, int *q)
{
    int field = (int)(u >> 23), e = field - 127 < emin ? emin : field - 127;
    uint32_t m = (u & 0x7fffffu) | (field ? 0x800000u : 0); /* x = m * 2^(max(field, 1) - 150) */
    *q = e - mbits;
    int away = *q - ((field ? field : 1) - 150);
    if (away > 25) return 0; /* below a quarter of 2^q */
    return (m + (1u << (away - 1)) - 1 + (m >> away & 1u)) >> away;
}

uint16_t mla_f32_f16(float x)
{
    uint32_t u = mla_f32_bits(x);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* >= 65520 rounds past the largest finite value */
    int q;
    uint32_t n = round_to(u, 10, -14, &q);
    /* n * 2^q with n in [0, 2048]; adding n to the exponent field carries a rounded-up mantissa along */
    uint32_t field = (uint32_t)(q + 10 + 14) << 10; /* exponent field minus one, for normals */
    return (uint16_t)(sign | (field + n));
}

float mla_e4m3_f32(uint8_t b)
{
    uint32_t e = (b >> 3) & 15u, m = b & 7u;
    float v;
    if (e == 15 && m == 7) return mla_bits_f32(0x7fc00000u | ((uint32_t)(b & 0x80u) << 24));
    v = e ? mla_bits_f32(((e + 120) << 23) | (m << 20)) : (float)m * 0x1p-9f;
    return b & 0x80u ? -v : v;
}

uint8_t mla_f32_e4m3(float x)
{
    uint32_t u = mla_f32_bits(x);
    uint8_t sign = (uint8_t)((u >> 24) & 0x80u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (u >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* >= 448 */
    int q;
    uint32_t n = round_to(u, 3, -6, &q);
    uint32_t code = ((uint32_t)(q + 3 + 6) << 3) + n;
    return (uint8_t)(sign | (code > 0x7eu ? 0x7eu : code));
}
