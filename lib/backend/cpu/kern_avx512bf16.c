/* The AVX-512 variant with bf16 pair products (vdpbf16ps: two products per lane, subnormals flushed). */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#include "backend/cpu/tile_avx512.h"

MLA_INLINE void tile_pair_rows(const size_t m, const mla_tile *t)
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
static void tile_bf16(size_t m, const mla_tile *t) { MLA_TILE_SWITCH(tile_pair_rows, m, t) }

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

void mla_cpu_fill_avx512bf16(mla_cpu_kern *k)
{
    mla_cpu_fill_avx512(k);
    k->isa = MLA_ISA_AVX512BF16;
    k->name = "avx512bf16";
    k->bf16_pairs = true;
    k->tile_bf16 = tile_bf16;
    k->round_a = round_a;
}
#endif
