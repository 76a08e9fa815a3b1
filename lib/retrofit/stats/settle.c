/* The value metric's roots and the keys' gains, layer by layer; a layer's rows and heads are shared out to the threads. */
#include "retrofit/stats/settle.h"

#include "base/alloc.h"
#include "retrofit/solve/metric.h"

enum { ROWS = 64 }; /* of the output projection, read at a time */

typedef struct { /* one layer */
    mla_mat wo;
    float *W;       /* (D, H d) */
    double *R;      /* (H, d, d) */
    const mla_layer_stats *l;
    mla_err *err;   /* of every thread */
} layer_job;

static void read_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const layer_job *j = ctx;
    mla_err *err = &j->err[worker];
    if (err->status == MLA_OK) err->status = mla_mat_rows(&j->wo, begin, end - begin, j->W + begin * j->wo.in, err);
}
static void take_roots(void *ctx, size_t begin, size_t end, size_t worker)
{
    const layer_job *j = ctx;
    mla_err *err = &j->err[worker];
    size_t dd = j->l->d * j->l->d;
    for (size_t h = begin; h < end && err->status == MLA_OK; h++) err->status = mla_metric_root(j->R + h * dd, j->W, j->wo.out, h, j->l, err);
}

mla_status mla_settle_roots(double **R, const mla_model *m, const mla_stats *s, mla_pool *pool, mla_err *err)
{
    size_t threads = mla_pool_threads(pool);
    mla_err *e = mla_alloc(threads, 1, sizeof *e);
    if (!e) return mla_fail(err, MLA_ENOMEM, "value metric on %zu threads", threads);
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < s->layers; i++) {
        layer_job j = {.l = &s->layer[i], .err = e};
        if ((st = mla_model_mat(m, MLA_W_O, j.l->layer, &j.wo, err)) != MLA_OK) break;
        j.W = mla_alloc_raw(j.wo.out, j.wo.in, sizeof *j.W);
        j.R = R[i] = mla_alloc(j.l->H, j.l->d * j.l->d, sizeof(double));
        if (!j.W || !j.R) st = mla_fail(err, MLA_ENOMEM, "value metric of layer %zu", j.l->layer);
        if (st == MLA_OK) mla_par_for(pool, j.wo.out, ROWS, read_rows, &j);
        if (st == MLA_OK) st = mla_first_error(e, threads, err);
        if (st == MLA_OK) mla_par_for(pool, j.l->H, 1, take_roots, &j);
        if (st == MLA_OK) st = mla_first_error(e, threads, err);
        mla_free(j.W);
    }
    mla_free(e);
    return st;
}

mla_status mla_settle_gains(float **gain, const mla_model *m, const mla_stats *s, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < s->layers; i++) st = mla_model_vec(m, MLA_W_K_NORM, s->layer[i].layer, s->layer[i].d, &gain[i], err);
    return st;
}
