/* EXL3 in registers: states shifted out of the rings, values from the three computed codebooks, thirty-two at a time; and
 * the 128-point Hadamard transform. Included by codes_body.h. Private to backend/cpu.
 *
 * A ring of 256 K bits is cut into 8 segments of 2 K halves (16 bits), one for each output column c % 8 of the 16 x 16 tile;
 * a segment's 32 steps hold rows and c / 8: step u = 8 (r % 8 / 2) + 4 (c / 8) + 2 (r / 8) + r % 2 gives row r. Lanes are the
 * segments of the four tiles of two panels, placed so that joining halves to 32-bit lanes gives the panels one after the
 * other (trellis.c, trellis_lane). Hashes are taken as low and high halves, since 16-bit lanes are twice as many.
 *
 * On the fast path the last rounding, to f16, is left out unless f16 arithmetic does it anyway: the sum of two f16 numbers is exact in
 * f32, mul1's value is rounded to f32, and either differs from the format's by at most 2^-11 of it, half an ulp of f16 (no value is
 * subnormal). That is a quarter of what rounding activations to bf16, which is left out as well, may change. */
#ifndef MLA_BACKEND_CPU_TRELLIS_BODY_H
#define MLA_BACKEND_CPU_TRELLIS_BODY_H
#include "backend/cpu/simd_u16.h"

typedef struct { /* states of a tile row: by c / 8, then by row */
    _Alignas(64) uint16_t s[2][16][32];
} trellis_states;

/* State of step u = the 16 bits before bit floor(K (u + 1)) of a segment, which may start in the segment before. */
MLA_VEC void states_of(const unsigned twice_k, trellis_states *t, const uint16_t *ring)
{
    for (size_t part = 0; part < VH_PARTS; part++, ring += VH_LANES) {
        vh before = vh_in_order(vh_turn(vh_load(ring + (size_t)32 * (twice_k - 1))));
        MLA_UNROLL
        for (unsigned i = 0; i < 32; i++) {
            unsigned h = i / 16, r = i % 16, u = 8 * (r % 8 / 2) + 4 * h + 2 * (r / 8) + r % 2;
            unsigned end = twice_k * (u + 1) / 2, at = end / 16, bits = end % 16;
            vh a = at ? vh_in_order(vh_load(ring + (size_t)32 * (at - 1))) : before;
            if (bits) a = vh_window(a, vh_in_order(vh_load(ring + (size_t)32 * at)), bits);
            vh_store(t->s[h][r] + part * VH_LANES, a);
        }
    }
}

static void trellis_states_of(trellis_states *t, const uint16_t *ring, unsigned twice_k)
{
#define STATES(n) \
    case n: states_of(n, t, ring); break;
    switch (twice_k) {
        STATES(2) STATES(3) STATES(4) STATES(5) STATES(6) STATES(7) STATES(8) STATES(10) STATES(12) STATES(14)
    default: states_of(16, t, ring); break;
    }
#undef STATES
}

/* A state times a constant mod 2^32 as its low and high halves; 3inst adds another one: low gets its top bit flipped then, so
 * that a signed comparison finds the carry. */
MLA_VEC void trellis_hash(const unsigned codebook, vh *low, vh *high, vh state)
{
    const uint32_t m = codebook == 2 ? 0x83dcd12du : codebook == 1 ? 0xcbac1fedu : 89226354u, plus = 64248484u;
    *low = vh_mul_low(state, vh_set(m & 0xffff));
    *high = vh_add(vh_mul_high(state, vh_set(m & 0xffff)), vh_mul_low(state, vh_set(m >> 16)));
    if (codebook) return;
    vh flipped = vh_set(0x8000 ^ (plus & 0xffff));
    *low = vh_add(*low, flipped);
    *high = vh_count_less(vh_add(*high, vh_set(plus >> 16)), *low, flipped);
}

#if defined(VH_F16)
/* Values of states: panel 0, panel 1. f16 sums and products round as the codebooks ask. */
MLA_VEC void trellis_values(const unsigned codebook, const bool unrounded, vf f[2], vh state)
{
    vh low, high, v;
    (void)unrounded;
    trellis_hash(codebook, &low, &high, state);
    if (codebook == 2) v = vh_f16_fma(vh_add(vh_add(vh_sum_bytes(low), vh_set(0x6400)), vh_sum_bytes(high)), vh_set(0x1eee), vh_set(0xc931));
    else
        v = vh_f16_add(vh_and_xor(low, vh_set(0x8fff), vh_set(codebook ? 0x3b60 : 0xbb60)), vh_and_xor(high, vh_set(0x8fff), vh_set(0x3b60)));
    f[0] = vf_widen0(v);
    f[1] = vf_widen1(v);
}
#else
/* x rounded to f16 precision, ties to even: 8193 x keeps 11 digits beside 8192 x, for every sum the codebooks make
 * (tests/backend/test_coded.c: every state). */
MLA_VEC vf round_f16(vf x) { return vf_fma(x, vf_set(-8192.0f), vf_mul(x, vf_set(8193.0f))); }

/* f16 numbers (h & 0x8fff) ^ 0x3b60, whose exponents start with 011, as f32: panel 0, panel 1. flip: of the sign. */
MLA_VEC void trellis_half(vf f[2], vh h, unsigned flip)
{
    vh top = vh_and_xor(vh_sar(h, 3), vh_set(0x81ff), vh_set(0x3f6c ^ flip)), low = vh_shl(h, 13);
    f[0] = vf_join0(low, top);
    f[1] = vf_join1(low, top);
}

/* Values of states: panel 0, panel 1. */
MLA_VEC void trellis_values(const unsigned codebook, const bool unrounded, vf f[2], vh state)
{
    vh low, high;
    trellis_hash(codebook, &low, &high, state);
    if (codebook == 2) { /* mul1: 1024 + the sum of bytes, times f16 0x1eee, plus f16 0xc931; exact but for the last rounding */
        vh n = vh_add(vh_sum_bytes(low), vh_sum_bytes(high)), top = vh_set(0x4b00); /* 2^23 + the sum */
        vf a = vf_set(0x1.bb8p-8f), b = vf_set(1024 * 0x1.bb8p-8f - 0x1.4c4p+3f - 0x1.bb8p+15f);
        f[0] = vf_fma(vf_join0(n, top), a, b);
        f[1] = vf_fma(vf_join1(n, top), a, b);
        if (!unrounded) f[0] = round_f16(f[0]), f[1] = round_f16(f[1]);
        return;
    }
    vf a[2], b[2];
    trellis_half(a, low, codebook == 0 ? 0x8000 : 0);
    trellis_half(b, high, 0);
    f[0] = vf_add(a[0], b[0]);
    f[1] = vf_add(a[1], b[1]);
    if (!unrounded) f[0] = round_f16(f[0]), f[1] = round_f16(f[1]);
}
#endif

/* acc (panel 0, panel 1; in place) += 16 inputs times the values of one tile row's states (16, 32; one part of them) */
MLA_VEC void trellis_rows(const unsigned codebook, const bool unrounded, float *acc0, float *acc1, const float *x, const uint16_t (*state)[32])
{
    vf a = vf_load(acc0), b = vf_load(acc1), f[2];
    for (size_t r = 0; r < 16; r++) {
        vf xk = vf_set(x[r]);
        trellis_values(codebook, unrounded, f, vh_load(state[r]));
        a = vf_fma(xk, f[0], a);
        b = vf_fma(xk, f[1], b);
    }
    vf_store(acc0, a);
    vf_store(acc1, b);
}

/* c (2, MLA_NR) = or += sums over tile rows' inputs; outputs of a panel stand as lanes do: [0-7 | 16-23 | 8-15 | 24-31] */
MLA_VEC void trellis_gemv_of(const unsigned codebook, const bool unrounded, float *c, const float *x, const uint16_t *ring, size_t tiles, const mla_trellis_plan *p, bool add)
{
    trellis_states t;
    float acc[2 * MLA_NR] = {0};
    for (size_t i = 0; i < tiles; i++, ring += (size_t)32 * p->twice_k, x += 16) {
        for (size_t half = 0; half < p->twice_k; half++) __builtin_prefetch((const char *)(ring + 32 * half) + 4096);
        trellis_states_of(&t, ring, p->twice_k);
        for (size_t h = 0; h < 2; h++)
            for (size_t part = 0; part < VH_PARTS; part++) {
                float *at = acc + 16 * h + part * VH_LANES / 2;
                trellis_rows(codebook, unrounded, at, at + MLA_NR, x, (const uint16_t(*)[32])(t.s[h][0] + part * VH_LANES));
            }
    }
    for (size_t j = 0; j < 2 * MLA_NR; j += 16) {
        v16 sum = v16_load(acc + j);
        if (add) sum = v16_fma(v16_load(c + j), v16_set(1.0f), sum);
        v16_store(c + j, sum);
    }
}

MLA_VEC void trellis_tile_of(const unsigned codebook, const bool unrounded, float *dst, const uint16_t *ring, size_t panel, size_t tiles, const mla_trellis_plan *p)
{
    trellis_states t;
    vf f[2];
    for (size_t i = 0; i < tiles; i++, ring += (size_t)32 * p->twice_k) {
        trellis_states_of(&t, ring, p->twice_k);
        for (size_t r = 0; r < 16; r++)
            for (size_t h = 0; h < 2; h++)
                for (size_t part = 0; part < VH_PARTS; part++, dst += VH_LANES / 2) {
                    trellis_values(codebook, unrounded, f, vh_load(t.s[h][r] + part * VH_LANES));
                    vf_store(dst, panel ? f[1] : f[0]);
                }
    }
}

#if defined(VH_F16)
#define UNROUNDED(call) call(false)
#else
#define UNROUNDED(call)              \
    if (p->unrounded) { call(true) } \
    else { call(false) }
#endif
static void row_trellis_gemv(float *c, const float *x, const uint16_t *ring, size_t tiles, const mla_trellis_plan *p, bool add)
{
#define GEMV(unrounded)                                                               \
    if (p->codebook == 2) trellis_gemv_of(2, unrounded, c, x, ring, tiles, p, add);      \
    else if (p->codebook == 1) trellis_gemv_of(1, unrounded, c, x, ring, tiles, p, add); \
    else trellis_gemv_of(0, unrounded, c, x, ring, tiles, p, add);
    UNROUNDED(GEMV)
#undef GEMV
}

static void row_trellis_tile(float *dst, const uint16_t *ring, size_t panel, size_t tiles, const mla_trellis_plan *p)
{
#define TILE(unrounded)                                                                 \
    if (p->codebook == 2) trellis_tile_of(2, unrounded, dst, ring, panel, tiles, p);      \
    else if (p->codebook == 1) trellis_tile_of(1, unrounded, dst, ring, panel, tiles, p); \
    else trellis_tile_of(0, unrounded, dst, ring, panel, tiles, p);
    UNROUNDED(TILE)
#undef TILE
}
#undef UNROUNDED

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
