/* EXL3 trellis tiles: 16 x 16 values out of a ring of 256 K bits. Inside the quant layer only. */
#ifndef MLA_QUANT_EXL3_TILE_H
#define MLA_QUANT_EXL3_TILE_H
#include <stddef.h>
#include <stdint.h>

#include "quant/qconfig.h"

/* One tile: `stored` is 16 K little-endian u16 (K = twice_k / 2: 1 to 8, or 1.5, 2.5, 3.5), dst[row * ld + col] the value
 * of input row and output column, each 0..15; values are f16 numbers. */
void mla_exl3_tile(float *dst, size_t ld, const void *stored, unsigned twice_k, mla_qcodebook codebook);

/* The codebook: the f16 number of a 16-bit state. */
float mla_exl3_value(uint16_t state, mla_qcodebook codebook);
#endif
