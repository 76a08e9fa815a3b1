/* The portable variant: plain C with fmaf, the oracle of every other variant. Where fmaf is a call, nearly all its time is calls:
 * the products are compiled a second time for CPUs that have the instruction, which rounds the same. */
#define MLA_SIMD_REF
#include "backend/cpu/codes_body.h"

#if defined __x86_64__ && defined __GLIBC__ && !defined __clang__
#define MLA_FMA_CLONE __attribute__((target_clones("fma", "default")))
#else
#define MLA_FMA_CLONE
#endif

/* f32 rows of A, one product at a time; b holds f32. */
MLA_FMA_CLONE static void tile_f32(size_t m, const mla_tile *t)
{
    const float *a = t->a, *b = t->b;
    for (size_t i = 0; i < m; i++) {
        float s[MLA_NR] = {0}, *c = t->c + i * t->ldc;
        for (size_t k = 0; k < t->k; k++)
            for (size_t j = 0; j < MLA_NR; j++) s[j] = fmaf(a[i * MLA_LDA + k], b[k * MLA_NR + j], s[j]);
        for (size_t j = 0; j < MLA_NR; j++) c[j] = t->alpha ? fmaf(c[j], t->alpha[i], s[j]) : s[j];
    }
}

/* A as f32 holding bf16 values; b holds pairs, the even k in the low half. */
MLA_FMA_CLONE static void tile_bf16(size_t m, const mla_tile *t)
{
    const float *a = t->a;
    const uint32_t *b = t->b;
    for (size_t i = 0; i < m; i++) {
        float s[MLA_NR] = {0}, *c = t->c + i * t->ldc;
        for (size_t k = 0; k < t->k; k++)
            for (size_t j = 0; j < MLA_NR; j++) {
                uint32_t w = b[k * MLA_NR + j];
                s[j] = fmaf(a[i * MLA_LDA + 2 * k], mla_bits_f32(w << 16), s[j]);
                s[j] = fmaf(a[i * MLA_LDA + 2 * k + 1], mla_bits_f32(w & 0xffff0000u), s[j]);
            }
        for (size_t j = 0; j < MLA_NR; j++) c[j] = t->alpha ? fmaf(c[j], t->alpha[i], s[j]) : s[j];
    }
}

MLA_FMA_CLONE static void tile_gram(const mla_gram_tile *t)
{
    for (size_t i = 0; i < t->m; i++)
        for (size_t j = 0; j < t->n; j++) {
            double s = 0;
            for (size_t k = 0; k < t->T; k++) s = fma(t->a[k * t->lda + i], t->b[k * t->ldb + j], s);
            t->c[i * t->ldc + j] += s;
        }
}

static void pack_bf16(uint32_t *dst, const float *src, size_t ld, size_t rows, size_t k)
{
    for (size_t i = 0; i < k; i += 2)
        for (size_t r = 0; r < MLA_NR; r++) {
            uint32_t lo = r < rows ? mla_f32_bf16(src[r * ld + i]) : 0;
            uint32_t hi = r < rows && i + 1 < k ? mla_f32_bf16(src[r * ld + i + 1]) : 0;
            dst[i / 2 * MLA_NR + r] = lo | hi << 16;
        }
}

static void round_a(void *dst, const float *src, size_t n)
{
    float *d = dst;
    for (size_t i = 0; i < n; i++) d[i] = mla_bf16_f32(mla_f32_bf16(src[i]));
    if (n & 1) d[n] = 0;
}

void mla_cpu_fill_ref(mla_cpu_kern *k)
{
    *k = (mla_cpu_kern){
        .isa = MLA_ISA_REF, .name = "ref", .bf16_pairs = false,
        .tile_f32 = tile_f32, .tile_bf16 = tile_bf16, .tile_gram = tile_gram,
        .pack_bf16 = pack_bf16, .round_a = round_a,
        MLA_CODE_KERNELS,
    };
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma")) {
        mla_cpu_add_rows_ref_fma(k);
        return;
    }
#endif
    mla_cpu_add_rows_ref(k);
}
