/* Reading quantization_config by method, and answering for one module. */
#include "quant/qconfig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "quant/qconfig_impl.h"

static const struct {
    const char *name;
    mla_qmethod method;
    mla_status (*read)(mla_qconfig *c, const mla_jv *v, mla_err *err);
} METHOD[] = {
    {"compressed-tensors", MLA_QM_CT, mla_qread_ct}, {"fp8", MLA_QM_FP8, mla_qread_fp8},
    {"modelopt", MLA_QM_MODELOPT, mla_qread_modelopt}, {"awq", MLA_QM_AWQ, mla_qread_awq},
    {"gptq", MLA_QM_GPTQ, mla_qread_gptq}, {"auto-round", MLA_QM_AUTOROUND, mla_qread_autoround},
    {"exl3", MLA_QM_EXL3, mla_qread_exl3},
};
enum { METHODS = sizeof METHOD / sizeof *METHOD };

mla_status mla_qconfig_read(mla_qconfig **out, const mla_jv *v, mla_err *err)
{
    mla_status st = MLA_OK;
    const char *name = NULL;
    size_t i = METHODS;
    if (v && !mla_jv_is_null(v)) {
        if (!mla_jv_is_obj(v)) return mla_fail(err, MLA_EFORMAT, "quantization_config: expected an object, found %s", mla_jv_kind(v));
        st = mla_qget_str(&name, v, "quant_method", err);
        if (st) return mla_wrap(err, "quantization_config");
        if (!name && mla_jv_is_obj(mla_jv_get(v, "producer")) && mla_jv_is_obj(mla_jv_get(v, "quantization"))) {
            name = "modelopt"; /* hf_quant_config.json */
            v = mla_jv_get(v, "quantization");
        }
        if (!name) return mla_fail(err, MLA_EFORMAT, "quantization_config: no quant_method");
        for (i = 0; i < METHODS && strcmp(METHOD[i].name, name) != 0; i++) {}
        if (i == METHODS) return mla_fail(err, MLA_EUNSUPPORTED, "quantization_config: quant_method \"%s\" is not known here", name);
    }
    mla_qconfig *c = mla_alloc(1, 1, sizeof *c);
    if (!c) return mla_fail(err, MLA_ENOMEM, "quantization_config");
    if (i < METHODS) {
        c->method = METHOD[i].method;
        st = METHOD[i].read(c, v, err);
        if (st) mla_wrap(err, "quantization_config of %s", METHOD[i].name);
    }
    if (st) mla_qconfig_free(c);
    else *out = c;
    return st;
}

void mla_qconfig_free(mla_qconfig *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->nrules; i++) mla_qpattern_drop(&c->rule[i].pattern);
    for (size_t i = 0; i < c->nwithin; i++) mla_free(c->within[i]);
    mla_free(c->within);
    mla_free(c->rule);
    mla_free(c);
}

mla_qmethod mla_qconfig_method(const mla_qconfig *c) { return c->method; }

const char *mla_qconfig_method_name(const mla_qconfig *c)
{
    for (size_t i = 0; i < METHODS; i++)
        if (METHOD[i].method == c->method) return METHOD[i].name;
    return "none";
}

const char *mla_qclass(const mla_qsource *src, const char *module)
{
    static const char *const PART[] = {"weight", "weight_packed", "qweight", "trellis"};
    const char *last = strrchr(module, '.');
    last = last ? last + 1 : module;
    for (size_t i = 0; i < sizeof PART / sizeof *PART; i++) {
        char name[512];
        int n = snprintf(name, sizeof name, "%s.%s", module, PART[i]);
        const mla_tensor *t = n > 0 && (size_t)n < sizeof name ? src->find(src->ctx, name) : NULL;
        if (!t) continue;
        if (i == 0 && t->ndim != 2) return "other";
        return strstr(last, "embed") || !strcmp(last, "wte") ? "Embedding" : "Linear";
    }
    return "other";
}

/* In the trunk's decoder layers, which is where AWQ and GPTQ work: not MTP heads, not vision towers. */
static bool in_blocks(const char *name)
{
    const char *at = strstr(name, "layers.");
    return at && (at == name || at[-1] == '.') && at[7] >= '0' && at[7] <= '9' && strncmp(name, "mtp.", 4) != 0 &&
           !strstr(name, "vis");
}

static bool is_lm_head(const char *name)
{
    const char *last = strrchr(name, '.');
    return !strcmp(last ? last + 1 : name, "lm_head");
}

static void plain(mla_qscheme *out, const char *why, const char *what)
{
    *out = (mla_qscheme){.expect = MLA_QX_PLAIN};
    snprintf(out->why, sizeof out->why, "%s%s%.120s%s", why, what ? " \"" : "", what ? what : "", what ? "\"" : "");
}

/* The target that names the module best: an exact name before a pattern before a class. */
static mla_status best_target(const mla_qconfig *c, const char *name, const char *cls, const mla_qrule **out, mla_err *err)
{
    int best = 0;
    *out = NULL;
    for (size_t i = 0; i < c->nrules; i++) {
        const mla_qrule *r = &c->rule[i];
        if (r->kind != MLA_QR_TARGET) continue;
        int rank = 0;
        if (mla_qpattern_matches(&r->pattern, name)) rank = r->pattern.kind == MLA_QP_RE ? 2 : 3;
        else if (r->pattern.kind == MLA_QP_EXACT && !strcmp(r->pattern.text, cls)) rank = 1;
        if (rank && rank == best && r->group != (*out)->group)
            return mla_fail(err, MLA_EFORMAT, "%s: claimed by \"%s\" of one group and \"%s\" of another", name,
                            (*out)->pattern.text, r->pattern.text);
        if (rank > best) best = rank, *out = r;
    }
    return MLA_OK;
}

static bool listed(const mla_qconfig *c, const char *name)
{
    for (size_t i = 0; i < c->nwithin; i++) {
        mla_qpattern p = {.kind = MLA_QP_PART, .text = c->within[i]};
        if (mla_qpattern_matches(&p, name)) return true;
    }
    return false;
}

/* A Linear that no rule names. */
static void rest(const mla_qconfig *c, const char *name, mla_qscheme *out)
{
    *out = c->base;
    if (is_lm_head(name) && c->lm_head != MLA_QT_UNTOLD) {
        if (c->lm_head == MLA_QT_NO) plain(out, "lm_head false", NULL);
        return;
    }
    if (c->nwithin) {
        if (!listed(c, name)) {
            if (c->within_open || is_lm_head(name)) out->expect = MLA_QX_EITHER;
            else plain(out, "the list of quantized modules", NULL);
        }
        return;
    }
    switch (c->rest) {
    case MLA_QREST_PLAIN: plain(out, "no target", NULL); break;
    case MLA_QREST_ALL: if (is_lm_head(name)) out->expect = MLA_QX_EITHER; break;
    case MLA_QREST_BLOCKS: if (!in_blocks(name)) out->expect = MLA_QX_EITHER; break;
    case MLA_QREST_OPEN: out->expect = MLA_QX_EITHER; break;
    }
}

mla_status mla_qconfig_scheme(const mla_qconfig *c, const char *name, const char *cls, mla_qscheme *out, mla_err *err)
{
    if (c->method == MLA_QM_NONE) {
        plain(out, "config.json without quantization_config", NULL);
        return MLA_OK;
    }
    for (size_t i = 0; i < c->nrules; i++) {
        const mla_qrule *r = &c->rule[i];
        if (r->kind == MLA_QR_TARGET || !mla_qpattern_matches(&r->pattern, name)) continue;
        if (r->kind == MLA_QR_IGNORE) plain(out, "the exclusion", r->pattern.text);
        else *out = r->scheme;
        return MLA_OK;
    }
    const mla_qrule *r;
    mla_status st = best_target(c, name, cls, &r, err);
    if (st) return st;
    if (r && strcmp(cls, "other") != 0) *out = r->scheme;
    else if (r || strcmp(cls, "Linear") != 0) plain(out, "its class", cls);
    else rest(c, name, out);
    return MLA_OK;
}
