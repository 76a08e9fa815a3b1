/* Typed reads from one JSON object with a sticky error: a reader asks for key after key and checks once at the end.
 * Absent and null mean the same. Private to the model layer. */
#ifndef MLA_MODEL_READ_H
#define MLA_MODEL_READ_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/json.h"

typedef struct {
    const mla_jv *obj;  /* NULL reads as an empty object */
    const char *where;  /* put before key names in messages: "", "text_config." */
    mla_status *st;     /* the first failure, shared by readers of one document; later reads do nothing */
    mla_err *err;
} mla_rd;

#define MLA_REQUIRED SIZE_MAX /* no default: the key must be there */

/* The value of `key`, NULL when absent or null. */
const mla_jv *mla_rd_get(const mla_rd *r, const char *key);
/* An integer in [lo, hi]; def when absent (MLA_REQUIRED: refused). */
size_t mla_rd_size(mla_rd *r, const char *key, size_t lo, size_t hi, size_t def);
/* A finite number in [lo, hi]; def when absent (NAN: refused). */
double mla_rd_f64(mla_rd *r, const char *key, double lo, double hi, double def);
bool mla_rd_bool(mla_rd *r, const char *key, bool def);
/* A string, borrowed; def when absent. */
const char *mla_rd_str(mla_rd *r, const char *key, const char *def);
/* An object or an array, borrowed; NULL when absent. */
const mla_jv *mla_rd_obj(mla_rd *r, const char *key);
const mla_jv *mla_rd_arr(mla_rd *r, const char *key);
/* An array of exactly n finite numbers in [lo, hi] into dst (n); false when absent or after a failure. */
bool mla_rd_f64s(mla_rd *r, const char *key, double *dst, size_t n, double lo, double hi);
/* Records a failure "WHEREkey: text" unless there is one already. */
void mla_rd_fail(mla_rd *r, mla_status st, const char *key, const char *fmt, ...) MLA_PRINTF(4, 5);
/* A copy owned by the caller; NULL stays NULL; out of memory is recorded. */
char *mla_rd_dup(mla_rd *r, const char *s);
/* A string from a file, safe to print: control bytes become '?', cut to fit with "...". Returns buf (>= 8 bytes). */
const char *mla_printable(const char *s, char *buf, size_t cap);
#endif
