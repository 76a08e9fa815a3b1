/* Kernels on packed codes (tensor/coded.h), written once on sixteen lanes and compiled by each variant: lanes are outputs,
 * every weight becomes the f32 number that its format defines and goes into the same chain of fused multiply-adds over k
 * as in tile_f32. So a product with packed weights has the bits of the product with the decoded matrix, in every variant.
 *
 * A panel of 32 outputs holds one or two planes of bits. Words of a plane stand (word, MLA_NR): word w of an output has the
 * next 32 / width codes of its row. Wider codes stand lowest first. Those of 4 bits and less stand so that one shift and one mask
 * give four codes of an octet as bytes: code i is in byte i / 2, above the codes of the word's octets before it and above code
 * i - 1 if i is odd. Loading some bytes further shifts all lanes: most codes need no shift.
 * Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_CODES_BODY_H
#define MLA_BACKEND_CPU_CODES_BODY_H
#include "backend/cpu/kernels.h"
#include "backend/cpu/simd_int.h"

/* Codes of width <= 4 bits, lane by lane: code i < 8 of octet o, in the low bits; what stands above it is garbage. The first of
 * two shifts depends on o and is the same for all codes of the octet. */
MLA_VEC v16i code_at(const unsigned width, const uint32_t *plane, size_t o, const unsigned i, size_t h)
{
    size_t n = 4 / width; /* octets of a word */
    unsigned odd = i % 2 * width;
    if (n > 1) return v16i_shr(v16i_shr(v16i_load(plane + o / n * MLA_NR + h), (unsigned)(o % n) * 2 * width), i / 2 * 8 + odd);
    v16i w = v16i_load((const char *)(plane + o * MLA_NR + h) + i / 2);
    return odd ? v16i_shr(w, odd) : w;
}

/* Byte i < 8 of octet o on top of every lane. */
MLA_VEC v16i top_byte(const uint32_t *plane, size_t o, const unsigned i, size_t h)
{
    return v16i_load((const char *)(plane + (o * 2 + i / 4) * MLA_NR + h) + i % 4 - 3);
}

MLA_VEC void touch_codes(const mla_code kind, const uint32_t *a, size_t o)
{
    size_t words = mla_code_bare(kind) ? 4 : kind == MLA_CODE_INT8 || kind == MLA_CODE_E4M3 ? 2 : 1;
    const char *at = (const char *)(a + o * words * MLA_NR) + MLA_AHEAD;
    for (size_t i = 0; i < words * MLA_NR * 4; i += 64) __builtin_prefetch(at + i);
}

/* The values of code i of octet o, outputs h .. h+15 */
MLA_VEC v16 code_value(const mla_code kind, const mla_code_block *q, const uint32_t *a, const uint32_t *b, v16_lut lo, v16_lut hi,
                       size_t o, const unsigned i, size_t h)
{
    (void)q;
    switch (kind) {
    case MLA_CODE_NIBBLE: return v16_look(lo, code_at(4, a, o, i, h));
    case MLA_CODE_NIBBLE_BIT: return v16_add(v16_look(lo, code_at(4, a, o, i, h)), v16_look(hi, code_at(1, b, o, i, h)));
    case MLA_CODE_NIBBLE_CRUMB: return v16_add(v16_look(lo, code_at(4, a, o, i, h)), v16_look(hi, code_at(2, b, o, i, h)));
    case MLA_CODE_CRUMB: return v16_look(lo, code_at(2, a, o, i, h));
    case MLA_CODE_CRUMB_BIT: return v16_add(v16_look(lo, code_at(2, a, o, i, h)), v16_look(hi, code_at(1, b, o, i, h)));
    case MLA_CODE_INT8: return v16_from_int(v16i_sar(top_byte(a, o, i, h), 24));
    case MLA_CODE_E4M3: /* sign, then the exponent's four bits and the mantissa where f32 has them: 2^-120 of the value */
        return v16_from_bits(v16i_and(v16i_sar(top_byte(a, o, i, h), 4), v16i_set(0x87f00000u)));
    case MLA_CODE_F16: { /* sign, exponent and mantissa where f32 has them: 2^-112 of the value */
        v16i w = v16i_load(a + (o * 4 + i / 2) * MLA_NR + h), top = i & 1 ? w : v16i_shl(w, 16);
        return v16_mul(v16_from_bits(v16i_and(v16i_sar(top, 3), v16i_set(0x8fffe000u))), v16_set(0x1p112f));
    }
    default: { /* BF16 */
        v16i w = v16i_load(a + (o * 4 + i / 2) * MLA_NR + h);
        return v16_from_bits(i & 1 ? v16i_and(w, v16i_set(0xffff0000u)) : v16i_shl(w, 16));
    }
    }
}

/* E4M3 whose exponent is 0: as 2^-120 of the value they would be subnormal f32, which some CPUs multiply a hundred times
 * slower. The same weight, bit for bit, by the value itself and the scale as it was (both exact): octets with such codes. */
MLA_VEC v16 subnormal_weight(const uint32_t *a, v16 s, size_t o, const unsigned i, size_t h)
{
    v16i t = top_byte(a, o, i, h), mag = v16i_shr(v16i_and(t, v16i_set(0x7f000000u)), 4);
    v16i none = v16i_none(v16i_and(t, v16i_set(0x78000000u))); /* all ones where the exponent is 0 */
    v16 normal = v16_from_bits(v16i_add(mag, v16i_set(120u << 23)));
    v16 small = v16_mul(v16_from_int(v16i_shr(v16i_and(t, v16i_set(0x07000000u)), 24)), v16_set(0x1p-9f));
    v16i bits = v16i_or(v16i_and(none, v16_bits(small)), v16i_andnot(none, v16_bits(normal)));
    v16 v = v16_from_bits(v16i_or(bits, v16i_and(t, v16i_set(0x80000000u))));
    return v16_mul(v, v16_mul(s, v16_set(0x1p-120f)));
}

MLA_VEC bool marked(const mla_code kind, const mla_code_block *q, size_t panel, size_t o)
{
    return kind == MLA_CODE_E4M3 && q->marks[panel * 4 * q->panel_words + o];
}

/* c (panels, MLA_NR) = or += sums over k of x times the weights of np panels; kind, np and offset are constants. */
MLA_VEC void gemv_of(const mla_code kind, const size_t np, const bool offset, float *c, const float *x, const mla_code_block *q, bool add)
{
    v16 acc[2 * MLA_CODE_PANELS], s[2 * MLA_CODE_PANELS], m[2 * MLA_CODE_PANELS];
    v16_lut lo = v16_lut_load(q->lo), hi = v16_lut_load(q->hi);
    MLA_UNROLL
    for (size_t j = 0; j < 2 * np; j++) acc[j] = s[j] = m[j] = v16_set(0);
    size_t o = 0, end = q->first / 8;
    for (size_t seg = 0; o < q->octets; seg++, end += q->seg / 8) {
        if (end > q->octets) end = q->octets;
        MLA_UNROLL
        for (size_t j = 0; j < 2 * np; j++) {
            if (mla_code_bare(kind)) continue;
            size_t at = (j / 2 * MLA_CODE_SEGS + seg) * MLA_NR + j % 2 * 16;
            s[j] = v16_load(q->s + at);
            if (offset) m[j] = v16_load(q->m + at);
        }
        for (; o < end; o++) {
            MLA_UNROLL
            for (size_t p = 0; p < np; p++) touch_codes(kind, q->a + p * q->panel_words, o);
            if (marked(kind, q, 0, o) || (np > 1 && marked(kind, q, 1, o))) {
                for (size_t i = 0; i < 8; i++) {
                    v16 xk = v16_set(x[8 * o + i]);
                    MLA_UNROLL
                    for (size_t j = 0; j < 2 * np; j++)
                        acc[j] = v16_fma(xk, subnormal_weight(q->a + j / 2 * q->panel_words, s[j], o, (unsigned)i, j % 2 * 16), acc[j]);
                }
                continue;
            }
            MLA_UNROLL
            for (unsigned i = 0; i < 8; i++) {
                v16 xk = v16_set(x[8 * o + i]);
                MLA_UNROLL
                for (size_t j = 0; j < 2 * np; j++) {
                    size_t panel = j / 2 * q->panel_words;
                    v16 w = code_value(kind, q, q->a + panel, q->b + panel, lo, hi, o, i, j % 2 * 16);
                    if (!mla_code_bare(kind)) w = offset ? v16_fma(w, s[j], m[j]) : v16_mul(w, s[j]);
                    acc[j] = v16_fma(xk, w, acc[j]);
                }
            }
        }
    }
    MLA_UNROLL
    for (size_t j = 0; j < 2 * np; j++) {
        if (add) acc[j] = v16_fma(v16_load(c + 16 * j), v16_set(1.0f), acc[j]);
        v16_store(c + 16 * j, acc[j]);
    }
}

/* The weights themselves: dst (8 octets, MLA_NR) of one panel */
MLA_VEC void tile_of(const mla_code kind, float *dst, const mla_code_block *q)
{
    v16_lut lo = v16_lut_load(q->lo), hi = v16_lut_load(q->hi);
    size_t o = 0, end = q->first / 8;
    for (size_t seg = 0; o < q->octets; seg++, end += q->seg / 8) {
        if (end > q->octets) end = q->octets;
        for (; o < end; o++)
            for (size_t h = 0; h < MLA_NR; h += 16) {
                v16 s = mla_code_bare(kind) ? v16_set(1) : v16_load(q->s + seg * MLA_NR + h);
                v16 m = mla_code_bare(kind) || !q->offset ? v16_set(0) : v16_load(q->m + seg * MLA_NR + h);
                if (marked(kind, q, 0, o)) {
                    for (unsigned i = 0; i < 8; i++) v16_store(dst + (8 * o + i) * MLA_NR + h, subnormal_weight(q->a, s, o, i, h));
                    continue;
                }
                MLA_UNROLL
                for (unsigned i = 0; i < 8; i++) {
                    v16 w = code_value(kind, q, q->a, q->b, lo, hi, o, i, h);
                    if (!mla_code_bare(kind)) w = q->offset ? v16_fma(w, s, m) : v16_mul(w, s);
                    v16_store(dst + (8 * o + i) * MLA_NR + h, w);
                }
            }
    }
}

#define CODE_KINDS(do_kind)                                                                                              \
    switch (q->code) {                                                                                                   \
    case MLA_CODE_NIBBLE: do_kind(MLA_CODE_NIBBLE) break;                                                                \
    case MLA_CODE_NIBBLE_BIT: do_kind(MLA_CODE_NIBBLE_BIT) break;                                                        \
    case MLA_CODE_NIBBLE_CRUMB: do_kind(MLA_CODE_NIBBLE_CRUMB) break;                                                    \
    case MLA_CODE_CRUMB: do_kind(MLA_CODE_CRUMB) break;                                                                  \
    case MLA_CODE_CRUMB_BIT: do_kind(MLA_CODE_CRUMB_BIT) break;                                                          \
    case MLA_CODE_INT8: do_kind(MLA_CODE_INT8) break;                                                                    \
    case MLA_CODE_E4M3: do_kind(MLA_CODE_E4M3) break;                                                                    \
    case MLA_CODE_F16: do_kind(MLA_CODE_F16) break;                                                                      \
    default: do_kind(MLA_CODE_BF16) break;                                                                               \
    }

static void row_codes_gemv(float *c, const float *x, const mla_code_block *q, size_t np, bool add)
{
#define GEMV(kind)                                                        \
    if (np == 1) {                                                        \
        if (q->offset) gemv_of(kind, 1, true, c, x, q, add);              \
        else gemv_of(kind, 1, false, c, x, q, add);                       \
    } else if (q->offset) gemv_of(kind, MLA_CODE_PANELS, true, c, x, q, add); \
    else gemv_of(kind, MLA_CODE_PANELS, false, c, x, q, add);
    CODE_KINDS(GEMV)
#undef GEMV
}

static void row_codes_tile(float *dst, const mla_code_block *q)
{
#define TILE_OF(kind) tile_of(kind, dst, q);
    CODE_KINDS(TILE_OF)
#undef TILE_OF
}

/* What bytes of a table built on E4M3 stand for: sign, digits[mantissa], or digits[8 + mantissa] under exponent 0, 2^(exponent - 27) */
MLA_VEC v16 scale_of_digits(const float *digits, v16i x)
{
    v16i e = v16i_and(x, v16i_set(0x78)), small = v16i_and(v16i_none(e), v16i_set(8));
    v16 d = v16_look(v16_lut_load(digits), v16i_or(v16i_and(x, v16i_set(7)), small));
    v16 p = v16_from_bits(v16i_add(v16i_shl(e, 20), v16i_set(100u << 23)));
    return v16_from_bits(v16i_xor(v16_bits(v16_mul(d, p)), v16i_shl(v16i_and(x, v16i_set(0x80)), 24)));
}

/* Sixteen scales of the block's group g, outputs h .. h+15; u: where their super scales stand, in bytes */
MLA_VEC v16 scale_at(const mla_scale_kind kind, const mla_code_scales *a, size_t g, size_t h, size_t u)
{
    size_t i = g * MLA_NR + h;
    switch (kind) {
    case MLA_SCALE_F32: return v16_load((const float *)(const void *)a->scales + i);
    case MLA_SCALE_F16: return v16_load_f16(a->scales + 2 * i);
    case MLA_SCALE_BF16: return v16_load_bf16((const uint16_t *)(const void *)a->scales + i);
    case MLA_SCALE_TABLE:
        return a->digits ? scale_of_digits(a->digits, v16i_load_u8(a->scales + i)) : v16_gather(a->table, v16i_load_u8(a->scales + i));
    case MLA_SCALE_SUPER_I8: return v16_mul(v16_load_f16(a->supers + u), v16_from_int(v16i_load_i8(a->scales + i)));
    case MLA_SCALE_SUPER_U4:
        return v16_mul(v16_load_f16(a->supers + u), v16_from_int(v16i_and(v16i_load_u8(a->scales + i), v16i_set(15))));
    default: return v16_set(1.0f);
    }
}

MLA_VEC v16 offset_at(const mla_code_scales *a, v16 s, size_t g, size_t h, size_t u)
{
    size_t i = g * MLA_NR + h;
    v16 m, minus = v16_set(-1.0f);
    switch (a->offset) {
    case MLA_OFFSET_F16: return v16_load_f16(a->offsets + 2 * i);
    case MLA_OFFSET_ZERO: m = v16_mul(s, v16_from_int(v16i_load_i8(a->offsets + i))); break;
    case MLA_OFFSET_SUPER_U8: m = v16_mul(v16_load_f16(a->super_offs + u), v16_from_int(v16i_load_u8(a->offsets + i))); break;
    case MLA_OFFSET_SUPER_U4: m = v16_mul(v16_load_f16(a->super_offs + u), v16_from_int(v16i_shr(v16i_load_u8(a->scales + i), 4))); break;
    default: return v16_set(0);
    }
    return v16_mul(m, minus);
}

MLA_VEC void scales_of(const mla_scale_kind kind, float *s, float *m, const mla_code_scales *a)
{
    v16 factor = v16_set(a->factor), shift = v16_set(a->shift), unit = v16_set(a->e4m3 * a->factor * 256);
    if (kind == MLA_SCALE_TABLE && a->e4m3 != 0 && a->offset == MLA_OFFSET_NONE) { /* factor is a power of two */
        for (size_t i = 0; i < a->n * MLA_NR; i += 16) v16_store(s + i, v16_mul(v16_load_e4m3_256th(a->scales + i), unit));
        return;
    }
    size_t left = a->per_super ? a->per_super - a->g0 % a->per_super : a->n, super = 0;
    for (size_t n = 0; n < a->n; n++, left--) {
        if (!left) super += 2 * MLA_NR, left = a->per_super;
        for (size_t h = 0; h < MLA_NR; h += 16) {
            v16 v = scale_at(kind, a, n, h, super + 2 * h);
            if (a->offset != MLA_OFFSET_NONE) v16_store(m + n * MLA_NR + h, offset_at(a, v, n, h, super + 2 * h));
            else if (a->shift != 0) v16_store(m + n * MLA_NR + h, v16_mul(v, shift));
            v16_store(s + n * MLA_NR + h, v16_mul(v, factor));
        }
    }
}

static void row_code_scales(float *s, float *m, const mla_code_scales *a)
{
#define SCALES(kind) \
    case kind: scales_of(kind, s, m, a); break;
    switch (a->scale) {
        SCALES(MLA_SCALE_ONE) SCALES(MLA_SCALE_F32) SCALES(MLA_SCALE_F16) SCALES(MLA_SCALE_BF16) SCALES(MLA_SCALE_TABLE)
        SCALES(MLA_SCALE_SUPER_I8) SCALES(MLA_SCALE_SUPER_U4)
    }
#undef SCALES
}

#include "backend/cpu/trellis_body.h"
#include "backend/cpu/dot_body.h"
#if !defined(MLA_SIMD_REF) && defined(__AVX2__) && !defined(__AVX512F__)
#include "backend/cpu/codes_bytes.h"
#define MLA_CODE_BYTES row_codes_gemv_bytes
#else
#define MLA_CODE_BYTES NULL /* one permutation looks sixteen floats up */
#endif

#define MLA_CODE_KERNELS                                                                                                  \
    .codes_gemv = row_codes_gemv, .codes_gemv_bytes = MLA_CODE_BYTES, .codes_tile = row_codes_tile, .code_scales = row_code_scales, MLA_DOT_KERNELS, .trellis_gemv = row_trellis_gemv, \
    .trellis_tile = row_trellis_tile, .hadamard = row_hadamard
#endif
