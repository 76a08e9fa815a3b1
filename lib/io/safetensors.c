/* safetensors reader: u64 header length, JSON header, data. Everything is checked before a view is handed out. */
#include "io/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "base/map.h"
#include "io/json.h"
#include "io/msg.h"

#define HEADER_MAX ((size_t)100000000) /* the reference reader's limit, decimal */
#define NAME_MAX_BYTES ((size_t)4096)  /* real names have about 100 bytes; a message must be able to show one */

typedef struct {
    char *key, *value;
} meta;

struct mla_st {
    mla_mapped file;
    mla_map *names; /* name -> position in t; owns the names */
    mla_tensor *t;  /* in offset order */
    size_t n;
    meta *meta;
    size_t nmeta;
};

typedef struct { /* a tensor while the header is read */
    mla_tensor t;
    size_t begin, end;
} entry;

static mla_status bad(mla_err *err, const char *name, const char *why)
{
    mla_quoted q;
    return mla_fail(err, MLA_EFORMAT, "tensor \"%s\": %s", mla_quote(&q, name, strlen(name)), why);
}

static mla_status read_shape(mla_tensor *t, const mla_jv *shape, mla_err *err)
{
    mla_quoted q;
    if (!mla_jv_is_arr(shape)) return bad(err, t->name, "no \"shape\" list");
    for (const mla_jv *d = mla_jv_first(shape); d; d = mla_jv_next(d)) {
        if (t->ndim == MLA_MAX_DIMS)
            return mla_fail(err, MLA_EUNSUPPORTED, "tensor \"%s\": %zu dimensions, at most %d are supported",
                            mla_quote(&q, t->name, strlen(t->name)), mla_jv_len(shape), MLA_MAX_DIMS);
        if (!mla_jv_size(d, &t->shape[t->ndim])) return bad(err, t->name, "a dimension that is not a non-negative integer");
        t->ndim++;
    }
    return MLA_OK;
}

/* bytes = product(shape) * bits / 8, each step checked. */
static mla_status shape_bytes(mla_tensor *t, mla_err *err)
{
    size_t n = 1, bits;
    for (size_t i = 0; i < t->ndim; i++)
        if (!mla_mul(&n, n, t->shape[i])) return bad(err, t->name, "the product of its shape overflows 64 bits");
    if (!mla_mul(&bits, n, mla_dtype_bits(t->dtype))) return bad(err, t->name, "its size in bits overflows 64 bits");
    if (bits % 8) return bad(err, t->name, "its sub-byte values do not end on a byte");
    t->nbytes = bits / 8;
    return MLA_OK;
}

static mla_status read_entry(entry *e, const mla_jv *v, mla_err *err)
{
    mla_quoted q, q2;
    mla_tensor *t = &e->t;
    t->name = mla_jv_key(v);
    size_t name_len = strlen(t->name);
    if (name_len > NAME_MAX_BYTES)
        return mla_fail(err, MLA_EFORMAT, "tensor \"%s\": a name of %zu bytes, at most %zu are accepted",
                        mla_quote(&q, t->name, name_len), name_len, NAME_MAX_BYTES);
    if (!mla_jv_is_obj(v)) return bad(err, t->name, "its entry is not an object");
    const char *dtype = mla_jv_str(mla_jv_get(v, "dtype"));
    if (!dtype) return bad(err, t->name, "no \"dtype\" string");
    if (!mla_dtype_parse(dtype, &t->dtype))
        return mla_fail(err, MLA_EUNSUPPORTED, "tensor \"%s\": unknown dtype \"%s\"", mla_quote(&q, t->name, name_len),
                        mla_quote(&q2, dtype, strlen(dtype)));
    mla_status st = read_shape(t, mla_jv_get(v, "shape"), err);
    if (st == MLA_OK) st = shape_bytes(t, err);
    if (st != MLA_OK) return st;
    const mla_jv *off = mla_jv_get(v, "data_offsets"), *b = mla_jv_first(off), *end = mla_jv_next(b);
    if (!mla_jv_is_arr(off) || !b || !end || mla_jv_next(end) || !mla_jv_size(b, &e->begin) || !mla_jv_size(end, &e->end))
        return bad(err, t->name, "\"data_offsets\" is not two non-negative integers");
    if (e->end < e->begin) return bad(err, t->name, "\"data_offsets\" ends before it begins");
    if (e->end - e->begin != t->nbytes) {
        char text[256];
        return mla_fail(err, MLA_EFORMAT, "tensor \"%s\": %s needs %zu bytes, data_offsets span %zu",
                        mla_quote(&q, t->name, name_len), mla_tensor_text(t, text, sizeof text), t->nbytes, e->end - e->begin);
    }
    return MLA_OK;
}

static mla_status read_meta(mla_st *s, const mla_jv *v, mla_err *err)
{
    mla_quoted q;
    if (!mla_jv_is_obj(v)) return mla_fail(err, MLA_EFORMAT, "__metadata__ is %s, expected an object", mla_jv_kind(v));
    s->meta = mla_alloc(mla_jv_len(v), 1, sizeof *s->meta);
    if (!s->meta) return mla_fail(err, MLA_ENOMEM, "__metadata__ of %zu keys", mla_jv_len(v));
    for (const mla_jv *c = mla_jv_first(v); c; c = mla_jv_next(c)) {
        const char *key = mla_jv_key(c), *value = mla_jv_str(c);
        if (!value)
            return mla_fail(err, MLA_EFORMAT, "__metadata__ \"%s\" is %s, expected a string", mla_quote(&q, key, strlen(key)),
                            mla_jv_kind(c));
        meta *m = &s->meta[s->nmeta++];
        m->key = mla_strdup(key);
        m->value = mla_strdup(value);
        if (!m->key || !m->value) return mla_fail(err, MLA_ENOMEM, "__metadata__");
    }
    return MLA_OK;
}

static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->t.name, y->t.name);
}

/* Sorted by offset, the tensors must cover [0, data_bytes) without hole or overlap. */
static mla_status settle(mla_st *s, entry *e, size_t n, const unsigned char *data, size_t data_bytes, mla_err *err)
{
    mla_quoted q;
    size_t at = 0;
    if (n) qsort(e, n, sizeof *e, by_offset);
    mla_status st = mla_map_new(&s->names, err);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        const char *name = e[i].t.name;
        if (e[i].begin != at)
            return mla_fail(err, MLA_EFORMAT, "tensor \"%s\": begins at byte %zu of the data, %s: expected %zu",
                            mla_quote(&q, name, strlen(name)), e[i].begin, e[i].begin < at ? "an overlap" : "a hole", at);
        at = e[i].end;
        if (at > data_bytes)
            return mla_fail(err, MLA_EFORMAT, "tensor \"%s\": ends at byte %zu of the data, the file has %zu (cut short?)",
                            mla_quote(&q, name, strlen(name)), at, data_bytes);
        st = mla_map_add(s->names, name, strlen(name), i, NULL, err);
        if (st != MLA_OK) break;
        s->t[i] = e[i].t;
        s->t[i].name = mla_map_key(s->names, i, NULL);
        s->t[i].data = data + e[i].begin;
        s->n = i + 1;
    }
    if (st == MLA_OK && at != data_bytes)
        st = mla_fail(err, MLA_EFORMAT, "%zu bytes after the last tensor belong to none", data_bytes - at);
    return st;
}

static mla_status read_header(mla_st *s, const mla_jv *root, const unsigned char *data, size_t data_bytes, mla_err *err)
{
    size_t n = mla_jv_len(root), k = 0;
    entry *e = mla_alloc(n, 1, sizeof *e);
    s->t = mla_alloc(n, 1, sizeof *s->t);
    mla_status st = e && s->t ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu tensors", n);
    for (const mla_jv *c = mla_jv_first(root); c && st == MLA_OK; c = mla_jv_next(c)) {
        if (!strcmp(mla_jv_key(c), "__metadata__"))
            st = read_meta(s, c, err);
        else
            st = read_entry(&e[k++], c, err);
    }
    if (st == MLA_OK) st = settle(s, e, k, data, data_bytes, err);
    mla_free(e);
    return st;
}

static mla_status read_file(mla_st *s, mla_err *err)
{
    const unsigned char *p = s->file.data;
    size_t size = s->file.size;
    uint64_t len = 0;
    if (size < 8) return mla_fail(err, MLA_EFORMAT, "%zu bytes: too short for a safetensors file", size);
    for (int i = 7; i >= 0; i--) len = len << 8 | p[i];
    if (len > size - 8)
        return mla_fail(err, MLA_EFORMAT, "a header of %ju bytes in a file of %zu: not safetensors, or cut short", (uintmax_t)len, size);
    if (len > HEADER_MAX) return mla_fail(err, MLA_EFORMAT, "a header of %ju bytes, at most %zu are accepted", (uintmax_t)len, HEADER_MAX);
    if (len == 0 || p[8] != '{') return mla_fail(err, MLA_EFORMAT, "the header does not begin with '{'");
    mla_json *doc;
    mla_status st = mla_json_parse(&doc, (const char *)p + 8, (size_t)len, "header", err);
    if (st != MLA_OK) return st;
    st = read_header(s, mla_json_root(doc), p + 8 + len, size - 8 - (size_t)len, err);
    mla_json_free(doc);
    return st;
}

mla_status mla_st_open(mla_st **out, const char *path, mla_err *err)
{
    mla_st *s = mla_alloc(1, 1, sizeof *s);
    if (!s) return mla_fail(err, MLA_ENOMEM, "%s", path);
    mla_status st = mla_file_map(&s->file, path, err);
    if (st == MLA_OK && (st = read_file(s, err)) != MLA_OK) mla_wrap(err, "%s", path);
    if (st == MLA_OK)
        *out = s;
    else
        mla_st_close(s);
    return st;
}

void mla_st_close(mla_st *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->nmeta; i++) {
        mla_free(s->meta[i].key);
        mla_free(s->meta[i].value);
    }
    mla_free(s->meta);
    mla_free(s->t);
    mla_map_free(s->names);
    mla_file_unmap(&s->file);
    mla_free(s);
}

size_t mla_st_count(const mla_st *s) { return s->n; }
const mla_tensor *mla_st_at(const mla_st *s, size_t i) { return i < s->n ? &s->t[i] : NULL; }
const mla_mapped *mla_st_file(const mla_st *s) { return &s->file; }
size_t mla_st_meta_count(const mla_st *s) { return s->nmeta; }
const char *mla_st_meta_key(const mla_st *s, size_t i) { return i < s->nmeta ? s->meta[i].key : NULL; }
const char *mla_st_meta_value(const mla_st *s, size_t i) { return i < s->nmeta ? s->meta[i].value : NULL; }

const mla_tensor *mla_st_find(const mla_st *s, const char *name)
{
    size_t i;
    return mla_map_get(s->names, name, strlen(name), &i) ? &s->t[i] : NULL;
}
