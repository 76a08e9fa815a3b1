/* Random weights by name, and a forward pass that only follows the equations. */
#include "naive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/str.h"
#include "harness.h"
#include "io/file.h"
#include "io/safetensors.h"

enum { MAX_T = 256 };

/* Weight values depend on the tensor's name alone, so writer and forward pass need not meet. Gains lie around 1. */
static float *make(const char *name, size_t out, size_t in)
{
    uint64_t seed = 1469598103934665603u;
    for (const char *c = name; *c; c++) seed = (seed ^ (unsigned char)*c) * 1099511628211u;
    bool gain = strstr(name, "norm") != NULL, bias = strstr(name, ".bias") != NULL;
    float *w = mla_alloc(out, in, sizeof *w);
    ck_assert(w);
    for (size_t i = 0; i < out * in; i++) {
        double v = mla_rng_normal(seed, i);
        w[i] = (float)(gain ? 1 + 0.2 * v : bias ? 0.3 * v : strstr(name, "embed") ? v : 1.5 * v / sqrt((double)in));
    }
    return w;
}

typedef struct {
    mla_tensor t[256];
    char name[256][96];
    float *data[256];
    size_t n;
} store;

static void put(store *s, const char *name, size_t out, size_t in)
{
    mla_tensor *t = &s->t[s->n];
    snprintf(s->name[s->n], sizeof s->name[0], "%s", name);
    s->data[s->n] = make(name, out ? out : 1, in);
    *t = (mla_tensor){.name = s->name[s->n], .dtype = MLA_F32, .ndim = out ? 2 : 1, .data = s->data[s->n], .nbytes = (out ? out : 1) * in * 4};
    if (out) t->shape[0] = out, t->shape[1] = in;
    else t->shape[0] = in;
    s->n++;
}

static void put_lin(store *s, size_t layer, const char *what, size_t out, size_t in, bool bias)
{
    char b[96];
    snprintf(b, sizeof b, "model.layers.%zu.%s.weight", layer, what);
    put(s, b, out, in);
    snprintf(b, sizeof b, "model.layers.%zu.%s.bias", layer, what);
    if (bias) put(s, b, 0, out);
}

static void put_mixer(store *s, const toy *t, size_t l)
{
    const size_t d = 128, C = (2 * t->nk + t->nv) * d;
    char b[96];
    put_lin(s, l, "linear_attn.in_proj_qkv", C, t->D, false);
    put_lin(s, l, "linear_attn.in_proj_z", t->nv * d, t->D, false);
    put_lin(s, l, "linear_attn.in_proj_b", t->nv, t->D, false);
    put_lin(s, l, "linear_attn.in_proj_a", t->nv, t->D, false);
    put_lin(s, l, "linear_attn.out_proj", t->D, t->nv * d, false);
    put_lin(s, l, "linear_attn.norm", 0, d, false);
    put_lin(s, l, "linear_attn.conv1d", C, 4, false);
    mla_tensor *conv = &s->t[s->n - 1];
    conv->ndim = 3, conv->shape[1] = 1, conv->shape[2] = 4;
    snprintf(b, sizeof b, "model.layers.%zu.linear_attn.A_log", l);
    put(s, b, 0, t->nv);
    snprintf(b, sizeof b, "model.layers.%zu.linear_attn.dt_bias", l);
    put(s, b, 0, t->nv);
}

static void put_layer(store *s, const toy *t, size_t l)
{
    put_lin(s, l, "input_layernorm", 0, t->D, false);
    put_lin(s, l, "post_attention_layernorm", 0, t->D, false);
    put_lin(s, l, "mlp.gate_proj", t->I, t->D, t->mlp_bias);
    put_lin(s, l, "mlp.up_proj", t->I, t->D, t->mlp_bias);
    put_lin(s, l, "mlp.down_proj", t->D, t->I, t->mlp_bias);
    if (t->rkv) {
        size_t dq = t->dn + t->rot;
        if (t->rq) {
            put_lin(s, l, "self_attn.q_a_proj", t->rq, t->D, t->qkv_bias);
            put_lin(s, l, "self_attn.q_a_layernorm", 0, t->rq, false);
            put_lin(s, l, "self_attn.q_b_proj", t->H * dq, t->rq, false);
        } else {
            put_lin(s, l, "self_attn.q_proj", t->H * dq, t->D, false);
        }
        put_lin(s, l, "self_attn.kv_a_proj_with_mqa", t->rkv + t->rot, t->D, t->qkv_bias);
        put_lin(s, l, "self_attn.kv_a_layernorm", 0, t->rkv, false);
        put_lin(s, l, "self_attn.kv_b_proj", t->H * (t->dn + t->dv), t->rkv, false);
        put_lin(s, l, "self_attn.o_proj", t->D, t->H * t->dv, t->o_bias);
        return;
    }
    if (t->nv && l % 2 == 0) {
        put_mixer(s, t, l);
        return;
    }
    put_lin(s, l, "self_attn.q_proj", t->H * t->d * (t->nv ? 2 : 1), t->D, t->qkv_bias);
    put_lin(s, l, "self_attn.k_proj", t->G * t->d, t->D, t->qkv_bias);
    put_lin(s, l, "self_attn.v_proj", t->G * t->d, t->D, t->qkv_bias);
    put_lin(s, l, "self_attn.o_proj", t->D, t->H * t->d, t->o_bias);
    if (t->qk_norm) put_lin(s, l, "self_attn.q_norm", 0, t->d, false), put_lin(s, l, "self_attn.k_norm", 0, t->d, false);
}

char *toy_write(const toy *t)
{
    mla_err err = {0};
    char *dir = mla_test_tmpdir(), path[600];
    store *s = mla_alloc(1, sizeof *s, 1);
    put(s, "model.embed_tokens.weight", t->V, t->D);
    put(s, "model.norm.weight", 0, t->D);
    if (!t->tied) put(s, "lm_head.weight", t->V, t->D);
    for (size_t l = 0; l < t->L; l++) put_layer(s, t, l);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_ok(mla_st_write(path, s->t, s->n, NULL, &err));
    for (size_t i = 0; i < s->n; i++) mla_free(s->data[i]);
    mla_free(s);
    mla_str b = MLA_STR_MAX(1 << 16);
    mla_str_printf(&b, "{\"architectures\":[\"%s\"],\"model_type\":\"%s\",\"dtype\":\"float32\",\"hidden_size\":%zu,"
                   "\"intermediate_size\":%zu,\"num_hidden_layers\":%zu,\"num_attention_heads\":%zu,\"num_key_value_heads\":%zu,"
                   "\"vocab_size\":%zu,\"rms_norm_eps\":%.17g,\"tie_word_embeddings\":%s",
                   t->arch, t->type, t->D, t->I, t->L, t->H, t->G, t->V, t->eps, t->tied ? "true" : "false");
    if (t->d) mla_str_printf(&b, ",\"head_dim\":%zu", t->d);
    mla_str_printf(&b, "%s}", t->extra);
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_ok(mla_file_write(path, b.s, b.len, &err));
    mla_str_free(&b);
    return dir;
}

/* --- forward ------------------------------------------------------------------------------------------------- */

/* y (out) = W x + b of a layer's module */
static void lin(size_t layer, const char *what, double *y, const double *x, size_t out, size_t in, bool bias)
{
    char b[96];
    snprintf(b, sizeof b, "model.layers.%zu.%s.weight", layer, what);
    float *w = make(b, out, in);
    snprintf(b, sizeof b, "model.layers.%zu.%s.bias", layer, what);
    float *v = bias ? make(b, 1, out) : NULL;
    for (size_t i = 0; i < out; i++) {
        y[i] = v ? v[i] : 0;
        for (size_t j = 0; j < in; j++) y[i] += (double)w[i * in + j] * x[j];
    }
    mla_free(w);
    mla_free(v);
}

static void norm(const char *name, double *y, const double *x, size_t n, double eps)
{
    float *g = make(name, 1, n);
    double s = 0;
    for (size_t i = 0; i < n; i++) s += x[i] * x[i];
    s = 1 / sqrt(s / (double)n + eps);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * s * g[i];
    mla_free(g);
}

static void layer_norm(size_t layer, const char *what, double *y, const double *x, size_t n, double eps)
{
    char b[96];
    snprintf(b, sizeof b, "model.layers.%zu.%s.weight", layer, what);
    norm(b, y, x, n, eps);
}

/* Rotates one head. pairs: (2i, 2i+1) as DeepSeek stores them, otherwise (i, i + rot/2). */
static void rope(const toy *t, double *x, size_t pos, bool pairs)
{
    for (size_t i = 0; i < t->rot / 2; i++) {
        size_t a = pairs ? 2 * i : i, b = pairs ? 2 * i + 1 : i + t->rot / 2;
        double c = cos((double)pos * t->inv_freq[i]) * t->att, s = sin((double)pos * t->inv_freq[i]) * t->att, u = x[a], v = x[b];
        x[a] = u * c - v * s;
        x[b] = v * c + u * s;
    }
}

/* One token's q (H, dq), k (H, dq), v (H, dv) with everything repeated per query head. */
static void qkv_gqa(const toy *t, size_t l, size_t pos, const double *h, double *q, double *k, double *v)
{
    size_t m = t->H / t->G, d = t->d;
    double *kk = mla_alloc(t->G * d, 2, sizeof *kk), *vv = kk + t->G * d;
    lin(l, "self_attn.q_proj", q, h, t->H * d, t->D, t->qkv_bias);
    lin(l, "self_attn.k_proj", kk, h, t->G * d, t->D, t->qkv_bias);
    lin(l, "self_attn.v_proj", vv, h, t->G * d, t->D, t->qkv_bias);
    for (size_t i = 0; i < t->H; i++) {
        if (t->qk_norm) layer_norm(l, "self_attn.q_norm", q + i * d, q + i * d, d, t->eps);
        rope(t, q + i * d, pos, false);
    }
    for (size_t g = 0; g < t->G; g++) {
        if (t->qk_norm) layer_norm(l, "self_attn.k_norm", kk + g * d, kk + g * d, d, t->eps);
        rope(t, kk + g * d, pos, false);
        for (size_t i = 0; i < m; i++) {
            memcpy(k + (g * m + i) * d, kk + g * d, d * sizeof *k);
            memcpy(v + (g * m + i) * d, vv + g * d, d * sizeof *v);
        }
    }
    mla_free(kk);
}

static void qkv_ds(const toy *t, size_t l, size_t pos, const double *h, double *q, double *k, double *v)
{
    size_t dq = t->dn + t->rot, w = t->dn + t->dv;
    double *lo = mla_alloc(t->rq + t->rkv + t->rot + t->H * w, 1, sizeof *lo), *kv = lo + t->rq, *up = kv + t->rkv + t->rot;
    if (t->rq) {
        lin(l, "self_attn.q_a_proj", lo, h, t->rq, t->D, t->qkv_bias);
        layer_norm(l, "self_attn.q_a_layernorm", lo, lo, t->rq, 1e-6);
        lin(l, "self_attn.q_b_proj", q, lo, t->H * dq, t->rq, false);
    } else {
        lin(l, "self_attn.q_proj", q, h, t->H * dq, t->D, false);
    }
    lin(l, "self_attn.kv_a_proj_with_mqa", kv, h, t->rkv + t->rot, t->D, t->qkv_bias);
    layer_norm(l, "self_attn.kv_a_layernorm", kv, kv, t->rkv, 1e-6);
    rope(t, kv + t->rkv, pos, true);
    lin(l, "self_attn.kv_b_proj", up, kv, t->H * w, t->rkv, false);
    for (size_t i = 0; i < t->H; i++) {
        rope(t, q + i * dq + t->dn, pos, true);
        memcpy(k + i * dq, up + i * w, t->dn * sizeof *k);
        memcpy(k + i * dq + t->dn, kv + t->rkv, t->rot * sizeof *k);
        memcpy(v + i * t->dv, up + i * w + t->dn, t->dv * sizeof *v);
    }
    mla_free(lo);
}

static void attend(const toy *t, size_t l, double *x, size_t T)
{
    size_t dq = t->rkv ? t->dn + t->rot : t->d, dv = t->rkv ? t->dv : t->d, qw = t->H * dq, vw = t->H * dv;
    double *q = mla_alloc(T * (2 * qw + vw), 1, sizeof *q), *k = q + T * qw, *v = k + T * qw;
    double *h = mla_alloc(2 * t->D + vw, 1, sizeof *h), *out = h + t->D, *o = out + t->D, p[MAX_T];
    for (size_t i = 0; i < T; i++) {
        layer_norm(l, "input_layernorm", h, x + i * t->D, t->D, t->eps);
        (t->rkv ? qkv_ds : qkv_gqa)(t, l, i, h, q + i * qw, k + i * qw, v + i * vw);
    }
    for (size_t i = 0; i < T; i++) {
        for (size_t a = 0; a < t->H; a++) {
            double z = 0, top = -INFINITY;
            for (size_t s = 0; s <= i; s++) {
                p[s] = 0;
                for (size_t j = 0; j < dq; j++) p[s] += q[i * qw + a * dq + j] * k[s * qw + a * dq + j];
                p[s] *= t->scale;
                if (p[s] > top) top = p[s];
            }
            for (size_t s = 0; s <= i; s++) z += p[s] = exp(p[s] - top);
            for (size_t j = 0; j < dv; j++) {
                o[a * dv + j] = 0;
                for (size_t s = 0; s <= i; s++) o[a * dv + j] += p[s] / z * v[s * vw + a * dv + j];
            }
        }
        lin(l, "self_attn.o_proj", out, o, t->D, vw, t->o_bias);
        for (size_t j = 0; j < t->D; j++) x[i * t->D + j] += out[j];
    }
    mla_free(q);
    mla_free(h);
}

static void mlp(const toy *t, size_t l, double *x)
{
    double *h = mla_alloc(2 * t->D + 2 * t->I, 1, sizeof *h), *out = h + t->D, *g = out + t->D, *u = g + t->I;
    layer_norm(l, "post_attention_layernorm", h, x, t->D, t->eps);
    lin(l, "mlp.gate_proj", g, h, t->I, t->D, t->mlp_bias);
    lin(l, "mlp.up_proj", u, h, t->I, t->D, t->mlp_bias);
    for (size_t j = 0; j < t->I; j++) g[j] = g[j] / (1 + exp(-g[j])) * u[j];
    lin(l, "mlp.down_proj", out, g, t->D, t->I, t->mlp_bias);
    for (size_t j = 0; j < t->D; j++) x[j] += out[j];
    mla_free(h);
}

double *toy_logits(const toy *t, const int32_t *ids, size_t T)
{
    float *e = make("model.embed_tokens.weight", t->V, t->D), *w = t->tied ? e : make("lm_head.weight", t->V, t->D);
    double *x = mla_alloc(T, t->D, sizeof *x), *y = mla_alloc(T, t->V, sizeof *y), *h = mla_alloc(t->D, 1, sizeof *h);
    ck_assert(T <= MAX_T && x && y && h);
    for (size_t i = 0; i < T * t->D; i++) x[i] = e[(size_t)ids[i / t->D] * t->D + i % t->D];
    for (size_t l = 0; l < t->L; l++) {
        attend(t, l, x, T);
        for (size_t i = 0; i < T; i++) mlp(t, l, x + i * t->D);
    }
    for (size_t i = 0; i < T; i++) {
        norm("model.norm.weight", h, x + i * t->D, t->D, t->eps);
        for (size_t o = 0; o < t->V; o++)
            for (size_t j = 0; j < t->D; j++) y[i * t->V + o] += (double)w[o * t->D + j] * h[j];
    }
    if (w != e) mla_free(w);
    mla_free(e);
    mla_free(x);
    mla_free(h);
    return y;
}
