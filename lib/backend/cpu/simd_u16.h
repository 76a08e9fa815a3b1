/* Unsigned 16-bit lanes in a variant's own width, VH_LANES of them, and the f32 vectors of half as many lanes that pairs of
 * them join to: what hashes of EXL3 are computed with. Thirty-two lanes are VH_PARTS vectors. (simd.h's pairs of halves would not
 * leave AVX2 enough registers here.) Shift counts are constants. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_SIMD_U16_H
#define MLA_BACKEND_CPU_SIMD_U16_H
#include "backend/cpu/simd_int.h"

#if !defined(MLA_SIMD_REF) && defined(__AVX2__)
#if defined(__AVX512F__)
#define VH_LANES 32
typedef __m512i vh;
typedef __m512 vf;
#define VH(op) _mm512_##op
#define VH_SI(op) _mm512_##op##_si512
MLA_INLINE vh vh_and_xor(vh a, vh b, vh c) { return _mm512_ternarylogic_epi32(a, b, c, 0x6a); } /* (a & b) ^ c */
MLA_INLINE vh vh_count_less(vh n, vh a, vh b) /* n + 1 where a < b as signed numbers */
{
    return _mm512_mask_sub_epi16(n, _mm512_cmplt_epi16_mask(a, b), n, _mm512_set1_epi16(-1));
}
MLA_INLINE vf vf_bits(vh a) { return _mm512_castsi512_ps(a); }
#define VH_SWAP(a) _mm512_shuffle_i64x2(a, a, 0xb1)
#if defined(__AVX512FP16__) && defined(__AVX512VBMI2__)
/* f16 numbers in the lanes; widened by halves of the vector, so lanes are put where the two joins would have put them. */
#define VH_F16
#ifdef __clang__ /* takes no count that only inlining makes a constant */
MLA_INLINE vh vh_window(vh a, vh b, unsigned n) { return _mm512_shldv_epi16(a, b, _mm512_set1_epi16((short)n)); }
#else
MLA_INLINE vh vh_window(vh a, vh b, unsigned n) { return _mm512_shldi_epi16(a, b, (int)n); }
#endif
MLA_INLINE vh vh_in_order(vh a) { return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), a); }
MLA_INLINE vh vh_f16_add(vh a, vh b) { return _mm512_castph_si512(_mm512_add_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b))); }
MLA_INLINE vh vh_f16_fma(vh a, vh b, vh c)
{
    return _mm512_castph_si512(_mm512_fmadd_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b), _mm512_castsi512_ph(c)));
}
MLA_INLINE vf vf_widen0(vh a) { return _mm512_cvtph_ps(_mm512_castsi512_si256(a)); }
MLA_INLINE vf vf_widen1(vh a) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(a, 1)); }
#endif
#else
#define VH_LANES 16
typedef __m256i vh;
typedef __m256 vf;
#define VH(op) _mm256_##op
#define VH_SI(op) _mm256_##op##_si256
MLA_INLINE vh vh_and_xor(vh a, vh b, vh c) { return _mm256_xor_si256(_mm256_and_si256(a, b), c); }
MLA_INLINE vh vh_count_less(vh n, vh a, vh b) { return _mm256_sub_epi16(n, _mm256_cmpgt_epi16(b, a)); }
MLA_INLINE vf vf_bits(vh a) { return _mm256_castsi256_ps(a); }
#define VH_SWAP(a) _mm256_permute4x64_epi64(a, 0x4e)
#endif
MLA_INLINE vh vh_load(const uint16_t *p) { return VH_SI(loadu)((const void *)p); }
MLA_INLINE void vh_store(uint16_t *p, vh v) { VH_SI(storeu)((void *)p, v); }
MLA_INLINE vh vh_set(unsigned x) { return VH(set1_epi16)((short)x); }
MLA_INLINE vh vh_shr(vh a, unsigned n) { return VH(srli_epi16)(a, (int)n); }
MLA_INLINE vh vh_shl(vh a, unsigned n) { return VH(slli_epi16)(a, (int)n); }
MLA_INLINE vh vh_sar(vh a, unsigned n) { return VH(srai_epi16)(a, (int)n); }
MLA_INLINE vh vh_or(vh a, vh b) { return VH_SI(or)(a, b); }
MLA_INLINE vh vh_add(vh a, vh b) { return VH(add_epi16)(a, b); }
MLA_INLINE vh vh_mul_low(vh a, vh b) { return VH(mullo_epi16)(a, b); }
MLA_INLINE vh vh_mul_high(vh a, vh b) { return VH(mulhi_epu16)(a, b); }
MLA_INLINE vh vh_sum_bytes(vh a) { return VH(maddubs_epi16)(a, VH(set1_epi8)(1)); } /* of each lane */
MLA_INLINE vf vf_join0(vh low, vh high) { return vf_bits(VH(unpacklo_epi16)(low, high)); }
MLA_INLINE vf vf_join1(vh low, vh high) { return vf_bits(VH(unpackhi_epi16)(low, high)); }
MLA_INLINE vh vh_turn(vh a) { return VH_SI(or)(VH(slli_epi64)(a, 16), VH(srli_epi64)(VH_SWAP(a), 48)); }
MLA_INLINE vf vf_load(const float *p) { return VH(loadu_ps)(p); }
MLA_INLINE void vf_store(float *p, vf v) { VH(storeu_ps)(p, v); }
MLA_INLINE vf vf_set(float x) { return VH(set1_ps)(x); }
MLA_INLINE vf vf_add(vf a, vf b) { return VH(add_ps)(a, b); }
MLA_INLINE vf vf_mul(vf a, vf b) { return VH(mul_ps)(a, b); }
MLA_INLINE vf vf_fma(vf a, vf b, vf c) { return VH(fmadd_ps)(a, b, c); }
#undef VH
#undef VH_SI
#undef VH_SWAP

#else
#define VH_LANES 32
typedef struct {
    uint16_t u[VH_LANES];
} vh;
typedef v16 vf;
#define VH_EACH(expr)                                                \
    vh r;                                                            \
    for (size_t i = 0; i < VH_LANES; i++) r.u[i] = (uint16_t)(expr); \
    return r
#define VF_EACH(expr)                                                \
    vf r;                                                            \
    for (size_t i = 0; i < VH_LANES / 2; i++) r.f[i] = (expr);       \
    return r
MLA_PLAIN vh vh_load(const uint16_t *p) { VH_EACH(p[i]); }
MLA_PLAIN void vh_store(uint16_t *p, vh v) { memcpy(p, v.u, sizeof v.u); }
MLA_PLAIN vh vh_set(unsigned x) { VH_EACH(x); }
MLA_PLAIN vh vh_shr(vh a, unsigned n) { VH_EACH(a.u[i] >> n); }
MLA_PLAIN vh vh_shl(vh a, unsigned n) { VH_EACH((unsigned)a.u[i] << n); }
MLA_PLAIN vh vh_sar(vh a, unsigned n) { VH_EACH(a.u[i] >> n | (a.u[i] >> 15 ? ~0u << (16 - n) : 0)); }
MLA_PLAIN vh vh_or(vh a, vh b) { VH_EACH(a.u[i] | b.u[i]); }
MLA_PLAIN vh vh_and_xor(vh a, vh b, vh c) { VH_EACH((a.u[i] & b.u[i]) ^ c.u[i]); }
MLA_PLAIN vh vh_add(vh a, vh b) { VH_EACH(a.u[i] + b.u[i]); }
MLA_PLAIN vh vh_mul_low(vh a, vh b) { VH_EACH((uint32_t)a.u[i] * b.u[i]); }
MLA_PLAIN vh vh_mul_high(vh a, vh b) { VH_EACH((uint32_t)a.u[i] * b.u[i] >> 16); }
MLA_PLAIN vh vh_count_less(vh n, vh a, vh b) { VH_EACH(n.u[i] + ((a.u[i] ^ 0x8000) < (b.u[i] ^ 0x8000))); }
MLA_PLAIN vh vh_sum_bytes(vh a) { VH_EACH((a.u[i] & 255) + (a.u[i] >> 8)); }
MLA_PLAIN vf vf_join0(vh low, vh high) { VF_EACH(mla_bits_f32(low.u[i / 4 * 8 + i % 4] | (uint32_t)high.u[i / 4 * 8 + i % 4] << 16)); }
MLA_PLAIN vf vf_join1(vh low, vh high) { VF_EACH(mla_bits_f32(low.u[i / 4 * 8 + 4 + i % 4] | (uint32_t)high.u[i / 4 * 8 + 4 + i % 4] << 16)); }
MLA_PLAIN vh vh_turn(vh a) { VH_EACH(a.u[i % 4 ? i - 1 : (i ^ 8) + 3]); }
MLA_PLAIN vf vf_load(const float *p) { return v16_load(p); }
MLA_PLAIN void vf_store(float *p, vf v) { v16_store(p, v); }
MLA_PLAIN vf vf_set(float x) { return v16_set(x); }
MLA_PLAIN vf vf_add(vf a, vf b) { return v16_add(a, b); }
MLA_PLAIN vf vf_mul(vf a, vf b) { return v16_mul(a, b); }
MLA_PLAIN vf vf_fma(vf a, vf b, vf c) { return v16_fma(a, b, c); }
#undef VH_EACH
#undef VF_EACH
#endif
#if !defined(VH_F16)
MLA_VEC vh vh_window(vh a, vh b, unsigned n) { return vh_or(vh_shl(a, n), vh_shr(b, 16 - n)); } /* 16 bits from bit n of a on, then b */
MLA_VEC vh vh_in_order(vh a) { return a; }
#endif
/* vf_join0, vf_join1: 32-bit lanes of low and high halves, taken from lanes 0-3, 8-11, 16-19, 24-27; and from the others.
 * vh_turn: a lane takes the lane before it in its ring of eight: 0 1 2 3 8 9 10 11; 4-7 12-15; 16-19 24-27; 20-23 28-31. */
#define VH_PARTS (32 / VH_LANES)
#endif
