/* The factors of a retrofit as stored (docs/format-factors.md): checked at open, read layer by layer. */
#include <string.h>

#include "base/alloc.h"
#include "model/model_impl.h"
#include "tensor/compare.h"

typedef struct {
    const mla_tensor *encoder, *decoder, *mean; /* [groups, r, n], [groups, n, r], [groups, n] */
    const mla_tensor *center;                   /* [G], layout p; else NULL */
    const mla_tensor *rotary, *query;           /* layout absorbed-rope: [w, G d], [G, w, d]; else NULL */
} parts;

static mla_status need(const mla_model *m, size_t layer, const char *what, const mla_tensor **t, mla_err *err)
{
    mla_str name = MLA_STR_MAX(512);
    mla_str_printf(&name, "%slayers.%zu.self_attn.mla.%s", m->prefix, layer, what);
    mla_status st = mla_str_ok(&name) ? mla_ckpt_need(m->ckpt, mla_str_c(&name), t, err) : mla_fail(err, MLA_ENOMEM, "tensor name");
    mla_str_free(&name);
    if (st != MLA_OK) return st;
    const char *shard = mla_shard_of(m, *t);
    if (strcmp(shard, m->cfg.mla.factors_file))
        return mla_fail(err, MLA_EFORMAT, "%s: expected in %s (mla.factors_file), found in %s", (*t)->name, m->cfg.mla.factors_file, shard);
    return MLA_OK;
}

static mla_status check(const mla_model *m, const mla_tensor *t, mla_dtype dtype, size_t ndim, const size_t *shape, mla_err *err)
{
    char want[96], found[96];
    if (t->dtype == dtype && mla_shape_is(t, ndim, shape)) return MLA_OK;
    return mla_fail(err, MLA_EFORMAT, "%s: expected %s %s, found %s in %s", t->name, mla_dtype_name(dtype),
                    mla_shape_text(shape, ndim, want, sizeof want), mla_tensor_text(t, found, sizeof found), mla_shard_of(m, t));
}

static mla_status find(const mla_model *m, size_t layer, parts *t, size_t *n, size_t *r, mla_err *err)
{
    const mla_retrofit_config *f = &m->cfg.mla;
    const mla_config *c = &m->cfg;
    bool absorbed = f->layout == MLA_LAYOUT_ABSORBED;
    size_t w = mla_config_rotary_values(c, layer);
    *t = (parts){0};
    mla_status st = mla_factors_dims(&m->cfg, f->layout, f->groups, n, err);
    *r = f->rank[layer] / f->groups;
    if (st == MLA_OK) st = need(m, layer, "encoder.weight", &t->encoder, err);
    if (st == MLA_OK) st = need(m, layer, "decoder.weight", &t->decoder, err);
    if (st == MLA_OK) st = need(m, layer, "mean", &t->mean, err);
    t->center = NULL;
    if (st == MLA_OK && mla_layout_divisors(&m->cfg, f->layout)) {
        st = need(m, layer, "divisor_center", &t->center, err);
        if (st == MLA_OK) st = check(m, t->center, MLA_F32, 1, (size_t[]){m->cfg.kv_heads}, err);
    }
    if (st == MLA_OK) st = check(m, t->encoder, f->dtype, 3, (size_t[]){f->groups, *r, *n}, err);
    if (st == MLA_OK) st = check(m, t->decoder, f->dtype, 3, (size_t[]){f->groups, absorbed ? (c->heads + c->kv_heads) * c->head_dim : *n, *r}, err);
    if (st == MLA_OK && absorbed) st = need(m, layer, "rotary_encoder.weight", &t->rotary, err);
    if (st == MLA_OK && absorbed) st = need(m, layer, "rotary_query.weight", &t->query, err);
    if (st == MLA_OK && absorbed) st = check(m, t->rotary, MLA_F32, 2, (size_t[]){w, c->kv_heads * c->head_dim}, err);
    if (st == MLA_OK && absorbed) st = check(m, t->query, MLA_F32, 3, (size_t[]){c->kv_heads, w, c->head_dim}, err);
    return st == MLA_OK ? check(m, t->mean, MLA_F32, 2, (size_t[]){f->groups, *n}, err) : st;
}

mla_status mla_bind_factors(mla_model *m, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t l = 0; st == MLA_OK && l < m->cfg.layers; l++) {
        parts t;
        size_t n, r;
        if (m->cfg.layer_kind[l] != MLA_LAYER_FULL) continue;
        st = find(m, l, &t, &n, &r, err);
        if (st == MLA_OK) st = mla_claim(m, t.encoder->name, err);
        if (st == MLA_OK) st = mla_claim(m, t.decoder->name, err);
        if (st == MLA_OK) st = mla_claim(m, t.mean->name, err);
        if (st == MLA_OK && t.center) st = mla_claim(m, t.center->name, err);
        if (st == MLA_OK && t.rotary) st = mla_claim(m, t.rotary->name, err);
        if (st == MLA_OK && t.query) st = mla_claim(m, t.query->name, err);
    }
    return st;
}

static mla_status widen(float *dst, const mla_tensor *t, mla_err *err)
{
    size_t count = mla_tensor_numel(t), at;
    if (!mla_to_f32(dst, t->data, t->dtype, count)) return mla_fail(err, MLA_EINTERNAL, "%s: conversion", t->name);
    size_t bad = mla_count_nonfinite(dst, count, &at);
    if (bad) return mla_fail(err, MLA_EFORMAT, "%s: non-finite value at element %zu (%zu of %zu)", t->name, at, bad, count);
    return MLA_OK;
}

mla_status mla_model_factors(const mla_model *m, size_t layer, mla_factors *out, mla_err *err)
{
    parts t;
    size_t n, r;
    *out = (mla_factors){0};
    if (m->cfg.mla.layout == MLA_LAYOUT_NONE) return mla_fail(err, MLA_EINVAL, "%s is no retrofit: it has no factors", m->path);
    if (layer >= m->cfg.layers || m->cfg.layer_kind[layer] != MLA_LAYER_FULL)
        return mla_fail(err, MLA_EINVAL, "layer %zu is no full-attention layer of %s", layer, m->path);
    mla_status st = find(m, layer, &t, &n, &r, err);
    if (st == MLA_OK)
        st = t.rotary ? mla_factors_new_absorbed(out, &m->cfg, mla_config_rotary_values(&m->cfg, layer), r, err)
                      : mla_factors_new(out, m->cfg.mla.layout, m->cfg.mla.groups, n, r, err);
    if (st != MLA_OK) return st;
    st = widen(out->E, t.encoder, err);
    if (st == MLA_OK) st = widen(out->D, t.decoder, err);
    if (st == MLA_OK) st = widen(out->mu, t.mean, err);
    if (st == MLA_OK && t.center) st = mla_factors_centers(out, m->cfg.kv_heads, err);
    if (st == MLA_OK && t.center) st = widen(out->center, t.center, err);
    for (size_t g = 0; st == MLA_OK && g < out->heads; g++)
        if (!(out->center[g] > 0)) st = mla_fail(err, MLA_EFORMAT, "%s: head %zu: %g, expected a positive number", t.center->name, g, (double)out->center[g]);
    if (st == MLA_OK && t.rotary) st = widen(out->Er, t.rotary, err);
    if (st == MLA_OK && t.query) st = widen(out->Rq, t.query, err);
    if (st != MLA_OK) mla_factors_free(out);
    return st;
}
