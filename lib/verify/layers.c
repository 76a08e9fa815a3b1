/* Comparing layers of a model with those of its base, each on the base's own residual stream. */
#include "verify/layers.h"

#include <math.h>

#include "base/alloc.h"

const char *mla_layer_part_name(mla_layer_part p)
{
    static const char *const NAME[] = {"mixer outputs", "queries", "keys", "values"};
    return NAME[p];
}

typedef struct { /* host copies of what the base computed, per layer; NULL: it did not */
    float *part[MLA_PARTS], *residual;
    size_t width[MLA_PARTS];
} base_layer;

typedef struct {
    base_layer *layer;     /* (layers) */
    mla_layer_errors *out; /* NULL: the base's own run */
    size_t layers, n, D;
} layer_ctx;

static int part_of(mla_tap_point p)
{
    return p == MLA_TAP_MIXER ? MLA_PART_MIXER : p == MLA_TAP_Q_NORM ? MLA_PART_Q : p == MLA_TAP_K_NORM ? MLA_PART_K : p == MLA_TAP_V ? MLA_PART_V : -1;
}

static mla_status fetch(float **out, const mla_tap *t, mla_err *err)
{
    size_t n = t->rows * t->width;
    *out = mla_alloc_raw(n, 1, sizeof **out);
    if (!*out) return mla_fail(err, MLA_ENOMEM, "outputs of layer %zu", t->layer);
    if (t->ld != t->width) return mla_fail(err, MLA_EINTERNAL, "layer %zu: a tap with rows %zu apart", t->layer, t->ld);
    return t->be->ops->download(t->be, *out, t->data, n * sizeof **out, err);
}

static double relative(const float *own, const float *base, size_t n)
{
    double d2 = 0, b2 = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)own[i] - (double)base[i];
        d2 += d * d;
        b2 += (double)base[i] * (double)base[i];
    }
    return b2 > 0 ? sqrt(d2 / b2) : sqrt(d2);
}

static double constant_share(const float *own, const float *base, size_t rows, size_t width)
{
    double all = 0, same = 0;
    for (size_t j = 0; j < width; j++) {
        double sum = 0;
        for (size_t i = 0; i < rows; i++) {
            double d = (double)own[i * width + j] - (double)base[i * width + j];
            sum += d;
            all += d * d;
        }
        same += sum * sum / (double)rows;
    }
    return all > 0 ? same / all : (double)NAN;
}

static mla_status on_base(void *ctx, const mla_tap *t, mla_err *err)
{
    layer_ctx *c = ctx;
    int p = part_of(t->point);
    if (t->point == MLA_TAP_LAYER) return fetch(&c->layer[t->layer].residual, t, err);
    if (p < 0) return MLA_OK;
    c->layer[t->layer].width[p] = t->width;
    return fetch(&c->layer[t->layer].part[p], t, err);
}

static mla_status on_model(void *ctx, const mla_tap *t, mla_err *err)
{
    layer_ctx *c = ctx;
    base_layer *b = &c->layer[t->layer];
    int p = part_of(t->point);
    /* the next layer starts from the base's stream */
    if (t->point == MLA_TAP_LAYER) return t->be->ops->upload(t->be, t->data, b->residual, c->n * c->D * sizeof(float), err);
    if (p < 0 || !b->part[p] || b->width[p] != t->width) return MLA_OK;
    float *own;
    mla_status st = fetch(&own, t, err);
    if (st == MLA_OK) c->out[t->layer].error[p] = relative(own, b->part[p], t->rows * t->width);
    if (st == MLA_OK && p == MLA_PART_MIXER) c->out[t->layer].constant = constant_share(own, b->part[p], t->rows, t->width);
    mla_free(own);
    return st;
}

static mla_status pass(mla_rt *rt, layer_ctx *c, const int32_t *ids, mla_err *err)
{
    mla_seq *seq;
    mla_status st = mla_seq_new(&seq, rt, c->n, err);
    if (st != MLA_OK) return st;
    mla_job job = {.seq = seq, .ids = ids, .T = c->n, .logits_from = c->n};
    st = mla_rt_run(rt, &job, 1, c->out ? on_model : on_base, c, err);
    mla_seq_free(seq);
    return st;
}

mla_status mla_layers_compare(mla_layer_errors *out, mla_rt *base, mla_rt *model, const int32_t *ids, size_t n, mla_err *err)
{
    const mla_config *b = mla_rt_config(base), *m = mla_rt_config(model);
    if (b->layers != m->layers || b->hidden != m->hidden)
        return mla_fail(err, MLA_EFORMAT, "the base has %zu layers of width %zu, the model %zu of width %zu", b->layers, b->hidden, m->layers, m->hidden);
    layer_ctx c = {.layers = b->layers, .n = n, .D = b->hidden};
    c.layer = mla_alloc(b->layers, 1, sizeof *c.layer);
    mla_status st = c.layer ? pass(base, &c, ids, err) : mla_fail(err, MLA_ENOMEM, "outputs of %zu layers", b->layers);
    c.out = out;
    for (size_t l = 0; l < b->layers; l++)
        for (size_t p = 0; p < MLA_PARTS; p++) out[l].error[p] = out[l].constant = NAN;
    if (st == MLA_OK) st = pass(model, &c, ids, err);
    for (size_t l = 0; c.layer && l < b->layers; l++) {
        for (size_t p = 0; p < MLA_PARTS; p++) mla_free(c.layer[l].part[p]);
        mla_free(c.layer[l].residual);
    }
    mla_free(c.layer);
    return st;
}
