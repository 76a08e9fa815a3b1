/* Hostile files, one per defect: what readers must refuse. README.md lists them by name.
 *
 * The generators (tests/io/bad_*.c) need nothing of the toolkit, so that a bug in it cannot hide in them. */
#ifndef MLA_TESTS_BAD_FILES_H
#define MLA_TESTS_BAD_FILES_H
#include <stddef.h>

#include "base/err.h"

typedef enum { MLA_BAD_SAFETENSORS, MLA_BAD_GGUF, MLA_BAD_FOLDER } mla_bad_kind;

size_t mla_bad_count(void);
mla_bad_kind mla_bad_kind_of(size_t i);
/* Writes case i below dir: NAME.safetensors, NAME.gguf or a folder NAME. path_out gets its path, *name the defect's name,
 * *expect a piece that the one-line error must contain. MLA_EIO when it cannot be written. */
mla_status mla_bad_write(size_t i, const char *dir, char *path_out, size_t cap, const char **name, const char **expect);

/* The valid small files that the cases are variations of: the controls, and what truncation and bit flips start from.
 * kind FOLDER gives a folder of two shards and an index. */
mla_status mla_good_write(mla_bad_kind kind, const char *dir, char *path_out, size_t cap);
#endif
