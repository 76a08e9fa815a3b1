/* The suites of the text layer and what they share. */
#ifndef MLA_TESTS_TEXT_SUITES_H
#define MLA_TESTS_TEXT_SUITES_H
#include "harness.h"

Suite *units_suite(void);
Suite *golden_suite(void);
Suite *refusal_suite(void);
Suite *corpus_suite(void);

/* Writes n bytes to dir/name; returns the path (static, valid until the next call). */
const char *put_file(const char *dir, const char *name, const void *data, size_t n);
/* Removes a folder of mla_test_tmpdir and frees its name. */
void drop(char *dir);
/* Bytes of a hex text; caller frees. *n = their number. */
unsigned char *from_hex(const char *hex, size_t *n);
#endif
