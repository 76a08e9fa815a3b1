/* The rows of quant.c's format table, one file of this folder each. Inside the quant layer only. */
#ifndef MLA_QUANT_FORMATS_H
#define MLA_QUANT_FORMATS_H
#include "quant/quant.h"

extern const mla_qformat MLA_QFORMAT_DENSE;          /* dense.c: "M.weight" of F32, F16, BF16, F64 */
extern const mla_qformat MLA_QFORMAT_GGUF;           /* gguf.c: one tensor of ggml blocks */
extern const mla_qformat MLA_QFORMAT_CT_PACK;        /* ct_pack.c: "M.weight_packed" I32, scales, zero points, g_idx */
extern const mla_qformat MLA_QFORMAT_INT8;           /* int8.c: "M.weight" I8 with "M.weight_scale" */
extern const mla_qformat MLA_QFORMAT_FP8;            /* fp8.c: "M.weight" F8_E4M3, "M.weight_scale" or "_scale_inv" */
extern const mla_qformat MLA_QFORMAT_NVFP4_CT;       /* nvfp4.c: "M.weight_packed" U8, "M.weight_global_scale" */
extern const mla_qformat MLA_QFORMAT_NVFP4_MODELOPT; /* nvfp4.c: "M.weight" U8, "M.weight_scale_2" */
extern const mla_qformat MLA_QFORMAT_MXFP4;          /* mxfp4.c: "M.weight_packed" U8, E8M0 scales */
extern const mla_qformat MLA_QFORMAT_AWQ;            /* awq.c: "M.qweight" packed along out */
extern const mla_qformat MLA_QFORMAT_GPTQ;           /* gptq.c: "M.qweight" packed along in */
extern const mla_qformat MLA_QFORMAT_EXL3;           /* exl3.c: "M.trellis" */
#endif
