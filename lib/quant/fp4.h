/* E2M1 codes, two to a byte, the low half first: what NVFP4 and MXFP4 share. Inside the quant layer only. */
#ifndef MLA_QUANT_FP4_H
#define MLA_QUANT_FP4_H
#include <stddef.h>

/* Bits 0-2: 0 .5 1 1.5 2 3 4 6; bit 3: the sign. */
static const float MLA_E2M1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};

/* dst[0..n) = e2m1(codes) * s, n even */
static inline void mla_fp4_run(float *dst, const unsigned char *codes, size_t n, float s)
{
    for (size_t i = 0; i < n; i += 2) {
        dst[i] = MLA_E2M1[codes[i / 2] & 15] * s;
        dst[i + 1] = MLA_E2M1[codes[i / 2] >> 4] * s;
    }
}
#endif
