/* What the readers of quantization_config share: typed values by key, rules, ignore lists. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "quant/qconfig_impl.h"

static mla_status wrong_kind(const char *key, const char *expected, const mla_jv *v, mla_err *err)
{
    return mla_fail(err, MLA_EFORMAT, "%s: expected %s, found %s", key, expected, mla_jv_kind(v));
}

/* The value of a key; NULL for absent and for null. */
static const mla_jv *value(const mla_jv *obj, const char *key)
{
    const mla_jv *v = mla_jv_get(obj, key);
    return v && !mla_jv_is_null(v) ? v : NULL;
}

mla_status mla_qget_str(const char **out, const mla_jv *obj, const char *key, mla_err *err)
{
    const mla_jv *v = value(obj, key);
    if (!v) return MLA_OK;
    if (!mla_jv_is_str(v)) return wrong_kind(key, "a string", v, err);
    *out = mla_jv_str(v);
    return MLA_OK;
}

mla_status mla_qget_bool(mla_qtold *out, const mla_jv *obj, const char *key, mla_err *err)
{
    const mla_jv *v = value(obj, key);
    bool b;
    if (!v) return MLA_OK;
    if (!mla_jv_bool(v, &b)) return wrong_kind(key, "true or false", v, err);
    *out = b ? MLA_QT_YES : MLA_QT_NO;
    return MLA_OK;
}

mla_status mla_qget_bits(unsigned *out, const mla_jv *obj, const char *key, mla_err *err)
{
    const mla_jv *v = value(obj, key);
    size_t n;
    if (!v) return MLA_OK;
    if (!mla_jv_size(v, &n) || n < 1 || n > 64) return wrong_kind(key, "a number of bits", v, err);
    *out = (unsigned)n;
    return MLA_OK;
}

mla_status mla_qget_group(size_t *out, bool *told, const mla_jv *obj, const char *key, mla_err *err)
{
    const mla_jv *v = value(obj, key);
    int64_t n;
    *told = v != NULL;
    if (!v) return MLA_OK;
    if (!mla_jv_i64(v, &n) || n == 0 || n < -1 || n > INT64_C(1) << 40) return wrong_kind(key, "a group size or -1", v, err);
    *out = n < 0 ? 0 : (size_t)n;
    return MLA_OK;
}

mla_status mla_qget_block(mla_qscheme *s, bool *told, const mla_jv *obj, const char *key, mla_err *err)
{
    const mla_jv *v = value(obj, key);
    *told = v != NULL;
    if (!v) return MLA_OK;
    const mla_jv *a = mla_jv_is_arr(v) && mla_jv_len(v) == 2 ? mla_jv_first(v) : NULL;
    if (!a || !mla_jv_size(a, &s->block_out) || !mla_jv_size(mla_jv_next(a), &s->block_in) || !s->block_out || !s->block_in)
        return wrong_kind(key, "[rows, columns]", v, err);
    return MLA_OK;
}

mla_status mla_qrule_add(mla_qconfig *c, mla_qrule_kind kind, mla_qpattern_kind how, const char *text, size_t group,
                         const mla_qscheme *scheme, mla_err *err)
{
    if (c->nrules % 64 == 0) {
        mla_qrule *more = mla_realloc(c->rule, c->nrules + 64, sizeof *more);
        if (!more) return mla_fail(err, MLA_ENOMEM, "%zu name rules", c->nrules + 64);
        c->rule = more;
    }
    mla_qrule r = {.kind = kind, .group = group};
    if (scheme) r.scheme = *scheme;
    mla_status st = mla_qpattern_make(&r.pattern, how, text, err);
    if (!st) c->rule[c->nrules++] = r;
    return st;
}

mla_status mla_qignore_read(mla_qconfig *c, const mla_jv *obj, const char *key, mla_qpattern_kind how, mla_err *err)
{
    const mla_jv *list = value(obj, key);
    if (!list) return MLA_OK;
    if (!mla_jv_is_arr(list)) return wrong_kind(key, "an array", list, err);
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        const char *text = mla_jv_str(v);
        if (!text) return wrong_kind(key, "an array of strings", v, err);
        mla_qpattern_kind k = how;
        if (how == MLA_QP_EXACT && !strncmp(text, "re:", 3)) k = MLA_QP_RE, text += 3;
        else if (how == MLA_QP_GLOB && !strpbrk(text, "*?[")) k = MLA_QP_PART;
        mla_status st = mla_qrule_add(c, MLA_QR_IGNORE, k, text, 0, NULL, err);
        if (st) return mla_wrap(err, "%s", key);
    }
    return MLA_OK;
}
