/* What the portable variant has in plain C beside its products, for rows_ref.c and rows_ref_fma.c. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_ROWS_REF_H
#define MLA_BACKEND_CPU_ROWS_REF_H
#define MLA_SIMD_REF
#include "backend/cpu/rows_body.h"

static void pack_f32(float *dst, const float *src, size_t ld, size_t rows, size_t k)
{
    for (size_t i = 0; i < k; i++)
        for (size_t r = 0; r < MLA_NR; r++) dst[i * MLA_NR + r] = r < rows ? src[r * ld + i] : 0;
}

#include "backend/cpu/keys_body.h"

static void fill_rows_ref(mla_cpu_kern *k)
{
    fill_rows(k);
    k->keys = row_keys;
    k->pack_f32 = pack_f32;
}
#endif
