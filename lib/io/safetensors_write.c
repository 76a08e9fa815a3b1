/* safetensors writer: all tensors are declared first, so the header is final before a data byte is written. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "base/map.h"
#include "io/json.h"
#include "io/msg.h"
#include "io/safetensors.h"

#define HEADER_MAX ((size_t)100000000)

typedef struct {
    char *key, *value;
} meta;

struct mla_stw {
    mla_out *out;
    char *path;
    meta *meta;
    size_t nmeta;
    mla_map *names; /* every declared name, for duplicates; owns the names */
    mla_tensor *t;
    size_t n, cap;
    bool begun;
    size_t at, fill; /* current tensor and the bytes it already has */
};

mla_status mla_stw_new(mla_stw **out, const char *path, mla_err *err)
{
    mla_stw *w = mla_alloc(1, 1, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "writer of %s", path);
    w->path = mla_strdup(path);
    mla_status st = w->path ? mla_map_new(&w->names, err) : mla_fail(err, MLA_ENOMEM, "path %s", path);
    if (st == MLA_OK) st = mla_out_open(&w->out, path, err);
    if (st == MLA_OK)
        *out = w;
    else
        mla_stw_abort(w);
    return st;
}

static mla_status set_meta(mla_stw *w, const char *key, const char *value, mla_err *err)
{
    size_t i = 0;
    while (i < w->nmeta && strcmp(w->meta[i].key, key)) i++;
    char *v = mla_strdup(value), *k = NULL;
    if (!v) return mla_fail(err, MLA_ENOMEM, "metadata \"%s\"", key);
    if (i < w->nmeta) {
        mla_free(w->meta[i].value);
        w->meta[i].value = v;
        return MLA_OK;
    }
    meta *m = mla_realloc(w->meta, w->nmeta + 1, sizeof *m);
    if (m) w->meta = m;
    k = mla_strdup(key);
    if (!m || !k) {
        mla_free(k);
        mla_free(v);
        return mla_fail(err, MLA_ENOMEM, "metadata \"%s\"", key);
    }
    w->meta[w->nmeta++] = (meta){k, v};
    return MLA_OK;
}

mla_status mla_stw_meta(mla_stw *w, const char *key, const char *value, mla_err *err)
{
    if (w->begun) return mla_fail(err, MLA_EINVAL, "%s: metadata \"%s\" after the header was written", w->path, key);
    if (!mla_utf8_valid(key, strlen(key)) || !mla_utf8_valid(value, strlen(value)))
        return mla_fail(err, MLA_EINVAL, "%s: metadata \"%s\" is not UTF-8", w->path, key);
    return set_meta(w, key, value, err);
}

mla_status mla_stw_declare(mla_stw *w, const char *name, mla_dtype t, size_t ndim, const size_t *shape, mla_err *err)
{
    mla_quoted q;
    size_t len = strlen(name), bits = mla_dtype_bits(t);
    mla_tensor d = {.dtype = t, .ndim = ndim};
    mla_quote(&q, name, len);
    if (w->begun) return mla_fail(err, MLA_EINVAL, "%s: tensor \"%s\" declared after the header was written", w->path, q.s);
    if (!strcmp(name, "__metadata__") || !mla_utf8_valid(name, len) || len > 4096)
        return mla_fail(err, MLA_EINVAL, "%s: \"%s\" cannot name a tensor", w->path, q.s);
    if (ndim > MLA_MAX_DIMS) return mla_fail(err, MLA_EINVAL, "%s: tensor \"%s\": %zu dimensions, at most %d", w->path, q.s, ndim, MLA_MAX_DIMS);
    for (size_t i = 0; i < ndim; i++) {
        d.shape[i] = shape[i];
        if (!mla_mul(&bits, bits, shape[i])) return mla_fail(err, MLA_EINVAL, "%s: tensor \"%s\": its size overflows", w->path, q.s);
    }
    if (bits % 8) return mla_fail(err, MLA_EINVAL, "%s: tensor \"%s\": sub-byte values that do not end on a byte", w->path, q.s);
    d.nbytes = bits / 8;
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 64;
        mla_tensor *more = mla_realloc(w->t, cap, sizeof *more);
        if (!more) return mla_fail(err, MLA_ENOMEM, "%s: %zu tensors", w->path, cap);
        w->t = more;
        w->cap = cap;
    }
    bool had;
    mla_status st = mla_map_add(w->names, name, len, w->n, &had, err);
    if (st != MLA_OK) return st;
    if (had) return mla_fail(err, MLA_EINVAL, "%s: tensor \"%s\" declared twice", w->path, q.s);
    d.name = mla_map_key(w->names, w->n, NULL);
    w->t[w->n++] = d;
    return MLA_OK;
}

static int by_key(const void *a, const void *b) { return strcmp(((const meta *)a)->key, ((const meta *)b)->key); }

/* The reference writer's order: alignment (dtype) descending, then name. */
static int by_dtype_name(const void *a, const void *b)
{
    const mla_tensor *x = a, *y = b;
    if (x->dtype != y->dtype) return x->dtype > y->dtype ? -1 : 1;
    return strcmp(x->name, y->name);
}

static mla_status describe(const mla_stw *w, mla_jv *root, uint64_t *total, mla_err *err)
{
    size_t at = 0;
    mla_jv *v = mla_jv_put_obj(root, "__metadata__");
    for (size_t i = 0; i < w->nmeta; i++)
        if (!mla_jv_put_str(v, w->meta[i].key, w->meta[i].value)) return mla_fail(err, MLA_ENOMEM, "header");
    for (size_t i = 0; i < w->n; i++) {
        const mla_tensor *t = &w->t[i];
        v = mla_jv_put_obj(root, t->name);
        bool ok = mla_jv_put_str(v, "dtype", mla_dtype_name(t->dtype)) != NULL;
        mla_jv *list = mla_jv_set_arr(v, "shape");
        for (size_t k = 0; k < t->ndim; k++) ok = ok && mla_jv_add_size(list, t->shape[k]);
        list = mla_jv_set_arr(v, "data_offsets");
        ok = ok && mla_jv_add_size(list, at);
        if (!mla_add(&at, at, t->nbytes) || at > ((size_t)1 << 53))
            return mla_fail(err, MLA_EINVAL, "%s: the tensors' sizes overflow", w->path);
        if (!ok || !mla_jv_add_size(list, at)) return mla_fail(err, MLA_ENOMEM, "%s: header", w->path);
    }
    *total = at;
    return MLA_OK;
}

mla_status mla_stw_begin(mla_stw *w, mla_err *err)
{
    mla_json *doc = NULL;
    mla_str text = MLA_STR_MAX(HEADER_MAX);
    uint64_t total = 0;
    bool format = false;
    if (w->begun) return mla_fail(err, MLA_EINVAL, "%s: header written twice", w->path);
    for (size_t i = 0; i < w->nmeta; i++) format = format || !strcmp(w->meta[i].key, "format");
    mla_status st = format ? MLA_OK : set_meta(w, "format", "pt", err); /* transformers refuses files without it */
    if (st == MLA_OK) {
        qsort(w->meta, w->nmeta, sizeof *w->meta, by_key);
        if (w->n) qsort(w->t, w->n, sizeof *w->t, by_dtype_name);
        st = mla_json_new_object(&doc, err);
    }
    if (st == MLA_OK) st = describe(w, mla_json_root(doc), &total, err);
    if (st == MLA_OK) st = mla_json_print(&text, mla_json_root(doc), false, err);
    while (st == MLA_OK && text.len % 8) {
        mla_str_put(&text, " ");
        if (!mla_str_ok(&text)) st = mla_fail(err, MLA_EINVAL, "%s: a header of more than %zu bytes", w->path, HEADER_MAX);
    }
    if (st == MLA_OK) {
        unsigned char len[8];
        for (size_t i = 0; i < 8; i++) len[i] = (unsigned char)((uint64_t)text.len >> (8 * i));
        st = mla_out_reserve(w->out, 8 + text.len + total, err);
        if (st == MLA_OK) st = mla_out_write(w->out, len, 8, err);
        if (st == MLA_OK) st = mla_out_write(w->out, text.s, text.len, err);
    }
    w->begun = st == MLA_OK;
    mla_str_free(&text);
    mla_json_free(doc);
    return st;
}

size_t mla_stw_count(const mla_stw *w) { return w->n; }
const mla_tensor *mla_stw_at(const mla_stw *w, size_t i) { return i < w->n ? &w->t[i] : NULL; }

static void skip_full(mla_stw *w) /* zero-size tensors are full at once */
{
    while (w->at < w->n && w->fill == w->t[w->at].nbytes) {
        w->at++;
        w->fill = 0;
    }
}

mla_status mla_stw_write(mla_stw *w, const void *data, size_t n, mla_err *err)
{
    mla_quoted q;
    if (!w->begun) return mla_fail(err, MLA_EINVAL, "%s: data before mla_stw_begin", w->path);
    if (n == 0) return MLA_OK;
    skip_full(w);
    if (w->at == w->n) return mla_fail(err, MLA_EINVAL, "%s: %zu bytes after the last tensor", w->path, n);
    const mla_tensor *t = &w->t[w->at];
    if (n > t->nbytes - w->fill)
        return mla_fail(err, MLA_EINVAL, "%s: tensor \"%s\" holds %zu bytes, has %zu, got %zu more", w->path,
                        mla_quote(&q, t->name, strlen(t->name)), t->nbytes, w->fill, n);
    w->fill += n;
    return mla_out_write(w->out, data, n, err);
}

mla_status mla_stw_commit(mla_stw *w, unsigned char digest[32], mla_err *err)
{
    mla_quoted q;
    mla_status st = MLA_OK;
    skip_full(w);
    if (!w->begun)
        st = mla_fail(err, MLA_EINVAL, "%s: committed before mla_stw_begin", w->path);
    else if (w->at < w->n)
        st = mla_fail(err, MLA_EINVAL, "%s: tensor \"%s\" has %zu of its %zu bytes", w->path,
                      mla_quote(&q, w->t[w->at].name, strlen(w->t[w->at].name)), w->fill, w->t[w->at].nbytes);
    if (st == MLA_OK) {
        if (digest) mla_out_sha256(w->out, digest);
        st = mla_out_commit(w->out, err);
        w->out = NULL;
    }
    mla_stw_abort(w);
    return st;
}

void mla_stw_abort(mla_stw *w)
{
    if (!w) return;
    mla_out_abort(w->out);
    for (size_t i = 0; i < w->nmeta; i++) {
        mla_free(w->meta[i].key);
        mla_free(w->meta[i].value);
    }
    mla_free(w->meta);
    mla_map_free(w->names);
    mla_free(w->t);
    mla_free(w->path);
    mla_free(w);
}

mla_status mla_st_write(const char *path, const mla_tensor *t, size_t n, unsigned char digest[32], mla_err *err)
{
    return mla_st_write_note(path, t, n, (mla_st_note){0}, digest, err);
}

mla_status mla_st_write_note(const char *path, const mla_tensor *t, size_t n, mla_st_note note, unsigned char digest[32], mla_err *err)
{
    mla_stw *w;
    mla_map *where = NULL; /* name -> position in t: writing order differs from the caller's */
    mla_status st = mla_stw_new(&w, path, err);
    if (st != MLA_OK) return st;
    st = mla_map_new(&where, err);
    if (st == MLA_OK && note.key) st = mla_stw_meta(w, note.key, note.value, err);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        st = mla_stw_declare(w, t[i].name, t[i].dtype, t[i].ndim, t[i].shape, err);
        if (st == MLA_OK) st = mla_map_add(where, t[i].name, strlen(t[i].name), i, NULL, err);
    }
    if (st == MLA_OK) st = mla_stw_begin(w, err);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        const mla_tensor *d = mla_stw_at(w, i);
        size_t k = 0;
        (void)mla_map_get(where, d->name, strlen(d->name), &k);
        if (t[k].nbytes != d->nbytes)
            st = mla_fail(err, MLA_EINVAL, "%s: tensor \"%s\" needs %zu bytes, its view has %zu", path, d->name, d->nbytes, t[k].nbytes);
        else
            st = mla_stw_write(w, t[k].data, d->nbytes, err);
    }
    mla_map_free(where);
    if (st == MLA_OK) return mla_stw_commit(w, digest, err);
    mla_stw_abort(w);
    return st;
}
