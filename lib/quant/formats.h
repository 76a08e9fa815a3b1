/* The rows of quant.c's format table, one per file of this folder. Inside the quant layer only. */
#ifndef MLA_QUANT_FORMATS_H
#define MLA_QUANT_FORMATS_H
#include "quant/quant.h"

extern const mla_qformat MLA_QFORMAT_DENSE; /* dense.c: "M.weight" of F32, F16, BF16, F64 */
extern const mla_qformat MLA_QFORMAT_GGUF;  /* gguf.c: one tensor of ggml blocks */
#endif
