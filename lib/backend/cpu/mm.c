/* A small product on one thread, for ops that are made of products: rows of A are copied into the microkernel's layout
 * tile by tile. */
#include <string.h>

#include "backend/cpu/cpu.h"

void mla_cpu_mm(const mla_cpu_kern *k, float *abuf, const mla_mm *g)
{
    float alpha[MLA_MR];
    for (size_t m0 = 0; m0 < g->M; m0 += MLA_MR) {
        size_t m = mla_min_size(MLA_MR, g->M - m0);
        for (size_t k0 = 0; k0 < g->K; k0 += MLA_KP) {
            size_t n = mla_min_size(MLA_KP, g->K - k0);
            for (size_t r = 0; r < m; r++) {
                memcpy(abuf + r * MLA_LDA, g->a + (m0 + r) * g->lda + k0, n * sizeof *abuf);
                alpha[r] = k0 || !g->alpha ? 1 : g->alpha[m0 + r];
            }
            for (size_t j = 0; j < g->N; j += MLA_NR) {
                mla_tile t = {.a = abuf, .b = g->b + j * g->K + k0 * MLA_NR, .c = g->c + m0 * g->ldc + j, .ldc = g->ldc,
                              .k = n, .alpha = k0 || g->alpha ? alpha : NULL};
                k->tile_f32(m, &t);
            }
        }
    }
}

void mla_cpu_panels(float *dst, const float *src, size_t ld, size_t K, size_t N)
{
    for (size_t j = 0; j < N; j += MLA_NR)
        for (size_t i = 0; i < K; i++, dst += MLA_NR) {
            size_t n = mla_min_size(MLA_NR, N - j);
            memcpy(dst, src + i * ld + j, n * sizeof *dst);
            if (n < MLA_NR) memset(dst + n, 0, (MLA_NR - n) * sizeof *dst);
        }
}
