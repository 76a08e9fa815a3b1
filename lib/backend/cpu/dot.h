/* Products of one row in integers: what the fast path (MLA_PREC_BF16) multiplies packed codes with when rows are few.
 *
 * Inputs are cut into blocks of 32; a block becomes x = t q, t = amax / 32639, q the nearest whole number of x / t. Codes stand
 * for whole numbers u, v = (u - base) / a (tensor/coded.h: W = s v + m). Over a unit of 32 inputs (16, where groups are no
 * multiple of 32) the sum
 *     I = sum (u - base) q       |I| <= 32 * 255 * 32639 < 2^28
 * is a whole number, whatever the order. Then, in f32, one operation a step, in every instruction set:
 *     g = fma(I as f32, t, g)  over the units of a group, from 0;   X = fma(sum q as f32, t, X)  likewise
 *     y = fma(s / a, g, y);  y = fma(m, X, y)  after each group, from 0 in every block of MLA_KP inputs.
 * (s of NVFP4's kind, an e4m3 number times or over a factor, is that number times the factor's rounded value: two roundings.)
 * So all variants give the same bits, and the only error beyond those roundings is that of the inputs:
 *     |x - t q| <= 0.51 t        half a unit of q, and roundings of 1 / t and t: at most 32639 * 3 * 2^-24 = 0.006 units
 * A block whose largest input is below 2^-90 counts as zeros; one that holds an infinity or NaN makes every output NaN.
 *
 * q goes into products as two signed bytes, q = 256 h + l (|q| <= 32639: |h| <= 127, -128 <= l <= 127). Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_DOT_H
#define MLA_BACKEND_CPU_DOT_H
#include <stddef.h>
#include <stdint.h>

#define MLA_DOT_BLOCK 32
#define MLA_DOT_LIMIT 32639.0f
#define MLA_DOT_LEAST 0x1p-90f

typedef enum { /* what codes are taken apart as; u at most */
    MLA_DOT_NONE,         /* no whole numbers, or groups that are no multiple of 16 */
    MLA_DOT_NIBBLE,       /* 15: the code itself */
    MLA_DOT_LOOK,         /* 31: looked up */
    MLA_DOT_WIDE,         /* 255: looked up */
    MLA_DOT_NIBBLE_BIT,   /* 31 */
    MLA_DOT_NIBBLE_CRUMB, /* 63 */
    MLA_DOT_CRUMB,        /* 3 */
    MLA_DOT_CRUMB_BIT,    /* 7 */
    MLA_DOT_INT8          /* the signed byte: base counts from 0 */
} mla_dot_form;

typedef struct { /* at most 256 inputs of a row */
    _Alignas(64) uint8_t octet[32][16]; /* of 8 inputs, arranged as the variant's own product reads them */
    float t[8];
    int32_t sum[16];                    /* of q, by 16 inputs */
} mla_dot_x;
#endif
