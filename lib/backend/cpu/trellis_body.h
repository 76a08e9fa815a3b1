/* EXL3 in registers: states from shifted words, values from the three computed codebooks, sixteen lanes at once; and the
 * 128-point Hadamard transform. Included by codes_body.h. Private to backend/cpu.
 *
 * A ring of 256 K bits is cut into 8 segments, one for each output column c % 8 of the 16 x 16 tile; a segment's 32 steps
 * hold rows and c / 8: step u = 8 (r % 8 / 2) + 4 (c / 8) + 2 (r / 8) + r % 2 gives row r. Lanes are the segments of two tiles. */
#ifndef MLA_BACKEND_CPU_TRELLIS_BODY_H
#define MLA_BACKEND_CPU_TRELLIS_BODY_H

#define TRELLIS_WORDS 9 /* words of a segment, and the one before it */

/* The words of one tile row: v[0] is what precedes a segment, around the ring */
MLA_VEC void trellis_words(v16i *v, const uint32_t *words, const mla_trellis_plan *p)
{
    for (size_t w = 0; w < p->words; w++) v[1 + w] = v16i_load(words + 16 * w);
    v[0] = v16i_turn8(v[p->words]);
}

/* f32 rounded to f16 precision: x 8193 splits off the low 13 bits, ties to even for every sum the codebooks make */
MLA_VEC v16 round_f16(v16 x)
{
    v16 t = v16_mul(x, v16_set(8193.0f));
    return v16_sub(t, v16_sub(t, x));
}

/* Halves of x as f16 numbers whose exponent starts with 011: (x & 0x8fff8fff) ^ 0x3b603b60, widened */
MLA_VEC v16 trellis_half(v16i x)
{
    return v16_from_bits(v16i_xor(v16i_and(v16i_sar(x, 3), v16i_set(0x81ffe000u)), v16i_set(0x3f6c0000u)));
}

MLA_VEC v16 trellis_value(const unsigned codebook, const v16i *v, const mla_trellis_step *s)
{
    v16i state = v16i_and(v16i_or(v16i_shl_by(v[s->high], s->left), v16i_shr_by(v[s->low], s->right)), v16i_set(0xffff));
    if (codebook == 2) { /* mul1: 1024 + the sum of bytes, times f16 0x1eee, plus f16 0xc931; exact but for the last rounding */
        v16 n = v16_from_int(v16i_sum_bytes(v16i_mul(state, v16i_set(0x83dcd12du))));
        return round_f16(v16_fma(n, v16_set(0x1.bb8p-8f), v16_set(1024 * 0x1.bb8p-8f - 0x1.4c4p+3f)));
    }
    v16i x = codebook == 1 ? v16i_mul(state, v16i_set(0xcbac1fedu)) : v16i_add(v16i_mul(state, v16i_set(89226354u)), v16i_set(64248484u));
    return round_f16(v16_add(trellis_half(v16i_shl(x, 16)), trellis_half(x)));
}

/* c (MLA_NR) = or += sums over 16 tile rows' inputs; outputs stand as lanes do: [0-7 | 16-23 | 8-15 | 24-31] */
MLA_VEC void trellis_gemv_of(const unsigned codebook, float *c, const float *x, const uint32_t *words, size_t tiles, const mla_trellis_plan *p, bool add)
{
    v16 acc[2] = {v16_set(0), v16_set(0)};
    v16i v[TRELLIS_WORDS + 1];
    for (size_t t = 0; t < tiles; t++, words += 16 * p->words, x += 16) {
        trellis_words(v, words, p);
        for (size_t r = 0; r < 16; r++) {
            v16 xk = v16_set(x[r]);
            acc[0] = v16_fma(xk, trellis_value(codebook, v, &p->step[r][0]), acc[0]);
            acc[1] = v16_fma(xk, trellis_value(codebook, v, &p->step[r][1]), acc[1]);
        }
    }
    for (size_t j = 0; j < 2; j++) {
        if (add) acc[j] = v16_fma(v16_load(c + 16 * j), v16_set(1.0f), acc[j]);
        v16_store(c + 16 * j, acc[j]);
    }
}

MLA_VEC void trellis_tile_of(const unsigned codebook, float *dst, const uint32_t *words, size_t tiles, const mla_trellis_plan *p)
{
    v16i v[TRELLIS_WORDS + 1];
    for (size_t t = 0; t < tiles; t++, words += 16 * p->words) {
        trellis_words(v, words, p);
        for (size_t r = 0; r < 16; r++, dst += MLA_NR) {
            v16_store(dst, trellis_value(codebook, v, &p->step[r][0]));
            v16_store(dst + 16, trellis_value(codebook, v, &p->step[r][1]));
        }
    }
}

static void row_trellis_gemv(float *c, const float *x, const uint32_t *words, size_t tiles, const mla_trellis_plan *p, bool add)
{
    if (p->codebook == 2) trellis_gemv_of(2, c, x, words, tiles, p, add);
    else if (p->codebook == 1) trellis_gemv_of(1, c, x, words, tiles, p, add);
    else trellis_gemv_of(0, c, x, words, tiles, p, add);
}

static void row_trellis_tile(float *dst, const uint32_t *words, size_t tiles, const mla_trellis_plan *p)
{
    if (p->codebook == 2) trellis_tile_of(2, dst, words, tiles, p);
    else if (p->codebook == 1) trellis_tile_of(1, dst, words, tiles, p);
    else trellis_tile_of(0, dst, words, tiles, p);
}

static void row_hadamard(float *x)
{
    static const float SIGN[4][16] = {{1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
                                      {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
                                      {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
                                      {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
    v16 v[8];
    MLA_UNROLL
    for (size_t i = 0; i < 8; i++) v[i] = v16_load(x + 16 * i);
    MLA_UNROLL
    for (size_t h = 1; h < 8; h *= 2) {
        MLA_UNROLL
        for (size_t i = 0; i < 8; i++) {
            if (i & h) continue;
            v16 a = v[i], b = v[i + h];
            v[i] = v16_add(a, b);
            v[i + h] = v16_sub(a, b);
        }
    }
    MLA_UNROLL
    for (unsigned l = 0; l < 4; l++) {
        v16 sign = v16_load(SIGN[l]);
        MLA_UNROLL
        for (size_t i = 0; i < 8; i++) v[i] = v16_fma(v[i], sign, v16_swap(v[i], 1u << l));
    }
    MLA_UNROLL
    for (size_t i = 0; i < 8; i++) v16_store(x + 16 * i, v[i]);
}
#endif
