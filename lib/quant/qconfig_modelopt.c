/* quantization_config of ModelOpt, in both spellings: quant_algo with exclude_modules (hf_quant_config.json), or
 * config_groups with ignore. KV-cache settings are read elsewhere. */
#include <stdio.h>
#include <string.h>

#include "quant/qconfig_impl.h"

/* The scheme of a quant_algo. */
static mla_status algo(mla_qscheme *s, const char *name, const mla_jv *v, mla_err *err)
{
    bool told;
    *s = (mla_qscheme){.expect = MLA_QX_QUANTIZED};
    snprintf(s->why, sizeof s->why, "quant_algo %.60s", name);
    mla_status st = mla_qget_group(&s->group, &told, v, "group_size", err);
    if (st) return st;
    if (!strcmp(name, "FP8") || !strcmp(name, "FP8_PER_CHANNEL_PER_TOKEN")) {
        s->layout = MLA_QL_FP8, s->bits = 8, s->group = 0;
        s->strategy = name[3] ? MLA_QS_CHANNEL : MLA_QS_TENSOR;
    } else if (!strcmp(name, "NVFP4")) {
        s->layout = MLA_QL_NVFP4_MODELOPT, s->bits = 4, s->strategy = MLA_QS_GROUP;
        if (!told) s->group = 16;
        if (s->group != 16) return mla_fail(err, MLA_EUNSUPPORTED, "group_size %zu of NVFP4, expected 16", s->group);
    } else return mla_fail(err, MLA_EUNSUPPORTED, "quant_algo \"%.60s\"", name);
    return MLA_OK;
}

/* MIXED_PRECISION: quantized_layers {module: {quant_algo, group_size}}, everything else plain. */
static mla_status read_layers(mla_qconfig *c, const mla_jv *list, mla_err *err)
{
    if (!mla_jv_is_obj(list)) return mla_fail(err, MLA_EFORMAT, "quantized_layers: expected an object, found %s", mla_jv_kind(list));
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        const char *name = NULL;
        mla_qscheme s;
        mla_status st = mla_qget_str(&name, v, "quant_algo", err);
        if (!st && !name) st = mla_fail(err, MLA_EFORMAT, "no quant_algo");
        if (!st) st = algo(&s, name, v, err);
        if (!st) st = mla_qrule_add(c, MLA_QR_TARGET, MLA_QP_EXACT, mla_jv_key(v), 0, &s, err);
        if (st) return mla_wrap(err, "quantized_layers.%.100s", mla_jv_key(v));
    }
    c->rest = MLA_QREST_PLAIN;
    return MLA_OK;
}

static mla_status read_group(mla_qconfig *c, const mla_jv *g, size_t index, mla_err *err)
{
    mla_qscheme s = {.expect = MLA_QX_QUANTIZED};
    bool is_float;
    const mla_jv *w = mla_jv_get(g, "weights");
    if (!mla_jv_is_obj(w)) return mla_fail(err, MLA_EFORMAT, "weights: expected an object, found %s", mla_jv_kind(w));
    mla_status st = mla_qread_weights(&s, &is_float, w, err);
    if (st) return mla_wrap(err, "weights");
    if (is_float && s.bits == 8) s.layout = MLA_QL_FP8; /* its strategy is not written: tensors tell tensor from channel */
    else if (is_float && s.bits == 4 && s.group == 16) s.layout = MLA_QL_NVFP4_MODELOPT;
    else return mla_fail(err, MLA_EUNSUPPORTED, "weights of %u bits, type %s", s.bits, is_float ? "float" : "int");
    if (s.layout == MLA_QL_FP8 && !mla_jv_is_str(mla_jv_get(w, "strategy"))) s.strategy = MLA_QS_ANY;
    return mla_qread_targets(c, g, index, &s, err);
}

mla_status mla_qread_modelopt(mla_qconfig *c, const mla_jv *v, mla_err *err)
{
    const char *name = NULL;
    mla_status st = mla_qget_str(&name, v, "quant_algo", err);
    if (!st) st = mla_qignore_read(c, v, "exclude_modules", MLA_QP_GLOB, err);
    if (!st) st = mla_qignore_read(c, v, "ignore", MLA_QP_GLOB, err);
    if (st) return st;
    c->rest = MLA_QREST_PLAIN;
    const mla_jv *groups = mla_jv_get(v, "config_groups");
    if (name && !strcmp(name, "MIXED_PRECISION")) return read_layers(c, mla_jv_get(v, "quantized_layers"), err);
    if (name && !strcmp(name, "NO_QUANT")) return MLA_OK; /* only the KV cache is quantized */
    if (name) { /* groups say the same again; quant_algo is what loaders go by */
        c->rest = MLA_QREST_ALL;
        return algo(&c->base, name, v, err);
    }
    if (groups && !mla_jv_is_obj(groups)) return mla_fail(err, MLA_EFORMAT, "config_groups: expected an object, found %s", mla_jv_kind(groups));
    size_t index = 0;
    for (const mla_jv *g = mla_jv_first(groups); !st && g; g = mla_jv_next(g)) {
        st = read_group(c, g, index++, err);
        if (st) mla_wrap(err, "config_groups.%.60s", mla_jv_key(g));
    }
    return st;
}
