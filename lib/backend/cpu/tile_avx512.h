/* What the AVX-512 variants with and without bf16 products share: 14 rows x 32 columns of C live in 28 registers, B
 * streams, A is broadcast from a constant stride. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_TILE_AVX512_H
#define MLA_BACKEND_CPU_TILE_AVX512_H
#include <immintrin.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/operands.h"
#include "backend/cpu/simd.h"

#define FEW 8 /* rows up to which B comes from memory rather than cache: prefetch ahead */
#define AHEAD 4096 /* bytes */

/* c = sums, or fma(c, alpha, sums): the end of every tile */
MLA_LOOKED_AT MLA_INLINE void tile_store(const mla_tile *t, size_t m, __m512 (*acc)[2])
{
    MLA_UNROLL
    for (size_t i = 0; i < m; i++) {
        float *c = t->c + i * t->ldc;
        if (t->alpha) {
            __m512 al = _mm512_set1_ps(t->alpha[i]);
            acc[i][0] = _mm512_fmadd_ps(_mm512_loadu_ps(c), al, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(_mm512_loadu_ps(c + 16), al, acc[i][1]);
        }
        _mm512_storeu_ps(c, acc[i][0]);
        _mm512_storeu_ps(c + 16, acc[i][1]);
    }
}

/* One instance per row count; rows(m, t) must inline. */
#define MLA_TILE_SWITCH(rows, m, t)                                                                            \
    switch (m) {                                                                                               \
    case 1: rows(1, t); break;                                                                                 \
    case 2: rows(2, t); break;                                                                                 \
    case 3: rows(3, t); break;                                                                                 \
    case 4: rows(4, t); break;                                                                                 \
    case 5: rows(5, t); break;                                                                                 \
    case 6: rows(6, t); break;                                                                                 \
    case 7: rows(7, t); break;                                                                                 \
    case 8: rows(8, t); break;                                                                                 \
    case 9: rows(9, t); break;                                                                                 \
    case 10: rows(10, t); break;                                                                               \
    case 11: rows(11, t); break;                                                                               \
    case 12: rows(12, t); break;                                                                               \
    case 13: rows(13, t); break;                                                                               \
    default: rows(14, t); break;                                                                               \
    }

/* f32 lanes to bf16 in the high half, nearest even, NaN quieted (tensor/fp.h, sixteen at a time) */
MLA_INLINE __m512i round_high(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u));
}

#endif
