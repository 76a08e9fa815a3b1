/* Stored cache rows in AVX-512 registers: transposing squares of 32-bit lanes and widening what a lane holds. Private to
 * backend/cpu. */
#ifndef MLA_BACKEND_CPU_STORED_AVX512_H
#define MLA_BACKEND_CPU_STORED_AVX512_H
#include <immintrin.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"

/* 16 x 16 f32 transposed: row r of `in` becomes column r of out. */
MLA_INLINE void transpose16(__m512 r[16])
{
    __m512 t[16];
    MLA_UNROLL
    for (size_t i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    MLA_UNROLL
    for (size_t i = 0; i < 16; i += 4)
        for (size_t j = 0; j < 2; j++) {
            __m512d x = _mm512_castps_pd(t[i + j]), y = _mm512_castps_pd(t[i + 2 + j]);
            r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    MLA_UNROLL
    for (size_t i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    MLA_UNROLL
    for (size_t i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Four e4m3 in a lane: the value of byte b, exactly. e > 0: the fields moved to f32's place; e = 0: the same with the
 * exponent of 2^-6, minus 2^-6. */
MLA_INLINE __m512 e4m3_byte(__m512i x, int b)
{
    __m512i u = _mm512_srli_epi32(x, 8 * (unsigned)b), mag = _mm512_and_si512(u, _mm512_set1_epi32(0x7f));
    __m512i f = _mm512_add_epi32(_mm512_slli_epi32(mag, 20), _mm512_set1_epi32(120 << 23));
    __mmask16 small = _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x78));
    __mmask16 nan = _mm512_cmpeq_epi32_mask(mag, _mm512_set1_epi32(0x7f));
    __m512 v = _mm512_castsi512_ps(f), low = _mm512_set1_ps(0x1p-6f);
    v = _mm512_mask_sub_ps(v, small, _mm512_castsi512_ps(_mm512_add_epi32(f, _mm512_set1_epi32(1 << 23))), low);
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(u, _mm512_set1_epi32(0x80)), 24);
    __m512i r = _mm512_or_si512(_mm512_castps_si512(v), sign);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(r, nan, sign, _mm512_set1_epi32(0x7fc00000)));
}

/* Element e of every lane of x, widened: per is how many a lane holds. Both are constants in every call. */
MLA_INLINE __m512 lane_element(const size_t per, const size_t e, __m512 x)
{
    __m512i u = _mm512_castps_si512(x);
    if (per == 1) return x;
    if (per == 4) return e4m3_byte(u, (int)e);
    return _mm512_castsi512_ps(e ? _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)) : _mm512_slli_epi32(u, 16));
}

/* Stored rows h .. h+15 from element i on, transposed as 32-bit lanes of `per` elements: widening afterwards takes a half
 * or a quarter of the shuffles of widening first. whole: all sixteen rows and 16 * per elements are there. Returns the
 * elements that are. */
MLA_INLINE size_t stored_square(const size_t per, const bool whole, __m512 r[16], const mla_stored_rows *s, size_t h, size_t i)
{
    size_t at = i * 4 / per, w = whole || s->d - i > 16 * per ? 16 * per : s->d - i;
    __mmask64 mask = whole ? ~(__mmask64)0 : ~(__mmask64)0 >> (64 - w * 4 / per);
    MLA_UNROLL
    for (size_t j = 0; j < 16; j++) {
        r[j] = _mm512_setzero_ps();
        if (!whole && h + j >= s->n) continue;
        const char *p = (const char *)s->row[h + j] + at;
        _mm_prefetch((const char *)s->next[h + j] + at, _MM_HINT_T1);
        r[j] = _mm512_castsi512_ps(whole ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(mask, p));
    }
    transpose16(r);
    return w;
}
#endif
