/* quantization_config of compressed-tensors: groups of targets with their weight arguments, and an ignore list. */
#include <stdio.h>
#include <string.h>

#include "quant/qconfig_impl.h"

static bool is_empty(const mla_jv *v) { return !v || mla_jv_is_null(v) || (mla_jv_is_obj(v) && mla_jv_len(v) == 0); }

/* Unknown arguments may change what a code means, so none is passed over. */
static mla_status known_keys(const mla_jv *obj, const char *const *known, size_t n, mla_err *err)
{
    for (const mla_jv *v = mla_jv_first(obj); v; v = mla_jv_next(v)) {
        size_t i = 0;
        while (i < n && strcmp(known[i], mla_jv_key(v)) != 0) i++;
        if (i == n) return mla_fail(err, MLA_EUNSUPPORTED, "unknown key \"%.100s\"", mla_jv_key(v));
    }
    return MLA_OK;
}

static mla_status read_strategy(mla_qscheme *s, const mla_jv *w, mla_err *err)
{
    static const struct { const char *name; mla_qstrategy strategy; } NAME[] = {
        {"tensor", MLA_QS_TENSOR}, {"channel", MLA_QS_CHANNEL}, {"group", MLA_QS_GROUP}, {"tensor_group", MLA_QS_GROUP},
        {"block", MLA_QS_BLOCK}};
    const char *name = NULL;
    bool grouped, blocked;
    mla_status st = mla_qget_str(&name, w, "strategy", err);
    if (!st) st = mla_qget_group(&s->group, &grouped, w, "group_size", err);
    if (!st) st = mla_qget_block(s, &blocked, w, "block_structure", err);
    if (st) return st;
    if (!name) s->strategy = !grouped ? MLA_QS_TENSOR : s->group ? MLA_QS_GROUP : MLA_QS_CHANNEL; /* as the library infers it */
    for (size_t i = 0; name && i < sizeof NAME / sizeof *NAME; i++)
        if (!strcmp(NAME[i].name, name)) s->strategy = NAME[i].strategy;
    if (s->strategy == MLA_QS_ANY) return mla_fail(err, MLA_EUNSUPPORTED, "strategy \"%.60s\" for weights", name ? name : "");
    if (s->strategy == MLA_QS_GROUP && (!grouped || !s->group)) return mla_fail(err, MLA_EFORMAT, "strategy \"group\" without a group_size");
    if (s->strategy == MLA_QS_BLOCK && !blocked) return mla_fail(err, MLA_EFORMAT, "strategy \"block\" without a block_structure");
    if (s->strategy != MLA_QS_GROUP && s->group)
        return mla_fail(err, MLA_EFORMAT, "group_size %zu, but strategy \"%.60s\"", s->group, name);
    return MLA_OK;
}

mla_status mla_qread_weights(mla_qscheme *s, bool *is_float, const mla_jv *w, mla_err *err)
{
    static const char *const KNOWN[] = {"num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic",
                                        "actorder", "scale_dtype", "zp_dtype", "observer", "observer_kwargs"};
    const char *type = "int", *actorder = NULL;
    mla_qtold dynamic = MLA_QT_NO;
    mla_status st = known_keys(w, KNOWN, sizeof KNOWN / sizeof *KNOWN, err);
    s->bits = 8;
    s->symmetric = MLA_QT_YES;
    if (!st) st = mla_qget_bits(&s->bits, w, "num_bits", err);
    if (!st) st = mla_qget_str(&type, w, "type", err);
    if (!st) st = mla_qget_bool(&s->symmetric, w, "symmetric", err);
    if (!st) st = mla_qget_bool(&dynamic, w, "dynamic", err);
    if (!st && mla_jv_is_bool(mla_jv_get(w, "actorder"))) { /* true is the old spelling of "group" */
        mla_qtold b = MLA_QT_NO;
        st = mla_qget_bool(&b, w, "actorder", err);
        actorder = b == MLA_QT_YES ? "group" : NULL;
    } else if (!st) st = mla_qget_str(&actorder, w, "actorder", err);
    if (!st) st = read_strategy(s, w, err);
    if (st) return st;
    if (dynamic == MLA_QT_YES) return mla_fail(err, MLA_EFORMAT, "dynamic weights: stored ones are static");
    *is_float = !strcmp(type, "float");
    if (!*is_float && strcmp(type, "int") != 0) return mla_fail(err, MLA_EUNSUPPORTED, "type \"%.60s\"", type);
    if (actorder && strcmp(actorder, "group") != 0 && strcmp(actorder, "static") != 0 && strcmp(actorder, "weight") != 0 &&
        strcmp(actorder, "dynamic") != 0)
        return mla_fail(err, MLA_EUNSUPPORTED, "actorder \"%.60s\"", actorder);
    bool by_group = actorder && (!strcmp(actorder, "group") || !strcmp(actorder, "dynamic"));
    s->g_idx = by_group ? MLA_QT_YES : MLA_QT_NO;
    return MLA_OK;
}

/* Which layout a format name means for these weights. */
static mla_status pick_layout(mla_qscheme *s, const char *format, bool is_float, mla_err *err)
{
    static const struct { const char *format; bool is_float; unsigned lo, hi; mla_qstrategy only; size_t group; mla_qlayout layout; } ROW[] = {
        {"pack-quantized", false, 2, 8, MLA_QS_ANY, 0, MLA_QL_CT_PACK}, {"int-quantized", false, 8, 8, MLA_QS_ANY, 0, MLA_QL_INT8},
        {"naive-quantized", false, 8, 8, MLA_QS_ANY, 0, MLA_QL_INT8}, {"float-quantized", true, 8, 8, MLA_QS_ANY, 0, MLA_QL_FP8},
        {"naive-quantized", true, 8, 8, MLA_QS_ANY, 0, MLA_QL_FP8},
        {"nvfp4-pack-quantized", true, 4, 4, MLA_QS_GROUP, 16, MLA_QL_NVFP4_CT},
        {"mxfp4-pack-quantized", true, 4, 4, MLA_QS_GROUP, 32, MLA_QL_MXFP4}};
    bool known = false;
    for (size_t i = 0; i < sizeof ROW / sizeof *ROW; i++) {
        if (strcmp(ROW[i].format, format) != 0) continue;
        known = true;
        if (ROW[i].is_float != is_float || s->bits < ROW[i].lo || s->bits > ROW[i].hi) continue;
        if (ROW[i].only && (s->strategy != ROW[i].only || s->group != ROW[i].group)) continue;
        if (is_float && s->symmetric == MLA_QT_NO) continue;
        s->layout = ROW[i].layout;
        return MLA_OK;
    }
    return known ? mla_fail(err, MLA_EFORMAT, "format \"%.60s\" does not go with these weights (%s, %u bits)", format,
                            is_float ? "float" : "int", s->bits)
                 : mla_fail(err, MLA_EUNSUPPORTED, "format \"%.60s\"", format);
}

mla_status mla_qread_targets(mla_qconfig *c, const mla_jv *group, size_t index, const mla_qscheme *scheme, mla_err *err)
{
    const mla_jv *list = mla_jv_get(group, "targets");
    if (!mla_jv_is_arr(list) || mla_jv_len(list) == 0)
        return mla_fail(err, MLA_EFORMAT, "targets: expected an array of names, found %s", mla_jv_kind(list));
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        const char *text = mla_jv_str(v);
        if (!text) return mla_fail(err, MLA_EFORMAT, "targets: expected names, found %s", mla_jv_kind(v));
        bool re = !strncmp(text, "re:", 3);
        mla_qscheme s = *scheme;
        snprintf(s.why, sizeof s.why, "target \"%.80s\" of %.60s", text, mla_jv_key(group));
        mla_status st = mla_qrule_add(c, MLA_QR_TARGET, re ? MLA_QP_RE : MLA_QP_EXACT, re ? text + 3 : text, index, &s, err);
        if (st) return mla_wrap(err, "targets");
    }
    return MLA_OK;
}

static mla_status read_group(mla_qconfig *c, const mla_jv *g, size_t index, const char *top, mla_err *err)
{
    static const char *const KNOWN[] = {"targets", "weights", "input_activations", "output_activations", "format"};
    const char *format = NULL;
    mla_qscheme s = {.expect = MLA_QX_QUANTIZED};
    bool is_float = false, mixed = top && !strcmp(top, "mixed-precision");
    if (!mla_jv_is_obj(g)) return mla_fail(err, MLA_EFORMAT, "expected an object, found %s", mla_jv_kind(g));
    mla_status st = known_keys(g, KNOWN, sizeof KNOWN / sizeof *KNOWN, err);
    if (!st) st = mla_qget_str(&format, g, "format", err);
    if (st) return st;
    if (format && top && !mixed && strcmp(format, top) != 0)
        return mla_fail(err, MLA_EFORMAT, "format \"%.60s\", but the config's own is \"%.60s\" and not \"mixed-precision\"", format, top);
    if (!format) format = mixed ? NULL : top;
    const mla_jv *w = mla_jv_get(g, "weights");
    if (is_empty(w)) s.expect = MLA_QX_PLAIN; /* only activations are quantized here */
    else if (!mla_jv_is_obj(w)) return mla_fail(err, MLA_EFORMAT, "weights: expected an object, found %s", mla_jv_kind(w));
    else {
        if (!format) return mla_fail(err, MLA_EFORMAT, "no format");
        st = mla_qread_weights(&s, &is_float, w, err);
        if (st) return mla_wrap(err, "weights");
        st = pick_layout(&s, format, is_float, err);
        if (st) return st;
    }
    return mla_qread_targets(c, g, index, &s, err);
}

mla_status mla_qread_ct(mla_qconfig *c, const mla_jv *v, mla_err *err)
{
    static const char *const ABSENT[] = {"sparsity_config", "transform_config", "moe_sparsity_config"};
    const char *top = NULL, *status = "compressed";
    mla_status st = mla_qget_str(&top, v, "format", err);
    if (!st) st = mla_qget_str(&status, v, "quantization_status", err);
    if (st) return st;
    if (strcmp(status, "compressed") != 0 && strcmp(status, "frozen") != 0)
        return mla_fail(err, MLA_EUNSUPPORTED, "quantization_status \"%.60s\"", status);
    for (size_t i = 0; i < sizeof ABSENT / sizeof *ABSENT; i++) {
        const mla_jv *x = mla_jv_get(v, ABSENT[i]);
        const char *format = mla_jv_str(mla_jv_get(x, "format")); /* a "dense" sparsity says nothing */
        if (!is_empty(x) && !(i == 0 && format && !strcmp(format, "dense")))
            return mla_fail(err, MLA_EUNSUPPORTED, "%s: weights under it are not read here", ABSENT[i]);
    }
    const mla_jv *groups = mla_jv_get(v, "config_groups");
    if (groups && !mla_jv_is_null(groups) && !mla_jv_is_obj(groups))
        return mla_fail(err, MLA_EFORMAT, "config_groups: expected an object, found %s", mla_jv_kind(groups));
    st = mla_qignore_read(c, v, "ignore", MLA_QP_EXACT, err);
    size_t index = 0;
    for (const mla_jv *g = mla_jv_first(groups); !st && g; g = mla_jv_next(g)) {
        st = read_group(c, g, index++, top, err);
        if (st) mla_wrap(err, "config_groups.%.60s", mla_jv_key(g));
    }
    c->rest = MLA_QREST_PLAIN;
    return st;
}
