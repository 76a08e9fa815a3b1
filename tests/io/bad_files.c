/* The list of hostile files, and the byte strings that they are built from. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bad/bad_files.h"
#include "io/bad_parts.h"

void put(bytes *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2 + 64;
        b->p = realloc(b->p, b->cap);
        if (!b->p) abort();
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

void put_text(bytes *b, const char *s) { put(b, s, strlen(s)); }

void put_u32(bytes *b, uint32_t v)
{
    unsigned char le[4] = {(unsigned char)v, (unsigned char)(v >> 8), (unsigned char)(v >> 16), (unsigned char)(v >> 24)};
    put(b, le, 4);
}

void put_u64(bytes *b, uint64_t v)
{
    put_u32(b, (uint32_t)v);
    put_u32(b, (uint32_t)(v >> 32));
}

void put_fill(bytes *b, int c, size_t n)
{
    unsigned char ch = (unsigned char)c;
    while (n--) put(b, &ch, 1);
}

void drop(bytes *b)
{
    free(b->p);
    *b = (bytes){0};
}

bool save_sparse(const char *path, bytes *b, uint64_t n)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && (b->n == 0 || fwrite(b->p, 1, b->n, f) == b->n) && fflush(f) == 0;
    ok = ok && (n <= b->n || ftruncate(fileno(f), (off_t)n) == 0);
    if (f) ok = fclose(f) == 0 && ok;
    drop(b);
    return ok;
}

bool save(const char *path, bytes *b) { return save_sparse(path, b, 0); }

size_t mla_bad_count(void) { return bad_st_count() + bad_gguf_count() + bad_dir_count(); }

mla_bad_kind mla_bad_kind_of(size_t i)
{
    if (i < bad_st_count()) return MLA_BAD_SAFETENSORS;
    return i < bad_st_count() + bad_gguf_count() ? MLA_BAD_GGUF : MLA_BAD_FOLDER;
}

mla_status mla_bad_write(size_t i, const char *dir, char *path_out, size_t cap, const char **name, const char **expect)
{
    static const struct {
        bool (*write)(size_t, const char *, const char **, const char **);
        const char *suffix;
    } FAMILY[] = {{bad_st_write, ".safetensors"}, {bad_gguf_write, ".gguf"}, {bad_dir_write, ""}};
    if (i >= mla_bad_count()) return MLA_EINVAL;
    mla_bad_kind kind = mla_bad_kind_of(i);
    size_t k = kind == MLA_BAD_SAFETENSORS ? i : kind == MLA_BAD_GGUF ? i - bad_st_count() : i - bad_st_count() - bad_gguf_count();
    (void)FAMILY[kind].write(k, NULL, name, expect);
    int n = snprintf(path_out, cap, "%s/%s%s", dir, *name, FAMILY[kind].suffix);
    if (n < 0 || (size_t)n >= cap) return MLA_EINVAL;
    return FAMILY[kind].write(k, path_out, name, expect) ? MLA_OK : MLA_EIO;
}

mla_status mla_good_write(mla_bad_kind kind, const char *dir, char *path_out, size_t cap)
{
    static const char *const NAME[] = {"good.safetensors", "good.gguf", "good"};
    bytes b = {0};
    int n = snprintf(path_out, cap, "%s/%s", dir, NAME[kind]);
    if (n < 0 || (size_t)n >= cap) return MLA_EINVAL;
    if (kind == MLA_BAD_FOLDER) return good_dir(path_out) ? MLA_OK : MLA_EIO;
    if (kind == MLA_BAD_GGUF)
        good_gguf(&b);
    else
        good_st(&b, "a", "b");
    return save(path_out, &b) ? MLA_OK : MLA_EIO;
}
