/* Taps -> moments -> layer sums. */
#include "retrofit/stats/collect.h"

#include <string.h>

#include "base/alloc.h"
#include "retrofit/stats/device.h"
#include "retrofit/stats/divisor.h"
#include "retrofit/stats/moments.h"
#include "retrofit/stats/settle.h"
#include "retrofit/stats/tap_host.h"

#define MIN_ROW 32   /* tokens: shorter rests teach little about attention */
#define GATE_ROWS 8  /* rows of the first pass */

struct mla_collector {
    mla_collect_opts o;
    const mla_config *cfg;
    size_t layers;
    double **R;             /* per full-attention layer: (H, d, d) */
    mla_moments *mom;       /* of the host */
    mla_dev_moments *dev;   /* of the device instead, which has them; NULL otherwise */
    double *inv_freq;
    float *host;            /* q, q_rot, k_rot, v, o, gate, y of one row */
    double *w;              /* (T) */
    float **gain;           /* layout P: per full-attention layer, the key norm's gain on the latent's dims; NULL otherwise */
    float *inv2;            /* layout P: (T, G) */
    mla_mem *dev_y, *dev_w;
    mla_mem **dev_C;        /* per layer, while rows run: C, sum and shift of stats.h, one after another; NULL: not there yet */
    mla_seq **seq;
    /* of the run in progress */
    mla_stats *out;
    bool gate_only;
};

static size_t index_of_layer(const mla_stats *s, size_t layer)
{
    for (size_t i = 0; i < s->layers; i++)
        if (s->layer[i].layer == layer) return i;
    return s->layers;
}

/* y (T, n): keys' latent dims of all KV heads, then all values. k is before (rebuild) or beyond (N, P) the rotation, in
 * layout P before its norm, too. */
static void features(float *y, const float *k, const float *v, size_t T, const mla_layer_stats *l)
{
    size_t G = l->G, d = l->d, dk = l->dk, skip = d - dk;
    for (size_t t = 0; t < T; t++) {
        for (size_t g = 0; g < G; g++) memcpy(y + t * l->n + g * dk, k + (t * G + g) * d + skip, dk * sizeof *y);
        memcpy(y + t * l->n + G * dk, v + t * G * d, G * d * sizeof *y);
    }
}

/* The provisional mean that keeps centred sums accurate: the plain mean of the first row seen. */
static void settle_shift(mla_layer_stats *l, const float *y, size_t T)
{
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < l->n; i++) l->shift[i] += y[t * l->n + i];
    for (size_t i = 0; i < l->n; i++) l->shift[i] /= (double)T;
}

/* The layer's sums move to the device with the first row that needs them. */
static mla_status to_device(mla_collector *c, const mla_layer_stats *l, size_t i, mla_err *err)
{
    mla_backend *be = c->o.be;
    const mla_backend_ops *op = be->ops;
    size_t n = l->n;
    if (c->dev_C[i]) return MLA_OK;
    mla_status st = op->alloc(be, &c->dev_C[i], (n + 2) * n * sizeof *l->C, err);
    if (st == MLA_OK) st = op->upload(be, c->dev_C[i], l->C, n * n * sizeof *l->C, err);
    if (st == MLA_OK) st = op->upload(be, mla_at_bytes(c->dev_C[i], n * n * sizeof *l->C), l->sum, n * sizeof *l->sum, err);
    if (st == MLA_OK) st = op->upload(be, mla_at_bytes(c->dev_C[i], (n + 1) * n * sizeof *l->C), l->shift, n * sizeof *l->shift, err);
    return st;
}
/* ... and come back when a pass over rows ends. */
static mla_status from_device(mla_collector *c, mla_err *err)
{
    mla_backend *be = c->o.be;
    mla_status st = MLA_OK;
    for (size_t i = 0; i < c->layers; i++) {
        mla_layer_stats *l = &c->out->layer[i];
        size_t n = l->n;
        if (c->dev && st == MLA_OK) st = mla_dev_moments_take(c->dev, i, l, err);
        if (!c->dev_C[i]) continue;
        if (st == MLA_OK) st = be->ops->download(be, l->C, c->dev_C[i], n * n * sizeof *l->C, err);
        if (st == MLA_OK) st = be->ops->download(be, l->sum, mla_at_bytes(c->dev_C[i], n * n * sizeof *l->C), n * sizeof *l->sum, err);
        be->ops->free(be, c->dev_C[i]);
        c->dev_C[i] = NULL;
    }
    return st;
}

static mla_moment_opts moment_opts(const mla_collector *c)
{
    return (mla_moment_opts){.attn_scale = mla_config_attn_scale(c->cfg), .rot = c->cfg->rope.rot, .inv_freq = c->inv_freq,
                             .rope_gain = c->cfg->rope.attention_factor};
}

/* Of dev_y and dev_w. */
static mla_status add_covariance(mla_collector *c, const mla_layer_stats *l, size_t i, size_t T, mla_err *err)
{
    mla_backend *be = c->o.be;
    size_t n = l->n;
    mla_status st = to_device(c, l, i, err);
    mla_gram_args a = {.acc = c->dev_C[i], .sum = mla_at_bytes(c->dev_C[i], n * n * sizeof *l->C), .x = c->dev_y, .ldx = n, .T = T, .n = n, .w = c->dev_w,
                       .shift = mla_at_bytes(c->dev_C[i], (n + 1) * n * sizeof *l->C), .split = c->o.split};
    return st == MLA_OK ? be->ops->gram(be, &a, err) : st;
}

/* A row whose moments the device takes: nothing but the first row's features, and in layout P the keys, comes to the host. */
static mla_status on_device(mla_collector *c, mla_layer_stats *l, size_t i, const mla_tap_attn *a, size_t T, mla_err *err)
{
    size_t hk = T * l->G * l->d;
    const mla_mem *k = c->gain ? a->k_pre : a->k;
    float *y = c->host;
    l->tokens += (double)T;
    if (c->gate_only) return mla_dev_moments_add(c->dev, i, a, T, NULL, NULL, NULL, c->dev_w, err);
    mla_status st = c->gain ? mla_tap_fetch(c->o.be, y, k, hk, err) : MLA_OK;
    if (c->gain && st == MLA_OK) mla_divisor_add(l, c->inv2, y, T, c->cfg->rms_eps);
    if (st == MLA_OK) st = mla_dev_moments_add(c->dev, i, a, T, c->R[i], c->gain ? c->gain[i] + (l->d - l->dk) : NULL, c->inv2, c->dev_w, err);
    if (st == MLA_OK) st = mla_dev_features(c->dev, c->dev_y, k, a->v, T, err);
    if (st == MLA_OK && l->tokens == (double)T && (st = c->o.be->ops->download(c->o.be, y, c->dev_y, T * l->n * sizeof *y, err)) == MLA_OK)
        settle_shift(l, y, T);
    return st == MLA_OK ? add_covariance(c, l, i, T, err) : st;
}

static mla_status on_attention(mla_collector *c, const mla_tap *tap, mla_err *err)
{
    size_t i = index_of_layer(c->out, tap->layer);
    if (i == c->out->layers) return MLA_OK; /* the MTP head */
    mla_layer_stats *l = &c->out->layer[i];
    const mla_tap_attn *a = tap->attn;
    size_t T = tap->rows, hq = T * l->H * l->d, hk = T * l->G * l->d;
    if (a->pos0 != 0) return mla_fail(err, MLA_EINTERNAL, "statistics need whole rows, got a chunk at %zu", a->pos0);
    if (c->dev) return on_device(c, l, i, a, T, err) == MLA_OK ? MLA_OK : mla_wrap(err, "layer %zu", l->layer);
    float *q = c->host, *qr = q + hq, *k = qr + hq, *kr = k + hk, *v = kr + hk, *o = v + hk, *g = o + hq, *y = g + hq;
    mla_status st = MLA_OK;
    if (c->cfg->attn_gate && !c->o.plain) st = mla_tap_fetch_gate(c->o.be, g, a, T, l->H, l->d, err);
    mla_row row = {.T = T, .q = q, .q_rot = qr, .k_rot = kr, .v = v, .o = o, .gate = c->cfg->attn_gate ? g : NULL};
    if (c->gate_only) {
        if (st == MLA_OK) mla_moments_gate(c->mom, l, &row);
        l->tokens += (double)T;
        return st;
    }
    bool plain = c->o.plain;
    if (st == MLA_OK && !plain) st = mla_tap_fetch(c->o.be, q, a->q, hq, err);
    if (st == MLA_OK && !plain) st = mla_tap_fetch(c->o.be, qr, a->q_rot, hq, err);
    if (st == MLA_OK) st = mla_tap_fetch(c->o.be, k, c->gain ? a->k_pre : a->k, hk, err);
    if (st == MLA_OK && !plain) st = mla_tap_fetch(c->o.be, kr, a->k_rot, hk, err);
    if (st == MLA_OK) st = mla_tap_fetch(c->o.be, v, a->v, hk, err);
    if (st == MLA_OK && !plain) st = mla_tap_fetch(c->o.be, o, a->o, hq, err);
    if (st != MLA_OK) return mla_wrap(err, "layer %zu", l->layer);
    mla_moment_opts mo = moment_opts(c);
    if (c->gain) {
        mla_divisor_add(l, c->inv2, k, T, c->cfg->rms_eps);
        row.inv2 = c->inv2;
        mo.gain = c->gain[i] + (l->d - l->dk);
    }
    for (size_t t = 0; plain && t < T; t++) c->w[t] = 1;
    if (!plain) mla_moments_add(c->mom, l, &row, c->R[i], &mo, c->w);
    features(y, k, v, T, l);
    if (l->tokens == 0) settle_shift(l, y, T);
    const mla_backend_ops *op = c->o.be->ops;
    st = op->upload(c->o.be, c->dev_y, y, T * l->n * sizeof *y, err);
    if (st == MLA_OK) st = op->upload(c->o.be, c->dev_w, c->w, T * sizeof *c->w, err);
    if (st == MLA_OK) st = add_covariance(c, l, i, T, err);
    if (st != MLA_OK) return mla_wrap(err, "layer %zu", l->layer);
    for (size_t t = 0; t < T; t++) l->wsum += c->w[t];
    l->tokens += (double)T;
    return MLA_OK;
}

static mla_status tap_fn(void *ctx, const mla_tap *t, mla_err *err)
{
    return t->point == MLA_TAP_ATTN ? on_attention(ctx, t, err) : MLA_OK;
}

static mla_status run_rows(mla_collector *c, mla_stats *out, const int32_t *ids, size_t n, mla_progress *prog, mla_err *err)
{
    size_t rt = c->o.row_tokens, batch = c->o.rows_per_run;
    mla_status st = MLA_OK;
    mla_job *jobs = mla_alloc(batch, 1, sizeof *jobs);
    if (!jobs) return mla_fail(err, MLA_ENOMEM, "%zu jobs", batch);
    c->out = out;
    for (size_t at = 0; st == MLA_OK && at < n;) {
        size_t nb = 0, tokens = 0;
        for (; nb < batch && at < n; nb++) {
            size_t T = n - at < rt ? n - at : rt;
            if (T < MIN_ROW && T < rt) {
                at = n;
                break;
            }
            mla_seq_reset(c->seq[nb]);
            jobs[nb] = (mla_job){.seq = c->seq[nb], .ids = ids + at, .T = T, .logits_from = T};
            at += T;
            tokens += T;
        }
        if (nb == 0) break;
        st = mla_rt_run(c->o.rt, jobs, nb, tap_fn, c, err);
        if (!c->gate_only) {
            out->rows += nb;
            out->tokens += (double)tokens;
        }
        if (prog) mla_progress_add(prog, (double)tokens);
    }
    mla_free(jobs);
    if (st == MLA_OK) return from_device(c, err);
    mla_err ignored; /* the sums of a failed pass are not asked for; only the memory is */
    (void)!from_device(c, &ignored);
    return st;
}

static mla_status device_scratch(mla_collector *c, const mla_layer_stats *l, mla_err *err)
{
    mla_backend *be = c->o.be;
    size_t T = c->o.row_tokens, n = l->n;
    mla_status st = be->ops->alloc(be, &c->dev_y, T * n * 4, err);
    if (st == MLA_OK) st = be->ops->alloc(be, &c->dev_w, T * 8, err);
    return st;
}

mla_status mla_collector_new(mla_collector **out, const mla_collect_opts *o, const int32_t *first_ids, size_t n, mla_err *err)
{
    mla_collector *c = mla_alloc(1, 1, sizeof *c);
    if (!c) return mla_fail(err, MLA_ENOMEM, "collector");
    c->o = *o;
    c->cfg = mla_rt_config(o->rt);
    if (!c->o.rows_per_run) c->o.rows_per_run = 1;
    mla_stats probe = {0};
    mla_status st = mla_stats_new(&probe, c->cfg, o->layout, o->pool, err);
    if (st != MLA_OK) goto done;
    const mla_layer_stats *l = probe.layer;
    size_t T = c->o.row_tokens;
    if (probe.layers == 0 || T < MIN_ROW) {
        st = mla_fail(err, MLA_EINVAL, "statistics need full-attention layers and rows of at least %d tokens, got %zu layers and %zu tokens",
                      MIN_ROW, probe.layers, T);
        goto done;
    }
    c->layers = probe.layers;
    c->R = mla_alloc(c->layers, 1, sizeof *c->R);
    c->dev_C = mla_alloc(c->layers, 1, sizeof *c->dev_C);
    c->inv_freq = mla_alloc(c->cfg->rope.rot / 2 + 1, 1, sizeof *c->inv_freq);
    c->host = mla_alloc_raw(T, 4 * l->H * l->d + 3 * l->G * l->d + l->n, sizeof *c->host);
    c->w = mla_alloc(T, 1, sizeof *c->w);
    c->seq = mla_alloc(c->o.rows_per_run, 1, sizeof(mla_seq *));
    if (!c->R || !c->dev_C || !c->inv_freq || !c->host || !c->w || !c->seq) {
        st = mla_fail(err, MLA_ENOMEM, "collector for rows of %zu tokens", T);
        goto done;
    }
    mla_rope_inv_freq(c->cfg, T, c->inv_freq);
    if (o->layout == MLA_LAYOUT_P) {
        c->gain = mla_alloc(c->layers, 1, sizeof *c->gain);
        c->inv2 = mla_alloc(T, c->cfg->kv_heads, sizeof *c->inv2);
        st = c->gain && c->inv2 ? mla_settle_gains(c->gain, o->model, &probe, err) : mla_fail(err, MLA_ENOMEM, "divisors of %zu layers", c->layers);
        if (st != MLA_OK) goto done;
    }
    mla_moment_opts mo = moment_opts(c);
    st = o->be->ops->moments && !o->plain ? mla_dev_moments_new(&c->dev, o->be, c->layers, l, T, &mo, err) : mla_moments_new(&c->mom, l, T, o->pool, err);
    if (st != MLA_OK || (st = device_scratch(c, l, err)) != MLA_OK) goto done;
    for (size_t i = 0; st == MLA_OK && i < c->o.rows_per_run; i++) st = mla_seq_new(&c->seq[i], o->rt, T, err);
    if (st == MLA_OK && c->cfg->attn_gate && !o->plain) {
        c->gate_only = true;
        st = run_rows(c, &probe, first_ids, n < GATE_ROWS * T ? n : GATE_ROWS * T, NULL, err);
        c->gate_only = false;
    }
    if (st == MLA_OK && !o->plain) st = mla_settle_roots(c->R, o->model, &probe, o->pool, err);
done:
    mla_stats_free(&probe);
    if (st == MLA_OK) *out = c;
    else mla_collector_free(c);
    return st;
}

void mla_collector_free(mla_collector *c)
{
    if (!c) return;
    for (size_t i = 0; c->R && i < c->layers; i++) mla_free(c->R[i]);
    for (size_t i = 0; c->gain && i < c->layers; i++) mla_free(c->gain[i]);
    mla_free(c->gain);
    mla_free(c->inv2);
    for (size_t i = 0; c->seq && i < c->o.rows_per_run; i++) mla_seq_free(c->seq[i]);
    mla_mem *dev[] = {c->dev_y, c->dev_w};
    for (size_t i = 0; i < sizeof dev / sizeof *dev; i++)
        if (dev[i]) c->o.be->ops->free(c->o.be, dev[i]);
    mla_moments_free(c->mom);
    mla_dev_moments_free(c->dev);
    mla_free(c->R);
    mla_free(c->dev_C);
    mla_free(c->seq);
    mla_free(c->inv_freq);
    mla_free(c->host);
    mla_free(c->w);
    mla_free(c);
}

mla_status mla_collect(mla_collector *c, mla_stats *out, const int32_t *ids, size_t n, mla_progress *prog, mla_err *err)
{
    out->row_tokens = c->o.row_tokens;
    out->plain = c->o.plain;
    return run_rows(c, out, ids, n, prog, err);
}
