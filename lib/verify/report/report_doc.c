/* Reads and texts that the writers of reports share. */
#include <string.h>

#include "base/alloc.h"
#include "verify/report/report.h"

double mla_doc_num(const mla_jv *o, const char *key)
{
    double d = 0;
    (void)mla_jv_f64(mla_jv_get(o, key), &d);
    return d;
}

const char *mla_doc_str(const mla_jv *o, const char *key, const char *def)
{
    const char *s = mla_jv_str(mla_jv_get(o, key));
    return s ? s : def;
}

void mla_doc_line(mla_str *out, const char *s)
{
    for (const char *p = s; *p; p++) {
        char c = (unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p;
        mla_str_putn(out, &c, 1);
    }
}

mla_jv *mla_doc_gate(mla_jv *gates, const char *name, mla_verdict v, const char *fmt, ...)
{
    mla_str s = MLA_STR_MAX(2048);
    va_list ap;
    va_start(ap, fmt);
    mla_str_vprintf(&s, fmt, ap);
    va_end(ap);
    mla_jv *o = mla_jv_add_obj(gates);
    mla_jv_set_str(o, "name", name);
    mla_jv_set_str(o, "verdict", mla_verdict_name(v));
    mla_jv_set_str(o, "reason", mla_str_c(&s));
    mla_str_free(&s);
    return o;
}

char *mla_doc_local(const char *s, size_t n, const char *dir)
{
    size_t d = strlen(dir);
    mla_str out = MLA_STR_MAX(1 << 16);
    while (d > 1 && dir[d - 1] == '/') d--;
    for (size_t i = 0; i < n;) {
        if (d > 0 && n - i >= d && !strncmp(s + i, dir, d)) {
            bool below = i + d < n && s[i + d] == '/', prefix = i + d + 1 < n && !strncmp(s + i + d, ": ", 2);
            if (!below && !prefix) mla_str_put(&out, "the folder");
            i += d + (below ? 1 : prefix ? 2 : 0);
        } else {
            mla_str_putn(&out, s + i++, 1);
        }
    }
    char *t = mla_strdup(mla_str_c(&out));
    mla_str_free(&out);
    return t;
}
