/* Which combinations of kernels and machine have been checked by a recorded run (manifests/tested.json). Another one may be right; nobody
 * has looked. selfcheck and the gate refuse it by name, unless MLA_ALLOW_UNTESTED=1 says that the user knows. */
#ifndef MLA_VERIFY_TESTED_H
#define MLA_VERIFY_TESTED_H
#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"
#include "base/err.h"

#define MLA_TESTED_SCHEMA "mla-tested/1"

/* What be is, as far as its kernels depend on it: "cpu avx512 on x86_64", "cuda compute 9.0, driver CUDA 13.0"; of more than one
 * tensor-parallel rank followed by ", tensor-parallel 2". buf >= 128. */
const char *mla_tested_combination(mla_backend *be, size_t ranks, char *buf, size_t cap);
/* Is it in the table at path? EFORMAT: the table is none. */
MLA_CHECKED mla_status mla_tested_find(bool *found, const char *path, const char *combination, mla_err *err);
/* Adds it to the table (a new one where there is none), in bytewise order; atomic. */
MLA_CHECKED mla_status mla_tested_record(const char *path, const char *combination, mla_err *err);
#endif
