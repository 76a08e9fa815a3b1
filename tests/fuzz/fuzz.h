/* What the fuzz targets share. A target is one file of targets/ with LLVMFuzzerTestOneInput: it hands the input to a
 * reader, and passes when the reader refuses it with one line, or keeps every promise it then makes. A broken promise
 * aborts, as a finding of a sanitizer does. docs/reliability.md says how they are run. */
#ifndef MLA_TESTS_FUZZ_H
#define MLA_TESTS_FUZZ_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/file.h"
#include "io/json.h"

#define FUZZ_MAX ((size_t)1 << 16) /* bytes of an input at most; longer ones are not run */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

_Noreturn void fuzz_broken(const char *what);
/* A refusal has a status that fits a bad file, and one line of text. */
void fuzz_refused(mla_status st, const mla_err *err);
/* p[0..n) lies in the file; all of it is read. */
void fuzz_inside(const void *p, size_t n, const mla_mapped *m);
/* p[0..n) may be read. */
void fuzz_touch(const void *p, size_t n);
/* A path whose content is data[0..n): a memory file, the same one in every call of a process. */
const char *fuzz_file(const uint8_t *data, size_t n);
/* A path for the output of what is tested: another memory-backed file, in a folder of its own. */
const char *fuzz_folder(void);
/* Puts the root digest that obj's files give into obj: without it nearly every mutation would end at the digest. */
void fuzz_fix_root(mla_jv *obj);
/* The input as JSON; NULL when it is refused, which is checked. Caller frees. */
mla_json *fuzz_json(const uint8_t *data, size_t n);
#endif
