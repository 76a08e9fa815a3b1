/* Stored FP8 KV scales in every spelling that writers use (formats page, section 5), one spelling per model. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/model_impl.h"

typedef struct {
    const char *k, *v; /* after "layers.N.self_attn."; v NULL: one scale for both */
} spelling;

static const spelling GQA[] = {
    {"k_scale", "v_scale"},
    {"k_proj.k_scale", "v_proj.v_scale"},
    {"k_proj.output_scale", "v_proj.output_scale"},
    {"qkv_proj.k_scale", "qkv_proj.v_scale"},
    {"k_cache.scale", "v_cache.scale"},
    {"attn.k_scale", "attn.v_scale"},
    {"kv_scale", NULL},
};
static const spelling RETROFIT[] = {{"mla.latent_scale", "mla.rope_scale"}};
static const char *const UNUSED[] = {"q_scale", "q_proj.output_scale", "q_proj.q_scale", "prob_output_scale", "attn.q_scale"};

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef struct {
    mla_model *m;
    const spelling *found; /* the model's spelling, settled by the first layer that has one */
    mla_str name;
} scan;

static const mla_tensor *find(scan *s, size_t layer, const char *suffix)
{
    mla_str_clear(&s->name);
    if (layer >= MLA_MTP(0)) mla_str_printf(&s->name, "mtp.layers.%zu.self_attn.%s", layer - MLA_MTP(0), suffix);
    else mla_str_printf(&s->name, "%slayers.%zu.self_attn.%s", s->m->prefix, layer, suffix);
    return mla_str_ok(&s->name) ? mla_ckpt_find(s->m->ckpt, mla_str_c(&s->name)) : NULL;
}

/* "layer 3", "MTP layer 0" */
static const char *layer_text(size_t layer, char *buf, size_t cap)
{
    if (layer >= MLA_MTP(0)) snprintf(buf, cap, "MTP layer %zu", layer - MLA_MTP(0));
    else snprintf(buf, cap, "layer %zu", layer);
    return buf;
}

/* One element, [] or [1], F32, F16 or BF16, finite and above zero: engines disagree on anything else. */
static mla_status read_scale(scan *s, const mla_tensor *t, float *out, mla_err *err)
{
    char text[96];
    bool scalar = t->ndim == 0 || (t->ndim == 1 && t->shape[0] == 1);
    bool real = t->dtype == MLA_F32 || t->dtype == MLA_F16 || t->dtype == MLA_BF16;
    if (!scalar || !real)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: expected one F32, F16 or BF16 value per layer, found %s in %s", t->name,
                        mla_tensor_text(t, text, sizeof text), mla_shard_of(s->m, t));
    if (!mla_to_f32(out, t->data, t->dtype, 1)) return mla_fail(err, MLA_EINTERNAL, "%s: conversion", t->name);
    if (!(isfinite(*out) && *out > 0))
        return mla_fail(err, MLA_EFORMAT, "%s: a KV scale must be finite and above zero, found %g", t->name, (double)*out);
    return mla_claim(s->m, t->name, err);
}

static mla_status read_layer(scan *s, const spelling *table, size_t n, size_t layer, mla_kv_scale *out, mla_err *err)
{
    char at[40];
    layer_text(layer, at, sizeof at);
    for (size_t i = 0; i < n; i++) {
        const spelling *p = &table[i];
        const mla_tensor *k = find(s, layer, p->k), *v = p->v ? find(s, layer, p->v) : k;
        if (!k && !v) continue;
        if (s->found && s->found != p)
            return mla_fail(err, MLA_EFORMAT, "%s: KV scales in two spellings, self_attn.%s and self_attn.%s", at, s->found->k, p->k);
        if (!k || !v)
            return mla_fail(err, MLA_EFORMAT, "%s: self_attn.%s is stored, self_attn.%s is missing", at, k ? p->k : p->v, k ? p->v : p->k);
        s->found = p;
        mla_status st = read_scale(s, k, &out->k, err);
        if (st == MLA_OK) st = read_scale(s, v, &out->v, err);
        if (st != MLA_OK) return mla_wrap(err, "%s", at);
        out->present = true;
    }
    return MLA_OK;
}

/* Scales that are stored but mean nothing here: q and prob scales; in a retrofit the base's key and value scales. */
static mla_status claim_unused(scan *s, size_t layer, bool retro, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < COUNT(UNUSED); i++)
        if (find(s, layer, UNUSED[i])) st = mla_claim(s->m, mla_str_c(&s->name), err);
    for (size_t i = 0; st == MLA_OK && retro && i < COUNT(GQA); i++) {
        if (find(s, layer, GQA[i].k)) st = mla_claim(s->m, mla_str_c(&s->name), err);
        if (st == MLA_OK && GQA[i].v && find(s, layer, GQA[i].v)) st = mla_claim(s->m, mla_str_c(&s->name), err);
    }
    return st;
}

/* Scales of some layers only would silently leave the others at 1. */
static mla_status complete(const scan *s, bool retro, mla_err *err)
{
    const mla_config *c = &s->m->cfg;
    size_t have = 0, missing = c->layers;
    for (size_t l = c->layers; l-- > 0;) {
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (s->m->scale[l].present) have++;
        else missing = l;
    }
    if (missing == c->layers || (have == 0 && !c->kv_scheme)) return MLA_OK;
    const spelling *p = s->found ? s->found : retro ? RETROFIT : GQA;
    return mla_fail(err, MLA_EFORMAT, "%slayers.%zu.self_attn.%s: missing, %s", s->m->prefix, missing, p->k,
                    c->kv_scheme ? "but quantization_config declares a kv_cache_scheme" : "but other layers have KV scales");
}

/* Scales that stand in the weights (mla-calibrate fold): an FP8 cache is right at 1.0. */
static bool folded(const mla_model *m)
{
    bool yes = false;
    const mla_jv *b = m->json ? mla_jv_get(mla_json_root(m->json), "mla_kv_scales") : NULL;
    return mla_jv_bool(mla_jv_get(b, "folded"), &yes) && yes;
}

mla_status mla_bind_kv_scales(mla_model *m, mla_err *err)
{
    if (folded(m)) {
        for (size_t i = 0; i < m->cfg.layers + m->cfg.mtp_layers; i++)
            if (i >= m->cfg.layers || m->cfg.layer_kind[i] == MLA_LAYER_FULL) m->scale[i] = (mla_kv_scale){true, 1, 1};
        return MLA_OK; /* a stored scale beside them would stay unclaimed, and is refused */
    }
    scan s = {.m = m, .name = MLA_STR_MAX(512)};
    bool retro = m->cfg.mla.layout != MLA_LAYOUT_NONE;
    const spelling *trunk = NULL;
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < m->cfg.layers + m->cfg.mtp_layers; i++) {
        size_t layer = i < m->cfg.layers ? i : MLA_MTP(i - m->cfg.layers);
        if (i < m->cfg.layers && m->cfg.layer_kind[i] != MLA_LAYER_FULL) continue;
        bool head = i >= m->cfg.layers; /* the MTP head keeps plain keys and values in a retrofit, too */
        if (head) s.found = NULL;
        st = retro && !head ? read_layer(&s, RETROFIT, COUNT(RETROFIT), layer, &m->scale[i], err)
                            : read_layer(&s, GQA, COUNT(GQA), layer, &m->scale[i], err);
        if (st == MLA_OK) st = claim_unused(&s, layer, retro && !head, err);
        if (!head) trunk = s.found;
    }
    s.found = trunk;
    if (st == MLA_OK) st = complete(&s, retro, err);
    mla_str_free(&s.name);
    return st;
}

mla_status mla_model_kv_scale(const mla_model *m, size_t layer, mla_kv_scale *out, mla_err *err)
{
    size_t row;
    *out = (mla_kv_scale){0};
    if (!mla_slot_row(m, MLA_W_K, layer, &row)) return mla_fail(err, MLA_EINVAL, "KV scale of layer %zu: there are %zu layers", layer, m->cfg.layers);
    *out = m->scale[row - 1];
    return MLA_OK;
}
