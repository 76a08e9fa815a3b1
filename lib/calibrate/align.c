/* Where within an octave a scale stands. The rounding error of a float format does not depend on it for values spread
 * evenly, but normed keys have large, nearly constant channels, and whether these fall on or between two FP8 values shifts
 * all their errors together. Tried where it counts: the change of the layer's own attention output, gate included. */
#include <math.h>

#include "base/alloc.h"
#include "calibrate/parts.h"

static mla_status room(cal_pass *p, size_t n, size_t gate, mla_err *err)
{
    size_t most = n > gate ? n : gate;
    if (p->o_cap >= most) return MLA_OK;
    mla_free(p->o);
    mla_free(p->o2);
    mla_free(p->gate);
    p->o = mla_alloc_raw(most, sizeof *p->o, 1);
    p->o2 = mla_alloc_raw(most, sizeof *p->o2, 1);
    p->gate = mla_alloc_raw(most, sizeof *p->gate, 1);
    p->o_cap = p->o && p->o2 && p->gate ? most : 0;
    return p->o_cap ? MLA_OK : mla_fail(err, MLA_ENOMEM, "attention outputs of %zu values", most);
}

typedef struct { /* one layer's attention on one row of the corpus */
    const mla_tap *t;
    size_t H, d;
    mla_mem *o2;
    bool gated;
} trial;

/* Sum over the row of (gate (o2 - o))^2 for scales s. */
static mla_status change(cal_pass *p, const trial *x, mla_kv_scale s, double *sum, mla_err *err)
{
    const mla_tap_attn *a = x->t->attn;
    size_t n = x->t->rows * x->H * x->d;
    mla_status st = a->with_fp8(a, s, x->o2, err);
    if (st == MLA_OK) st = x->t->be->ops->download(x->t->be, p->o2, x->o2, n * sizeof *p->o2, err);
    if (st != MLA_OK) return st;
    for (size_t th = 0; th < x->t->rows * x->H; th++) {
        const float *o = p->o + th * x->d, *o2 = p->o2 + th * x->d, *g = p->gate + th / x->H * a->gate_ld + th % x->H * a->gate_h;
        for (size_t j = 0; j < x->d; j++) {
            double e = (double)o2[j] - o[j];
            if (x->gated) e /= 1 + exp(-(double)g[j]);
            *sum += e * e;
        }
    }
    return MLA_OK;
}

/* Every alignment of one part while the other stands at its lowest. */
static mla_status try_layer(cal_pass *p, mla_cal_layer *l, const trial *x, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t k = 0; k < 2; k++) {
        mla_cal_part *part = k ? &l->v : &l->k;
        for (size_t j = 0; part->name && j < CAL_TRIES && st == MLA_OK; j++) {
            mla_kv_scale s = {true, l->k.scale, l->v.scale};
            if (k) s.v = cal_aligned(p->c, part, j);
            else s.k = cal_aligned(p->c, part, j);
            double sum = 0; /* of this row: rows are added in order, whoever ran them */
            st = change(p, x, s, &sum, err);
            part->error[j] += sum;
        }
    }
    return st;
}

mla_status cal_try(void *ctx, const mla_tap *t, mla_err *err)
{
    cal_pass *p = ctx;
    mla_cal_layer *l = cal_layer(p->c, t->layer);
    if (t->point != MLA_TAP_ATTN || !l) return MLA_OK;
    const mla_config *c = mla_rt_config(p->rt);
    const mla_tap_attn *a = t->attn;
    trial x = {.t = t, .H = c->heads, .d = c->head_dim, .gated = a->gate != NULL};
    size_t n = t->rows * x.H * x.d, gate = x.gated ? (t->rows - 1) * a->gate_ld + (x.H - 1) * a->gate_h + x.d : 0;
    mla_status st = room(p, n, gate, err);
    if (st == MLA_OK) st = t->be->ops->download(t->be, p->o, a->o, n * sizeof *p->o, err);
    if (st == MLA_OK && gate) st = t->be->ops->download(t->be, p->gate, a->gate, gate * sizeof *p->gate, err);
    if (st == MLA_OK) st = t->be->ops->alloc(t->be, &x.o2, n * sizeof *p->o, err);
    if (st != MLA_OK) return st;
    st = try_layer(p, l, &x, err);
    t->be->ops->free(t->be, x.o2);
    return st;
}

static mla_status take_best(const mla_cal *c, size_t layer, mla_cal_part *p, mla_err *err)
{
    char text[32];
    size_t best = 0;
    if (!p->name || p->error[0] == 0) return MLA_OK; /* stored DeepSeek attention has no trial */
    for (size_t j = 0; j < CAL_TRIES; j++) {
        if (!isfinite(p->error[j]))
            return mla_fail(err, MLA_EFORMAT, "%s: the attention output with FP8 %s is not finite", mla_cal_layer_text(layer, text), p->name);
        if (p->error[j] < p->error[best]) best = j;
    }
    p->scale = cal_aligned(c, p, best);
    return MLA_OK;
}

mla_status cal_align(mla_cal *c, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; i < c->n && st == MLA_OK; i++) {
        mla_cal_layer *l = &c->layer[i];
        st = take_best(c, l->layer, &l->k, err);
        if (st == MLA_OK) st = take_best(c, l->layer, &l->v, err);
        if (!l->v.name) l->v.scale = l->k.scale;
    }
    return st;
}
