/* inspect: GGUF files, every metadata entry and tensor. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/inspect/inspect_parts.h"

#define ITEMS_SHOWN 64    /* of an array */
#define STRING_SHOWN 4096 /* bytes of a string */

static const char *const VTYPE[MLA_GV_N] = {"UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32",
                                            "BOOL", "STRING", "ARRAY", "UINT64", "INT64", "FLOAT64"};
static const size_t VSIZE[MLA_GV_N] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static const char *vname(mla_gguf_vtype t) { return (unsigned)t < MLA_GV_N ? VTYPE[t] : "?"; }

/* An integer as a JSON number where a double holds it, else as text. */
static void put_i64(mla_jv *arr, int64_t v, bool is_unsigned)
{
    char text[24];
    int64_t limit = (int64_t)1 << 53;
    if (is_unsigned ? (uint64_t)v <= (uint64_t)limit : v <= limit && v >= -limit) {
        mla_jv_add_f64(arr, is_unsigned ? (double)(uint64_t)v : (double)v);
        return;
    }
    if (is_unsigned)
        (void)snprintf(text, sizeof text, "%" PRIu64, (uint64_t)v);
    else
        (void)snprintf(text, sizeof text, "%" PRId64, v);
    mla_jv_add_str(arr, text);
}

/* Appends the little-endian value at p to arr. */
static void put_value(mla_jv *arr, mla_gguf_vtype t, const unsigned char *p)
{
    uint64_t u = 0;
    float f;
    double d;
    for (size_t i = 0; i < VSIZE[t]; i++) u |= (uint64_t)p[i] << (8 * i);
    switch (t) {
    case MLA_GV_U8: case MLA_GV_U16: case MLA_GV_U32: case MLA_GV_U64: put_i64(arr, (int64_t)u, true); break;
    case MLA_GV_I8: put_i64(arr, (int8_t)u, false); break;
    case MLA_GV_I16: put_i64(arr, (int16_t)u, false); break;
    case MLA_GV_I32: put_i64(arr, (int32_t)u, false); break;
    case MLA_GV_I64: put_i64(arr, (int64_t)u, false); break;
    case MLA_GV_F32: memcpy(&f, p, 4); mla_jv_add_f64(arr, (double)f); break;
    case MLA_GV_F64: memcpy(&d, p, 8); mla_jv_add_f64(arr, d); break;
    case MLA_GV_BOOL: case MLA_GV_STRING: case MLA_GV_ARRAY: case MLA_GV_N: break; /* not by this path */
    }
}

/* An array of booleans; the document kit adds none to arrays, so it is parsed. */
static void put_bools(mla_jv *o, const mla_gguf_kv *kv, size_t n)
{
    mla_str text = MLA_STR_MAX(1024);
    mla_json *d = NULL;
    mla_err err;
    for (size_t i = 0; i < n; i++) mla_str_printf(&text, "%c%s", i ? ',' : '[', kv->data[i] ? "true" : "false");
    mla_str_put(&text, n ? "]" : "[]");
    if (mla_json_parse(&d, mla_str_c(&text), text.len, "items", &err) == MLA_OK) mla_jv_set_copy(o, "value", mla_json_root(d));
    mla_json_free(d);
    mla_str_free(&text);
}

static size_t whole_characters(const unsigned char *s, size_t n)
{
    size_t k = n < STRING_SHOWN ? n : STRING_SHOWN;
    while (k < n && k > 0 && (s[k] & 0xc0) == 0x80) k--;
    return k;
}

static void put_array(mla_jv *o, const mla_gguf_kv *kv)
{
    size_t n = kv->n < ITEMS_SHOWN ? kv->n : ITEMS_SHOWN, len, pos = 0;
    const char *s;
    mla_jv_set_str(o, "item_type", vname(kv->item));
    mla_jv_set_size(o, "n", kv->n);
    mla_jv *items = mla_jv_set_arr(o, "value");
    if (kv->item == MLA_GV_BOOL) put_bools(o, kv, n);
    for (size_t i = 0; i < n && kv->item != MLA_GV_BOOL; i++) {
        if (kv->item != MLA_GV_STRING) {
            put_value(items, kv->item, kv->data + i * VSIZE[kv->item]);
        } else if (mla_gguf_str_next(kv, &pos, &s, &len)) {
            char *t = mla_inspect_clean(s, whole_characters((const unsigned char *)s, len));
            mla_jv_add_str(items, t);
            mla_free(t);
        }
    }
}

/* "value" of a scalar or string; of an array its first items, and "n" of them in all. */
static void put_kv(mla_jv *list, const mla_gguf_kv *kv)
{
    mla_jv *o = mla_jv_add_obj(list);
    mla_inspect_put_text(o, "key", kv->key, strlen(kv->key));
    mla_jv_set_str(o, "type", vname(kv->type));
    if (kv->type == MLA_GV_STRING) {
        size_t n = whole_characters(kv->data, kv->n);
        mla_inspect_put_text(o, "value", (const char *)kv->data, n);
        if (n < kv->n) mla_jv_set_size(o, "bytes", kv->n);
    } else if (kv->type == MLA_GV_ARRAY) {
        put_array(o, kv);
    } else if (kv->type == MLA_GV_BOOL) {
        mla_jv_set_bool(o, "value", kv->data[0] != 0);
    } else {
        mla_json *d = NULL; /* one value through the array path */
        mla_err err;
        if (mla_json_new_object(&d, &err) == MLA_OK) {
            mla_jv *one = mla_jv_set_arr(mla_json_root(d), "v");
            put_value(one, kv->type, kv->data);
            mla_jv_set_copy(o, "value", mla_jv_first(one));
        }
        mla_json_free(d);
    }
}

static void put_tensor(mla_jv *list, const mla_gguf_tensor *t, const char *type)
{
    mla_jv *o = mla_jv_add_obj(list);
    mla_inspect_put_text(o, "name", t->name, strlen(t->name));
    mla_jv_set_str(o, "dtype", type);
    mla_jv *s = mla_jv_set_arr(o, "shape"); /* row-major: the stored dims reversed */
    for (size_t i = t->ndim; i-- > 0;) mla_jv_add_size(s, t->ne[i]);
    mla_jv_set_size(o, "bytes", t->nbytes);
}

mla_status mla_inspect_gguf(mla_jv *doc, const char *path, mla_err *err)
{
    mla_gguf *g = NULL;
    mla_config c = {0};
    mla_err why = {0};
    mla_inspect_sums sums = {0};
    double bytes = 0;
    mla_inspect_set_kind(doc, "gguf");
    mla_status st = mla_gguf_open(&g, path, err);
    if (st != MLA_OK) return st;
    mla_jv *file = mla_jv_add_obj(mla_jv_set_arr(doc, "files"));
    mla_jv_set_copy(file, "name", mla_jv_get(doc, "name"));
    mla_jv_set_size(file, "bytes", mla_gguf_file(g)->size);
    mla_jv_set_size(doc, "alignment", mla_gguf_alignment(g));

    mla_status read = mla_config_from_gguf(&c, g, &why);
    if (read == MLA_OK) mla_inspect_config(doc, &c);
    else mla_inspect_note(doc, "configuration: %s", why.msg);
    mla_config_free(&c);

    mla_jv *totals = mla_jv_set_obj(doc, "totals");
    mla_jv *meta = mla_jv_set_arr(doc, "metadata");
    for (size_t i = 0; i < mla_gguf_kv_count(g); i++) put_kv(meta, mla_gguf_kv_at(g, i));
    mla_jv *list = mla_jv_set_arr(doc, "tensors");
    for (size_t i = 0; i < mla_gguf_count(g); i++) {
        const mla_gguf_tensor *t = mla_gguf_at(g, i);
        const mla_ggml_info *info = mla_ggml_type_info(t->type);
        const char *type = info && info->name ? info->name : "?";
        put_tensor(list, t, type);
        mla_inspect_sum(&sums, type, (double)t->nbytes);
        bytes += (double)t->nbytes;
    }
    mla_jv_set_size(totals, "tensors", mla_gguf_count(g));
    mla_jv_set_f64(totals, "bytes", bytes);
    mla_inspect_put_sums(totals, "by_dtype", "dtype", "tensors", &sums);
    mla_gguf_close(g);
    return MLA_OK;
}
