/* Deterministic JSON text: order as stored, shortest digits that read back the same double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/file.h"
#include "io/json.h"
#include "io/json_scan.h"

#define PRINT_MAX ((size_t)1 << 30)

static void print_string(mla_str *out, const char *s)
{
    mla_str_put(out, "\"");
    for (const char *p = s;;) {
        const char *q = p;
        while ((unsigned char)*q >= 0x20 && *q != '"' && *q != '\\') q++;
        mla_str_putn(out, p, (size_t)(q - p));
        if (!*q) break;
        switch (*q) {
        case '"': mla_str_put(out, "\\\""); break;
        case '\\': mla_str_put(out, "\\\\"); break;
        case '\n': mla_str_put(out, "\\n"); break;
        case '\r': mla_str_put(out, "\\r"); break;
        case '\t': mla_str_put(out, "\\t"); break;
        case '\b': mla_str_put(out, "\\b"); break;
        case '\f': mla_str_put(out, "\\f"); break;
        default: mla_str_printf(out, "\\u%04x", (unsigned char)*q);
        }
        p = q + 1;
    }
    mla_str_put(out, "\"");
}

static void print_number(mla_str *out, double v)
{
    char buf[40];
    if (!isfinite(v)) {
        mla_str_put(out, "null");
        return;
    }
    if (v == trunc(v) && fabs(v) <= 0x1p53 && !(v == 0 && signbit(v))) {
        mla_str_printf(out, "%.0f", v);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) break;
    }
    mla_str_put(out, buf);
}

static void newline(mla_str *out, unsigned depth)
{
    mla_str_put(out, "\n");
    for (unsigned i = 0; i < depth; i++) mla_str_put(out, "  ");
}

static void print_value(mla_str *out, const mla_jv *v, bool indent, unsigned depth)
{
    bool obj = mla_jv_is_obj(v), b = false;
    double d = (double)NAN;
    if (mla_jv_str(v)) {
        print_string(out, mla_jv_str(v));
    } else if (mla_jv_is_num(v)) {
        (void)mla_jv_f64(v, &d); /* not finite: d stays NaN and prints as null */
        print_number(out, d);
    } else if (mla_jv_bool(v, &b)) {
        mla_str_put(out, b ? "true" : "false");
    } else if (!obj && !mla_jv_is_arr(v)) {
        mla_str_put(out, "null");
    } else {
        mla_str_put(out, obj ? "{" : "[");
        for (const mla_jv *c = mla_jv_first(v); c; c = mla_jv_next(c)) {
            if (c != mla_jv_first(v)) mla_str_put(out, ",");
            if (indent) newline(out, depth + 1);
            if (obj) {
                print_string(out, mla_jv_key(c));
                mla_str_put(out, indent ? ": " : ":");
            }
            print_value(out, c, indent, depth + 1);
        }
        if (indent && mla_jv_first(v)) newline(out, depth);
        mla_str_put(out, obj ? "}" : "]");
    }
}

mla_status mla_json_print(mla_str *out, const mla_jv *v, bool indent, mla_err *err)
{
    if (!mla_jv_whole(v)) return mla_fail(err, MLA_ENOMEM, "no memory for a JSON document");
    print_value(out, v, indent, 0);
    if (indent) mla_str_put(out, "\n");
    return mla_str_ok(out) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "JSON text of more than %zu bytes", out->len);
}

mla_status mla_json_write(const char *path, const mla_jv *v, mla_err *err)
{
    mla_str text = MLA_STR_MAX(PRINT_MAX);
    mla_status st = mla_json_print(&text, v, true, err);
    st = st == MLA_OK ? mla_file_write(path, text.s, text.len, err) : mla_wrap(err, "%s", path);
    mla_str_free(&text);
    return st;
}
