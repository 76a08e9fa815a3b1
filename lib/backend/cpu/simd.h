/* Sixteen f32 lanes in three spellings: plain C, AVX2 (two halves) and AVX-512. Row kernels are written once on
 * these (rows_body.h), and every lane sees the same IEEE operations in the same order, so all variants give the same
 * bits: sums run over lane i of each 16-block and end in one fixed tree.
 *
 * max and min return the second operand when either is NaN (the x86 rule), so callers place the value that may be
 * NaN second. Private to backend/cpu. MLA_SIMD_REF selects plain C whatever the compiler may use. */
#ifndef MLA_BACKEND_CPU_SIMD_H
#define MLA_BACKEND_CPU_SIMD_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tensor/fp.h"

#define MLA_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define MLA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MLA_UNROLL _Pragma("GCC unroll 64")
#endif

#if !defined(MLA_SIMD_REF)
#include <immintrin.h>
#endif

/* 1.5 * 2^23: adding it rounds to an integer, held in the low mantissa bits. */
#define MLA_ROUND_MAGIC 12582912.0f

#if !defined(MLA_SIMD_REF) && defined(__AVX512F__)
typedef __m512 v16;
MLA_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
MLA_INLINE void v16_store(float *p, v16 v) { _mm512_storeu_ps(p, v); }
MLA_INLINE v16 v16_set(float x) { return _mm512_set1_ps(x); }
MLA_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
MLA_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
MLA_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
MLA_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
MLA_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
MLA_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
MLA_INLINE v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
MLA_INLINE v16 v16_neg_abs(v16 a) { return _mm512_or_ps(a, _mm512_set1_ps(-0.0f)); }
MLA_INLINE v16 v16_if_neg(v16 x, v16 yes, v16 no) /* by sign bit */
{
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), no, yes);
}
MLA_INLINE v16 v16_loadn(const float *p, size_t n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
MLA_INLINE void v16_storen(float *p, v16 v, size_t n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v); }
MLA_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
/* e4m3 as f16 with the same fields is 2^-8 times the value, subnormals included; 0x7f and 0xff are NaN. */
MLA_INLINE v16 v16_load_e4m3(const uint8_t *p)
{
    __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i mag = _mm256_and_si256(w, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x80)), 8);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7e00));
    __m256i h = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(mag, 7), sign), nan);
    return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(256.0f));
}
/* 2^(n>>1) and 2^(n - (n>>1)) for t = n + MLA_ROUND_MAGIC, |n| <= 200. */
MLA_INLINE void v16_pow2(v16 t, v16 *a, v16 *b)
{
    __m512i n = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_castps_si512(_mm512_set1_ps(MLA_ROUND_MAGIC)));
    __m512i h = _mm512_srai_epi32(n, 1), bias = _mm512_set1_epi32(127);
    *a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(h, bias), 23));
    *b = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, h), bias), 23));
}

#elif !defined(MLA_SIMD_REF) && defined(__AVX2__)
typedef struct {
    __m256 lo, hi;
} v16;
MLA_INLINE v16 v16_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
MLA_INLINE void v16_store(float *p, v16 v) { _mm256_storeu_ps(p, v.lo); _mm256_storeu_ps(p + 8, v.hi); }
MLA_INLINE v16 v16_set(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
MLA_INLINE v16 v16_add(v16 a, v16 b) { return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
MLA_INLINE v16 v16_sub(v16 a, v16 b) { return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
MLA_INLINE v16 v16_mul(v16 a, v16 b) { return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
MLA_INLINE v16 v16_div(v16 a, v16 b) { return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
MLA_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
MLA_INLINE v16 v16_max(v16 a, v16 b) { return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
MLA_INLINE v16 v16_min(v16 a, v16 b) { return (v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
MLA_INLINE v16 v16_neg_abs(v16 a)
{
    __m256 s = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_or_ps(a.lo, s), _mm256_or_ps(a.hi, s)};
}
MLA_INLINE v16 v16_if_neg(v16 x, v16 yes, v16 no)
{
    return (v16){_mm256_blendv_ps(no.lo, yes.lo, x.lo), _mm256_blendv_ps(no.hi, yes.hi, x.hi)};
}
MLA_INLINE v16 v16_loadn(const float *p, size_t n)
{
    float t[16] = {0};
    memcpy(t, p, n * 4);
    return v16_load(t);
}
MLA_INLINE void v16_storen(float *p, v16 v, size_t n)
{
    float t[16];
    v16_store(t, v);
    memcpy(p, t, n * 4);
}
MLA_INLINE __m256 v8_load_bf16(const uint16_t *p)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
MLA_INLINE v16 v16_load_bf16(const uint16_t *p) { return (v16){v8_load_bf16(p), v8_load_bf16(p + 8)}; }
MLA_INLINE v16 v16_load_e4m3(const uint8_t *p)
{
    __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i mag = _mm256_and_si256(w, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x80)), 8);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7e00));
    __m256i h = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(mag, 7), sign), nan);
    __m256 s = _mm256_set1_ps(256.0f);
    return (v16){_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), s),
                 _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), s)};
}
MLA_INLINE void v8_pow2(__m256 t, __m256 *a, __m256 *b)
{
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(_mm256_set1_ps(MLA_ROUND_MAGIC)));
    __m256i h = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
    *a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, bias), 23));
    *b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, h), bias), 23));
}
MLA_INLINE void v16_pow2(v16 t, v16 *a, v16 *b)
{
    v8_pow2(t.lo, &a->lo, &b->lo);
    v8_pow2(t.hi, &a->hi, &b->hi);
}

#else
#define MLA_PLAIN static inline /* left to the compiler: forced inlining of these loops makes sanitizer builds crawl */
typedef struct {
    float f[16];
} v16;
#define V16_EACH(expr)                       \
    v16 r;                                   \
    for (size_t i = 0; i < 16; i++) r.f[i] = (expr); \
    return r
MLA_PLAIN v16 v16_load(const float *p) { V16_EACH(p[i]); }
MLA_PLAIN void v16_store(float *p, v16 v) { memcpy(p, v.f, sizeof v.f); }
MLA_PLAIN v16 v16_set(float x) { V16_EACH(x); }
MLA_PLAIN v16 v16_add(v16 a, v16 b) { V16_EACH(a.f[i] + b.f[i]); }
MLA_PLAIN v16 v16_sub(v16 a, v16 b) { V16_EACH(a.f[i] - b.f[i]); }
MLA_PLAIN v16 v16_mul(v16 a, v16 b) { V16_EACH(a.f[i] * b.f[i]); }
MLA_PLAIN v16 v16_div(v16 a, v16 b) { V16_EACH(a.f[i] / b.f[i]); }
MLA_PLAIN v16 v16_fma(v16 a, v16 b, v16 c) { V16_EACH(fmaf(a.f[i], b.f[i], c.f[i])); }
MLA_PLAIN v16 v16_max(v16 a, v16 b) { V16_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
MLA_PLAIN v16 v16_min(v16 a, v16 b) { V16_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
MLA_PLAIN v16 v16_neg_abs(v16 a) { V16_EACH(mla_bits_f32(mla_f32_bits(a.f[i]) | 0x80000000u)); }
MLA_PLAIN v16 v16_if_neg(v16 x, v16 yes, v16 no) { V16_EACH(mla_f32_bits(x.f[i]) >> 31 ? yes.f[i] : no.f[i]); }
MLA_PLAIN v16 v16_loadn(const float *p, size_t n) { V16_EACH(i < n ? p[i] : 0.0f); }
MLA_PLAIN void v16_storen(float *p, v16 v, size_t n) { memcpy(p, v.f, n * 4); }
MLA_PLAIN v16 v16_load_bf16(const uint16_t *p) { V16_EACH(mla_bf16_f32(p[i])); }
MLA_PLAIN v16 v16_load_e4m3(const uint8_t *p) { V16_EACH(mla_e4m3_f32(p[i])); }
MLA_PLAIN void v16_pow2(v16 t, v16 *a, v16 *b)
{
    for (size_t i = 0; i < 16; i++) {
        uint32_t n = mla_f32_bits(t.f[i]) - mla_f32_bits(MLA_ROUND_MAGIC);
        uint32_t h = (n >> 1) | (n & 0x80000000u); /* arithmetic shift */
        a->f[i] = mla_bits_f32((h + 127u) << 23);
        b->f[i] = mla_bits_f32((n - h + 127u) << 23);
    }
}
#undef V16_EACH
#endif

/* Halves folded four times, (0+8), ... then (0+4), ...: the same tree for every variant. */
#if defined(MLA_SIMD_REF) || !defined(__AVX2__)
MLA_PLAIN float v16_sum(v16 v)
{
    for (size_t w = 8; w; w /= 2)
        for (size_t i = 0; i < w; i++) v.f[i] = v.f[i] + v.f[i + w];
    return v.f[0];
}
MLA_PLAIN float v16_hmax(v16 v)
{
    for (size_t w = 8; w; w /= 2)
        for (size_t i = 0; i < w; i++) v.f[i] = v.f[i] > v.f[i + w] ? v.f[i] : v.f[i + w];
    return v.f[0];
}
#else
MLA_INLINE __m256 v16_half(v16 v, int high)
{
#if defined(__AVX512F__)
    return high ? _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)) : _mm512_castps512_ps256(v);
#else
    return high ? v.hi : v.lo;
#endif
}
MLA_INLINE float v16_sum(v16 v)
{
    __m256 a = _mm256_add_ps(v16_half(v, 0), v16_half(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
MLA_INLINE float v16_hmax(v16 v)
{
    __m256 a = _mm256_max_ps(v16_half(v, 0), v16_half(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
#endif

#if defined(MLA_PLAIN)
#define MLA_VEC MLA_PLAIN
#else
#define MLA_VEC MLA_INLINE
#endif

/* e^x, error at most 1.10 ulp (measured over every float of [-106, 89]): Cody-Waite reduction x = n ln2 + r with a
 * 15-bit high part of ln2 (n * high is exact), then 1 + r + r^2 P(r) with P of degree 4 interpolating
 * (e^r - 1 - r) / r^2 at Chebyshev nodes of |r| <= ln2/2 (approximation error 1.1e-8), then two scalings by powers of two so that
 * overflow gives infinity and small results become subnormal. NaN stays NaN. */
MLA_VEC v16 v16_exp(v16 x)
{
    x = v16_min(v16_set(90.0f), v16_max(v16_set(-105.0f), x));
    v16 t = v16_fma(x, v16_set(0x1.715476p+0f), v16_set(MLA_ROUND_MAGIC));
    v16 n = v16_sub(t, v16_set(MLA_ROUND_MAGIC));
    v16 r = v16_fma(n, v16_set(-0x1.62e4p-1f), x);
    r = v16_fma(n, v16_set(-0x1.7f7d1cp-20f), r);
    v16 p = v16_set(0x1.6d113cp-10f);
    p = v16_fma(p, r, v16_set(0x1.120ba2p-7f));
    p = v16_fma(p, r, v16_set(0x1.55551ap-5f));
    p = v16_fma(p, r, v16_set(0x1.5554dcp-3f));
    p = v16_fma(p, r, v16_set(0.5f));
    p = v16_fma(v16_mul(r, r), p, r);
    p = v16_add(p, v16_set(1.0f));
    v16 a, b;
    v16_pow2(t, &a, &b);
    return v16_mul(v16_mul(p, a), b);
}
/* 1 / (1 + e^-x), from e^-|x| so that neither side loses digits. */
MLA_VEC v16 v16_sigmoid(v16 x)
{
    v16 e = v16_exp(v16_neg_abs(x)), one = v16_set(1.0f);
    return v16_div(v16_if_neg(x, e, one), v16_add(one, e));
}
#endif
