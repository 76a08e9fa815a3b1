/* Files for the tests, written with stdio so that a bug in the code under test cannot hide itself. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/suites.h"

void drop_dir(char *dir)
{
    mla_err err;
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}

const char *in_dir(const char *dir, const char *name)
{
    static char ring[8][1200];
    static unsigned at;
    char *b = ring[at++ % 8];
    snprintf(b, sizeof ring[0], "%s/%s", dir, name);
    return b;
}

const char *put_file(const char *dir, const char *name, const void *data, size_t n)
{
    const char *path = in_dir(dir, name);
    (void)remove(path); /* rewriting in place would make some file systems flush at every close */
    FILE *f = fopen(path, "wb");
    ck_assert_msg(f != NULL, "cannot create %s", path);
    ck_assert(n == 0 || fwrite(data, 1, n, f) == n);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

const char *put_st(const char *dir, const char *name, const char *header, size_t data_bytes)
{
    size_t h = strlen(header);
    unsigned char *b = malloc(8 + h + data_bytes);
    ck_assert(b != NULL);
    for (size_t i = 0; i < 8; i++) b[i] = (unsigned char)((uint64_t)h >> (8 * i));
    memcpy(b + 8, header, h);
    for (size_t i = 0; i < data_bytes; i++) b[8 + h + i] = (unsigned char)i;
    const char *path = put_file(dir, name, b, 8 + h + data_bytes);
    free(b);
    return path;
}
