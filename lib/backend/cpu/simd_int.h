/* Sixteen 32-bit integer lanes beside simd.h's f32 lanes, in the same three spellings: what codes are taken apart with.
 * Shift counts are constants in every call unless a function says otherwise. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_SIMD_INT_H
#define MLA_BACKEND_CPU_SIMD_INT_H
#include "backend/cpu/simd.h"

/* Words at any address: a load some bytes further shifts every lane right by as many bytes (the top of the last lane
 * then comes from beyond). */
#if !defined(MLA_SIMD_REF) && defined(__AVX512F__)
typedef __m512i v16i;
typedef __m512 v16_lut; /* sixteen values, looked up by the low four bits of a lane */
MLA_INLINE v16i v16i_load(const void *p) { return _mm512_loadu_si512(p); }
MLA_INLINE v16i v16i_set(uint32_t x) { return _mm512_set1_epi32((int)x); }
MLA_INLINE v16i v16i_shr(v16i a, unsigned n) { return _mm512_srli_epi32(a, n); }
MLA_INLINE v16i v16i_shl(v16i a, unsigned n) { return _mm512_slli_epi32(a, n); }
MLA_INLINE v16i v16i_sar(v16i a, unsigned n) { return _mm512_srai_epi32(a, n); }
MLA_INLINE v16i v16i_and(v16i a, v16i b) { return _mm512_and_si512(a, b); }
MLA_INLINE v16i v16i_or(v16i a, v16i b) { return _mm512_or_si512(a, b); }
MLA_INLINE v16i v16i_xor(v16i a, v16i b) { return _mm512_xor_si512(a, b); }
MLA_INLINE v16i v16i_add(v16i a, v16i b) { return _mm512_add_epi32(a, b); }
MLA_INLINE v16i v16i_andnot(v16i a, v16i b) { return _mm512_andnot_si512(a, b); } /* ~a & b */
MLA_INLINE v16i v16i_none(v16i a) { return _mm512_movm_epi32(_mm512_testn_epi32_mask(a, a)); } /* all ones where 0 */
MLA_INLINE v16i v16_bits(v16 a) { return _mm512_castps_si512(a); }
MLA_INLINE v16 v16_from_int(v16i a) { return _mm512_cvtepi32_ps(a); }
MLA_INLINE v16 v16_from_bits(v16i a) { return _mm512_castsi512_ps(a); }
MLA_INLINE v16_lut v16_lut_load(const float *t) { return _mm512_loadu_ps(t); }
MLA_INLINE v16 v16_look(v16_lut t, v16i i) { return _mm512_permutexvar_ps(i, t); }
MLA_INLINE v16 v16_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
MLA_INLINE v16i v16i_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)); }
MLA_INLINE void v16i_store_u16(uint16_t *p, v16i a) { _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(a)); } /* low halves */
MLA_INLINE v16i v16i_load_i8(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)); }
MLA_INLINE v16 v16_load_e4m3_256th(const uint8_t *p) /* 2^-8 of finite e4m3 numbers: f16 has their fields, one exponent bit aside */
{
    __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)); /* the sign in bits 7 to 15 */
    __m256i h = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xbfff));
    return _mm512_cvtph_ps(h);
}
MLA_INLINE v16 v16_gather(const float *t, v16i i) { return _mm512_i32gather_ps(i, t, 4); }
/* Lane l takes lane l ^ h, h = 1, 2, 4, 8. */
MLA_INLINE v16 v16_swap(v16 a, unsigned h)
{
    return h == 1 ? _mm512_permute_ps(a, 0xb1) : h == 2 ? _mm512_permute_ps(a, 0x4e)
         : h == 4 ? _mm512_shuffle_f32x4(a, a, 0xb1) : _mm512_shuffle_f32x4(a, a, 0x4e);
}

#elif !defined(MLA_SIMD_REF) && defined(__AVX2__)
typedef struct {
    __m256i lo, hi;
} v16i;
typedef struct {
    __m256 lo, hi;
} v16_lut;
MLA_INLINE __m256i v8i_load(const void *p) { return _mm256_loadu_si256(p); }
MLA_INLINE v16i v16i_load(const void *p) { return (v16i){v8i_load(p), v8i_load((const char *)p + 32)}; }
MLA_INLINE v16i v16i_set(uint32_t x) { return (v16i){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }
#define V16I_BOTH(name, op) \
    MLA_INLINE v16i name(v16i a, v16i b) { return (v16i){op(a.lo, b.lo), op(a.hi, b.hi)}; }
V16I_BOTH(v16i_and, _mm256_and_si256)
V16I_BOTH(v16i_or, _mm256_or_si256)
V16I_BOTH(v16i_andnot, _mm256_andnot_si256)
V16I_BOTH(v8i_equal, _mm256_cmpeq_epi32)
V16I_BOTH(v16i_xor, _mm256_xor_si256)
V16I_BOTH(v16i_add, _mm256_add_epi32)
MLA_INLINE v16i v16i_shr(v16i a, int n) { return (v16i){_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)}; }
MLA_INLINE v16i v16i_shl(v16i a, int n) { return (v16i){_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)}; }
MLA_INLINE v16i v16i_sar(v16i a, int n) { return (v16i){_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)}; }
MLA_INLINE v16i v16i_none(v16i a) { return v8i_equal(a, v16i_set(0)); }
MLA_INLINE v16i v16_bits(v16 a) { return (v16i){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
MLA_INLINE v16 v16_from_int(v16i a) { return (v16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
MLA_INLINE v16 v16_from_bits(v16i a) { return (v16){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
MLA_INLINE v16_lut v16_lut_load(const float *t) { return (v16_lut){_mm256_loadu_ps(t), _mm256_loadu_ps(t + 8)}; }
MLA_INLINE __m256 v8_look(v16_lut t, __m256i i)
{
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.lo, i), _mm256_permutevar8x32_ps(t.hi, i),
                            _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
MLA_INLINE v16 v16_look(v16_lut t, v16i i) { return (v16){v8_look(t, i.lo), v8_look(t, i.hi)}; }
/* Bytes of t picked by the bytes of i (< 16), in every 128 bits; a table of sixteen bytes. */
V16I_BOTH(v16i_look_bytes, _mm256_shuffle_epi8)
#undef V16I_BOTH
MLA_INLINE v16i v16i_look_load(const uint8_t *t)
{
    __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)t));
    return (v16i){v, v};
}
/* Every lane's own bytes in another order: four indices, 0x80 for a zero */
MLA_INLINE v16i v16i_pick(v16i a, uint32_t from)
{
    __m256i at = _mm256_add_epi8(_mm256_set1_epi32((int)from), _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    return v16i_look_bytes(a, (v16i){at, at});
}
MLA_INLINE v16i v16i_byte(v16i a, unsigned j) /* byte j of every lane */
{
    return j == 0 ? v16i_and(a, v16i_set(255)) : j == 3 ? v16i_shr(a, 24) : v16i_pick(a, 0x80808000u + j);
}
MLA_INLINE __m256 v8_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
MLA_INLINE v16 v16_load_f16(const void *p) { return (v16){v8_load_f16(p), v8_load_f16((const char *)p + 16)}; }
MLA_INLINE __m128i v8_bytes(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
MLA_INLINE v16i v16i_load_u8(const uint8_t *p) { return (v16i){_mm256_cvtepu8_epi32(v8_bytes(p)), _mm256_cvtepu8_epi32(v8_bytes(p + 8))}; }
MLA_INLINE v16i v16i_load_i8(const uint8_t *p) { return (v16i){_mm256_cvtepi8_epi32(v8_bytes(p)), _mm256_cvtepi8_epi32(v8_bytes(p + 8))}; }
MLA_INLINE void v16i_store_u16(uint16_t *p, v16i a)
{
    __m256i half = _mm256_set1_epi32(0xffff), v = _mm256_packus_epi32(_mm256_and_si256(a.lo, half), _mm256_and_si256(a.hi, half));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(v, 0xd8));
}
MLA_INLINE v16 v16_load_e4m3_256th(const uint8_t *p)
{
    __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)); /* the sign in bits 7 to 15 */
    __m256i h = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xbfff));
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
MLA_INLINE v16 v16_gather(const float *t, v16i i) { return (v16){_mm256_i32gather_ps(t, i.lo, 4), _mm256_i32gather_ps(t, i.hi, 4)}; }
MLA_INLINE v16 v16_swap(v16 a, unsigned h)
{
    if (h == 8) return (v16){a.hi, a.lo};
    if (h == 4) return (v16){_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
    if (h == 2) return (v16){_mm256_permute_ps(a.lo, 0x4e), _mm256_permute_ps(a.hi, 0x4e)};
    return (v16){_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
}

#else
typedef struct {
    uint32_t u[16];
} v16i;
typedef struct {
    float f[16];
} v16_lut;
#define V16I_EACH(expr)                              \
    v16i r;                                          \
    for (size_t i = 0; i < 16; i++) r.u[i] = (expr); \
    return r
#define V16_EACH(expr)                               \
    v16 r;                                           \
    for (size_t i = 0; i < 16; i++) r.f[i] = (expr); \
    return r
MLA_PLAIN v16i v16i_load(const void *p)
{
    v16i r;
    memcpy(r.u, p, sizeof r.u);
    return r;
}
MLA_PLAIN v16i v16i_set(uint32_t x) { V16I_EACH(x); }
MLA_PLAIN v16i v16i_shr(v16i a, unsigned n) { V16I_EACH(a.u[i] >> n); }
MLA_PLAIN v16i v16i_shl(v16i a, unsigned n) { V16I_EACH(a.u[i] << n); }
MLA_PLAIN v16i v16i_sar(v16i a, unsigned n) { V16I_EACH(n ? a.u[i] >> n | (a.u[i] >> 31 ? ~0u << (32 - n) : 0) : a.u[i]); }
MLA_PLAIN v16i v16i_and(v16i a, v16i b) { V16I_EACH(a.u[i] & b.u[i]); }
MLA_PLAIN v16i v16i_or(v16i a, v16i b) { V16I_EACH(a.u[i] | b.u[i]); }
MLA_PLAIN v16i v16i_xor(v16i a, v16i b) { V16I_EACH(a.u[i] ^ b.u[i]); }
MLA_PLAIN v16i v16i_add(v16i a, v16i b) { V16I_EACH(a.u[i] + b.u[i]); }
MLA_PLAIN v16i v16i_andnot(v16i a, v16i b) { V16I_EACH(~a.u[i] & b.u[i]); }
MLA_PLAIN v16i v16i_none(v16i a) { V16I_EACH(a.u[i] ? 0 : ~0u); }
MLA_PLAIN v16i v16_bits(v16 a) { V16I_EACH(mla_f32_bits(a.f[i])); }
MLA_PLAIN v16 v16_from_int(v16i a) { V16_EACH((float)(int32_t)a.u[i]); }
MLA_PLAIN v16 v16_from_bits(v16i a) { V16_EACH(mla_bits_f32(a.u[i])); }
MLA_PLAIN v16_lut v16_lut_load(const float *t)
{
    v16_lut r;
    memcpy(r.f, t, sizeof r.f);
    return r;
}
MLA_PLAIN v16 v16_look(v16_lut t, v16i j) { V16_EACH(t.f[j.u[i] & 15]); }
MLA_PLAIN v16 v16_load_f16(const void *p)
{
    uint16_t h[16];
    memcpy(h, p, sizeof h);
    V16_EACH(mla_f16_f32(h[i]));
}
MLA_PLAIN v16i v16i_load_u8(const uint8_t *p) { V16I_EACH(p[i]); }
MLA_PLAIN v16i v16i_load_i8(const uint8_t *p) { V16I_EACH((uint32_t)(int8_t)p[i]); }
MLA_PLAIN void v16i_store_u16(uint16_t *p, v16i a)
{
    for (size_t i = 0; i < 16; i++) p[i] = (uint16_t)a.u[i];
}
MLA_PLAIN v16 v16_load_e4m3_256th(const uint8_t *p) { V16_EACH(mla_e4m3_f32(p[i]) * 0x1p-8f); }
MLA_PLAIN v16 v16_gather(const float *t, v16i j) { V16_EACH(t[j.u[i]]); }
MLA_PLAIN v16 v16_swap(v16 a, unsigned h) { V16_EACH(a.f[i ^ h]); }
#undef V16I_EACH
#undef V16_EACH
#endif
#endif
