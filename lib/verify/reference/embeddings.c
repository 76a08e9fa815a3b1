/* Reading prompts of embeddings. */
#include "verify/reference/embeddings.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "tensor/compare.h"

#define EMBEDS ".inputs_embeds"
#define POSITIONS ".position_ids"

void mla_embedded_free(mla_embedded *e)
{
    mla_free(e->name);
    mla_free(e->file);
    mla_free(e->embeds);
    mla_free(e->pos3);
    *e = (mla_embedded){0};
}

mla_status mla_embedded_copy(mla_embedded *out, const mla_embedded *e, mla_err *err)
{
    *out = *e;
    out->name = mla_strdup(e->name);
    out->file = mla_strdup(e->file);
    out->embeds = mla_alloc(e->n, e->width, sizeof *out->embeds);
    out->pos3 = mla_alloc(3, e->n, sizeof *out->pos3);
    if (!out->name || !out->file || !out->embeds || !out->pos3) {
        mla_embedded_free(out);
        return mla_fail(err, MLA_ENOMEM, "embeddings of %zu tokens", e->n);
    }
    memcpy(out->embeds, e->embeds, e->n * e->width * sizeof *e->embeds);
    memcpy(out->pos3, e->pos3, 3 * e->n * sizeof *e->pos3);
    return MLA_OK;
}

static mla_status read_positions(mla_embedded *e, const mla_tensor *t, mla_err *err)
{
    const size_t want[] = {3, e->n};
    char text[96];
    if (!t || !mla_shape_is(t, 2, want) || (t->dtype != MLA_I64 && t->dtype != MLA_I32))
        return mla_fail(err, MLA_EFORMAT, "%s" POSITIONS ": expected I64 or I32 [3, %zu], found %s", e->name, e->n,
                        t ? mla_tensor_text(t, text, sizeof text) : "no such tensor");
    for (size_t i = 0; i < 3 * e->n; i++) {
        int64_t p = t->dtype == MLA_I64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
        if (p < 0 || p >= INT32_MAX) return mla_fail(err, MLA_EFORMAT, "%s" POSITIONS ": element %zu is no position: %lld", e->name, i, (long long)p);
        e->pos3[i] = (int32_t)p;
    }
    return MLA_OK;
}

static mla_status read_one(mla_embedded *e, const mla_st *s, const mla_tensor *t, mla_err *err)
{
    char key[256], text[96];
    size_t len = strlen(t->name) - strlen(EMBEDS), bad;
    if (len == 0 || len + strlen(POSITIONS) >= sizeof key) return mla_fail(err, MLA_EFORMAT, "%.100s: expected a name of 1 to %zu bytes", t->name, sizeof key - 16);
    if (t->ndim != 2 || !t->shape[0] || !t->shape[1])
        return mla_fail(err, MLA_EFORMAT, "%s: expected a matrix of tokens and width, found %s", t->name, mla_tensor_text(t, text, sizeof text));
    e->n = t->shape[0];
    e->width = t->shape[1];
    e->name = mla_strndup(t->name, len);
    e->embeds = mla_alloc(e->n, e->width, sizeof *e->embeds);
    e->pos3 = mla_alloc(3, e->n, sizeof *e->pos3);
    if (!e->name || !e->embeds || !e->pos3) return mla_fail(err, MLA_ENOMEM, "embeddings of %zu tokens", e->n);
    if (!mla_to_f32(e->embeds, t->data, t->dtype, e->n * e->width))
        return mla_fail(err, MLA_EFORMAT, "%s: expected a float type, found %s", t->name, mla_dtype_name(t->dtype));
    if (mla_count_nonfinite(e->embeds, e->n * e->width, &bad)) return mla_fail(err, MLA_EFORMAT, "%s: element %zu is not finite", t->name, bad);
    (void)snprintf(key, sizeof key, "%s" POSITIONS, e->name);
    return read_positions(e, mla_st_find(s, key), err);
}

static bool wanted(const mla_tensor *t, const char *name)
{
    size_t n = strlen(t->name);
    if (!mla_ends_with(t->name, EMBEDS)) return false;
    return !name || (strlen(name) == n - strlen(EMBEDS) && !strncmp(t->name, name, strlen(name)));
}

static mla_status read_all(mla_embedded **out, size_t *n, const mla_st *s, const char *name, const char hex[65], const char *file, mla_err *err)
{
    for (size_t i = 0; i < mla_st_count(s); i++) {
        const mla_tensor *t = mla_st_at(s, i);
        if (!wanted(t, name)) continue;
        mla_embedded *e = mla_realloc(*out, *n + 1, sizeof *e);
        if (!e) return mla_fail(err, MLA_ENOMEM, "%zu prompts", *n + 1);
        *out = e;
        e = &e[(*n)++];
        *e = (mla_embedded){.file = mla_strdup(file)};
        memcpy(e->sha256, hex, sizeof e->sha256);
        if (!e->file) return mla_fail(err, MLA_ENOMEM, "file name");
        mla_status st = read_one(e, s, t, err);
        if (st != MLA_OK) return st;
    }
    if (*n) return MLA_OK;
    return mla_fail(err, MLA_EFORMAT, "%s%s: no such tensor", name ? name : "NAME", EMBEDS);
}

mla_status mla_embedded_read(mla_embedded **out, size_t *n, const char *path, const char *name, const char *sha256, mla_err *err)
{
    mla_st *s = NULL;
    mla_file_digest f = {.path = path};
    char hex[65];
    const char *slash = strrchr(path, '/');
    *out = NULL;
    *n = 0;
    mla_status st = mla_sha256_files(&f, 1, NULL, NULL, err);
    if (st != MLA_OK) return st;
    mla_hex(f.digest, 32, hex);
    if (sha256 && strcmp(hex, sha256)) return mla_fail(err, MLA_EFORMAT, "%s: sha256 expected %.64s, found %s", path, sha256, hex);
    st = mla_st_open(&s, path, err);
    if (st == MLA_OK) {
        st = read_all(out, n, s, name, hex, slash ? slash + 1 : path, err);
        if (st != MLA_OK) st = mla_wrap(err, "%s", path);
    }
    mla_st_close(s);
    if (st == MLA_OK) return st;
    for (size_t i = 0; i < *n; i++) mla_embedded_free(&(*out)[i]);
    mla_free(*out);
    *out = NULL;
    *n = 0;
    return st;
}
