/* The AVX-512 variant without bf16 instructions: bf16 weights are widened in registers. */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#include "backend/cpu/rows_body.h"
#include "backend/cpu/codes_body.h"
#include "backend/cpu/stored_avx512.h"
#include "backend/cpu/tile_avx512.h"

/* m is a constant in every call, so the loops over it unroll and acc stays in registers */
MLA_LOOKED_AT MLA_INLINE void tile_f32_rows(const size_t m, const mla_tile *t)
{
    const float *a = t->a, *b = t->b;
    __m512 acc[MLA_MR][2];
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (size_t k = 0; k < t->k; k++, b += MLA_NR) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        if (m <= FEW) {
            _mm_prefetch((const char *)b + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)b + AHEAD + 64, _MM_HINT_T0);
        }
        MLA_UNROLL
        for (size_t i = 0; i < m; i++) {
            __m512 x = _mm512_set1_ps(a[i * MLA_LDA + k]);
            acc[i][0] = _mm512_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(x, b1, acc[i][1]);
        }
    }
    tile_store(t, m, acc);
}

/* bf16 pairs widened in registers: the even k is the low half of a lane */
MLA_LOOKED_AT MLA_INLINE void tile_wide_rows(const size_t m, const mla_tile *t)
{
    const float *a = t->a;
    const uint32_t *b = t->b;
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    __m512 acc[MLA_MR][2];
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (size_t k = 0; k < t->k; k++, b += MLA_NR) {
        __m512i w0 = _mm512_loadu_si512(b), w1 = _mm512_loadu_si512(b + 16);
        if (m <= FEW) {
            _mm_prefetch((const char *)b + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)b + AHEAD + 64, _MM_HINT_T0);
        }
        __m512 e0 = _mm512_castsi512_ps(_mm512_slli_epi32(w0, 16)), e1 = _mm512_castsi512_ps(_mm512_slli_epi32(w1, 16));
        MLA_UNROLL
        for (size_t i = 0; i < m; i++) {
            __m512 x = _mm512_set1_ps(a[i * MLA_LDA + 2 * k]);
            acc[i][0] = _mm512_fmadd_ps(x, e0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(x, e1, acc[i][1]);
        }
        e0 = _mm512_castsi512_ps(_mm512_and_si512(w0, high));
        e1 = _mm512_castsi512_ps(_mm512_and_si512(w1, high));
        MLA_UNROLL
        for (size_t i = 0; i < m; i++) {
            __m512 x = _mm512_set1_ps(a[i * MLA_LDA + 2 * k + 1]);
            acc[i][0] = _mm512_fmadd_ps(x, e0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(x, e1, acc[i][1]);
        }
    }
    tile_store(t, m, acc);
}

MLA_LOOKED_AT static void tile_f32(size_t m, const mla_tile *t)
{
    mla_look_tile(m, t, 1);
    MLA_TILE_SWITCH(tile_f32_rows, m, t)
}

MLA_LOOKED_AT static void tile_bf16(size_t m, const mla_tile *t)
{
    mla_look_tile(m, t, 2);
    MLA_TILE_SWITCH(tile_wide_rows, m, t)
}

static void pack_f32(float *dst, const float *src, size_t ld, size_t rows, size_t k)
{
    for (size_t h = 0; h < MLA_NR; h += 16)
        for (size_t i = 0; i < k; i += 16) {
            __mmask16 mask = (__mmask16)(k - i >= 16 ? 0xffffu : (1u << (k - i)) - 1);
            __m512 r[16];
            for (size_t j = 0; j < 16; j++)
                r[j] = h + j < rows ? _mm512_maskz_loadu_ps(mask, src + (h + j) * ld + i) : _mm512_setzero_ps();
            transpose16(r);
            for (size_t j = 0; j < 16 && i + j < k; j++) _mm512_storeu_ps(dst + (i + j) * MLA_NR + h, r[j]);
        }
}

static void pack_bf16(uint32_t *dst, const float *src, size_t ld, size_t rows, size_t k)
{
    for (size_t h = 0; h < MLA_NR; h += 16)
        for (size_t i = 0; i < k; i += 16) {
            __mmask16 mask = (__mmask16)(k - i >= 16 ? 0xffffu : (1u << (k - i)) - 1);
            __m512 r[16];
            for (size_t j = 0; j < 16; j++)
                r[j] = h + j < rows ? _mm512_maskz_loadu_ps(mask, src + (h + j) * ld + i) : _mm512_setzero_ps();
            transpose16(r);
            for (size_t j = 0; j < 16 && i + j < k; j += 2)
                _mm512_storeu_si512(dst + (i + j) / 2 * MLA_NR + h,
                                    _mm512_or_si512(_mm512_srli_epi32(round_high(r[j]), 16), round_high(r[j + 1])));
        }
}

/* A square of stored rows as f32 columns. */
MLA_INLINE void keys_square(const size_t per, const bool whole, float *dst, const mla_stored_rows *s, size_t h, size_t i)
{
    __m512 r[16], scale = _mm512_set1_ps(s->scale);
    size_t w = stored_square(per, whole, r, s, h, i);
    MLA_UNROLL
    for (size_t j = 0; j < 16; j++) {
        MLA_UNROLL
        for (size_t e = 0; e < per; e++)
            if (whole || per * j + e < w)
                _mm512_storeu_ps(dst + (i + per * j + e) * MLA_NR + h, _mm512_mul_ps(lane_element(per, e, r[j]), scale));
    }
}

MLA_INLINE void keys_lanes(const size_t per, float *dst, const mla_stored_rows *s)
{
    for (size_t h = 0; h < s->n; h += 16)
        for (size_t i = 0; i < s->d; i += 16 * per) {
            if (s->n - h >= 16 && s->d - i >= 16 * per)
                keys_square(per, true, dst, s, h, i);
            else
                keys_square(per, false, dst, s, h, i);
        }
}

static void keys(float *dst, const mla_stored_rows *s)
{
    if (s->dtype == MLA_BF16)
        keys_lanes(2, dst, s);
    else if (s->dtype == MLA_F8_E4M3)
        keys_lanes(4, dst, s);
    else
        keys_lanes(1, dst, s);
}

/* rows x (8 vecs) columns of fp64 sums in registers, the last vector masked; rows and vecs are constants in every call */
MLA_INLINE void gram_rows(const size_t rows, const size_t vecs, const mla_gram_tile *t, size_t i0, size_t j0, __mmask8 mask)
{
    const double *a = t->a + i0, *b = t->b + j0;
    double *c = t->c + i0 * t->ldc + j0;
    __m512d acc[8][3], v[3];
    MLA_UNROLL
    for (size_t i = 0; i < rows; i++) {
        MLA_UNROLL
        for (size_t j = 0; j < vecs; j++) acc[i][j] = _mm512_setzero_pd();
        for (size_t j = 0; j < vecs; j++) _mm_prefetch((const char *)(c + i * t->ldc + 8 * j), _MM_HINT_T0);
    }
    for (size_t k = 0; k < t->T; k++, a += t->lda, b += t->ldb) {
        MLA_UNROLL
        for (size_t j = 0; j < vecs; j++) v[j] = j + 1 < vecs ? _mm512_loadu_pd(b + 8 * j) : _mm512_maskz_loadu_pd(mask, b + 8 * j);
        MLA_UNROLL
        for (size_t i = 0; i < rows; i++) {
            __m512d x = _mm512_set1_pd(a[i]);
            MLA_UNROLL
            for (size_t j = 0; j < vecs; j++) acc[i][j] = _mm512_fmadd_pd(x, v[j], acc[i][j]);
        }
    }
    MLA_UNROLL
    for (size_t i = 0; i < rows; i++) {
        MLA_UNROLL
        for (size_t j = 0; j < vecs; j++) {
            double *p = c + i * t->ldc + 8 * j;
            __mmask8 m = j + 1 < vecs ? 0xff : mask;
            _mm512_mask_storeu_pd(p, m, _mm512_add_pd(_mm512_maskz_loadu_pd(m, p), acc[i][j]));
        }
    }
}

static void tile_gram(const mla_gram_tile *t)
{
    size_t i = 0;
    for (; i + 8 <= t->m; i += 8) {
        size_t j = 0;
        for (; j + 24 <= t->n; j += 24) gram_rows(8, 3, t, i, j, 0xff);
        for (; j < t->n; j += 8) gram_rows(8, 1, t, i, j, (__mmask8)(t->n - j < 8 ? (1u << (t->n - j)) - 1 : 0xff));
    }
    for (; i < t->m; i++)
        for (size_t j = 0; j < t->n; j += 8) gram_rows(1, 1, t, i, j, (__mmask8)(t->n - j < 8 ? (1u << (t->n - j)) - 1 : 0xff));
}

static void round_a(void *dst, const float *src, size_t n)
{
    float *d = dst;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_si512(d + i, round_high(_mm512_loadu_ps(src + i)));
    for (; i < n; i++) d[i] = mla_bf16_f32(mla_f32_bf16(src[i]));
    if (n & 1) d[n] = 0;
}

void mla_cpu_fill_avx512(mla_cpu_kern *k)
{
    *k = (mla_cpu_kern){
        .isa = MLA_ISA_AVX512, .name = "avx512", .bf16_pairs = false,
        .tile_f32 = tile_f32, .tile_bf16 = tile_bf16, .tile_gram = tile_gram,
        .pack_f32 = pack_f32, .pack_bf16 = pack_bf16, .round_a = round_a, .keys = keys,
        MLA_CODE_KERNELS,
    };
    fill_rows(k);
}
#endif
