/* The AVX-512 variant with bf16 pair products (vdpbf16ps: two products per lane, subnormals flushed). */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#include "backend/cpu/stored_avx512.h"
#include "backend/cpu/tile_avx512.h"

MLA_LOOKED_AT MLA_INLINE void tile_pair_rows(const size_t m, const mla_tile *t)
{
    const uint32_t *a = t->a, *b = t->b;
    __m512 acc[MLA_MR][2];
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (size_t k = 0; k < t->k; k++, b += MLA_NR) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 16);
        if (m <= FEW) {
            _mm_prefetch((const char *)b + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)b + AHEAD + 64, _MM_HINT_T0);
        }
        MLA_UNROLL
        for (size_t i = 0; i < m; i++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i * MLA_LDA + k]);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], x, b0);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], x, b1);
        }
    }
    tile_store(t, m, acc);
}

MLA_LOOKED_AT static void tile_bf16(size_t m, const mla_tile *t)
{
    mla_look_tile(m, t, 1);
    MLA_TILE_SWITCH(tile_pair_rows, m, t)
}

/* Rounded by integers rather than by vcvtneps2bf16, which flushes subnormals. */
static void round_a(void *dst, const float *src, size_t n)
{
    uint16_t *d = dst;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(d + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_high(_mm512_loadu_ps(src + i)), 16)));
    for (; i < n; i++) d[i] = mla_f32_bf16(src[i]);
    if (n & 1) d[n] = 0;
}

/* Two f32 vectors to one of pairs, a in the low halves */
MLA_INLINE __m512i pair_of(__m512 a, __m512 b) { return _mm512_or_si512(_mm512_srli_epi32(round_high(a), 16), round_high(b)); }

static void pair_rows(uint32_t *dst, const float *src, size_t k)
{
    for (size_t i = 0; i < k; i += 2, src += 2 * MLA_NR, dst += MLA_NR)
        for (size_t h = 0; h < MLA_NR; h += 16)
            _mm512_storeu_si512(dst + h, pair_of(_mm512_loadu_ps(src + h), _mm512_loadu_ps(src + MLA_NR + h)));
}

/* A square of stored rows as columns of pairs; an odd end is paired with zero. plain: bf16 at scale 1, pairs already. */
MLA_INLINE void pair_square(const size_t per, const bool plain, const bool whole, uint32_t *dst, const mla_stored_rows *s, size_t h, size_t i)
{
    __m512 r[16], scale = _mm512_set1_ps(s->scale);
    size_t w = stored_square(per, whole, r, s, h, i), step = per == 1 ? 2 : 1;
    dst += i / 2 * MLA_NR + h;
    MLA_UNROLL
    for (size_t j = 0; j < 16; j += step) {
        MLA_UNROLL
        for (size_t e = 0; e < per; e += 2) {
            if (!whole && per * j + e >= w) continue;
            __m512 b = per == 1 ? r[(j + 1) % 16] : lane_element(per, (e + 1) % 4, r[j]);
            __m512i p = plain ? _mm512_castps_si512(r[j])
                              : pair_of(_mm512_mul_ps(lane_element(per, e, r[j]), scale), _mm512_mul_ps(b, scale));
            _mm512_storeu_si512(dst + (per * j + e) / 2 * MLA_NR, p);
        }
    }
}

MLA_INLINE void pair_lanes(const size_t per, const bool plain, uint32_t *dst, const mla_stored_rows *s)
{
    for (size_t h = 0; h < s->n; h += 16)
        for (size_t i = 0; i < s->d; i += 16 * per) {
            if (s->n - h >= 16 && s->d - i >= 16 * per)
                pair_square(per, plain, true, dst, s, h, i);
            else
                pair_square(per, plain, false, dst, s, h, i);
        }
}

static void key_pairs(uint32_t *dst, const mla_stored_rows *s)
{
    if (s->dtype == MLA_BF16 && s->scale == 1)
        pair_lanes(2, true, dst, s);
    else if (s->dtype == MLA_BF16)
        pair_lanes(2, false, dst, s);
    else if (s->dtype == MLA_F8_E4M3)
        pair_lanes(4, false, dst, s);
    else
        pair_lanes(1, false, dst, s);
}

/* w <= 16 elements from i on, widened; t is a constant in every call */
MLA_INLINE __m512 stored16(const mla_dtype t, const void *row, size_t i, size_t w)
{
    __mmask16 m = (__mmask16)((1u << w) - 1);
    if (t == MLA_F32) return _mm512_maskz_loadu_ps(m, (const float *)row + i);
    if (t == MLA_BF16) return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, (const uint16_t *)row + i)), 16));
    return e4m3_byte(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, (const uint8_t *)row + i)), 0);
}

MLA_INLINE void value_pairs_of(const mla_dtype t, uint32_t *dst, const mla_stored_rows *s)
{
    __m512 scale = _mm512_set1_ps(s->scale);
    size_t bytes = t == MLA_F32 ? 4 : t == MLA_BF16 ? 2 : 1, w0 = s->d < 16 ? s->d : 16, w1 = s->d - w0;
    for (size_t i = 0; i + 1 < s->n; i += 2, dst += MLA_NR) {
        for (size_t r = i; r < i + 2; r++) {
            _mm_prefetch((const char *)s->next[r] + s->col * bytes, _MM_HINT_T1);
            if (t == MLA_F32) _mm_prefetch((const char *)s->next[r] + s->col * bytes + 64, _MM_HINT_T1);
        }
        for (size_t h = 0; h < 2; h++) {
            size_t w = h ? w1 : w0, at = s->col + 16 * h;
            __m512 a = _mm512_mul_ps(stored16(t, s->row[i], at, w), scale), b = _mm512_mul_ps(stored16(t, s->row[i + 1], at, w), scale);
            _mm512_storeu_si512(dst + 16 * h, pair_of(a, b));
        }
    }
}

/* bf16 at scale 1: two rows interleaved, nothing widened */
static void plain_value_pairs(uint32_t *dst, const mla_stored_rows *s)
{
    __mmask32 mask = s->d < 32 ? ((__mmask32)1 << s->d) - 1 : ~(__mmask32)0;
    __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i low = _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(32)), 16)); /* a_i, b_i */
    __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (size_t i = 0; i + 1 < s->n; i += 2, dst += MLA_NR) {
        const uint16_t *a = (const uint16_t *)s->row[i] + s->col, *b = (const uint16_t *)s->row[i + 1] + s->col;
        _mm_prefetch((const char *)((const uint16_t *)s->next[i] + s->col), _MM_HINT_T1);
        _mm_prefetch((const char *)((const uint16_t *)s->next[i + 1] + s->col), _MM_HINT_T1);
        __m512i x = _mm512_maskz_loadu_epi16(mask, a), y = _mm512_maskz_loadu_epi16(mask, b);
        _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(x, low, y));
        _mm512_storeu_si512(dst + 16, _mm512_permutex2var_epi16(x, high, y));
    }
}

static void value_pairs(uint32_t *dst, const mla_stored_rows *s)
{
    if (s->dtype == MLA_BF16 && s->scale == 1)
        plain_value_pairs(dst, s);
    else if (s->dtype == MLA_BF16)
        value_pairs_of(MLA_BF16, dst, s);
    else if (s->dtype == MLA_F8_E4M3)
        value_pairs_of(MLA_F8_E4M3, dst, s);
    else
        value_pairs_of(MLA_F32, dst, s);
}

void mla_cpu_fill_avx512bf16(mla_cpu_kern *k)
{
    mla_cpu_fill_avx512(k);
    k->isa = MLA_ISA_AVX512BF16;
    k->name = "avx512bf16";
    k->bf16_pairs = true;
    k->tile_bf16 = tile_bf16;
    k->round_a = round_a;
    k->pair_rows = pair_rows;
    k->key_pairs = key_pairs;
    k->value_pairs = value_pairs;
}
#endif
