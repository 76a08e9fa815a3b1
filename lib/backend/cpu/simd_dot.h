/* 32-bit lanes in a variant's own width, holding four bytes or two 16-bit numbers each, and sums of their products: with the dot
 * product instructions where the compiler may use them (__AVX512VNNI__, __AVXVNNI__: files *_avx512vnni.c, *_avxvnni.c), else by
 * way of 16-bit sums. AVX2 and wider; the portable variant needs none of this. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_SIMD_DOT_H
#define MLA_BACKEND_CPU_SIMD_DOT_H
#include "backend/cpu/simd_u16.h"

#if defined(__AVX512F__)
#define VD_LANES 16
typedef __m512i vd;
#define VD(op) _mm512_##op
#define VD_SI(op) _mm512_##op##_si512
MLA_INLINE vf vf_from_int(vd a) { return _mm512_cvtepi32_ps(a); }
MLA_INLINE vd vd_table(const uint8_t *t) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)t)); }
#if defined(__AVX512VNNI__)
#define VD_VNNI
MLA_INLINE vd vd_dot(vd sum, vd u, vd x) { return _mm512_dpbusd_epi32(sum, u, x); }
#endif
#else
#define VD_LANES 8
typedef __m256i vd;
#define VD(op) _mm256_##op
#define VD_SI(op) _mm256_##op##_si256
MLA_INLINE vf vf_from_int(vd a) { return _mm256_cvtepi32_ps(a); }
MLA_INLINE vd vd_table(const uint8_t *t) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)t)); }
#if defined(__AVXVNNI__)
#define VD_VNNI
MLA_INLINE vd vd_dot(vd sum, vd u, vd x) { return _mm256_dpbusd_avx_epi32(sum, u, x); }
#endif
#endif
MLA_INLINE vd vd_load(const void *p) { return VD_SI(loadu)(p); }
MLA_INLINE vd vd_set(uint32_t x) { return VD(set1_epi32)((int)x); }
MLA_INLINE vd vd_four(const uint8_t *p) /* the four bytes at p, in every lane */
{
    int x;
    memcpy(&x, p, 4);
    return VD(set1_epi32)(x);
}
MLA_INLINE vd vd_and(vd a, vd b) { return VD_SI(and)(a, b); }
MLA_INLINE vd vd_or(vd a, vd b) { return VD_SI(or)(a, b); }
MLA_INLINE vd vd_xor(vd a, vd b) { return VD_SI(xor)(a, b); }
MLA_INLINE vd vd_shr(vd a, unsigned n) { return VD(srli_epi32)(a, n); }
MLA_INLINE vd vd_shl(vd a, unsigned n) { return VD(slli_epi32)(a, n); }
MLA_INLINE vd vd_add(vd a, vd b) { return VD(add_epi32)(a, b); }
MLA_INLINE vd vd_look(vd table, vd i) { return VD(shuffle_epi8)(table, i); }
MLA_INLINE vd vd_add16(vd a, vd b) { return VD(add_epi16)(a, b); }
MLA_INLINE vd vd_pairs(vd u, vd x) { return VD(maddubs_epi16)(u, x); }             /* unsigned times signed bytes, two of them added */
MLA_INLINE vd vd_quads(vd a, vd b) { return VD(madd_epi16)(a, b); }                /* 16-bit numbers multiplied, two of them added */
MLA_INLINE vd vd_low_bytes(vd a) { return VD(srai_epi16)(VD(slli_epi16)(a, 8), 8); } /* signed bytes 0 and 2 as 16-bit numbers */
MLA_INLINE vd vd_high_bytes(vd a) { return VD(srai_epi16)(a, 8); }                 /* 1 and 3 */
/* The compiler may not take a sum apart here: left alone it adds all products of a unit at its end, and runs out of registers. */
#define VD_KEEP(a) __asm__("" : "+v"(a))
#undef VD
#undef VD_SI
#endif
