/* GGUF parsing. One cursor walks the file; every length is compared with the bytes that are left before it is used. */
#include "io/gguf.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "base/str.h"
#include "io/gguf_impl.h"
#include "io/msg.h"

#define KEY_MAX ((uint64_t)65535)
#define NAME_MAX_LEN ((uint64_t)63) /* the format's limit: below 64 bytes */
#define ALIGN_MAX ((uint32_t)1 << 20)
#define COUNT_MAX ((uint64_t)1 << 20) /* real files have below 10^4 keys and tensors; bounds what a header may cost */
#define KV_MIN 14u     /* u64 key length, one key byte, u32 type, one value byte */
#define TENSOR_MIN 25u /* u64 name length, one name byte, u32 n_dims, u32 type, u64 offset */

typedef struct {
    const unsigned char *base;
    size_t at, size;
    mla_err *err;
} cursor;

static size_t left(const cursor *c) { return c->size - c->at; }

static mla_status take(cursor *c, size_t n, const unsigned char **p, const char *what)
{
    if (n > left(c))
        return mla_fail(c->err, MLA_EFORMAT, "%s: needs %zu bytes at byte %zu, %zu are left", what, n, c->at, left(c));
    *p = c->base + c->at;
    c->at += n;
    return MLA_OK;
}

static mla_status take_u32(cursor *c, uint32_t *v, const char *what)
{
    const unsigned char *p = NULL;
    mla_status st = take(c, 4, &p, what);
    if (st == MLA_OK) *v = mla_le32(p);
    return st;
}

static mla_status take_u64(cursor *c, uint64_t *v, const char *what)
{
    const unsigned char *p = NULL;
    mla_status st = take(c, 8, &p, what);
    if (st == MLA_OK) *v = mla_le64(p);
    return st;
}

/* A string's bytes; the length is compared as u64, so that no cast or "+ 1" can wrap. */
static mla_status take_string(cursor *c, const unsigned char **s, size_t *n, uint64_t max, const char *what)
{
    uint64_t len;
    mla_status st = take_u64(c, &len, what);
    if (st != MLA_OK) return st;
    if (len > left(c))
        return mla_fail(c->err, MLA_EFORMAT, "%s: a string of %ju bytes at byte %zu, %zu are left", what, (uintmax_t)len, c->at, left(c));
    if (len > max) return mla_fail(c->err, MLA_EFORMAT, "%s: a string of %ju bytes, at most %ju are allowed", what, (uintmax_t)len, (uintmax_t)max);
    *n = (size_t)len;
    return take(c, *n, s, what);
}

/* A key or tensor name: not empty, UTF-8, no NUL or other control character, not seen before. */
static mla_status take_name(cursor *c, mla_map *seen, uint64_t max, const char *what, size_t i)
{
    const unsigned char *s;
    size_t n;
    mla_quoted q;
    char which[48];
    snprintf(which, sizeof which, "%s %zu", what, i);
    mla_status st = take_string(c, &s, &n, max, which);
    if (st != MLA_OK) return st;
    const char *name = (const char *)s;
    if (n == 0) return mla_fail(c->err, MLA_EFORMAT, "%s: an empty name", which);
    if (!mla_utf8_valid(name, n)) return mla_fail(c->err, MLA_EFORMAT, "%s: \"%s\" is not UTF-8", which, mla_quote(&q, name, n));
    for (size_t k = 0; k < n; k++)
        if (s[k] < 0x20) return mla_fail(c->err, MLA_EFORMAT, "%s: \"%s\" has a control character", which, mla_quote(&q, name, n));
    bool had;
    st = mla_map_add(seen, name, n, i, &had, c->err);
    if (st == MLA_OK && had) st = mla_fail(c->err, MLA_EFORMAT, "%s: duplicate name \"%s\"", which, mla_quote(&q, name, n));
    return st;
}

/* ---- metadata ---- */
size_t mla_gguf_value_size(mla_gguf_vtype t)
{
    static const unsigned char SIZE[MLA_GV_N] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return t < MLA_GV_N ? SIZE[t] : 0;
}

static mla_status check_bools(cursor *c, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] > 1) return mla_fail(c->err, MLA_EFORMAT, "a boolean of value %u", p[i]);
    return MLA_OK;
}

static mla_status take_array(cursor *c, mla_gguf_kv *kv)
{
    uint32_t item;
    uint64_t n;
    mla_status st = take_u32(c, &item, "array type");
    if (st == MLA_OK) st = take_u64(c, &n, "array length");
    if (st != MLA_OK) return st;
    if (item == MLA_GV_ARRAY) return mla_fail(c->err, MLA_EUNSUPPORTED, "an array of arrays");
    if (item >= MLA_GV_N) return mla_fail(c->err, MLA_EFORMAT, "an array of unknown type %u", item);
    kv->item = (mla_gguf_vtype)item;
    size_t each = mla_gguf_value_size(kv->item), from = c->at;
    if (n > left(c) / (each ? each : 8))
        return mla_fail(c->err, MLA_EFORMAT, "an array of %ju items, %zu bytes are left", (uintmax_t)n, left(c));
    kv->n = (size_t)n;
    if (each) {
        st = take(c, kv->n * each, &kv->data, "array"); /* bounded by the bytes left: cannot wrap */
        if (st == MLA_OK && kv->item == MLA_GV_BOOL) st = check_bools(c, kv->data, kv->n);
    } else {
        kv->data = c->base + c->at;
        for (size_t i = 0; i < kv->n && st == MLA_OK; i++) {
            const unsigned char *s;
            size_t len;
            st = take_string(c, &s, &len, UINT64_MAX, "array item");
        }
    }
    kv->nbytes = c->at - from;
    return st;
}

static mla_status take_value(cursor *c, mla_gguf_kv *kv)
{
    uint32_t type;
    mla_status st = take_u32(c, &type, "value type");
    if (st != MLA_OK) return st;
    if (type >= MLA_GV_N) return mla_fail(c->err, MLA_EFORMAT, "unknown value type %u", type);
    kv->type = (mla_gguf_vtype)type;
    if (kv->type == MLA_GV_ARRAY) return take_array(c, kv);
    if (kv->type == MLA_GV_STRING) {
        st = take_string(c, &kv->data, &kv->n, UINT64_MAX, "value");
        kv->nbytes = kv->n;
        return st;
    }
    kv->n = 1;
    kv->nbytes = mla_gguf_value_size(kv->type);
    st = take(c, kv->nbytes, &kv->data, "value");
    return st == MLA_OK && kv->type == MLA_GV_BOOL ? check_bools(c, kv->data, 1) : st;
}

static mla_status read_metadata(mla_gguf *g, cursor *c, size_t n)
{
    mla_quoted q;
    g->kv = mla_alloc(n, 1, sizeof *g->kv);
    if (!g->kv) return mla_fail(c->err, MLA_ENOMEM, "%zu metadata entries", n);
    for (size_t i = 0; i < n; i++) {
        mla_gguf_kv *kv = &g->kv[i];
        mla_status st = take_name(c, g->keys, KEY_MAX, "metadata key", i);
        if (st != MLA_OK) return st;
        kv->key = mla_map_key(g->keys, i, NULL);
        if (take_value(c, kv) != MLA_OK) return mla_wrap(c->err, "metadata \"%s\"", mla_quote(&q, kv->key, strlen(kv->key)));
        g->nkv = i + 1;
    }
    return MLA_OK;
}

static mla_status read_alignment(mla_gguf *g, mla_err *err)
{
    const mla_gguf_kv *kv = mla_gguf_kv_find(g, "general.alignment");
    g->align = 32;
    if (!kv) return MLA_OK;
    if (kv->type != MLA_GV_U32) return mla_fail(err, MLA_EFORMAT, "general.alignment is of type %d, expected u32 (4)", (int)kv->type);
    uint32_t a = mla_le32(kv->data);
    if (a == 0 || (a & (a - 1))) return mla_fail(err, MLA_EFORMAT, "general.alignment is %u, expected a power of two", a);
    if (a > ALIGN_MAX) return mla_fail(err, MLA_EFORMAT, "general.alignment is %u, at most %u is accepted", a, ALIGN_MAX);
    g->align = a;
    return MLA_OK;
}

/* ---- tensors ---- */
static mla_status take_dims(cursor *c, mla_gguf_tensor *t, size_t *numel)
{
    uint32_t nd;
    mla_status st = take_u32(c, &nd, "n_dims");
    if (st != MLA_OK) return st;
    if (nd > 4) return mla_fail(c->err, MLA_EFORMAT, "%u dimensions, at most 4 are allowed", nd);
    t->ndim = nd;
    *numel = 1;
    for (size_t d = 0; d < 4; d++) t->ne[d] = 1;
    for (size_t d = 0; d < nd; d++) {
        uint64_t ne;
        if ((st = take_u64(c, &ne, "dimension")) != MLA_OK) return st;
        if (ne > INT64_MAX) return mla_fail(c->err, MLA_EFORMAT, "dimension %zu is %ju (negative as a signed number)", d, (uintmax_t)ne);
        t->ne[d] = (size_t)ne;
        if (!mla_mul(numel, *numel, t->ne[d]) || *numel > INT64_MAX)
            return mla_fail(c->err, MLA_EFORMAT, "the product of its dimensions overflows 63 bits");
    }
    return MLA_OK;
}

/* One tensor info. *next: where its data must begin, counted from the data's start; moved past it and its padding. */
static mla_status take_tensor(cursor *c, mla_gguf_tensor *t, uint64_t *next, uint64_t *offset, size_t align)
{
    size_t numel = 0;
    mla_status st = take_dims(c, t, &numel);
    if (st == MLA_OK) st = take_u32(c, &t->type, "type");
    if (st == MLA_OK) st = take_u64(c, offset, "offset");
    if (st != MLA_OK) return st;
    const mla_ggml_info *info = mla_ggml_type_info(t->type);
    if (!info) return mla_fail(c->err, MLA_EUNSUPPORTED, "unknown tensor type %u", t->type);
    if (t->ne[0] % info->block)
        return mla_fail(c->err, MLA_EFORMAT, "rows of %zu values are no multiple of %s's block of %zu", t->ne[0], info->name, info->block);
    uint64_t end;
    if (!mla_mul(&t->nbytes, numel / info->block, info->bytes) || t->nbytes > INT64_MAX)
        return mla_fail(c->err, MLA_EFORMAT, "its size in bytes overflows 63 bits");
    if (*offset != *next)
        return mla_fail(c->err, MLA_EFORMAT, "offset %ju, expected %ju (the tensors before it, padded)", (uintmax_t)*offset, (uintmax_t)*next);
    if (!mla_add64(&end, *offset, t->nbytes) || !mla_align_up64(next, end, align))
        return mla_fail(c->err, MLA_EFORMAT, "the sum of the tensor sizes overflows 64 bits");
    return MLA_OK;
}

static mla_status read_tensors(mla_gguf *g, cursor *c, size_t n)
{
    mla_quoted q;
    uint64_t next = 0, start = 0;
    uint64_t *offset = mla_alloc(n, 1, sizeof *offset);
    g->t = mla_alloc(n, 1, sizeof *g->t);
    mla_status st = offset && g->t ? MLA_OK : mla_fail(c->err, MLA_ENOMEM, "%zu tensors", n);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        if ((st = take_name(c, g->names, NAME_MAX_LEN, "tensor name", i)) != MLA_OK) break;
        g->t[i].name = mla_map_key(g->names, i, NULL);
        st = take_tensor(c, &g->t[i], &next, &offset[i], g->align);
        if (st != MLA_OK) mla_wrap(c->err, "tensor \"%s\"", mla_quote(&q, g->t[i].name, strlen(g->t[i].name)));
    }
    if (st == MLA_OK && !mla_align_up64(&start, c->at, g->align)) st = mla_fail(c->err, MLA_EFORMAT, "the data's start overflows");
    for (size_t i = 0; i < n && st == MLA_OK; i++) { /* the last padding may be missing; the data may not */
        uint64_t room = start <= c->size ? c->size - start : 0;
        if (start > c->size || offset[i] > room || g->t[i].nbytes > room - offset[i])
            st = mla_fail(c->err, MLA_EFORMAT, "tensor \"%s\": its %zu bytes at byte %ju of the data end behind the file (%ju are there): cut short?",
                          mla_quote(&q, g->t[i].name, strlen(g->t[i].name)), g->t[i].nbytes, (uintmax_t)offset[i], (uintmax_t)room);
        else {
            g->t[i].data = c->base + start + offset[i];
            g->n = i + 1;
        }
    }
    mla_free(offset);
    return st;
}

/* ---- the file ---- */
static mla_status read_counts(cursor *c, size_t *ntensor, size_t *nkv)
{
    const unsigned char *magic = NULL;
    uint32_t version = 0;
    uint64_t nt = 0, nk = 0;
    mla_status st = take(c, 4, &magic, "magic");
    if (st != MLA_OK) return st;
    if (memcmp(magic, "GGUF", 4)) return mla_fail(c->err, MLA_EFORMAT, "does not begin with \"GGUF\"");
    if ((st = take_u32(c, &version, "version")) != MLA_OK) return st;
    if (version && (version & 0xffff) == 0)
        return mla_fail(c->err, MLA_EUNSUPPORTED, "version 0x%08x: a big-endian file? Only little-endian files are read", version);
    if (version != 2 && version != 3) return mla_fail(c->err, MLA_EUNSUPPORTED, "GGUF version %u, expected 2 or 3", version);
    if ((st = take_u64(c, &nt, "tensor count")) != MLA_OK || (st = take_u64(c, &nk, "metadata count")) != MLA_OK) return st;
    if (nk > left(c) / KV_MIN || nk > COUNT_MAX)
        return mla_fail(c->err, MLA_EFORMAT, "%ju metadata entries cannot fit in the %zu bytes left (at most %ju are accepted)",
                        (uintmax_t)nk, left(c), (uintmax_t)COUNT_MAX);
    if (nt > left(c) / TENSOR_MIN || nt > COUNT_MAX)
        return mla_fail(c->err, MLA_EFORMAT, "%ju tensors cannot fit in the %zu bytes left (at most %ju are accepted)", (uintmax_t)nt,
                        left(c), (uintmax_t)COUNT_MAX);
    *ntensor = (size_t)nt;
    *nkv = (size_t)nk;
    return MLA_OK;
}

static mla_status parse(mla_gguf *g, mla_err *err)
{
    cursor c = {g->file.data, 0, g->file.size, err};
    size_t ntensor = 0, nkv = 0;
    mla_status st = read_counts(&c, &ntensor, &nkv);
    if (st == MLA_OK) st = mla_map_new(&g->keys, err);
    if (st == MLA_OK) st = mla_map_new(&g->names, err);
    if (st == MLA_OK) st = read_metadata(g, &c, nkv);
    if (st == MLA_OK) st = read_alignment(g, err);
    if (st == MLA_OK) st = read_tensors(g, &c, ntensor);
    return st;
}

mla_status mla_gguf_open(mla_gguf **out, const char *path, mla_err *err)
{
    mla_gguf *g = mla_alloc(1, 1, sizeof *g);
    if (!g) return mla_fail(err, MLA_ENOMEM, "%s", path);
    mla_status st = mla_file_map(&g->file, path, err);
    if (st == MLA_OK && (st = parse(g, err)) != MLA_OK) mla_wrap(err, "%s", path);
    if (st == MLA_OK)
        *out = g;
    else
        mla_gguf_close(g);
    return st;
}

void mla_gguf_close(mla_gguf *g)
{
    if (!g) return;
    mla_free(g->kv);
    mla_free(g->t);
    mla_map_free(g->keys);
    mla_map_free(g->names);
    mla_file_unmap(&g->file);
    mla_free(g);
}
