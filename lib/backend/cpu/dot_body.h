/* Packed codes times integers (dot.h says what and why it is exact), written once on a variant's own width. Lanes are outputs, as
 * in codes_body.h: four codes of an octet stand in a lane's bytes, the same four inputs in all lanes.
 *
 * Without dot product instructions sums of u h and u l are taken in 16 bits. A byte product is at most 128 u in size, a 16-bit lane
 * takes two from every word of four codes, an octet has two words: 512 u. So 4 octets fit for u <= 15 (30720), 2 for u <= 31 (31744),
 * 1 for u <= 63 (32256), all below 32768; then 256 times h's sum and l's are added in 32 bits. Codes wider than that are spread to
 * 16-bit numbers, u - 128 or the signed byte, and meet q itself. Included by codes_body.h and *vnni.c. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_DOT_BODY_H
#define MLA_BACKEND_CPU_DOT_BODY_H
#include "backend/cpu/kernels.h"
#include "backend/cpu/simd_int.h"

/* At most 32 inputs as integers; their factor, and their sums by 16 */
MLA_VEC float dot_block(uint16_t q[MLA_DOT_BLOCK], int32_t sum[2], const float *x, size_t n)
{
    v16 x0 = v16_loadn(x, n < 16 ? n : 16), x1 = n > 16 ? v16_loadn(x + 16, n - 16) : v16_set(0), minus = v16_set(-1), magic = v16_set(MLA_ROUND_MAGIC);
    float most = v16_hmax(v16_max(v16_mul(v16_neg_abs(x0), minus), v16_mul(v16_neg_abs(x1), minus)));
    bool finite = v16_sum(v16_fma(x0, v16_set(0), v16_mul(x1, v16_set(0)))) == 0; /* otherwise NaN */
    float inverse = finite && most >= MLA_DOT_LEAST ? MLA_DOT_LIMIT / most : 0;
    if (inverse == 0) x0 = x1 = v16_set(0);
    v16 r0 = v16_fma(x0, v16_set(inverse), magic), r1 = v16_fma(x1, v16_set(inverse), magic);
    v16i_store_u16(q, v16_bits(r0)); /* the magic's own low bits are zeros */
    v16i_store_u16(q + 16, v16_bits(r1));
    sum[0] = (int32_t)v16_sum(v16_sub(r0, magic)); /* below 2^24: exact in any order */
    sum[1] = (int32_t)v16_sum(v16_sub(r1, magic));
    return !finite ? NAN : inverse == 0 ? 0 : most / MLA_DOT_LIMIT;
}

#if !defined(MLA_SIMD_REF) && defined(__AVX2__)
#include "backend/cpu/simd_dot.h"

/* How an octet's 16 bytes are picked from its 16-bit integers: bytes h of codes 0 2 4 6, of 1 3 5 7, bytes l likewise; of 0-3, 4-7
 * where codes are bytes; or the integers that meet bytes 0 and 2, then 1 and 3, of the first word of codes, then of the second. */
static const uint8_t DOT_NIBBLES[16] = {1, 5, 9, 13, 3, 7, 11, 15, 0, 4, 8, 12, 2, 6, 10, 14};
#if defined(VD_VNNI)
static const uint8_t DOT_BYTES[16] = {1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14};
#else
static const uint8_t DOT_NIBBLE_PAIRS[16] = {0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15};
static const uint8_t DOT_BYTE_PAIRS[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
#endif

static void row_dot_row(mla_dot_x *d, const float *x, size_t n, mla_dot_form form)
{
#if defined(VD_VNNI)
    const uint8_t *pick = form == MLA_DOT_INT8 ? DOT_BYTES : DOT_NIBBLES;
    const bool split = true;
#else
    const uint8_t *pick = form == MLA_DOT_INT8 ? DOT_BYTE_PAIRS : form == MLA_DOT_WIDE ? DOT_NIBBLE_PAIRS : DOT_NIBBLES;
    const bool split = pick == DOT_NIBBLES;
#endif
    __m128i order = _mm_loadu_si128((const __m128i *)(const void *)pick), top = _mm_set1_epi16(split ? 0x80 : 0);
    for (size_t b = 0; b * MLA_DOT_BLOCK < n; b++) {
        uint16_t q[MLA_DOT_BLOCK];
        d->t[b] = dot_block(q, d->sum + 2 * b, x + b * MLA_DOT_BLOCK, n - b * MLA_DOT_BLOCK < MLA_DOT_BLOCK ? n - b * MLA_DOT_BLOCK : MLA_DOT_BLOCK);
        for (size_t o = 0; o < 4; o++) { /* 256 h + l: h is one more where l is negative */
            __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(q + 8 * o));
            v = _mm_add_epi16(v, _mm_slli_epi16(_mm_and_si128(v, top), 1));
            _mm_store_si128((__m128i *)(void *)d->octet[4 * b + o], _mm_shuffle_epi8(v, order));
        }
    }
}

/* Bits of a second plane, or of narrow codes: octet i of a unit whose first octet's bits stand lowest in w; to bit `to` */
MLA_VEC vd dot_bits(const unsigned width, const unsigned i, const unsigned odd, const unsigned to, vd w)
{
    unsigned at = (i % (4 / width) * 2 + odd) * width;
    vd t = at < to ? vd_shl(w, to - at) : at > to ? vd_shr(w, at - to) : w;
    return vd_and(t, vd_set(((1u << width) - 1) * 0x01010101u << to));
}

/* The word of octet o + i in a plane of `width` <= 2 bits, shifted so far that dot_bits finds octet o's lowest */
MLA_VEC vd dot_word(const unsigned width, const size_t octets, const uint32_t *plane, size_t o, const unsigned i)
{
    const size_t n = 4 / width;
    vd w = vd_load(plane + (o + i) / n * MLA_NR);
    return octets < n ? vd_shr(w, (unsigned)(o % n) * 2 * width) : w;
}

/* Codes of octet o + i as two words of bytes */
MLA_VEC void dot_codes(const mla_dot_form form, const size_t octets, vd *even, vd *odd, const uint32_t *a, const uint32_t *b, size_t o, const unsigned i, vd look)
{
    if (form == MLA_DOT_INT8) {
        *even = vd_load(a + (o + i) * 2 * MLA_NR), *odd = vd_load(a + ((o + i) * 2 + 1) * MLA_NR);
#if defined(VD_VNNI)
        *even = vd_xor(*even, vd_set(0x80808080u)), *odd = vd_xor(*odd, vd_set(0x80808080u));
#endif
        return;
    }
    if (form == MLA_DOT_CRUMB || form == MLA_DOT_CRUMB_BIT) {
        vd w = dot_word(2, octets, a, o, i);
        *even = dot_bits(2, i, 0, 0, w), *odd = dot_bits(2, i, 1, 0, w);
    } else {
        vd w = vd_load(a + (o + i) * MLA_NR), low = vd_set(0x0f0f0f0fu);
        *even = vd_and(w, low), *odd = vd_and(vd_shr(w, 4), low);
    }
    if (form == MLA_DOT_LOOK || form == MLA_DOT_WIDE) *even = vd_look(look, *even), *odd = vd_look(look, *odd);
    if (form == MLA_DOT_NIBBLE_CRUMB) {
        vd w = dot_word(2, octets, b, o, i);
        *even = vd_or(*even, dot_bits(2, i, 0, 4, w)), *odd = vd_or(*odd, dot_bits(2, i, 1, 4, w));
    }
    if (form == MLA_DOT_NIBBLE_BIT || form == MLA_DOT_CRUMB_BIT) {
        const unsigned to = form == MLA_DOT_NIBBLE_BIT ? 4 : 2;
        vd w = dot_word(1, octets, b, o, i);
        *even = vd_or(*even, dot_bits(1, i, 0, to, w)), *odd = vd_or(*odd, dot_bits(1, i, 1, to, w));
    }
}

#define DOT_VECS (MLA_NR / VD_LANES) /* of a panel */

/* sum (DOT_VECS) += sums of u q over `octets` octets from o on */
MLA_VEC void dot_unit(const mla_dot_form form, const size_t octets, vd *sum, const uint32_t *a, const uint32_t *b, const mla_dot_x *x, size_t o, vd look)
{
    vd h[DOT_VECS], even, odd;
#if !defined(VD_VNNI)
    vd l[DOT_VECS];
    const bool pairs = form == MLA_DOT_INT8 || form == MLA_DOT_WIDE;
    const unsigned most = form == MLA_DOT_NIBBLE_CRUMB ? 1 : form == MLA_DOT_NIBBLE_BIT || form == MLA_DOT_LOOK ? 2 : 4;
#endif
    MLA_UNROLL
    for (unsigned i = 0; i < octets; i++) {
        const uint8_t *at = x->octet[o + i];
        const size_t words = form == MLA_DOT_INT8 ? 2 * MLA_NR : form == MLA_DOT_CRUMB || form == MLA_DOT_CRUMB_BIT ? MLA_NR / 2 : MLA_NR;
        MLA_UNROLL
        for (size_t k = 0; k < words; k += 16) __builtin_prefetch((const char *)(a + (o + i) * words + k) + MLA_AHEAD);
        if (form == MLA_DOT_NIBBLE_CRUMB) __builtin_prefetch((const char *)(b + (o + i) * MLA_NR / 2) + MLA_AHEAD);
        vd x0 = vd_four(at), x1 = vd_four(at + 4), x2 = vd_four(at + 8), x3 = vd_four(at + 12);
        MLA_UNROLL
        for (size_t j = 0; j < DOT_VECS; j++) {
            dot_codes(form, octets, &even, &odd, a + j * VD_LANES, b + j * VD_LANES, o, i, look);
#if defined(VD_VNNI)
            h[j] = vd_dot(vd_dot(i ? h[j] : vd_set(0), even, x0), odd, x1);
            sum[j] = vd_dot(vd_dot(sum[j], even, x2), odd, x3);
            if (i + 1 == octets) sum[j] = vd_add(sum[j], vd_shl(h[j], 8));
#else
            if (pairs) {
                vd first = vd_add(vd_quads(vd_low_bytes(even), x0), vd_quads(vd_high_bytes(even), x1));
                sum[j] = vd_add(sum[j], vd_add(first, vd_add(vd_quads(vd_low_bytes(odd), x2), vd_quads(vd_high_bytes(odd), x3))));
                continue;
            }
            vd hi = vd_add16(vd_pairs(even, x0), vd_pairs(odd, x1)), lo = vd_add16(vd_pairs(even, x2), vd_pairs(odd, x3));
            h[j] = i % most ? vd_add16(h[j], hi) : hi;
            l[j] = i % most ? vd_add16(l[j], lo) : lo;
            VD_KEEP(h[j]);
            VD_KEEP(l[j]);
            if (i % most + 1 == most || i + 1 == octets)
                sum[j] = vd_add(sum[j], vd_add(vd_quads(h[j], vd_set(256 * 0x10001u)), vd_quads(l[j], vd_set(0x10001u))));
#endif
        }
    }
}

MLA_VEC void dot_gemv_of(const mla_dot_form form, const size_t octets, float *c, const mla_dot_x *x, const mla_code_block *q, bool add)
{
    const uint32_t *a = q->a, *b = q->b;
    vd look = vd_table(q->look);
#if defined(VD_VNNI)
    const int32_t zero = form == MLA_DOT_INT8 ? 128 : q->base;
#else
    if (form == MLA_DOT_WIDE) look = vd_xor(look, vd_set(0x80808080u));
    const int32_t zero = form == MLA_DOT_INT8 ? 0 : form == MLA_DOT_WIDE ? q->base - 128 : q->base;
#endif
    vf acc[DOT_VECS], g[DOT_VECS];
    MLA_UNROLL
    for (size_t j = 0; j < DOT_VECS; j++) acc[j] = vf_set(0);
    size_t o = 0, end = q->first / 8;
    for (size_t seg = 0; o < q->octets; seg++, end += q->seg / 8) {
        if (end > q->octets) end = q->octets;
        float offset = 0;
        MLA_UNROLL
        for (size_t j = 0; j < DOT_VECS; j++) g[j] = vf_set(0);
        for (; o < end; o += octets) {
            const float t = x->t[o / 4];
            int32_t n = x->sum[o / 2] + (octets == 4 ? x->sum[o / 2 + 1] : 0);
            vd sum[DOT_VECS];
            MLA_UNROLL
            for (size_t j = 0; j < DOT_VECS; j++) sum[j] = vd_set((uint32_t)-(zero * n));
            if (end - o >= octets) dot_unit(form, octets, sum, a, b, x, o, look);
            else
                for (size_t i = o; i < end; i++) dot_unit(form, 1, sum, a, b, x, i, look);
            MLA_UNROLL
            for (size_t j = 0; j < DOT_VECS; j++) g[j] = vf_fma(vf_from_int(sum[j]), vf_set(t), g[j]);
            offset = fmaf((float)n, t, offset);
        }
        MLA_UNROLL
        for (size_t j = 0; j < DOT_VECS; j++) {
            size_t at = seg * MLA_NR + j * VD_LANES;
            acc[j] = vf_fma(vf_load(q->s + at), g[j], acc[j]);
            if (q->offset) acc[j] = vf_fma(vf_load(q->m + at), vf_set(offset), acc[j]);
        }
    }
    MLA_UNROLL
    for (size_t j = 0; j < DOT_VECS; j++) {
        if (add) acc[j] = vf_add(vf_load(c + j * VD_LANES), acc[j]);
        vf_store(c + j * VD_LANES, acc[j]);
    }
}

static void row_dot_gemv(float *c, const mla_dot_x *x, const mla_code_block *q, bool add)
{
#define DOT(form)                                           \
    case form:                                              \
        if (q->unit == 4) dot_gemv_of(form, 4, c, x, q, add); \
        else dot_gemv_of(form, 2, c, x, q, add);            \
        break;
    switch (q->form) {
        DOT(MLA_DOT_NIBBLE) DOT(MLA_DOT_LOOK) DOT(MLA_DOT_WIDE) DOT(MLA_DOT_NIBBLE_BIT) DOT(MLA_DOT_NIBBLE_CRUMB)
        DOT(MLA_DOT_CRUMB) DOT(MLA_DOT_CRUMB_BIT) DOT(MLA_DOT_INT8)
    default: break;
    }
#undef DOT
}

#else
/* The definition: q as it is, codes one by one. */
static void row_dot_row(mla_dot_x *d, const float *x, size_t n, mla_dot_form form)
{
    (void)form;
    for (size_t i = 0; i < n; i += MLA_DOT_BLOCK) {
        uint16_t q[MLA_DOT_BLOCK];
        d->t[i / MLA_DOT_BLOCK] = dot_block(q, d->sum + i / 16, x + i, n - i < MLA_DOT_BLOCK ? n - i : MLA_DOT_BLOCK);
        memcpy(d->octet[i / 8], q, sizeof q);
    }
}

static unsigned dot_bits(const uint32_t *plane, unsigned width, size_t i, size_t lane)
{
    size_t n = 4 / width, o = i / 8;
    return plane[o / n * MLA_NR + lane] >> (i % 8 / 2 * 8 + (o % n * 2 + i % 2) * width) & ((1u << width) - 1);
}

/* Of input i: (u - base), base 0 for signed bytes */
static int32_t dot_code(const mla_code_block *q, size_t i, size_t lane)
{
    const uint32_t *a = q->a, *b = q->b;
    switch (q->form) {
    case MLA_DOT_INT8: return (int8_t)(a[i / 4 * MLA_NR + lane] >> i % 4 * 8 & 255);
    case MLA_DOT_NIBBLE_BIT: return (int32_t)(dot_bits(a, 4, i, lane) | dot_bits(b, 1, i, lane) << 4) - q->base;
    case MLA_DOT_NIBBLE_CRUMB: return (int32_t)(dot_bits(a, 4, i, lane) | dot_bits(b, 2, i, lane) << 4) - q->base;
    case MLA_DOT_CRUMB: return (int32_t)dot_bits(a, 2, i, lane) - q->base;
    case MLA_DOT_CRUMB_BIT: return (int32_t)(dot_bits(a, 2, i, lane) | dot_bits(b, 1, i, lane) << 2) - q->base;
    default: return q->look[dot_bits(a, 4, i, lane)] - q->base;
    }
}

static void row_dot_gemv(float *c, const mla_dot_x *x, const mla_code_block *q, bool add)
{
    for (size_t j = 0; j < MLA_NR; j++) {
        float y = 0;
        size_t o = 0, end = q->first / 8;
        for (size_t seg = 0; o < q->octets; seg++, end += q->seg / 8) {
            float g = 0, offset = 0;
            if (end > q->octets) end = q->octets;
            for (; o < end; o += q->unit) {
                int32_t sum = 0, n = x->sum[o / 2] + (q->unit == 4 ? x->sum[o / 2 + 1] : 0);
                for (size_t i = 8 * o; i < 8 * end && i < 8 * (o + q->unit); i++) {
                    int16_t v;
                    memcpy(&v, x->octet[i / 8] + i % 8 * 2, 2);
                    sum += dot_code(q, i, j) * v;
                }
                g = fmaf((float)sum, x->t[o / 4], g);
                offset = fmaf((float)n, x->t[o / 4], offset);
            }
            size_t at = seg * MLA_NR + j;
            y = fmaf(q->s[at], g, y);
            if (q->offset) y = fmaf(q->m[at], offset, y);
        }
        c[j] = add ? c[j] + y : y;
    }
}
#endif

#define MLA_DOT_KERNELS .dot_row = row_dot_row, .dot_gemv = row_dot_gemv
#endif
