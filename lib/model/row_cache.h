/* Rows of a matrix whose format decodes in blocks, read in any chunking without decoding a block again for every chunk.
 *
 * Whole blocks go straight to the caller; a block of which only some rows are asked stays decoded in one of a few slots.
 * Values never depend on what is kept. Safe from several threads at once. Private to the model layer. */
#ifndef MLA_MODEL_ROW_CACHE_H
#define MLA_MODEL_ROW_CACHE_H
#include "base/err.h"
#include "quant/quant.h"

typedef struct mla_row_cache mla_row_cache;

MLA_CHECKED mla_status mla_row_cache_new(mla_row_cache **out, mla_err *err);
void mla_row_cache_free(mla_row_cache *c); /* NULL is fine */

/* Rows [row0, row0 + n) of q into dst (n, in), as mla_qmat_rows_f32. A kept block is known by q's stored codes, so two
 * matrices of one container that share them must have the same dims. */
MLA_CHECKED mla_status mla_row_cache_rows(mla_row_cache *c, const mla_qmat *q, size_t row0, size_t n, float *dst, mla_err *err);
#endif
