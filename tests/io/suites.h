/* The suites of the io layer, one per test_*.c, and the helpers that they share. */
#ifndef MLA_TESTS_IO_SUITES_H
#define MLA_TESTS_IO_SUITES_H
#include <string.h>

#include "harness.h"

Suite *file_suite(void);
Suite *json_suite(void);
Suite *safetensors_suite(void);
Suite *ckpt_suite(void);
Suite *gguf_suite(void);
Suite *sha256_suite(void);
Suite *zst_suite(void);
Suite *receipt_suite(void);
Suite *bad_suite(void);
Suite *faults_suite(void);
Suite *bundle_suite(void);

/* Removes a folder of mla_test_tmpdir with all that is in it, and frees its name. */
void drop_dir(char *dir);
/* "DIR/NAME" in a static ring of 8 buffers. */
const char *in_dir(const char *dir, const char *name);
/* Writes n bytes straight to DIR/NAME, without the code under test; returns the path (ring). */
const char *put_file(const char *dir, const char *name, const void *data, size_t n);
/* A safetensors file from a JSON header text and n data bytes (each byte i & 255). */
const char *put_st(const char *dir, const char *name, const char *header, size_t data_bytes);
#endif
