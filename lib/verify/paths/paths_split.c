/* Paths: a retrofit with latent groups as its ranks would run it. Each rank holds its own heads and its own group's half
 * of every cached row, nothing else, and gives a part of the attention's output; the parts must add up to what the whole
 * model gives. The rank's cache goes through the backend, so rounding and placement are the served ones; the rest is fp64
 * on the host. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/factors.h"
#include "verify/paths/paths_parts.h"
#include "verify/report/report.h"

#define TOKENS 48 /* enough to cross pages of 16 twice; the host does T^2 H r products a layer */
#define PAGE 16

typedef struct {
    size_t T, D, H, G, d, rot, dn, groups, r, n;
    double scale;
} dims;

typedef struct { /* one layer's taps, host copies; dense rows */
    float *q, *gate, *latent, *rope, *out; /* (T, H d), (T, H d), (T, groups r), (T, G rot), (T, D) */
    bool gated;
} layer_taps;

typedef struct {
    mla_rt *rt;
    mla_backend *be;
    dims m;
    layer_taps t;
    double worst;
    size_t worst_layer, layers;
} split;

static mla_status fetch(mla_backend *be, float *dst, mla_mem *src, size_t n, mla_err *err)
{
    return be->ops->download(be, dst, src, n * sizeof *dst, err);
}

static void weighted(double *o, const float *c, size_t r, const double *p, size_t n, size_t ld)
{
    for (size_t i = 0; i < r; i++) o[i] = 0;
    for (size_t s = 0; s < n; s++)
        for (size_t i = 0; i < r; i++) o[i] += p[s] * (double)c[s * ld + i];
}

static double dot_mixed(const double *a, const float *b, size_t n)
{
    double x = 0;
    for (size_t i = 0; i < n; i++) x += a[i] * (double)b[i];
    return x;
}

static void softmax(double *x, size_t n)
{
    double most = x[0], sum = 0;
    for (size_t i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
    for (size_t i = 0; i < n; i++) sum += x[i] = exp(x[i] - most);
    for (size_t i = 0; i < n; i++) x[i] /= sum;
}

/* A rank's own cached rows, (T, r + per rot), written into a paged cache of its own and read back. */
static mla_status rank_cache(const split *x, const mla_factors *f, size_t a, mla_kv_scale s, mla_kv_type kv, float *rows, mla_err *err)
{
    const dims *m = &x->m;
    const mla_backend_ops *ops = x->be->ops;
    size_t per = m->G / m->groups, w1 = f->r, w2 = per * m->rot, w = w1 + w2, slots = (m->T + PAGE - 1) / PAGE * PAGE;
    mla_kv_row row = mla_kv_row_of(kv, (const size_t[MLA_KV_PARTS]){w1, w2, 0}, true);
    int32_t page[TOKENS / PAGE + 1];
    for (size_t i = 0; i < slots / PAGE; i++) page[i] = (int32_t)(slots / PAGE - 1 - i); /* back to front */
    mla_mem *cache = NULL, *in = NULL;
    mla_status st = ops->alloc(x->be, &cache, slots * row.bytes, err);
    if (st == MLA_OK) st = ops->alloc(x->be, &in, m->T * w * 4, err);
    for (size_t t = 0; t < m->T; t++) {
        memcpy(rows + t * w, x->t.latent + (t * m->groups + a) * m->r, w1 * 4);
        if (w2) memcpy(rows + t * w + w1, x->t.rope + t * m->G * m->rot + a * w2, w2 * 4);
    }
    if (st == MLA_OK) st = ops->upload(x->be, in, rows, m->T * w * 4, err);
    for (size_t part = 0; part < 2 && st == MLA_OK; part++) {
        mla_dtype t = row.dtype[part];
        size_t e = mla_dtype_bits(t) / 8;
        mla_kv_view view = {.data = cache, .pages = page, .page_tokens = PAGE, .row_elems = row.bytes / e, .col = row.at[part] / e, .dtype = t,
                            .scale = t == MLA_F8_E4M3 ? (part ? s.v : s.k) : 1};
        size_t width = part ? w2 : w1;
        mla_kv_write_args wr = {.to = view, .x = mla_at(in, part ? w1 : 0), .ldx = w, .T = m->T, .width = width};
        mla_kv_read_args rd = {.from = view, .y = mla_at(in, part ? w1 : 0), .ldy = w, .n = m->T, .width = width};
        if (width) st = ops->kv_write(x->be, &wr, err);
        if (width && st == MLA_OK) st = ops->kv_read(x->be, &rd, err);
    }
    if (st == MLA_OK) st = fetch(x->be, rows, in, m->T * w, err);
    if (cache) ops->free(x->be, cache);
    if (in) ops->free(x->be, in);
    return st;
}

typedef struct { /* scratch of one rank, fp64 */
    double *q, *p, *c; /* (r) absorbed query, (T) probabilities, (r) averaged latent */
} rank_scratch;

/* Head h of query t: probabilities over the rank's rows, averaged latent, values through D_V; gated into o (d). */
static void head_output(const split *x, const mla_factors *f, size_t t, size_t h, const float *rows, rank_scratch *b, double *o)
{
    const dims *m = &x->m;
    size_t per = m->G / m->groups, g = h / (m->H / m->G), a = g / per, i = g % per, w = f->r + per * m->rot;
    const float *D = f->D + a * f->n * f->r, *mu = f->mu + a * f->n, *q = x->t.q + (t * m->H + h) * m->d;
    const float *rope = m->rot ? q : NULL, *nope = q + m->rot;
    for (size_t k = 0; k < f->r; k++) {
        b->q[k] = 0;
        for (size_t e = 0; e < m->dn; e++) b->q[k] += (double)D[(i * m->dn + e) * f->r + k] * (double)nope[e];
    }
    for (size_t s = 0; s <= t; s++) {
        double l = dot_mixed(b->q, rows + s * w, f->r);
        for (size_t e = 0; rope && e < m->rot; e++) l += (double)rope[e] * (double)rows[s * w + f->r + i * m->rot + e];
        b->p[s] = l * m->scale;
    }
    softmax(b->p, t + 1);
    weighted(b->c, rows, f->r, b->p, t + 1, w);
    for (size_t e = 0; e < m->d; e++) {
        size_t row = per * m->dn + i * m->d + e;
        double v = (double)mu[row] + dot_mixed(b->c, D + row * f->r, f->r);
        if (x->t.gated) v /= 1 + exp(-(double)x->t.gate[(t * m->H + h) * m->d + e]);
        o[e] = v;
    }
}

/* sum (T, D) += o_proj of this rank's heads. */
static mla_status rank_part(split *x, const mla_factors *f, size_t a, const mla_kv_scale *s, mla_kv_type kv, const float *wo, double *sum, mla_err *err)
{
    const dims *m = &x->m;
    size_t hr = m->H / m->groups, w = f->r + m->G / m->groups * m->rot;
    float *rows = mla_alloc(m->T, w, sizeof *rows);
    double *o = mla_alloc(hr, m->d, sizeof *o), *s1 = mla_alloc(2 * f->r + m->T, 1, sizeof *s1);
    rank_scratch b = {s1, s1 ? s1 + 2 * f->r : NULL, s1 ? s1 + f->r : NULL};
    mla_status st = rows && o && s1 ? rank_cache(x, f, a, *s, kv, rows, err) : mla_fail(err, MLA_ENOMEM, "a rank of %zu tokens", m->T);
    for (size_t t = 0; t < m->T && st == MLA_OK; t++) {
        for (size_t h = 0; h < hr; h++) head_output(x, f, t, a * hr + h, rows, &b, o + h * m->d);
        for (size_t i = 0; i < m->D; i++) sum[t * m->D + i] += dot_mixed(o, wo + i * m->H * m->d + a * hr * m->d, hr * m->d);
    }
    mla_free(rows);
    mla_free(o);
    mla_free(s1);
    return st;
}

static mla_status judge_layer(split *x, size_t layer, mla_kv_type kv, mla_err *err)
{
    const dims *m = &x->m;
    const mla_model *model = mla_rt_model(x->rt);
    mla_factors f = {0};
    mla_kv_scale s = {0};
    mla_mat o;
    size_t in = m->H * m->d;
    float *wo = mla_alloc(m->D, in, sizeof *wo), *bias = NULL;
    double *sum = mla_alloc(m->T, m->D, sizeof *sum), err2 = 0, norm2 = 0;
    mla_status st = wo && sum ? MLA_OK : mla_fail(err, MLA_ENOMEM, "output projection of %zu x %zu", m->D, in);
    if (st == MLA_OK) st = mla_model_factors(model, layer, &f, err);
    if (st == MLA_OK) st = mla_model_kv_scale(model, layer, &s, err);
    if (st == MLA_OK) st = mla_model_mat(model, MLA_W_O, layer, &o, err);
    if (st == MLA_OK) st = mla_mat_rows(&o, 0, m->D, wo, err);
    x->m.r = f.r;
    for (size_t a = 0; a < m->groups && st == MLA_OK; a++) st = rank_part(x, &f, a, &s, kv, wo, sum, err);
    if (st == MLA_OK && mla_model_has(model, MLA_W_O_BIAS, layer)) st = mla_model_vec(model, MLA_W_O_BIAS, layer, m->D, &bias, err);
    for (size_t i = 0; st == MLA_OK && i < m->T * m->D; i++) {
        double e = sum[i] + (bias ? (double)bias[i % m->D] : 0) - (double)x->t.out[i];
        err2 += e * e;
        norm2 += (double)x->t.out[i] * (double)x->t.out[i];
    }
    double rel = norm2 > 0 ? sqrt(err2 / norm2) : sqrt(err2);
    if (st == MLA_OK && !(rel <= x->worst)) x->worst = rel, x->worst_layer = layer;
    x->layers++;
    mla_factors_free(&f);
    mla_free(wo);
    mla_free(bias);
    mla_free(sum);
    return st;
}

static mla_status keep_attn(split *x, const mla_tap *t, mla_err *err)
{
    const dims *m = &x->m;
    const mla_tap_attn *a = t->attn;
    size_t w = m->H * m->d;
    mla_status st = fetch(t->be, x->t.q, a->q_rot, m->T * w, err);
    x->t.gated = a->gate != NULL;
    for (size_t i = 0; x->t.gated && i < m->T && st == MLA_OK; i++)
        for (size_t h = 0; h < m->H && st == MLA_OK; h++)
            st = fetch(t->be, x->t.gate + i * w + h * m->d, mla_at(a->gate, i * a->gate_ld + h * a->gate_h), m->d, err);
    return st;
}

typedef struct {
    split *x;
    mla_kv_type kv;
    bool latent; /* the layer in progress has one */
} tap_ctx;

static mla_status on_tap(void *ctx, const mla_tap *t, mla_err *err)
{
    tap_ctx *c = ctx;
    split *x = c->x;
    switch (t->point) {
    case MLA_TAP_LATENT:
        c->latent = true;
        return fetch(t->be, x->t.latent, t->data, t->rows * t->width, err);
    case MLA_TAP_K_ROPE: return c->latent && t->width == x->m.G * x->m.rot ? fetch(t->be, x->t.rope, t->data, t->rows * t->width, err) : MLA_OK;
    case MLA_TAP_ATTN: return c->latent ? keep_attn(x, t, err) : MLA_OK;
    case MLA_TAP_MIXER:
        if (!c->latent) return MLA_OK;
        c->latent = false;
        x->m.r = mla_model_config(mla_rt_model(x->rt))->mla.rank[t->layer] / x->m.groups;
        if (fetch(t->be, x->t.out, t->data, t->rows * t->width, err) != MLA_OK) return err->status;
        return judge_layer(x, t->layer, c->kv, err);
    default: return MLA_OK;
    }
}

/* Runs one text with taps; every full-attention layer is judged as it passes. */
static mla_status run_layers(split *x, const mla_path_text *text, mla_kv_type kv, mla_err *err)
{
    dims *m = &x->m;
    size_t most = m->groups * m->n;
    float *buf = mla_alloc(m->T, 2 * m->H * m->d + most + m->G * m->rot + m->D, sizeof *buf);
    if (!buf) return mla_fail(err, MLA_ENOMEM, "taps of %zu tokens", m->T);
    x->t.q = buf;
    x->t.gate = x->t.q + m->T * m->H * m->d;
    x->t.latent = x->t.gate + m->T * m->H * m->d;
    x->t.rope = x->t.latent + m->T * most;
    x->t.out = x->t.rope + m->T * m->G * m->rot;
    mla_seq *seq;
    tap_ctx c = {x, kv, false};
    mla_status st = mla_seq_new(&seq, x->rt, m->T, err);
    mla_job job = {.seq = seq, .ids = text->ids, .T = m->T, .logits_from = m->T};
    if (st == MLA_OK) {
        st = mla_rt_run(x->rt, &job, 1, on_tap, &c, err);
        mla_seq_free(seq);
    }
    mla_free(buf);
    return st;
}

mla_status mla_path_split(mla_paths *p, mla_err *err)
{
    const mla_config *c = mla_rt_config(p->o->rt);
    const mla_path_text *text = &p->o->text[p->o->n_text - 1];
    if (c->mla.layout != MLA_LAYOUT_N || c->mla.groups < 2) {
        const char *why = c->mla.layout == MLA_LAYOUT_P && c->mla.groups > 1 ? "score divisors beside its latents (layout p), which this check does not split"
                          : c->mla.layout == MLA_LAYOUT_N                    ? "one latent group: there is nothing to split by groups"
                                                                             : "no latent with rotary keys beside it: there is nothing to split by groups";
        mla_jv_set_str(mla_doc_gate(p->gates, "split", MLA_PASS, "the model has %s", why), "verdict", MLA_NOT_APPLICABLE);
        return MLA_OK;
    }
    split x = {.rt = p->o->rt, .be = p->o->be, .m = {.T = text->n < TOKENS ? text->n : TOKENS, .D = c->hidden, .H = c->heads, .G = c->kv_heads,
               .d = c->head_dim, .rot = c->rope.rot, .dn = c->head_dim - c->rope.rot, .groups = c->mla.groups, .scale = mla_config_attn_scale(c)}};
    mla_status st = mla_factors_dims(c, c->mla.layout, c->mla.groups, &x.m.n, err);
    if (st == MLA_OK) st = run_layers(&x, text, p->o->kv, err);
    if (st != MLA_OK) return st;
    bool ok = x.layers && x.worst <= p->o->max_split_error;
    mla_jv *g = mla_doc_gate(p->gates, "split", ok ? MLA_PASS : MLA_FAIL,
                             "%zu ranks, each with 1/%zu of every cached row: their outputs add up to the whole in %zu layers but for %.3g of its size (layer %zu), allowed %g",
                             c->mla.groups, c->mla.groups, x.layers, x.worst, x.worst_layer, p->o->max_split_error);
    mla_jv_set_f64(g, "value", x.worst);
    mla_jv_set_f64(g, "threshold", p->o->max_split_error);
    if (!ok) p->worst = MLA_FAIL;
    return MLA_OK;
}
