/* A stored matrix as codes with scales (tensor/coded.h): what a device multiplies with without decoding the whole. */
#ifndef MLA_QUANT_CODED_H
#define MLA_QUANT_CODED_H
#include "quant/quant.h"
#include "tensor/coded.h"

/* *fits: the format of m has that form; then *out describes it, borrows m (which must stay while rows are filled) and is
 * to be freed. It does not for F32 and F64, GGUF TQ1_0, 7-bit codes, groups that are no multiple of 8 inputs, zero
 * points under F32 scales, g_idx with uneven groups, GPTQ whose zero points are untold. Filling a row fails (EFORMAT) for
 * codes that are NaN or infinite. */
MLA_CHECKED mla_status mla_qmat_coded(mla_coded *out, bool *fits, const mla_qmat *m, mla_err *err);
void mla_coded_free(mla_coded *c); /* NULL is fine */
#endif
