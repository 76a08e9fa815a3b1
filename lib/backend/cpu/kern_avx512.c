/* The AVX-512 variant without bf16 instructions: bf16 weights are widened in registers. */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#include "backend/cpu/rows_body.h"
#include "backend/cpu/tile_avx512.h"

static void tile_f32(size_t m, const mla_tile *t) { MLA_TILE_SWITCH(tile_f32_rows, m, t) }
static void tile_bf16(size_t m, const mla_tile *t) { MLA_TILE_SWITCH(tile_wide_rows, m, t) }

static void round_a(void *dst, const float *src, size_t n)
{
    float *d = dst;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_si512(d + i, round_high(_mm512_loadu_ps(src + i)));
    for (; i < n; i++) d[i] = mla_bf16_f32(mla_f32_bf16(src[i]));
    if (n & 1) d[n] = 0;
}

const mla_cpu_kern mla_cpu_kern_avx512 = {
    .isa = MLA_ISA_AVX512, .name = "avx512", .bf16_pairs = false,
    .tile_f32 = tile_f32, .tile_bf16 = tile_bf16, .tile_gram = tile_gram,
    .pack_f32 = pack_f32, .pack_bf16 = pack_bf16, .round_a = round_a, .keys = keys,
    MLA_ROW_KERNELS,
};
#endif
