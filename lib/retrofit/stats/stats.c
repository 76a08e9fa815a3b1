/* Allocation, merging and reading of layer statistics. */
#include "retrofit/stats/stats.h"

#include <string.h>

#include "base/alloc.h"
#include "io/sha256.h"
#include "retrofit/solve/metric.h"

size_t mla_stats_arrays(const mla_layer_stats *l, mla_stats_array out[MLA_STATS_ARRAYS])
{
    size_t n = 6;
    const mla_stats_array a[] = {
        {"shift", l->shift, l->n},
        {"sum", l->sum, l->n},
        {"cov", l->C, l->n * l->n},
        {"query", l->M, l->G * l->dk * l->dk},
        {"kappa", l->kappa, l->H * l->H},
        {"gate", l->GG, l->gate_blocks * l->gate_dim * l->gate_dim},
    };
    memcpy(out, a, sizeof a);
    if (l->half) out[n++] = (mla_stats_array){"plain query", l->Q, l->H * l->dk * l->dk};
    if (l->half) out[n++] = (mla_stats_array){"turn", l->turn, l->H * l->half * 3};
    if (l->divisor) out[n++] = (mla_stats_array){"divisor", l->divisor, l->G};
    return n;
}

mla_layout mla_stats_layout(mla_layout l)
{
    return l == MLA_LAYOUT_ABSORBED || l == MLA_LAYOUT_DEEPSEEK ? MLA_LAYOUT_REBUILD : l;
}

mla_status mla_stats_alloc(mla_layer_stats *l, bool divisors, mla_err *err)
{
    l->shift = mla_alloc_raw(l->n, 1, sizeof(double));
    l->sum = mla_alloc_raw(l->n, 1, sizeof(double));
    l->C = mla_alloc_raw(l->n, l->n, sizeof(double));
    l->M = mla_alloc_raw(l->G, l->dk * l->dk, sizeof(double));
    l->kappa = mla_alloc_raw(l->H, l->H, sizeof(double));
    l->GG = mla_alloc_raw(l->gate_blocks, l->gate_dim * l->gate_dim, sizeof(double));
    l->Q = mla_alloc_raw(l->half ? l->H : 0, l->dk * l->dk, sizeof(double));
    l->turn = mla_alloc_raw(l->H, l->half * 3, sizeof(double));
    if (divisors) l->divisor = mla_alloc_raw(l->G, 1, sizeof(double));
    if (!l->shift || !l->sum || !l->C || !l->M || !l->kappa || !l->GG || !l->Q || !l->turn || (divisors && !l->divisor))
        return mla_fail(err, MLA_ENOMEM, "statistics of layer %zu: %zu features", l->layer, l->n);
    return MLA_OK;
}

static mla_status layer_new(mla_layer_stats *l, const mla_config *c, mla_layout layout, size_t layer, mla_err *err)
{
    *l = (mla_layer_stats){.layer = layer, .H = c->heads, .G = c->kv_heads, .d = c->head_dim};
    l->dk = mla_layout_key_dims(c, layout);
    l->n = l->G * (l->dk + l->d);
    if (c->attn_gate) {
        mla_metric_blocks(l->H, l->G, l->d, &l->gate_blocks, &l->gate_dim);
    }
    if (layout == MLA_LAYOUT_REBUILD && c->rope.rot <= l->dk) l->half = c->rope.rot / 2;
    return mla_stats_alloc(l, mla_layout_divisors(c, layout) > 0, err);
}

mla_status mla_stats_new(mla_stats *out, const mla_config *c, mla_layout layout, mla_pool *pool, mla_err *err)
{
    size_t full = mla_config_full_layers(c);
    layout = mla_stats_layout(layout);
    *out = (mla_stats){.layout = layout};
    out->layer = mla_alloc(full, 1, sizeof *out->layer);
    if (!out->layer) return mla_fail(err, MLA_ENOMEM, "statistics of %zu layers", full);
    for (size_t i = 0; i < c->layers; i++) {
        if (c->layer_kind[i] != MLA_LAYER_FULL) continue;
        mla_status st = layer_new(&out->layer[out->layers++], c, layout, i, err);
        if (st != MLA_OK) {
            mla_stats_free(out);
            return st;
        }
    }
    mla_stats_clear(out, pool);
    return MLA_OK;
}

void mla_stats_free(mla_stats *s)
{
    for (size_t i = 0; i < s->layers; i++) {
        mla_layer_stats *l = &s->layer[i];
        mla_free(l->shift);
        mla_free(l->sum);
        mla_free(l->C);
        mla_free(l->M);
        mla_free(l->kappa);
        mla_free(l->GG);
        mla_free(l->divisor);
        mla_free(l->Q);
        mla_free(l->turn);
    }
    mla_free(s->layer);
    *s = (mla_stats){0};
}

static void clear_some(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    mla_stats *s = ctx;
    for (size_t i = b; i < e; i++) {
        mla_stats_array a[MLA_STATS_ARRAYS];
        size_t k = i % MLA_STATS_ARRAYS;
        if (k < mla_stats_arrays(&s->layer[i / MLA_STATS_ARRAYS], a) && a[k].count) memset(a[k].data, 0, a[k].count * sizeof *a[k].data);
    }
}

void mla_stats_clear(mla_stats *s, mla_pool *pool)
{
    mla_par_for(pool, s->layers * MLA_STATS_ARRAYS, 1, clear_some, s);
    for (size_t i = 0; i < s->layers; i++) s->layer[i].tokens = s->layer[i].wsum = 0;
    *s = (mla_stats){.layout = s->layout, .layers = s->layers, .layer = s->layer};
}

static bool same_shape(const mla_layer_stats *a, const mla_layer_stats *b)
{
    return a->layer == b->layer && a->H == b->H && a->G == b->G && a->d == b->d && a->dk == b->dk && a->n == b->n &&
           a->gate_blocks == b->gate_blocks && a->gate_dim == b->gate_dim && !a->divisor == !b->divisor && a->half == b->half;
}

/* a += b, with b's centred sums moved to a's shift: y - sa = (y - sb) + e, e = sb - sa. */
static void layer_add(mla_layer_stats *a, const mla_layer_stats *b)
{
    size_t n = a->n;
    if (a->tokens == 0) memcpy(a->shift, b->shift, n * sizeof(double));
    for (size_t i = 0; i < n; i++) {
        double ei = b->shift[i] - a->shift[i];
        for (size_t j = 0; j < n; j++) {
            double ej = b->shift[j] - a->shift[j];
            a->C[i * n + j] += b->C[i * n + j] + (ei * b->sum[j] + ej * b->sum[i]) + b->wsum * ei * ej;
        }
    }
    for (size_t i = 0; i < n; i++) a->sum[i] += b->sum[i] + b->wsum * (b->shift[i] - a->shift[i]);
    mla_stats_array aa[MLA_STATS_ARRAYS], ba[MLA_STATS_ARRAYS];
    size_t arrays = mla_stats_arrays(a, aa);
    (void)mla_stats_arrays(b, ba);
    for (size_t k = 3; k < arrays; k++) /* query, kappa, gate, divisor: plain sums */
        for (size_t i = 0; i < aa[k].count; i++) aa[k].data[i] += ba[k].data[i];
    a->tokens += b->tokens;
    a->wsum += b->wsum;
}

mla_status mla_stats_same_shape(const mla_stats *a, const mla_stats *b, mla_err *err)
{
    if (a->layout != b->layout || a->layers != b->layers)
        return mla_fail(err, MLA_EINVAL, "statistics of different layouts or models: %zu layers and %zu layers", a->layers, b->layers);
    for (size_t i = 0; i < a->layers; i++)
        if (!same_shape(&a->layer[i], &b->layer[i]))
            return mla_fail(err, MLA_EINVAL, "statistics of layer %zu and layer %zu differ in shape: %zu and %zu features",
                            a->layer[i].layer, b->layer[i].layer, a->layer[i].n, b->layer[i].n);
    if (a->tokens > 0 && a->plain != b->plain)
        return mla_fail(err, MLA_EINVAL, "statistics with plain token weights and statistics with attention weights do not go together");
    return MLA_OK;
}

mla_status mla_stats_merge(mla_stats *a, const mla_stats *b, mla_err *err)
{
    mla_status st = mla_stats_same_shape(a, b, err);
    if (st != MLA_OK) return st;
    if (a->tokens > 0 && memcmp(a->base_digest, b->base_digest, 32) != 0)
        return mla_fail(err, MLA_EINVAL, "statistics were collected on different bases");
    for (size_t i = 0; i < a->layers; i++) layer_add(&a->layer[i], &b->layer[i]);
    if (a->tokens == 0) {
        memcpy(a->corpus_digest, b->corpus_digest, 32);
        memcpy(a->base_digest, b->base_digest, 32);
        a->row_tokens = b->row_tokens;
        a->plain = b->plain;
    } else {
        unsigned char two[64];
        memcpy(two, a->corpus_digest, 32);
        memcpy(two + 32, b->corpus_digest, 32);
        mla_sha256_bytes(two, 64, a->corpus_digest);
    }
    a->tokens += b->tokens;
    a->rows += b->rows;
    return MLA_OK;
}

void mla_stats_mean(const mla_layer_stats *l, double *mu)
{
    for (size_t i = 0; i < l->n; i++) mu[i] = l->shift[i] + (l->wsum > 0 ? l->sum[i] / l->wsum : 0);
}

void mla_stats_cov(const mla_layer_stats *l, double *cov)
{
    for (size_t i = 0; i < l->n; i++)
        for (size_t j = 0; j < l->n; j++)
            cov[i * l->n + j] = l->C[i * l->n + j] / l->wsum - l->sum[i] / l->wsum * (l->sum[j] / l->wsum);
}
