/* safetensors, strictly. Opening reads the header only; tensor views borrow the mapping.
 *
 * The reader refuses (naming the tensor): header length above min(100 MB, file - 8), invalid UTF-8, no leading '{',
 * duplicate names or keys, unknown dtype, a shape product that overflows, a span that is not shape x dtype, holes,
 * overlaps, trailing bytes, __metadata__ that is not string -> string, more than 8 dimensions, sub-byte sizes. */
#ifndef MLA_IO_SAFETENSORS_H
#define MLA_IO_SAFETENSORS_H
#include <stddef.h>

#include "base/err.h"
#include "io/file.h"
#include "tensor/tensor.h"

typedef struct mla_st mla_st;
MLA_CHECKED mla_status mla_st_open(mla_st **out, const char *path, mla_err *err);
void mla_st_close(mla_st *s); /* NULL is fine */
size_t mla_st_count(const mla_st *s);
const mla_tensor *mla_st_at(const mla_st *s, size_t i);           /* in file (offset) order */
const mla_tensor *mla_st_find(const mla_st *s, const char *name); /* NULL when absent */
const mla_mapped *mla_st_file(const mla_st *s);
/* __metadata__ in stored order. */
size_t mla_st_meta_count(const mla_st *s);
const char *mla_st_meta_key(const mla_st *s, size_t i);
const char *mla_st_meta_value(const mla_st *s, size_t i);

/* Writer: declare all tensors, then write their bytes in the order that mla_stw_begin settles
 * (dtype descending in the enum, then name; what the reference writer does). Deterministic bytes: metadata keys
 * sorted, header padded with spaces to 8. `data` of a declared tensor is ignored; name, dtype, shape count. */
typedef struct mla_stw mla_stw;
MLA_CHECKED mla_status mla_stw_new(mla_stw **out, const char *path, mla_err *err);
MLA_CHECKED mla_status mla_stw_meta(mla_stw *w, const char *key, const char *value, mla_err *err);
MLA_CHECKED mla_status mla_stw_declare(mla_stw *w, const char *name, mla_dtype t, size_t ndim, const size_t *shape, mla_err *err);
MLA_CHECKED mla_status mla_stw_begin(mla_stw *w, mla_err *err);   /* writes the header; adds format=pt if absent */
size_t mla_stw_count(const mla_stw *w);
const mla_tensor *mla_stw_at(const mla_stw *w, size_t i);         /* in writing order; data == NULL */
/* Appends bytes of the current tensor; moves on when it is full; more than it holds is refused. */
MLA_CHECKED mla_status mla_stw_write(mla_stw *w, const void *data, size_t n, mla_err *err);
/* All bytes written? Then commit (fsync, rename). Frees w always. digest (may be NULL) gets the file's sha256. */
MLA_CHECKED mla_status mla_stw_commit(mla_stw *w, unsigned char digest[32], mla_err *err);
void mla_stw_abort(mla_stw *w); /* NULL is fine */

/* One call: tensors with their data, in any order. */
MLA_CHECKED mla_status mla_st_write(const char *path, const mla_tensor *t, size_t n, unsigned char digest[32], mla_err *err);
/* The same with one metadata entry; key NULL: none. */
typedef struct {
    const char *key, *value;
} mla_st_note;
MLA_CHECKED mla_status mla_st_write_note(const char *path, const mla_tensor *t, size_t n, mla_st_note note, unsigned char digest[32], mla_err *err);
#endif
