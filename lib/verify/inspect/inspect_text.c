/* inspect: the document as a table for people. */
#include <string.h>

#include "verify/inspect/inspect.h"

/* Text from a file, on one line whatever it holds. */
static void put_clean(mla_str *out, const char *s)
{
    for (const char *p = s; *p;) {
        size_t n = 0;
        while ((unsigned char)p[n] >= 0x20 && p[n] != 0x7f) n++;
        mla_str_putn(out, p, n);
        p += n;
        if (*p) {
            mla_str_put(out, "?");
            p++;
        }
    }
}

static const char *str_of(const mla_jv *o, const char *key, const char *def)
{
    const char *s = mla_jv_str(mla_jv_get(o, key));
    return s ? s : def;
}

static double num_of(const mla_jv *o, const char *key)
{
    double d = 0;
    (void)mla_jv_f64(mla_jv_get(o, key), &d);
    return d;
}

static void put_bytes(mla_str *out, double bytes)
{
    char buf[32];
    mla_str_put(out, mla_bytes_text(buf, sizeof buf, bytes));
}

static void put_shape(mla_str *out, const mla_jv *shape)
{
    mla_str_put(out, "[");
    for (const mla_jv *v = mla_jv_first(shape); v; v = mla_jv_next(v)) {
        double d = 0;
        (void)mla_jv_f64(v, &d);
        mla_str_printf(out, "%s%.0f", v == mla_jv_first(shape) ? "" : ", ", d);
    }
    mla_str_put(out, "]");
}

/* A scalar as text; arrays and objects in one compact line of JSON, cut. */
static void put_scalar(mla_str *out, const mla_jv *v)
{
    mla_str one = MLA_STR_MAX(1 << 20);
    mla_err err;
    if (mla_jv_str(v)) {
        mla_str_put(&one, mla_jv_str(v));
    } else if (mla_json_print(&one, v, false, &err) != MLA_OK) {
        mla_str_clear(&one);
        mla_str_put(&one, "(long)");
    }
    size_t n = one.len;
    if (n > 100) {
        n = 97;
        while (n > 0 && ((unsigned char)one.s[n] & 0xc0) == 0x80) n--;
        one.s[n] = '\0';
        put_clean(out, one.s);
        mla_str_put(out, "...");
    } else {
        put_clean(out, mla_str_c(&one));
    }
    mla_str_free(&one);
}

/* "key  value" lines; an object inside is written as "outer.key" lines. */
static void put_pairs(mla_str *out, const char *outer, const mla_jv *o)
{
    for (const mla_jv *v = mla_jv_first(o); v; v = mla_jv_next(v)) {
        size_t start = out->len;
        if (!outer[0] && mla_jv_is_obj(v)) {
            put_pairs(out, mla_jv_key(v), v);
            continue;
        }
        mla_str_put(out, "  ");
        put_clean(out, outer);
        mla_str_put(out, outer[0] ? "." : "");
        put_clean(out, mla_jv_key(v));
        size_t w = out->len - start;
        mla_str_printf(out, "%*s", w < 28 ? (int)(28 - w) : 2, "");
        put_scalar(out, v);
        mla_str_put(out, "\n");
    }
}

static void section(mla_str *out, const mla_jv *doc, const char *key)
{
    const mla_jv *o = mla_jv_get(doc, key);
    if (!o || !mla_jv_first(o)) return;
    mla_str_printf(out, "\n%s\n", key);
    put_pairs(out, "", o);
}

static void put_sums(mla_str *out, const mla_jv *list, const char *name_key, const char *count_key)
{
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        mla_str_printf(out, "  %-26s%10.0f %-9s", str_of(v, name_key, "?"), num_of(v, count_key), count_key);
        put_bytes(out, num_of(v, "bytes"));
        mla_str_put(out, "\n");
    }
}

static void put_metadata(mla_str *out, const mla_jv *list)
{
    if (!mla_jv_first(list)) return;
    mla_str_put(out, "\nmetadata\n");
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        size_t start = out->len;
        mla_str_put(out, "  ");
        put_clean(out, str_of(v, "key", "?"));
        size_t w = out->len - start;
        mla_str_printf(out, "%*s", w < 42 ? (int)(42 - w) : 2, "");
        if (mla_jv_get(v, "type")) mla_str_printf(out, "%-8s ", str_of(v, "type", ""));
        if (mla_jv_get(v, "n")) mla_str_printf(out, "%.0f x %s ", num_of(v, "n"), str_of(v, "item_type", ""));
        put_scalar(out, mla_jv_get(v, "value"));
        mla_str_put(out, "\n");
    }
}

static void put_tensors(mla_str *out, const mla_jv *list)
{
    size_t width = 4;
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        size_t n = strlen(str_of(v, "name", ""));
        if (n > width && n <= 72) width = n;
    }
    if (!mla_jv_first(list)) return;
    mla_str_printf(out, "\n  %-*s  dtype    bytes       shape\n", (int)width, "name");
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        size_t start = out->len;
        mla_str_put(out, "  ");
        put_clean(out, str_of(v, "name", ""));
        size_t w = out->len - start;
        mla_str_printf(out, "%*s", w < width + 2 ? (int)(width + 2 - w) : 0, "");
        if (mla_jv_get(v, "dtype")) {
            mla_str_printf(out, "  %-8s %-11.0f ", str_of(v, "dtype", ""), num_of(v, "bytes"));
            put_shape(out, mla_jv_get(v, "shape"));
        }
        if (mla_jv_get(v, "file")) {
            mla_str_put(out, "  ");
            put_clean(out, str_of(v, "file", ""));
        }
        mla_str_put(out, "\n");
    }
}

static void put_scales(mla_str *out, const mla_jv *doc)
{
    const mla_jv *sum = mla_jv_get(doc, "kv_scales");
    if (!sum) return;
    mla_str_printf(out, "\nFP8 KV-cache scales: %s", str_of(sum, "provenance", "?"));
    if (num_of(sum, "tensors") > 0) mla_str_printf(out, ", %.0f tensors", num_of(sum, "tensors"));
    mla_str_put(out, "\n");
    for (const mla_jv *v = mla_jv_first(mla_jv_get(doc, "scales")); v; v = mla_jv_next(v)) {
        mla_str_put(out, "  ");
        put_clean(out, str_of(v, "name", ""));
        mla_str_printf(out, "  %g  (%s, %s)\n", num_of(v, "value"), str_of(v, "spelling", ""), str_of(v, "state", ""));
    }
}

static void put_files(mla_str *out, const mla_jv *list)
{
    if (mla_jv_len(list) < 2) return;
    mla_str_put(out, "\nfiles\n");
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        bool present = true;
        mla_str_put(out, "  ");
        put_clean(out, str_of(v, "name", ""));
        if (mla_jv_get(v, "bytes")) {
            mla_str_put(out, "  ");
            put_bytes(out, num_of(v, "bytes"));
        }
        if (mla_jv_bool(mla_jv_get(v, "present"), &present) && !present) mla_str_put(out, "  ABSENT");
        mla_str_put(out, "\n");
    }
}

void mla_inspect_text(mla_str *out, const mla_jv *doc, const mla_inspect_text_opts *o)
{
    const mla_jv *totals = mla_jv_get(doc, "totals");
    put_clean(out, str_of(doc, "name", ""));
    mla_str_printf(out, ": %s", str_of(doc, "kind", "?"));
    if (totals) mla_str_printf(out, ", %.0f tensors", num_of(totals, "tensors"));
    if (mla_jv_get(totals, "bytes")) {
        mla_str_put(out, ", ");
        put_bytes(out, num_of(totals, "bytes"));
    }
    mla_str_put(out, "\n");
    section(out, doc, "config");
    section(out, doc, "reference");
    section(out, doc, "receipt");
    section(out, doc, "header");
    put_files(out, mla_jv_get(doc, "files"));
    if (totals) {
        mla_str_put(out, "\nstored as\n");
        put_sums(out, mla_jv_get(totals, "by_dtype"), "dtype", "tensors");
    }
    const mla_jv *format = mla_jv_first(mla_jv_get(totals, "by_format"));
    const mla_jv *dtype = mla_jv_first(mla_jv_get(totals, "by_dtype"));
    bool same = !mla_jv_next(format) && !strcmp(str_of(format, "format", ""), str_of(dtype, "dtype", ""));
    if (format && !same) { /* plain BF16 and nothing else was said above */
        mla_str_put(out, "\nweight formats\n");
        put_sums(out, mla_jv_get(totals, "by_format"), "format", "matrices");
    }
    put_scales(out, doc);
    if (o->metadata) put_metadata(out, mla_jv_get(doc, "metadata"));
    if (o->tensors) put_tensors(out, mla_jv_get(doc, "tensors"));
    if (mla_jv_first(mla_jv_get(doc, "notes"))) mla_str_put(out, "\nnotes\n");
    for (const mla_jv *v = mla_jv_first(mla_jv_get(doc, "notes")); v; v = mla_jv_next(v)) {
        mla_str_put(out, "  ");
        put_clean(out, mla_jv_str(v) ? mla_jv_str(v) : "");
        mla_str_put(out, "\n");
    }
}
