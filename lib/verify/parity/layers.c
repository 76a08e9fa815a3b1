/* Comparing layers of a model with those of its base, each on the base's own residual stream. */
#include "verify/parity/layers.h"

#include <math.h>
#include <stdbool.h>

#include "base/alloc.h"

const char *mla_layer_part_name(mla_layer_part p)
{
    static const char *const NAME[] = {"mixer outputs", "queries", "keys", "values"};
    return NAME[p];
}

#define ROWS 8 /* sequences of their own, spread evenly over the text */
#define ROW_TOKENS 64

typedef struct { /* of one layer: what the base computed in this row (host copies, NULL: it did not), and sums over all rows */
    float *part[MLA_PARTS], *residual;
    size_t width[MLA_PARTS];
    double d2[MLA_PARTS], b2[MLA_PARTS]; /* of the difference, of the base */
    bool seen[MLA_PARTS];
    double *sum;                         /* (D) mixer differences over all tokens */
    double own;                          /* sum over rows of |row's sum|^2 */
} layer_sums;

typedef struct {
    layer_sums *layer;
    size_t layers, n, D; /* n: tokens of a row */
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

static void add_difference(layer_sums *l, int p, const float *own, size_t n)
{
    l->seen[p] = true;
    for (size_t i = 0; i < n; i++) {
        double b = (double)l->part[p][i], d = (double)own[i] - b;
        l->d2[p] += d * d;
        l->b2[p] += b * b;
    }
}

static void add_constant(layer_sums *l, const float *own, size_t rows, size_t width)
{
    for (size_t j = 0; j < width; j++) {
        double sum = 0;
        for (size_t i = 0; i < rows; i++) sum += (double)own[i * width + j] - (double)l->part[MLA_PART_MIXER][i * width + j];
        l->sum[j] += sum;
        l->own += sum * sum;
    }
}

/* |mu|^2 of an error mu that all tokens share, over their mean |d|^2. Products of different rows alone, so that errors which
 * are zero in the mean give zero in the mean, however much attention spreads each of them over its own row. */
static double constant_share(const layer_sums *l, size_t D, size_t rows, size_t n)
{
    double all = 0;
    if (rows < 2 || !(l->d2[MLA_PART_MIXER] > 0)) return (double)NAN;
    for (size_t j = 0; j < D; j++) all += l->sum[j] * l->sum[j];
    double mu2 = (all - l->own) / ((double)rows * (double)(rows - 1) * (double)n * (double)n);
    return fmax(0, mu2 * (double)rows * (double)n / l->d2[MLA_PART_MIXER]);
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
    layer_sums *l = &c->layer[t->layer];
    int p = part_of(t->point);
    /* the next layer starts from the base's stream */
    if (t->point == MLA_TAP_LAYER) return t->be->ops->upload(t->be, t->data, l->residual, c->n * c->D * sizeof(float), err);
    if (p < 0 || !l->part[p] || l->width[p] != t->width) return MLA_OK;
    float *own;
    mla_status st = fetch(&own, t, err);
    if (st == MLA_OK) add_difference(l, p, own, t->rows * t->width);
    if (st == MLA_OK && p == MLA_PART_MIXER) add_constant(l, own, t->rows, t->width);
    mla_free(own);
    return st;
}

static mla_status pass(mla_rt *rt, layer_ctx *c, const int32_t *ids, mla_tap_fn tap, mla_err *err)
{
    mla_seq *seq;
    mla_status st = mla_seq_new(&seq, rt, c->n, err);
    if (st != MLA_OK) return st;
    mla_job job = {.seq = seq, .ids = ids, .T = c->n, .logits_from = c->n};
    st = mla_rt_run(rt, &job, 1, tap, c, err);
    mla_seq_free(seq);
    return st;
}

static void drop_row(layer_ctx *c)
{
    for (size_t l = 0; c->layer && l < c->layers; l++) {
        for (size_t p = 0; p < MLA_PARTS; p++) {
            mla_free(c->layer[l].part[p]);
            c->layer[l].part[p] = NULL;
        }
        mla_free(c->layer[l].residual);
        c->layer[l].residual = NULL;
    }
}

static mla_status sums_new(layer_ctx *c, mla_err *err)
{
    c->layer = mla_alloc(c->layers, 1, sizeof *c->layer);
    for (size_t l = 0; c->layer && l < c->layers; l++)
        if (!(c->layer[l].sum = mla_alloc(c->D, 1, sizeof(double)))) return mla_fail(err, MLA_ENOMEM, "sums of layer %zu", l);
    return c->layer ? MLA_OK : mla_fail(err, MLA_ENOMEM, "outputs of %zu layers", c->layers);
}

mla_status mla_layers_compare(mla_layer_errors *out, mla_rt *base, mla_rt *model, const int32_t *ids, size_t n, mla_err *err)
{
    const mla_config *b = mla_rt_config(base), *m = mla_rt_config(model);
    if (b->layers != m->layers || b->hidden != m->hidden)
        return mla_fail(err, MLA_EFORMAT, "the base has %zu layers of width %zu, the model %zu of width %zu", b->layers, b->hidden, m->layers, m->hidden);
    size_t rows = n < 2 * ROWS ? 1 : ROWS, apart = n / rows;
    layer_ctx c = {.layers = b->layers, .n = apart < ROW_TOKENS ? apart : ROW_TOKENS, .D = b->hidden};
    mla_status st = sums_new(&c, err);
    for (size_t r = 0; r < rows && st == MLA_OK; r++) {
        st = pass(base, &c, ids + r * apart, on_base, err);
        if (st == MLA_OK) st = pass(model, &c, ids + r * apart, on_model, err);
        drop_row(&c);
    }
    for (size_t l = 0; l < b->layers; l++) {
        const layer_sums *s = st == MLA_OK ? &c.layer[l] : NULL;
        for (size_t p = 0; p < MLA_PARTS; p++) out[l].error[p] = s && s->seen[p] ? sqrt(s->b2[p] > 0 ? s->d2[p] / s->b2[p] : s->d2[p]) : (double)NAN;
        out[l].constant = s ? constant_share(s, c.D, rows, c.n) : (double)NAN;
    }
    for (size_t l = 0; c.layer && l < c.layers; l++) mla_free(c.layer[l].sum);
    mla_free(c.layer);
    return st;
}
