/* A hash map from byte strings to size_t, for name look-ups (tensor names, vocabularies, JSON keys).
 * Keys are copied. Iteration order is insertion order, so anything built from it is deterministic. */
#ifndef MLA_BASE_MAP_H
#define MLA_BASE_MAP_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct mla_map mla_map;

MLA_CHECKED mla_status mla_map_new(mla_map **out, mla_err *err);
void mla_map_free(mla_map *m); /* NULL is fine */

/* Stores key -> value. *existed (may be NULL) tells whether the key was there; its value is then kept. */
MLA_CHECKED mla_status mla_map_add(mla_map *m, const char *key, size_t len, size_t value, bool *existed, mla_err *err);

bool mla_map_get(const mla_map *m, const char *key, size_t len, size_t *value);
bool mla_map_has(const mla_map *m, const char *key); /* C string */
size_t mla_map_count(const mla_map *m);
/* Entry i in insertion order; the key is borrowed and NUL-terminated. */
const char *mla_map_key(const mla_map *m, size_t i, size_t *len);
size_t mla_map_value(const mla_map *m, size_t i);
#endif
