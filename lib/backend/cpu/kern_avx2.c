/* The AVX2 + FMA + F16C variant: 6 rows x 16 columns of C in 12 registers; bf16 weights are widened in registers. */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#include "backend/cpu/rows_body.h"
#include "backend/cpu/codes_body.h"
#include "backend/cpu/operands.h"

#define ROWS 6
#define AHEAD 4096 /* bytes */

/* With few rows B streams from memory: the next lines are asked for. */
MLA_LOOKED_AT MLA_INLINE void touch(const void *b)
{
    _mm_prefetch((const char *)b + AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)b + AHEAD + 64, _MM_HINT_T0);
}

MLA_LOOKED_AT MLA_INLINE void tile_store(const mla_tile *t, size_t i0, size_t j0, size_t m, __m256 (*acc)[2])
{
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) {
        float *c = t->c + (i0 + i) * t->ldc + j0;
        if (t->alpha) {
            __m256 al = _mm256_set1_ps(t->alpha[i0 + i]);
            acc[i][0] = _mm256_fmadd_ps(_mm256_loadu_ps(c), al, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(_mm256_loadu_ps(c + 8), al, acc[i][1]);
        }
        _mm256_storeu_ps(c, acc[i][0]);
        _mm256_storeu_ps(c + 8, acc[i][1]);
    }
}

/* rows i0 .. i0+m-1, columns j0 .. j0+15; m is a constant in every call */
MLA_LOOKED_AT MLA_INLINE void f32_rows(const size_t m, const mla_tile *t, size_t i0, size_t j0)
{
    const float *a = (const float *)t->a + i0 * MLA_LDA, *b = (const float *)t->b + j0;
    __m256 acc[ROWS][2];
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (size_t k = 0; k < t->k; k++, b += MLA_NR) {
        if (i0 + j0 == 0) touch(b);
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
        MLA_UNROLL
        for (size_t i = 0; i < m; i++) {
            __m256 x = _mm256_set1_ps(a[i * MLA_LDA + k]);
            acc[i][0] = _mm256_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, b1, acc[i][1]);
        }
    }
    tile_store(t, i0, j0, m, acc);
}

MLA_LOOKED_AT MLA_INLINE void bf16_rows(const size_t m, const mla_tile *t, size_t i0, size_t j0)
{
    const float *a = (const float *)t->a + i0 * MLA_LDA;
    const uint32_t *b = (const uint32_t *)t->b + j0;
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    __m256 acc[ROWS][2];
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (size_t k = 0; k < t->k; k++, b += MLA_NR) {
        if (i0 + j0 == 0) touch(b);
        __m256i w0 = _mm256_loadu_si256((const __m256i *)(const void *)b);
        __m256i w1 = _mm256_loadu_si256((const __m256i *)(const void *)(b + 8));
        __m256 e0 = _mm256_castsi256_ps(_mm256_slli_epi32(w0, 16)), e1 = _mm256_castsi256_ps(_mm256_slli_epi32(w1, 16));
        MLA_UNROLL
        for (size_t i = 0; i < m; i++) {
            __m256 x = _mm256_set1_ps(a[i * MLA_LDA + 2 * k]);
            acc[i][0] = _mm256_fmadd_ps(x, e0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, e1, acc[i][1]);
        }
        e0 = _mm256_castsi256_ps(_mm256_and_si256(w0, high));
        e1 = _mm256_castsi256_ps(_mm256_and_si256(w1, high));
        MLA_UNROLL
        for (size_t i = 0; i < m; i++) {
            __m256 x = _mm256_set1_ps(a[i * MLA_LDA + 2 * k + 1]);
            acc[i][0] = _mm256_fmadd_ps(x, e0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, e1, acc[i][1]);
        }
    }
    tile_store(t, i0, j0, m, acc);
}

#define FEW 3 /* rows that fit with all 32 columns at once */

MLA_LOOKED_AT MLA_INLINE void store_few(const mla_tile *t, size_t m, __m256 (*acc)[4])
{
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) {
        MLA_UNROLL
        for (size_t v = 0; v < 4; v++) {
            float *c = t->c + i * t->ldc + 8 * v;
            if (t->alpha) acc[i][v] = _mm256_fmadd_ps(_mm256_loadu_ps(c), _mm256_set1_ps(t->alpha[i]), acc[i][v]);
            _mm256_storeu_ps(c, acc[i][v]);
        }
    }
}

MLA_LOOKED_AT MLA_INLINE void f32_few(const size_t m, const mla_tile *t)
{
    const float *a = t->a, *b = t->b;
    __m256 acc[FEW][4];
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = _mm256_setzero_ps();
    for (size_t k = 0; k < t->k; k++, b += MLA_NR) {
        touch(b);
        MLA_UNROLL
        for (size_t v = 0; v < 4; v++) {
            __m256 w = _mm256_loadu_ps(b + 8 * v);
            MLA_UNROLL
            for (size_t i = 0; i < m; i++) acc[i][v] = _mm256_fmadd_ps(_mm256_set1_ps(a[i * MLA_LDA + k]), w, acc[i][v]);
        }
    }
    store_few(t, m, acc);
}

MLA_LOOKED_AT MLA_INLINE void bf16_few(const size_t m, const mla_tile *t)
{
    const float *a = t->a;
    const uint32_t *b = t->b;
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    __m256 acc[FEW][4];
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = _mm256_setzero_ps();
    for (size_t k = 0; k < t->k; k++, b += MLA_NR) {
        touch(b);
        MLA_UNROLL
        for (size_t v = 0; v < 4; v++) {
            __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)(b + 8 * v));
            __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), odd = _mm256_castsi256_ps(_mm256_and_si256(w, high));
            MLA_UNROLL
            for (size_t i = 0; i < m; i++) {
                acc[i][v] = _mm256_fmadd_ps(_mm256_set1_ps(a[i * MLA_LDA + 2 * k]), even, acc[i][v]);
                acc[i][v] = _mm256_fmadd_ps(_mm256_set1_ps(a[i * MLA_LDA + 2 * k + 1]), odd, acc[i][v]);
            }
        }
    }
    store_few(t, m, acc);
}

static mla_tile from_row(const mla_tile *t, size_t i)
{
    mla_tile r = *t;
    r.a = (const float *)t->a + i * MLA_LDA;
    r.c += i * t->ldc;
    if (t->alpha) r.alpha += i;
    return r;
}

#define TILE(few, rows)                                               \
    if (m < ROWS) {                                                   \
        for (size_t i = 0; i < m; i += FEW) {                         \
            mla_tile f = from_row(t, i);                              \
            switch (m - i) {                                          \
            case 1: few(1, &f); break;                                \
            case 2: few(2, &f); break;                                \
            default: few(3, &f); break;                               \
            }                                                         \
        }                                                             \
        return;                                                       \
    }                                                                 \
    for (size_t j = 0; j < MLA_NR; j += 16)                           \
        for (size_t i = 0; i < m; i += ROWS) switch (m - i) {         \
            case 1: rows(1, t, i, j); break;                          \
            case 2: rows(2, t, i, j); break;                          \
            case 3: rows(3, t, i, j); break;                          \
            case 4: rows(4, t, i, j); break;                          \
            case 5: rows(5, t, i, j); break;                          \
            default: rows(6, t, i, j); break;                         \
            }

MLA_LOOKED_AT static void tile_f32(size_t m, const mla_tile *t)
{
    mla_look_tile(m, t, 1);
    TILE(f32_few, f32_rows)
}

MLA_LOOKED_AT static void tile_bf16(size_t m, const mla_tile *t)
{
    mla_look_tile(m, t, 2);
    TILE(bf16_few, bf16_rows)
}

/* 8 x 8 f32 transposed */
MLA_INLINE void transpose8(__m256 r[8])
{
    __m256 t[8];
    MLA_UNROLL
    for (size_t i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    MLA_UNROLL
    for (size_t i = 0; i < 8; i += 4)
        for (size_t j = 0; j < 2; j++) {
            __m256d x = _mm256_castps_pd(t[i + j]), y = _mm256_castps_pd(t[i + 2 + j]);
            r[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
            r[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
        }
    MLA_UNROLL
    for (size_t i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    MLA_UNROLL
    for (size_t i = 0; i < 8; i++) r[i] = t[i];
}

MLA_INLINE void load_square(__m256 r[8], const float *src, size_t ld, size_t h, size_t rows, size_t n)
{
    for (size_t j = 0; j < 8; j++) {
        float tail[8] = {0};
        if (h + j >= rows) {
            r[j] = _mm256_setzero_ps();
        } else if (n >= 8) {
            r[j] = _mm256_loadu_ps(src + (h + j) * ld);
        } else {
            memcpy(tail, src + (h + j) * ld, n * sizeof *tail);
            r[j] = _mm256_loadu_ps(tail);
        }
    }
    transpose8(r);
}

static void pack_f32(float *dst, const float *src, size_t ld, size_t rows, size_t k)
{
    for (size_t h = 0; h < MLA_NR; h += 8)
        for (size_t i = 0; i < k; i += 8) {
            __m256 r[8];
            load_square(r, src + i, ld, h, rows, k - i);
            for (size_t j = 0; j < 8 && i + j < k; j++) _mm256_storeu_ps(dst + (i + j) * MLA_NR + h, r[j]);
        }
}

/* f32 lanes to bf16 in the high half, nearest even, NaN quieted */
MLA_INLINE __m256i round_high(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i q = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    r = _mm256_blendv_epi8(r, q, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    return _mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000u));
}

static void pack_bf16(uint32_t *dst, const float *src, size_t ld, size_t rows, size_t k)
{
    for (size_t h = 0; h < MLA_NR; h += 8)
        for (size_t i = 0; i < k; i += 8) {
            __m256 r[8];
            load_square(r, src + i, ld, h, rows, k - i);
            for (size_t j = 0; j < 8 && i + j < k; j += 2)
                _mm256_storeu_si256((__m256i *)(void *)(dst + (i + j) / 2 * MLA_NR + h),
                                    _mm256_or_si256(_mm256_srli_epi32(round_high(r[j]), 16), round_high(r[j + 1])));
        }
}

static void round_a(void *dst, const float *src, size_t n)
{
    float *d = dst;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_si256((__m256i *)(void *)(d + i), round_high(_mm256_loadu_ps(src + i)));
    for (; i < n; i++) d[i] = mla_bf16_f32(mla_f32_bf16(src[i]));
    if (n & 1) d[n] = 0;
}

/* 4 rows x 12 columns of fp64 sums in 12 registers */
MLA_INLINE void gram_4x12(const mla_gram_tile *t, const double *a, const double *b, double *c)
{
    __m256d acc[4][3];
    MLA_UNROLL
    for (size_t i = 0; i < 4; i++) acc[i][0] = acc[i][1] = acc[i][2] = _mm256_setzero_pd();
    for (size_t k = 0; k < t->T; k++, a += t->lda, b += t->ldb) {
        __m256d b0 = _mm256_loadu_pd(b), b1 = _mm256_loadu_pd(b + 4), b2 = _mm256_loadu_pd(b + 8);
        MLA_UNROLL
        for (size_t i = 0; i < 4; i++) {
            __m256d x = _mm256_set1_pd(a[i]);
            acc[i][0] = _mm256_fmadd_pd(x, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_pd(x, b1, acc[i][1]);
            acc[i][2] = _mm256_fmadd_pd(x, b2, acc[i][2]);
        }
    }
    MLA_UNROLL
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 3; j++) {
            double *p = c + i * t->ldc + 4 * j;
            _mm256_storeu_pd(p, _mm256_add_pd(_mm256_loadu_pd(p), acc[i][j]));
        }
}

static void gram_edge(const mla_gram_tile *t, size_t i, size_t j)
{
    double s = 0;
    for (size_t k = 0; k < t->T; k++) s = fma(t->a[k * t->lda + i], t->b[k * t->ldb + j], s);
    t->c[i * t->ldc + j] += s;
}

static void tile_gram(const mla_gram_tile *t)
{
    size_t i = 0;
    for (; i + 4 <= t->m; i += 4) {
        size_t j = 0;
        for (; j + 12 <= t->n; j += 12) gram_4x12(t, t->a + i, t->b + j, t->c + i * t->ldc + j);
        for (; j < t->n; j++)
            for (size_t r = 0; r < 4; r++) gram_edge(t, i + r, j);
    }
    for (; i < t->m; i++)
        for (size_t j = 0; j < t->n; j++) gram_edge(t, i, j);
}

#include "backend/cpu/keys_body.h"

void mla_cpu_fill_avx2(mla_cpu_kern *k)
{
    *k = (mla_cpu_kern){
        .isa = MLA_ISA_AVX2, .name = "avx2", .bf16_pairs = false,
        .tile_f32 = tile_f32, .tile_bf16 = tile_bf16, .tile_gram = tile_gram,
        .pack_f32 = pack_f32, .pack_bf16 = pack_bf16, .round_a = round_a, .keys = row_keys,
        MLA_CODE_KERNELS,
    };
    fill_rows(k);
}
#endif
