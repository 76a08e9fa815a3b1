/* The statistics pass against the plain forward over the same rows, alternating, on the reference path.
 *
 * usage: bench_stats MODEL CORPUS threads rows row_tokens repetitions
 * Prints seconds: plain (forward, no taps), full (mla_collect: everything stats.h holds), light (the same forward with
 * unweighted covariance of the features, second moments of the queries and gate moments, put together here from the
 * backend's gram and mla_moments_gate, since the library collects either everything or the gate's moments alone),
 * open (weights into the runtime) and gather (mla_gather: opening, gate pass and rows, as a build pays them). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lab.h"
#include "linalg/gemm.h"
#include "retrofit/stats/collect.h"
#include "retrofit/stats/gather.h"
#include "retrofit/stats/moments.h"

typedef struct {
    mla_model *m;
    const mla_config *c;
    mla_backend *be;
    mla_pool *pool;
    mla_rt *rt;
    mla_seq *seq;
    mla_recipe recipe;
    int32_t *ids;
    size_t T, rows;
} lab;

typedef struct { /* scratch and sums of the light pass; sums stay on the device, one set for all layers */
    lab *b;
    mla_stats shape;
    mla_moments *mom;
    float *host;                 /* k, v, y, gate of a row */
    mla_mem *y, *acc, *sum, *qq; /* (T, n), (n, n), (n), (d, d) */
} light;

static double plain(lab *b, mla_tap_fn tap, void *ctx)
{
    mla_err err = {0};
    double t = lab_now();
    for (size_t r = 0; r < b->rows; r++) {
        mla_seq_reset(b->seq);
        mla_job job = {.seq = b->seq, .ids = b->ids + r * b->T, .T = b->T, .logits_from = b->T};
        lab_must(mla_rt_run(b->rt, &job, 1, tap, ctx, &err), &err);
    }
    return lab_now() - t;
}

static mla_layer_stats *layer_of(mla_stats *s, size_t layer)
{
    for (size_t i = 0; i < s->layers; i++)
        if (s->layer[i].layer == layer) return &s->layer[i];
    return NULL;
}

static mla_status gate_moments(light *x, mla_layer_stats *l, const mla_tap_attn *a, size_t T, float *dst, mla_err *err)
{
    size_t H = l->H, d = l->d, span = (T - 1) * a->gate_ld + (H - 1) * a->gate_h + d;
    mla_backend *be = x->b->be;
    float *raw = mla_alloc_raw(span, 1, sizeof *raw);
    if (!raw) return mla_fail(err, MLA_ENOMEM, "gate of %zu tokens", T);
    mla_status st = be->ops->download(be, raw, a->gate, span * sizeof *raw, err);
    for (size_t t = 0; st == MLA_OK && t < T; t++)
        for (size_t h = 0; h < H; h++) memcpy(dst + (t * H + h) * d, raw + t * a->gate_ld + h * a->gate_h, d * sizeof *dst);
    if (st == MLA_OK) mla_moments_gate(x->mom, l, &(mla_row){.T = T, .gate = dst});
    mla_free(raw);
    return st;
}

static mla_status on_layer(void *ctx, const mla_tap *tap, mla_err *err)
{
    light *x = ctx;
    mla_layer_stats *l = tap->point == MLA_TAP_ATTN ? layer_of(&x->shape, tap->layer) : NULL;
    if (!l) return MLA_OK;
    mla_backend *be = x->b->be;
    size_t T = tap->rows, G = l->G, d = l->d, dk = l->dk, n = l->n;
    float *k = x->host, *v = k + T * G * d, *y = v + T * G * d, *g = y + T * n;
    mla_status st = be->ops->download(be, k, tap->attn->k, T * G * d * sizeof *k, err);
    if (st == MLA_OK) st = be->ops->download(be, v, tap->attn->v, T * G * d * sizeof *v, err);
    for (size_t t = 0; st == MLA_OK && t < T; t++) {
        for (size_t h = 0; h < G; h++) memcpy(y + t * n + h * dk, k + (t * G + h) * d + (d - dk), dk * sizeof *y);
        memcpy(y + t * n + G * dk, v + t * G * d, G * d * sizeof *y);
    }
    if (st == MLA_OK) st = be->ops->upload(be, x->y, y, T * n * sizeof *y, err);
    if (st == MLA_OK) st = be->ops->gram(be, &(mla_gram_args){.acc = x->acc, .sum = x->sum, .x = x->y, .ldx = n, .T = T, .n = n}, err);
    for (size_t h = 0; st == MLA_OK && h < l->H; h++)
        st = be->ops->gram(be, &(mla_gram_args){.acc = x->qq, .x = mla_at(tap->attn->q, h * d), .ldx = l->H * d, .T = T, .n = d}, err);
    if (st == MLA_OK && x->b->c->attn_gate) st = gate_moments(x, l, tap->attn, T, g, err);
    return st;
}

static void light_open(light *x, lab *b)
{
    mla_err err = {0};
    *x = (light){.b = b};
    lab_must(mla_stats_new(&x->shape, b->c, b->recipe.layout, NULL, &err), &err);
    const mla_layer_stats *l = x->shape.layer;
    size_t T = b->T, n = l->n, d = l->d;
    lab_must(mla_moments_new(&x->mom, l, T, b->pool, &err), &err);
    x->host = mla_alloc(T, 2 * l->G * d + n + l->H * d, sizeof *x->host);
    if (!x->host) exit(3);
    struct { mla_mem **at; size_t bytes; } want[] = {{&x->y, T * n * 4}, {&x->acc, n * n * 8}, {&x->sum, n * 8}, {&x->qq, d * d * 8}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        lab_must(b->be->ops->alloc(b->be, want[i].at, want[i].bytes, &err), &err);
        lab_must(b->be->ops->zero(b->be, *want[i].at, want[i].bytes, &err), &err);
    }
}

static void light_close(light *x)
{
    mla_mem *dev[] = {x->y, x->acc, x->sum, x->qq};
    for (size_t i = 0; i < sizeof dev / sizeof *dev; i++) x->b->be->ops->free(x->b->be, dev[i]);
    mla_free(x->host);
    mla_moments_free(x->mom);
    mla_stats_free(&x->shape);
}

static double full(lab *b, mla_collector *col)
{
    mla_err err = {0};
    mla_stats s = {0};
    lab_must(mla_stats_new(&s, b->c, b->recipe.layout, NULL, &err), &err);
    double t = lab_now();
    lab_must(mla_collect(col, &s, b->ids, b->rows * b->T, NULL, &err), &err);
    t = lab_now() - t;
    mla_stats_free(&s);
    return t;
}

static double gather(lab *b)
{
    static const unsigned char none[32];
    mla_err err = {0};
    mla_stats s = {0};
    mla_gather_opts o = {.model = b->m, .recipe = &b->recipe, .be = b->be, .pool = b->pool, .precision = MLA_PREC_F32,
                         .name = "bench", .base_digest = none, .corpus_digest = none};
    double t = lab_now();
    lab_must(mla_gather(&s, &o, b->ids, b->rows * b->T, &err), &err);
    t = lab_now() - t;
    mla_stats_free(&s);
    return t;
}

int main(int argc, char **argv)
{
    mla_blas_settle(argv);
    mla_err err = {0};
    lab_series a = {.n = 0}, p = {.n = 0}, f = {.n = 0};
    if (argc < 3) {
        fprintf(stderr, "usage: bench_stats MODEL CORPUS [threads rows row_tokens repetitions]\n");
        return 2;
    }
    size_t threads = lab_arg(argc, argv, 3, 1), reps = lab_arg(argc, argv, 6, 3);
    lab b = {.rows = lab_arg(argc, argv, 4, 4), .T = lab_arg(argc, argv, 5, 512), .recipe = mla_recipe_default()};
    lab_must(mla_model_open(&b.m, argv[1], &err), &err);
    lab_must(mla_backend_open(&b.be, &(mla_backend_opts){.threads = threads}, &err), &err);
    lab_must(mla_pool_new(&b.pool, threads, &err), &err);
    b.c = mla_model_config(b.m);
    b.recipe.row_tokens = b.T;
    lab_must(mla_recipe_resolve(&b.recipe, b.c, &err), &err);
    b.ids = lab_ids(b.m, argv[2], b.rows * b.T);
    double t = lab_now();
    lab_must(mla_rt_open(&b.rt, b.m, b.be, &(mla_rt_opts){.precision = MLA_PREC_F32, .kv_dtype = MLA_F32}, &err), &err);
    lab_print_value("open", lab_now() - t);
    lab_must(mla_seq_new(&b.seq, b.rt, b.T, &err), &err);
    light x;
    light_open(&x, &b);
    mla_collect_opts o = {.rt = b.rt, .model = b.m, .be = b.be, .pool = b.pool, .layout = b.recipe.layout, .row_tokens = b.T, .rows_per_run = 1};
    mla_collector *col = NULL;
    lab_must(mla_collector_new(&col, &o, b.ids, b.rows * b.T, &err), &err);
    (void)plain(&b, NULL, NULL); /* warm-up */
    for (size_t i = 0; i < reps; i++) {
        lab_add(&a, plain(&b, NULL, NULL));
        lab_add(&p, plain(&b, on_layer, &x));
        lab_add(&f, full(&b, col));
    }
    lab_print("plain", &a);
    lab_print("light", &p);
    lab_print("full", &f);
    mla_collector_free(col);
    light_close(&x);
    mla_seq_free(b.seq);
    mla_rt_close(b.rt);
    lab_print_value("gather", gather(&b));
    mla_free(b.ids);
    mla_pool_free(b.pool);
    mla_backend_close(b.be);
    mla_model_close(b.m);
    return 0;
}
