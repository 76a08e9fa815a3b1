/* Strict JSON over cJSON (this file's .c is cJSON's only home).
 *
 * Reading refuses: invalid UTF-8, trailing text, duplicate keys (case-sensitive), depth above 64, NUL in strings,
 * numbers that are no JSON numbers or longer than 63 characters, more than 2^22 values. Values are borrowed from the document and die with it.
 * Lookups are case-sensitive; objects with many keys are indexed by a hash built on first use by the caller
 * through mla_json_index, so that walking a 100k-entry object is O(n). */
#ifndef MLA_IO_JSON_H
#define MLA_IO_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef struct mla_json mla_json;  /* a document: owns all values */
typedef struct cJSON mla_jv;       /* one value; only json.c knows its inside */

/* `what` names the text in messages ("config.json"). The text need not be NUL-terminated. */
MLA_CHECKED mla_status mla_json_parse(mla_json **out, const char *text, size_t n, const char *what, mla_err *err);
MLA_CHECKED mla_status mla_json_read(mla_json **out, const char *path, size_t max, mla_err *err);
MLA_CHECKED mla_status mla_json_new_object(mla_json **out, mla_err *err); /* an empty {} to fill */
void mla_json_free(mla_json *d); /* NULL is fine */
mla_jv *mla_json_root(const mla_json *d);

/* Kinds. All accept v == NULL and answer false. */
bool mla_jv_is_obj(const mla_jv *v);
bool mla_jv_is_arr(const mla_jv *v);
bool mla_jv_is_str(const mla_jv *v);
bool mla_jv_is_num(const mla_jv *v);
bool mla_jv_is_bool(const mla_jv *v);
bool mla_jv_is_null(const mla_jv *v);
const char *mla_jv_kind(const mla_jv *v); /* "object", ..., "absent" for NULL */

mla_jv *mla_jv_get(const mla_jv *obj, const char *key);   /* NULL when absent or not an object; O(n) */
size_t mla_jv_len(const mla_jv *v);                       /* of an array or object; O(n) */
mla_jv *mla_jv_first(const mla_jv *v);                    /* children in order: first, next */
mla_jv *mla_jv_next(const mla_jv *v);
const char *mla_jv_key(const mla_jv *v);                  /* key of an object's child */
const char *mla_jv_str(const mla_jv *v);                  /* NULL when not a string */
bool mla_jv_bool(const mla_jv *v, bool *out);
bool mla_jv_f64(const mla_jv *v, double *out);            /* finite */
bool mla_jv_i64(const mla_jv *v, int64_t *out);           /* integral and |v| <= 2^53 */
bool mla_jv_size(const mla_jv *v, size_t *out);           /* integral, 0 <= v <= 2^53 */

/* A hash over the keys of one object, for many look-ups. It does not follow later edits of the object. */
typedef struct mla_jindex mla_jindex;
MLA_CHECKED mla_status mla_json_index(mla_jindex **out, const mla_jv *obj, mla_err *err); /* caller frees */
mla_jv *mla_jindex_get(const mla_jindex *x, const char *key);                             /* NULL when absent */
void mla_jindex_free(mla_jindex *x);                                                      /* NULL is fine */

/* Building and editing. Setters replace an existing key in place or append (O(n)); they return the new child.
 * Every one accepts NULL and gives NULL when the parent is of the wrong kind or memory is out, so a chain is checked once. */
mla_jv *mla_jv_set_obj(mla_jv *obj, const char *key);
mla_jv *mla_jv_set_arr(mla_jv *obj, const char *key);
mla_jv *mla_jv_set_str(mla_jv *obj, const char *key, const char *s);
mla_jv *mla_jv_set_f64(mla_jv *obj, const char *key, double v);
mla_jv *mla_jv_set_size(mla_jv *obj, const char *key, size_t v);
mla_jv *mla_jv_set_bool(mla_jv *obj, const char *key, bool v);
mla_jv *mla_jv_set_null(mla_jv *obj, const char *key);
mla_jv *mla_jv_set_copy(mla_jv *obj, const char *key, const mla_jv *v); /* deep copy */
/* Appends in O(1) without looking for the key, which the caller knows to be new: for objects of many keys. */
mla_jv *mla_jv_put_obj(mla_jv *obj, const char *key);
mla_jv *mla_jv_put_str(mla_jv *obj, const char *key, const char *s);
mla_jv *mla_jv_put_size(mla_jv *obj, const char *key, size_t v);
mla_jv *mla_jv_add_obj(mla_jv *arr);
mla_jv *mla_jv_add_arr(mla_jv *arr);
mla_jv *mla_jv_add_str(mla_jv *arr, const char *s);
mla_jv *mla_jv_add_f64(mla_jv *arr, double v);
mla_jv *mla_jv_add_size(mla_jv *arr, size_t v);
/* For a value that the caller had no memory for: the document is not whole, as after any setter above that gave NULL for that reason. */
void mla_jv_lost(mla_jv *parent);
void mla_jv_remove(mla_jv *obj, const char *key);

/* Deterministic text: two-space indent, keys in stored order, shortest digits that read back the same double
 * (integers without exponent), non-finite numbers as null. Ends with a newline when indented; without indent there is no space at all. */
MLA_CHECKED mla_status mla_json_print(mla_str *out, const mla_jv *v, bool indent, mla_err *err);
MLA_CHECKED mla_status mla_json_write(const char *path, const mla_jv *v, mla_err *err); /* atomic, indented */
#endif
