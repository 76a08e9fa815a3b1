/* The describers behind mla_qmat_coded, one for each layout. Inside the quant layer only. */
#ifndef MLA_QUANT_CODED_PARTS_H
#define MLA_QUANT_CODED_PARTS_H
#include "quant/coded.h"
#include "quant/parts.h"

/* Each fills *c (zeroed but for out, in and ctx = the matrix) and says whether the format fits. */
bool mla_coded_gguf(mla_coded *c, const mla_qmat *m);    /* coded_gguf.c */
bool mla_coded_grid(mla_coded *c, const mla_qmat *m);    /* coded_grid.c: FP8, INT8, NVFP4, MXFP4, BF16 */
bool mla_coded_ct_pack(mla_coded *c, const mla_qmat *m); /* ct_pack.c */
bool mla_coded_awq(mla_coded *c, const mla_qmat *m);     /* awq.c */
bool mla_coded_gptq(mla_coded *c, const mla_qmat *m);    /* gptq.c */
bool mla_coded_exl3(mla_coded *c, const mla_qmat *m);    /* exl3.c */

/* Integers of 2 to 6 or 8 bits, minus `zero`: the code kind and its tables; false for 7. Codes of 8 bits are stored less
 * 128 and are signed: zero is then ignored. */
bool mla_coded_ints(mla_coded *c, unsigned bits, int zero);
/* The scale kind of a dtype; false when there is none. */
bool mla_coded_scale(mla_coded *c, mla_dtype t);
/* Element i of a scale part, its stored bytes. */
static inline void mla_coded_put(uint8_t *dst, const mla_tensor *t, size_t i, size_t n)
{
    memcpy(dst, (const unsigned char *)t->data + i * n, n);
}
/* EFORMAT when one of the f16 numbers of a row is none. */
MLA_CHECKED mla_status mla_coded_finite(const mla_qmat *m, size_t row, const uint8_t *code, mla_err *err);
/* The columns in order of their groups, as idx [in] says; *perm stays NULL where they stand so already. False when group
 * g does not have exactly the places [g group, (g + 1) group). */
MLA_CHECKED mla_status mla_coded_order(mla_coded *c, bool *fits, const mla_tensor *idx, mla_err *err);
#endif
