/* The AVX2 + FMA + F16C variant. */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#include "backend/cpu/rows_body.h"
static void tile_f32(size_t m, const mla_tile *t) { mla_cpu_kern_ref.tile_f32(m, t); }
static void tile_bf16(size_t m, const mla_tile *t) { mla_cpu_kern_ref.tile_bf16(m, t); }
static void tile_gram(const mla_gram_tile *t) { mla_cpu_kern_ref.tile_gram(t); }
static void pack_f32(float *d, const float *s, size_t ld, size_t r, size_t k) { mla_cpu_kern_ref.pack_f32(d, s, ld, r, k); }
static void pack_bf16(uint32_t *d, const float *s, size_t ld, size_t r, size_t k) { mla_cpu_kern_ref.pack_bf16(d, s, ld, r, k); }
static void round_a(void *d, const float *s, size_t n) { mla_cpu_kern_ref.round_a(d, s, n); }
const mla_cpu_kern mla_cpu_kern_avx2 = {
    .isa = MLA_ISA_AVX2, .name = "avx2", .tile_f32 = tile_f32, .tile_bf16 = tile_bf16, .tile_gram = tile_gram,
    .pack_f32 = pack_f32, .pack_bf16 = pack_bf16, .round_a = round_a, MLA_ROW_KERNELS,
};
#endif
