/* Stored FP8 KV scales in every spelling that writers use (kv_names.h), one spelling per model. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/kv_names.h"
#include "model/model_impl.h"

typedef struct {
    mla_model *m;
    const mla_kv_spelling *found; /* the row of its keys' scale: the model's spelling, settled by the first layer that has one */
    mla_str name;
    bool no_memory;               /* a name could not be made: what it looked for is not known to be absent */
} scan;

void mla_kv_scale_name(mla_str *out, const mla_model *m, size_t layer, const char *suffix)
{
    if (layer >= MLA_MTP(0)) mla_str_printf(out, "mtp.layers.%zu.%s", layer - MLA_MTP(0), suffix);
    else mla_str_printf(out, "%slayers.%zu.%s", m->prefix, layer, suffix);
}

static const mla_tensor *find(scan *s, size_t layer, const char *suffix)
{
    mla_str_clear(&s->name);
    mla_kv_scale_name(&s->name, s->m, layer, suffix);
    if (mla_str_ok(&s->name)) return mla_ckpt_find(s->m->ckpt, mla_str_c(&s->name));
    s->no_memory = true;
    return NULL;
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

/* A row of the keys' scale in a model of this kind; its values' scale is in the next row, or in the same for both. */
static bool first_row(const mla_kv_spelling *p, bool retro)
{
    return p->read && (retro ? p->part == MLA_KV_LATENT : p->part == MLA_KV_K || p->part == MLA_KV_BOTH);
}

static mla_status read_layer(scan *s, bool retro, size_t layer, mla_kv_scale *out, mla_err *err)
{
    char at[40];
    layer_text(layer, at, sizeof at);
    for (const mla_kv_spelling *p = MLA_KV_SPELLING; p < MLA_KV_SPELLING + MLA_KV_SPELLINGS; p++) {
        if (!first_row(p, retro)) continue;
        const mla_kv_spelling *q = p->part == MLA_KV_BOTH ? p : p + 1;
        const mla_tensor *k = find(s, layer, p->suffix), *v = find(s, layer, q->suffix);
        if (!k && !v) continue;
        if (s->found && s->found != p)
            return mla_fail(err, MLA_EFORMAT, "%s: KV scales in two spellings, %s and %s", at, s->found->suffix, p->suffix);
        if (!k || !v)
            return mla_fail(err, MLA_EFORMAT, "%s: %s is stored, %s is missing", at, k ? p->suffix : q->suffix, k ? q->suffix : p->suffix);
        s->found = p;
        mla_status st = read_scale(s, k, &out->k, err);
        if (st == MLA_OK) st = read_scale(s, v, &out->v, err);
        if (st != MLA_OK) return mla_wrap(err, "%s", at);
        out->present = true;
    }
    return MLA_OK;
}

/* Scales that are stored but mean nothing here: q and prob scales; in a retrofit the base's key and value scales (`base`). */
static mla_status claim_unused(scan *s, size_t layer, bool base, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < MLA_KV_SPELLINGS; i++) {
        const mla_kv_spelling *p = &MLA_KV_SPELLING[i];
        bool plain = p->read && p->part != MLA_KV_LATENT && p->part != MLA_KV_ROPE;
        if (mla_kv_part_cached(p->part) && !(base && plain)) continue;
        if (find(s, layer, p->suffix)) st = mla_claim(s->m, mla_str_c(&s->name), err);
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
    const mla_kv_spelling *p = s->found ? s->found : MLA_KV_SPELLING;
    while (!s->found && !first_row(p, retro)) p++;
    return mla_fail(err, MLA_EFORMAT, "%slayers.%zu.%s: missing, %s", s->m->prefix, missing, p->suffix,
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
    scan s = {.m = m, .name = MLA_STR_MAX(512)};
    bool retro = m->cfg.mla.layout != MLA_LAYOUT_NONE, in_weights = folded(m);
    const mla_kv_spelling *trunk = NULL;
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < m->cfg.layers + m->cfg.mtp_layers; i++) {
        size_t layer = i < m->cfg.layers ? i : MLA_MTP(i - m->cfg.layers);
        if (i < m->cfg.layers && m->cfg.layer_kind[i] != MLA_LAYER_FULL) continue;
        bool head = i >= m->cfg.layers; /* the MTP head keeps plain keys and values in a retrofit, too */
        if (head) s.found = NULL;
        if (in_weights) m->scale[i] = (mla_kv_scale){true, 1, 1}; /* a stored one beside them stays unclaimed, and is refused */
        else st = read_layer(&s, retro && !head, layer, &m->scale[i], err);
        if (st == MLA_OK) st = claim_unused(&s, layer, retro && !head && !in_weights, err);
        if (!head) trunk = s.found;
    }
    s.found = trunk;
    if (s.no_memory) st = mla_fail(err, MLA_ENOMEM, "names of KV scales"); /* not a model without scales */
    if (st == MLA_OK && !in_weights) st = complete(&s, retro, err);
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
