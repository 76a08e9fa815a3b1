/* Recorded rows on a device, as refine_rows.h lays them out: packed from taps there, and kept there where it has the room. */
#ifndef MLA_RETROFIT_REFINE_ROW_STORE_H
#define MLA_RETROFIT_REFINE_ROW_STORE_H
#include "retrofit/refine/refine_rows.h"
#include "runtime/runtime.h"

#define MLA_ROW_STORE_REST ((size_t)12 << 30) /* bytes of device memory that must be left, or four times the rows where that is less: */

/* Room for n_rows rows of every full-attention layer, asked for while the recorder's weights stand. MLA_ENOMEM where they and the rest,
 * which activations and refinement live in, do not fit. */
MLA_CHECKED mla_status mla_row_store_new(mla_row_store **out, mla_backend *be, const mla_config *c, const mla_row_shape *s, size_t n_rows, mla_err *err);
void mla_row_store_free(mla_row_store *s); /* NULL is fine */
/* (n_rows, s->all) bf16 of a layer; borrowed. */
mla_mem *mla_row_store_layer(const mla_row_store *s, size_t layer);
/* MLA_EFORMAT names the first layer with a number that is not finite. */
MLA_CHECKED mla_status mla_row_store_check(const mla_row_store *s, mla_err *err);

/* `to` (s->all) bf16 = the row of a tap of T tokens; queued, but that layout P brings its keys to the host. rms: f32 (T, G) on the
 * device, of layout P. */
MLA_CHECKED mla_status mla_row_pack(const mla_rows_opts *o, const mla_row_shape *s, mla_mem *to, const mla_tap_attn *a, mla_mem *rms, mla_err *err);
#endif
