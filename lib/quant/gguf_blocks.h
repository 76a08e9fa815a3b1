/* ggml block types to f32: every type decodes bit for bit as the gguf library does.
 *
 * Arithmetic is f32 without contraction, in the order that the library uses, e.g. Q4_K is (d*sc)*q - (dmin*mn). */
#ifndef MLA_QUANT_GGUF_BLOCKS_H
#define MLA_QUANT_GGUF_BLOCKS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/gguf.h"

/* True when the type has a decoder: F32 F16 BF16 F64 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS
 * TQ1_0 TQ2_0 MXFP4. */
bool mla_ggml_decodes(uint32_t type);

/* "GGUF Q4_1"; NULL for a type without decoder. Static. */
const char *mla_ggml_format(uint32_t type);

/* nblocks consecutive blocks (mla_ggml_type_info(type)->bytes each; no alignment needed) into dst
 * [nblocks * block]. False for a type without decoder. */
bool mla_ggml_blocks_f32(uint32_t type, const void *src, size_t nblocks, float *dst);

/* Rows [row0, row0 + nrows) of a tensor, a row being ne[0] values; outer dimensions count as more rows.
 * dst [nrows, ne[0]]. EINVAL for a range outside, EUNSUPPORTED for a type without decoder, EFORMAT when ne[0] is no
 * whole number of blocks or the bytes do not hold the rows. */
MLA_CHECKED mla_status mla_gguf_rows_f32(const mla_gguf_tensor *t, size_t row0, size_t nrows, float *dst, mla_err *err);
#endif
