/* What recording and reading of rows have in common. Inside refine/ only. */
#ifndef MLA_RETROFIT_REFINE_RECORD_H
#define MLA_RETROFIT_REFINE_RECORD_H
#include "retrofit/refine/refine_rows.h"

#define MLA_ROW_ODD "layer %zu: an activation is not finite"

mla_row_shape mla_row_shape_of(const mla_config *c, mla_layout layout, size_t T);
/* The file of a layer; the caller frees it. NULL: out of memory. */
char *mla_rows_path(const mla_rows_opts *o, size_t layer);
/* x (n) = 1 / rms of n keys k (d) before their norm. */
void mla_inverse_rms(float *x, const float *k, size_t n, size_t d, double eps);
#endif
