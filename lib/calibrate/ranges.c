/* Measuring: the range of everything cached, over rows that each start at position 0. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "calibrate/parts.h"
#include "tensor/fp.h"

#define TRY(e)                               \
    do {                                     \
        mla_status st_ = (e);                \
        if (st_ != MLA_OK) return st_;       \
    } while (0)

const char *mla_cal_layer_text(size_t layer, char *buf)
{
    if (layer >= MLA_MTP(0)) snprintf(buf, 32, "MTP layer %zu", layer - MLA_MTP(0));
    else snprintf(buf, 32, "layer %zu", layer);
    return buf;
}

/* Analytic limit of normed keys: |k_j| <= sqrt(d) max|gain|, kept by rotation up to the attention factor. */
static mla_status key_bound(const mla_model *m, size_t layer, size_t dims, double *out, mla_err *err)
{
    const mla_config *c = mla_model_config(m);
    float *g;
    *out = 0;
    if (!c->qk_norm || c->family == MLA_FAM_DEEPSEEK) return MLA_OK;
    TRY(mla_model_vec(m, MLA_W_K_NORM, layer, c->head_dim, &g, err));
    for (size_t i = 0; i < dims; i++) *out = fmax(*out, fabs((double)g[i]));
    *out *= sqrt((double)c->head_dim) * fmax(1, c->rope.attention_factor);
    mla_free(g);
    return MLA_OK;
}

static mla_status describe(mla_cal *c, mla_rt *rt, size_t layer, mla_err *err)
{
    const mla_config *cfg = mla_rt_config(rt);
    const mla_model *m = mla_rt_model(rt);
    mla_layout layout = mla_rt_layout(rt, layer);
    mla_cal_layer *l = &c->layer[c->n++];
    l->layer = layer;
    if (cfg->family == MLA_FAM_DEEPSEEK || layout != MLA_LAYOUT_NONE) {
        c->retrofit = true;
        l->k.name = "latent";
        if (layout != MLA_LAYOUT_REBUILD) l->v.name = "rotary keys";
        l->v.wide = c->keys16;
        return mla_layout_rotary(cfg, layout) ? key_bound(m, layer, cfg->rope.rot, &l->v.bound, err) : MLA_OK;
    }
    l->k.name = "keys";
    l->v.name = "values";
    l->k.wide = c->keys16;
    return key_bound(m, layer, cfg->head_dim, &l->k.bound, err);
}

mla_cal_layer *cal_layer(mla_cal *c, size_t layer)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->layer[i].layer == layer) return &c->layer[i];
    return NULL;
}

mla_cal_part *cal_part(mla_cal *c, const mla_tap *t)
{
    mla_cal_layer *l = cal_layer(c, t->layer);
    if (!l) return NULL;
    bool latent = !strcmp(l->k.name, "latent");
    switch (t->point) {
    case MLA_TAP_LATENT: return &l->k;
    case MLA_TAP_K_ROPE: return latent ? &l->v : &l->k;
    case MLA_TAP_V: return latent ? NULL : &l->v;
    default: return NULL;
    }
}

mla_status cal_fetch(cal_pass *p, const mla_tap *t, const float **out, mla_err *err)
{
    size_t n = (t->rows - 1) * t->ld + t->width;
    if (p->cap < n) {
        mla_free(p->host);
        p->cap = 0;
        p->host = mla_alloc_raw(n, sizeof *p->host, 1);
        if (!p->host) return mla_fail(err, MLA_ENOMEM, "%zu observed values", n);
        p->cap = n;
    }
    *out = p->host;
    return t->be->ops->download(t->be, p->host, t->data, n * sizeof *p->host, err);
}

/* Names the first row with a value that is not finite. */
static mla_status refuse_rows(const cal_pass *p, const mla_tap *t, const mla_cal_part *part, uint64_t bad, mla_err *err)
{
    char text[32];
    mla_range r;
    for (size_t i = 0; i < t->rows; i++) {
        TRY(t->be->ops->range(t->be, mla_at(t->data, i * t->ld), 1, t->width, t->ld, &r, err));
        if (r.nonfinite)
            return mla_fail(err, MLA_EFORMAT, "%s: %llu of %zu %s are not finite, first in token %zu of corpus row %zu",
                            mla_cal_layer_text(t->layer, text), (unsigned long long)bad, t->rows * t->width, part->name, i, p->row0 + t->seq);
    }
    return mla_fail(err, MLA_EINTERNAL, "%s: non-finite %s without a row", mla_cal_layer_text(t->layer, text), part->name);
}

static mla_status observe(void *ctx, const mla_tap *t, mla_err *err)
{
    cal_pass *p = ctx;
    mla_cal_part *part = cal_part(p->c, t);
    mla_range r;
    if (!part) return MLA_OK;
    TRY(t->be->ops->range(t->be, t->data, t->rows, t->width, t->ld, &r, err));
    if (r.nonfinite) return refuse_rows(p, t, part, r.nonfinite, err);
    part->amax = fmax(part->amax, r.amax);
    part->sum2 += r.sum2;
    part->n += r.n;
    if (!part->hist) return MLA_OK;
    const float *x;
    TRY(cal_fetch(p, t, &x, err));
    for (size_t i = 0; i < t->rows; i++)
        for (size_t j = 0; j < t->width; j++) part->hist[(mla_f32_bits(x[i * t->ld + j]) & 0x7fffffffu) >> CAL_BIN_SHIFT]++;
    return MLA_OK;
}

static mla_status check_opts(mla_cal_opts *o, size_t n, mla_err *err)
{
    if (o->headroom == 0) o->headroom = MLA_CAL_HEADROOM;
    if (!o->row_tokens) o->row_tokens = 1024;
    if (!o->run_tokens) o->run_tokens = 8192;
    if (!o->search_rows) o->search_rows = 8;
    if (!(o->headroom >= 1 && o->headroom <= 1024)) return mla_fail(err, MLA_EINVAL, "headroom %g: expected 1 to 1024", o->headroom);
    if (!(o->percentile >= 0 && o->percentile <= 100)) return mla_fail(err, MLA_EINVAL, "percentile %g: expected 0 to 100", o->percentile);
    if (!n) return mla_fail(err, MLA_EINVAL, "calibration needs tokens, and the corpus has none");
    return MLA_OK;
}

static mla_status new_layers(mla_cal *c, mla_rt *rt, mla_err *err)
{
    const mla_config *cfg = mla_rt_config(rt);
    c->layer = mla_alloc(cfg->layers + cfg->mtp_layers, sizeof *c->layer, 1);
    if (!c->layer) return mla_fail(err, MLA_ENOMEM, "ranges of %zu layers", cfg->layers);
    for (size_t l = 0; l < cfg->layers; l++)
        if (cfg->layer_kind[l] == MLA_LAYER_FULL) TRY(describe(c, rt, l, err));
    if (mla_rt_has_mtp(rt)) TRY(describe(c, rt, MLA_MTP(0), err));
    for (size_t i = 0; i < c->n && c->o.percentile > 0; i++) {
        mla_cal_part *part[2] = {&c->layer[i].k, &c->layer[i].v};
        for (size_t k = 0; k < 2; k++) {
            part[k]->hist = mla_alloc(CAL_BINS, sizeof *part[k]->hist, 1);
            if (!part[k]->hist) return mla_fail(err, MLA_ENOMEM, "histograms of %zu layers", c->n);
        }
    }
    return MLA_OK;
}

mla_status mla_cal_measure(mla_cal *out, mla_rt *rt, const int32_t *ids, size_t n, mla_cal_spelling s, const mla_cal_opts *o, mla_err *err)
{
    cal_rows x = {.c = out, .rt = rt, .ids = ids, .n = n, .tap = observe, .what = "measuring"};
    *out = (mla_cal){0};
    if (o) out->o = *o;
    TRY(check_opts(&out->o, n, err));
    out->keys16 = mla_rt_keys16(rt);
    TRY(new_layers(out, rt, err));
    size_t w = out->o.row_tokens;
    out->tokens = n;
    out->rows = n / w + (n % w != 0);
    size_t done = 0;
    mla_status st = out->o.keep ? cal_keep_load(out, &done, err) : MLA_OK;
    x.done = out->o.keep ? cal_keep_save : NULL;
    if (st == MLA_OK) st = cal_run_rows(&x, done, out->rows, err);
    if (st == MLA_OK) st = cal_limits(out, mla_rt_config(rt), s, err);
    if (st == MLA_OK && !out->o.no_search) {
        x.tap = cal_try, x.what = "aligning scales", x.done = NULL;
        st = cal_run_rows(&x, 0, out->rows < out->o.search_rows ? out->rows : out->o.search_rows, err);
        if (st == MLA_OK) st = cal_align(out, err);
    }
    return st;
}

void mla_cal_free(mla_cal *c)
{
    for (size_t i = 0; c->layer && i < c->n; i++) {
        mla_free(c->layer[i].k.hist);
        mla_free(c->layer[i].v.hist);
    }
    mla_free(c->layer);
    *c = (mla_cal){0};
}
