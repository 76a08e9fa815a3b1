/* Sticky typed reads from a JSON object. */
#include "model/read.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

const char *mla_printable(const char *s, char *buf, size_t cap)
{
    size_t n = 0;
    for (; s[n] && n + 4 < cap; n++) buf[n] = (unsigned char)s[n] < 0x20 || s[n] == 0x7f ? '?' : s[n];
    if (s[n]) memcpy(buf + n, "...", 3), n += 3;
    buf[n] = 0;
    return buf;
}

void mla_rd_fail(mla_rd *r, mla_status st, const char *key, const char *fmt, ...)
{
    if (*r->st != MLA_OK) return;
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    *r->st = mla_fail(r->err, st, "%s%s: %s", r->where, key, text);
}

const mla_jv *mla_rd_get(const mla_rd *r, const char *key)
{
    const mla_jv *v = mla_jv_get(r->obj, key);
    return mla_jv_is_null(v) ? NULL : v;
}

/* What was found, for messages: numbers and strings by value, the rest by kind. */
static const char *found(const mla_jv *v, char *buf, size_t cap)
{
    double d;
    char q[88];
    if (mla_jv_f64(v, &d)) snprintf(buf, cap, "%.15g", d);
    else if (mla_jv_is_str(v)) snprintf(buf, cap, "\"%s\"", mla_printable(mla_jv_str(v), q, sizeof q));
    else snprintf(buf, cap, "%s", mla_jv_kind(v));
    return buf;
}

size_t mla_rd_size(mla_rd *r, const char *key, size_t lo, size_t hi, size_t def)
{
    const mla_jv *v = mla_rd_get(r, key);
    size_t n;
    char buf[120];
    if (*r->st != MLA_OK) return lo;
    if (!v && def != MLA_REQUIRED) return def;
    if (!v) mla_rd_fail(r, MLA_EFORMAT, key, "missing");
    else if (mla_jv_size(v, &n) && n >= lo && n <= hi) return n;
    else mla_rd_fail(r, MLA_EFORMAT, key, "expected an integer from %zu to %zu, found %s", lo, hi, found(v, buf, sizeof buf));
    return lo;
}

double mla_rd_f64(mla_rd *r, const char *key, double lo, double hi, double def)
{
    const mla_jv *v = mla_rd_get(r, key);
    double d;
    char buf[120];
    if (*r->st != MLA_OK) return lo;
    if (!v && !isnan(def)) return def;
    if (!v) mla_rd_fail(r, MLA_EFORMAT, key, "missing");
    else if (mla_jv_f64(v, &d) && d >= lo && d <= hi) return d;
    else mla_rd_fail(r, MLA_EFORMAT, key, "expected a number from %g to %g, found %s", lo, hi, found(v, buf, sizeof buf));
    return lo;
}

bool mla_rd_bool(mla_rd *r, const char *key, bool def)
{
    const mla_jv *v = mla_rd_get(r, key);
    bool b;
    char buf[120];
    if (*r->st != MLA_OK || !v) return def;
    if (mla_jv_bool(v, &b)) return b;
    mla_rd_fail(r, MLA_EFORMAT, key, "expected true or false, found %s", found(v, buf, sizeof buf));
    return def;
}

const char *mla_rd_str(mla_rd *r, const char *key, const char *def)
{
    const mla_jv *v = mla_rd_get(r, key);
    if (*r->st != MLA_OK || !v) return def;
    if (mla_jv_is_str(v)) return mla_jv_str(v);
    mla_rd_fail(r, MLA_EFORMAT, key, "expected a string, found %s", mla_jv_kind(v));
    return def;
}

const mla_jv *mla_rd_obj(mla_rd *r, const char *key)
{
    const mla_jv *v = mla_rd_get(r, key);
    if (*r->st != MLA_OK || !v) return NULL;
    if (mla_jv_is_obj(v)) return v;
    mla_rd_fail(r, MLA_EFORMAT, key, "expected an object, found %s", mla_jv_kind(v));
    return NULL;
}

const mla_jv *mla_rd_arr(mla_rd *r, const char *key)
{
    const mla_jv *v = mla_rd_get(r, key);
    if (*r->st != MLA_OK || !v) return NULL;
    if (mla_jv_is_arr(v)) return v;
    mla_rd_fail(r, MLA_EFORMAT, key, "expected a list, found %s", mla_jv_kind(v));
    return NULL;
}

bool mla_rd_f64s(mla_rd *r, const char *key, double *dst, size_t n, double lo, double hi)
{
    const mla_jv *a = mla_rd_arr(r, key);
    char buf[120];
    size_t i = 0;
    if (!a) return false;
    if (mla_jv_len(a) != n) {
        mla_rd_fail(r, MLA_EFORMAT, key, "expected %zu numbers, found %zu", n, mla_jv_len(a));
        return false;
    }
    for (const mla_jv *v = mla_jv_first(a); v; v = mla_jv_next(v), i++)
        if (!(mla_jv_f64(v, &dst[i]) && dst[i] >= lo && dst[i] <= hi)) {
            mla_rd_fail(r, MLA_EFORMAT, key, "entry %zu: expected a number from %g to %g, found %s", i, lo, hi,
                        found(v, buf, sizeof buf));
            return false;
        }
    return true;
}

char *mla_rd_dup(mla_rd *r, const char *s)
{
    if (!s || *r->st != MLA_OK) return NULL;
    char *c = mla_strdup(s);
    if (!c) *r->st = mla_fail(r->err, MLA_ENOMEM, "config: copy of a string");
    return c;
}
