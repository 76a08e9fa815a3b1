/* text: tokenizers and corpora. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "suites.h"

const char *put_file(const char *dir, const char *name, const void *data, size_t n)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb"); /* thousands of small files: no fsync */
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

void drop(char *dir)
{
    mla_err err;
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}

unsigned char *from_hex(const char *hex, size_t *n)
{
    *n = strlen(hex) / 2;
    unsigned char *b = mla_alloc(*n + 1, 1, 1);
    for (size_t i = 0; i < *n; i++) {
        unsigned v;
        ck_assert_int_eq(sscanf(hex + 2 * i, "%2x", &v), 1);
        b[i] = (unsigned char)v;
    }
    return b;
}

int main(void)
{
    static const mla_suite_fn SUITES[] = {units_suite, golden_suite, refusal_suite, corpus_suite};
    return mla_test_main("text", SUITES, 4);
}
