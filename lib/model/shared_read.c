/* Shared-rotary factor files, ours and those of the plugin's maker: checked at open, read layer by layer. */
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/sha256.h"
#include "model/model_impl.h"
#include "model/read.h"
#include "model/shared_meta.h"
#include "tensor/compare.h"

static const char *meta(const mla_st *s, const char *key)
{
    for (size_t i = 0; i < mla_st_meta_count(s); i++)
        if (!strcmp(mla_st_meta_key(s, i), key)) return mla_st_meta_value(s, i);
    return NULL;
}

/* The JSON text of a header value. */
static mla_status parse_meta(mla_json **out, const mla_st *s, const char *key, mla_err *err)
{
    const char *text = meta(s, key);
    *out = NULL;
    if (!text) return mla_fail(err, MLA_EFORMAT, "__metadata__: \"%s\" is missing", key);
    return mla_json_parse(out, text, strlen(text), key, err);
}

/* Same keys with the same strings and integers, in any order. */
static mla_status same_object(const mla_jv *found, const mla_jv *want, const char *what, mla_err *err)
{
    if (!mla_jv_is_obj(found)) return mla_fail(err, MLA_EFORMAT, "%s: expected an object, found %s", what, mla_jv_kind(found));
    for (const mla_jv *w = mla_jv_first(want); w; w = mla_jv_next(w)) {
        const mla_jv *f = mla_jv_get(found, mla_jv_key(w));
        const char *ws = mla_jv_str(w), *fs = mla_jv_str(f);
        size_t wn = 0, fn = 0;
        char q[96];
        if (ws && (!fs || strcmp(ws, fs)))
            return mla_fail(err, MLA_EFORMAT, "%s.%s: expected \"%s\", found %s", what, mla_jv_key(w), ws, fs ? mla_printable(fs, q, sizeof q) : mla_jv_kind(f));
        if (!ws && (!mla_jv_size(w, &wn) || !mla_jv_size(f, &fn) || wn != fn))
            return mla_fail(err, MLA_EFORMAT, "%s.%s: expected %zu of this model, found %s%zu", what, mla_jv_key(w), wn, f ? "" : "nothing, ", fn);
    }
    if (mla_jv_len(found) != mla_jv_len(want)) return mla_fail(err, MLA_EFORMAT, "%s: expected %zu keys, found %zu", what, mla_jv_len(want), mla_jv_len(found));
    return MLA_OK;
}

/* r and R from the header, where they are free; everything else must be this model's. */
static mla_status check_header(const mla_model *m, size_t *r, size_t *R, mla_err *err)
{
    const mla_config *c = &m->cfg;
    mla_json *kind = NULL, *version = NULL, *geo = NULL, *sem = NULL, *want = NULL;
    size_t v = 0, width = 0;
    mla_status st = parse_meta(&kind, m->shared, "kind", err);
    if (st == MLA_OK) st = parse_meta(&version, m->shared, "format_version", err);
    if (st == MLA_OK) st = parse_meta(&geo, m->shared, "geometry", err);
    if (st == MLA_OK) st = parse_meta(&sem, m->shared, "semantics", err);
    if (st == MLA_OK) {
        const char *k = mla_jv_str(mla_json_root(kind));
        bool one = k && !strcmp(k, MLA_SHARED_KIND), many = k && !strcmp(k, MLA_SHARED_KIND_R);
        if ((!one && !many) || !mla_jv_size(mla_json_root(version), &v) || v != 1)
            st = mla_fail(err, MLA_EUNSUPPORTED, "kind or format_version: expected %s or %s, version 1", MLA_SHARED_KIND, MLA_SHARED_KIND_R);
        else if (!mla_jv_size(mla_jv_get(mla_json_root(geo), "rank"), r) || *r == 0 || *r > c->hidden)
            st = mla_fail(err, MLA_EFORMAT, "geometry.rank: expected 1 to %zu (the hidden size)", c->hidden);
        else if (!mla_jv_size(mla_jv_get(mla_json_root(sem), "rotary_width"), &width) || width == 0 || width % c->rope.rot ||
                 width / c->rope.rot > (one ? 1 : c->kv_heads))
            st = mla_fail(err, MLA_EFORMAT, "semantics.rotary_width: expected %s%zu rotated dims, found %zu", one ? "" : "1 to all KV heads times ", c->rope.rot, width);
    }
    if (st == MLA_OK) *R = width / c->rope.rot;
    if (st == MLA_OK) st = mla_json_new_object(&want, err);
    if (st == MLA_OK && (!mla_shared_geometry(mla_jv_set_obj(mla_json_root(want), "g"), c, *r) ||
                         !mla_shared_semantics(mla_jv_set_obj(mla_json_root(want), "s"), c, *r, *R)))
        st = mla_fail(err, MLA_ENOMEM, "header");
    if (st == MLA_OK) st = same_object(mla_json_root(geo), mla_jv_get(mla_json_root(want), "g"), "geometry", err);
    if (st == MLA_OK) st = same_object(mla_json_root(sem), mla_jv_get(mla_json_root(want), "s"), "semantics", err);
    mla_json *const all[] = {kind, version, geo, sem, want};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mla_json_free(all[i]);
    return st;
}

static mla_status need(const mla_model *m, size_t layer, size_t k, size_t r, size_t R, const mla_tensor **out, mla_err *err)
{
    mla_str name = MLA_STR_MAX(128);
    size_t shape[3], ndim;
    char want[96], found[96];
    mla_status st = MLA_OK;
    mla_str_printf(&name, "layers.%zu.%s", layer, mla_shared_tensor[k]);
    mla_shared_shape(&m->cfg, r, R, k, shape, &ndim);
    const mla_tensor *t = mla_str_ok(&name) ? mla_st_find(m->shared, mla_str_c(&name)) : NULL;
    if (!t) st = mla_fail(err, MLA_EFORMAT, "%s is missing", mla_str_c(&name));
    else if (t->dtype != MLA_F32 || !mla_shape_is(t, ndim, shape))
        st = mla_fail(err, MLA_EFORMAT, "%s: expected F32 %s, found %s", t->name, mla_shape_text(shape, ndim, want, sizeof want),
                      mla_tensor_text(t, found, sizeof found));
    mla_str_free(&name);
    *out = t;
    return st;
}

static mla_status bind(mla_model *m, mla_err *err)
{
    mla_config *c = &m->cfg;
    size_t r = 0, R = 0, full = mla_config_full_layers(c);
    const mla_tensor *t;
    mla_status st = check_header(m, &r, &R, err);
    for (size_t l = 0; st == MLA_OK && l < c->layers; l++) {
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (c->mla.rank[l] && c->mla.rank[l] != r)
            return mla_fail(err, MLA_EFORMAT, "geometry.rank: %zu, config.json claims %zu for layer %zu", r, c->mla.rank[l], l);
        c->mla.rank[l] = r;
        for (size_t k = 0; st == MLA_OK && k < MLA_SHARED_TENSORS; k++) st = need(m, l, k, r, R, &t, err);
    }
    if (st == MLA_OK && c->mla.rotary_width && c->mla.rotary_width != R * c->rope.rot)
        st = mla_fail(err, MLA_EFORMAT, "semantics.rotary_width: %zu, config.json claims %zu", R * c->rope.rot, c->mla.rotary_width);
    if (st == MLA_OK && mla_st_count(m->shared) != MLA_SHARED_TENSORS * full)
        st = mla_fail(err, MLA_EFORMAT, "%zu tensors, expected %zu: %d for each of %zu full-attention layers", mla_st_count(m->shared),
                      MLA_SHARED_TENSORS * full, MLA_SHARED_TENSORS, full);
    if (st == MLA_OK) c->mla.rotary_width = R * c->rope.rot;
    return st;
}

mla_status mla_bind_shared(mla_model *m, mla_err *err)
{
    char *path = mla_path_join(m->path, m->cfg.mla.factors_file);
    if (!path) return mla_fail(err, MLA_ENOMEM, "path");
    mla_status st = mla_st_open(&m->shared, path, err);
    if (st == MLA_OK && (st = bind(m, err)) != MLA_OK) st = mla_wrap(err, "%s", m->cfg.mla.factors_file);
    mla_free(path);
    return st;
}

static mla_status copy_out(float *dst, const mla_tensor *t, mla_err *err)
{
    size_t n = mla_tensor_numel(t), at;
    if (!mla_to_f32(dst, t->data, t->dtype, n)) return mla_fail(err, MLA_EINTERNAL, "%s: conversion", t->name);
    if (mla_count_nonfinite(dst, n, &at)) return mla_fail(err, MLA_EFORMAT, "%s: non-finite value at element %zu", t->name, at);
    return MLA_OK;
}

/* K and V from kv_b (H, [nope | residual | value], r); the residual rows go through residual_query. */
static void unpack(mla_shared *s, const float *kvb, const float *res)
{
    size_t d = s->d, rot = s->rot, dn = d - rot, r = s->r;
    for (size_t h = 0; h < s->H; h++) {
        const float *rows = kvb + h * (2 * dn + d) * r;
        float *K = s->K + h * d * r;
        memcpy(K + rot * r, rows, dn * r * sizeof *K);
        memcpy(s->V + h * d * r, rows + 2 * dn * r, d * r * sizeof *K);
        for (size_t i = 0; i < rot; i++)
            for (size_t j = 0; j < r; j++) {
                double sum = 0;
                for (size_t k = 0; k < dn; k++) sum += (double)res[(h * rot + i) * dn + k] * rows[(dn + k) * r + j];
                K[i * r + j] = (float)sum;
            }
    }
}

static mla_status read_layer(const mla_model *m, size_t layer, mla_shared *out, mla_err *err)
{
    size_t r = out->r, R = out->R, w = R * out->rot;
    const mla_tensor *t[MLA_SHARED_TENSORS];
    mla_status st = MLA_OK;
    for (size_t k = 0; st == MLA_OK && k < MLA_SHARED_TENSORS; k++) st = need(m, layer, k, r, R, &t[k], err);
    if (st != MLA_OK) return st;
    float *q = mla_alloc_raw(mla_tensor_numel(t[2]), 1, sizeof *q), *res = mla_alloc_raw(mla_tensor_numel(t[3]), 1, sizeof *res);
    float *kvb = mla_alloc_raw(mla_tensor_numel(t[4]), 1, sizeof *kvb);
    if (!q || !res || !kvb) st = mla_fail(err, MLA_ENOMEM, "factors of layer %zu", layer);
    if (st == MLA_OK) st = copy_out(out->E, t[0], err);
    if (st == MLA_OK) st = copy_out(out->KR, t[1], err);
    if (st == MLA_OK) st = copy_out(q, t[2], err);
    if (st == MLA_OK) st = copy_out(res, t[3], err);
    if (st == MLA_OK) st = copy_out(kvb, t[4], err);
    if (st == MLA_OK) st = copy_out(out->mu, t[5], err);
    for (size_t h = 0; st == MLA_OK && h < out->H; h++) /* (rot, w) -> (w, rot) */
        for (size_t i = 0; i < out->rot; i++)
            for (size_t j = 0; j < w; j++) out->Q2[(h * w + j) * out->rot + i] = q[(h * out->rot + i) * w + j];
    if (st == MLA_OK) unpack(out, kvb, res);
    mla_free(q);
    mla_free(res);
    mla_free(kvb);
    return st;
}

mla_status mla_model_shared(const mla_model *m, size_t layer, mla_shared *out, mla_err *err)
{
    const mla_config *c = &m->cfg;
    *out = (mla_shared){0};
    if (!m->shared) return mla_fail(err, MLA_EINVAL, "%s has no shared-rotary factors", m->path);
    if (layer >= c->layers || c->layer_kind[layer] != MLA_LAYER_FULL)
        return mla_fail(err, MLA_EINVAL, "layer %zu is no full-attention layer of %s", layer, m->path);
    mla_status st = mla_shared_new(out, c, c->mla.rank[layer], c->mla.rotary_width / c->rope.rot, err);
    if (st != MLA_OK) return st;
    st = read_layer(m, layer, out, err);
    if (st == MLA_OK) return st;
    mla_shared_free(out);
    return mla_wrap(err, "%s", c->mla.factors_file);
}

mla_status mla_model_shared_teacher(const mla_model *m, mla_teacher *out, mla_err *err)
{
    static const char *const KEY[] = {"weights_fingerprint", "config_sha256"};
    char *to[] = {out->fingerprint, out->config_sha256};
    mla_json *d = NULL;
    *out = (mla_teacher){.format = ""};
    mla_status st = m->shared ? parse_meta(&d, m->shared, "teacher", err) : mla_fail(err, MLA_EINVAL, "%s has no shared-rotary factors", m->path);
    const char *format = mla_jv_str(mla_jv_get(d ? mla_json_root(d) : NULL, "format"));
    static const char *const FORMAT[] = {"original_bf16", "stored", "gguf"};
    for (size_t i = 0; format && i < 3; i++)
        if (!strcmp(format, FORMAT[i])) out->format = FORMAT[i];
    for (size_t i = 0; st == MLA_OK && i < 2; i++) {
        const char *s = mla_jv_str(mla_jv_get(mla_json_root(d), KEY[i]));
        if (s && strlen(s) == 64) memcpy(to[i], s, 65);
    }
    mla_json_free(d);
    return st;
}
