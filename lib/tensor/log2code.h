/* Positive numbers near 1 in one byte: code c stands for 2^((c - 128) / 44).
 *
 * Neighbours are 2^(1/44) apart, so a number between the ends is kept with a relative error of at most
 * 2^(1/88) - 1 = 0.79 %; e4m3 would give 6 %. The ends are 2^-2.91 and 2^2.89: what is beyond is stored as the end. */
#ifndef MLA_TENSOR_LOG2CODE_H
#define MLA_TENSOR_LOG2CODE_H
#include <stdint.h>

#define MLA_LOG2_STEPS 44 /* codes per factor of 2 */
#define MLA_LOG2_ONE 128  /* code of 1 */

/* The nearest code in log2 of x; 0 for x <= 0 and for NaN. */
uint8_t mla_log2_encode(float x);
float mla_log2_decode(uint8_t code);
#endif
