/* Comparing layers of a model with those of its base. */
#include "verify/layers.h"

#include <math.h>

#include "base/alloc.h"

typedef struct {
    float *base;   /* (layers, n, D); NULL in the base's own run */
    float *row;    /* (n, D): the layer in progress */
    double *error; /* (layers) or NULL: written down instead of compared */
    size_t n, D;
} layer_ctx;

static mla_status on_tap(void *ctx, const mla_tap *t, mla_err *err)
{
    layer_ctx *c = ctx;
    if (t->point != MLA_TAP_MIXER) return MLA_OK;
    size_t n = c->n * c->D;
    float *own = c->base + t->layer * n;
    if (!c->error) return t->be->ops->download(t->be, own, t->data, n * sizeof *own, err);
    mla_status st = t->be->ops->download(t->be, c->row, t->data, n * sizeof *c->row, err);
    double d2 = 0, b2 = 0;
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        double d = (double)c->row[i] - (double)own[i];
        d2 += d * d;
        b2 += (double)own[i] * (double)own[i];
    }
    c->error[t->layer] = b2 > 0 ? sqrt(d2 / b2) : sqrt(d2);
    return st;
}

static mla_status pass(mla_rt *rt, layer_ctx *c, const int32_t *ids, mla_err *err)
{
    mla_seq *seq;
    mla_status st = mla_seq_new(&seq, rt, c->n, err);
    if (st != MLA_OK) return st;
    mla_job job = {.seq = seq, .ids = ids, .T = c->n, .logits_from = c->n};
    st = mla_rt_run(rt, &job, 1, on_tap, c, err);
    mla_seq_free(seq);
    return st;
}

mla_status mla_layers_compare(double *error, mla_rt *base, mla_rt *model, const int32_t *ids, size_t n, mla_err *err)
{
    const mla_config *b = mla_rt_config(base), *m = mla_rt_config(model);
    if (b->layers != m->layers || b->hidden != m->hidden)
        return mla_fail(err, MLA_EFORMAT, "the base has %zu layers of width %zu, the model %zu of width %zu", b->layers, b->hidden, m->layers, m->hidden);
    layer_ctx c = {.n = n, .D = b->hidden};
    c.base = mla_alloc(b->layers, n * c.D, sizeof *c.base);
    c.row = mla_alloc(n, c.D, sizeof *c.row);
    mla_status st = c.base && c.row ? pass(base, &c, ids, err) : mla_fail(err, MLA_ENOMEM, "outputs of %zu layers", b->layers);
    c.error = error;
    if (st == MLA_OK) st = pass(model, &c, ids, err);
    mla_free(c.base);
    mla_free(c.row);
    return st;
}
