/* Where within an octave a scale stands. The rounding error of a float format does not depend on it for values spread
 * evenly, but normed keys have large, nearly constant channels, and whether these fall on or between two FP8 values shifts
 * all their errors together. Tried where it counts: the change of the layer's own attention output, gate included. */
#include <math.h>

#include "calibrate/parts.h"

/* The trial's output (n), its sums, and a gate where there is one to keep: from one layer to the next. */
static mla_status room(cal_pass *p, mla_backend *be, bool gate, size_t n, mla_err *err)
{
    p->be = be;
    mla_status st = p->sums ? MLA_OK : be->ops->alloc(be, &p->sums, 2 * CAL_TRIES * sizeof(double), err);
    if (st != MLA_OK || p->o2_cap >= n) return st;
    be->ops->free(be, p->o2);
    be->ops->free(be, p->inv);
    p->o2 = p->inv = NULL, p->o2_cap = 0;
    st = be->ops->alloc(be, &p->o2, n * sizeof(float), err);
    if (st == MLA_OK && gate && be->ops->keeps_gate) st = be->ops->alloc(be, &p->inv, n * sizeof(double), err);
    if (st == MLA_OK) p->o2_cap = n;
    return st;
}

/* Every alignment of one part while the other stands at its lowest: sum k CAL_TRIES + j, over the row of (gate (o2 - o))^2. */
static mla_status try_layer(const cal_pass *p, const mla_cal_layer *l, const mla_tap *t, mla_err *err)
{
    const mla_config *c = mla_rt_config(p->rt);
    const mla_tap_attn *a = t->attn;
    mla_change_args x = {.a = a->o, .b = p->o2, .gate = a->gate, .gate_ld = a->gate_ld, .gate_h = a->gate_h, .T = t->rows, .H = c->heads, .d = c->head_dim, .inv = p->inv};
    mla_status st = MLA_OK;
    for (size_t k = 0; k < 2; k++) {
        const mla_cal_part *part = k ? &l->v : &l->k;
        for (size_t j = 0; part->name && j < CAL_TRIES && st == MLA_OK; j++) {
            mla_kv_scale s = {true, l->k.scale, l->v.scale};
            if (k) s.v = cal_aligned(p->c, part, j);
            else s.k = cal_aligned(p->c, part, j);
            st = a->with_fp8(a, s, p->o2, err);
            x.sum = mla_at_bytes(p->sums, (k * CAL_TRIES + j) * sizeof(double));
            if (st == MLA_OK) st = t->be->ops->gated_change(t->be, &x, err);
            x.inv_set = x.inv != NULL;
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
    const mla_backend_ops *op = t->be->ops;
    double sum[2][CAL_TRIES]; /* of this row: rows are added in order, whoever ran them */
    mla_status st = room(p, t->be, t->attn->gate, t->rows * c->heads * c->head_dim, err);
    if (st == MLA_OK) st = op->zero(t->be, p->sums, sizeof sum, err);
    if (st == MLA_OK) st = try_layer(p, l, t, err);
    if (st == MLA_OK) st = op->download(t->be, sum, p->sums, sizeof sum, err);
    for (size_t j = 0; j < CAL_TRIES && st == MLA_OK; j++) l->k.error[j] += sum[0][j], l->v.error[j] += sum[1][j];
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
