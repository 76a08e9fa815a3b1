/* Single-layer KL probes over the runtime. */
#include "retrofit/solve/probe.h"

#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "runtime/runtime.h"
#include "runtime/score.h"

struct mla_probe {
    mla_probe_opts o;
    mla_rt *rt;
    size_t rows, row, V;
    const int32_t *ids;   /* borrowed: rows * row tokens */
    float *base;          /* (rows * row, V) */
    double *z;            /* (rows * row) log sum exp of its rows */
    /* of the run in progress */
    bool record;
    double kld;
};

typedef struct { /* positions of one call */
    const mla_probe *p;
    float *base;
    double *z;
    const float *logits;
    double *kld;
    mla_err *err;         /* (n) */
} positions;

static void take_positions(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    positions *q = ctx;
    size_t V = q->p->V;
    for (size_t t = b; t < e; t++) {
        const float *x = q->logits + t * V;
        if (q->p->record) memcpy(q->base + t * V, x, V * sizeof(float));
        q->err[t].status = q->p->record ? mla_lse_row(&q->z[t], x, V, &q->err[t]) : mla_kld_row_of(&q->kld[t], q->base + t * V, q->z[t], x, V, &q->err[t]);
    }
}

/* Positions side by side, their sum in order. */
static mla_status on_logits(void *ctx, size_t job, size_t row0, size_t n, const float *logits, mla_err *err)
{
    mla_probe *p = ctx;
    size_t at = job * p->row + row0;
    positions q = {p, p->base + at * p->V, p->z + at, logits, mla_alloc(n, 1, sizeof(double)), mla_alloc(n, 1, sizeof(mla_err))};
    mla_status st = q.kld && q.err ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu probe positions", n);
    if (st == MLA_OK) mla_par_for(p->o.pool, n, 1, take_positions, &q);
    for (size_t t = 0; st == MLA_OK && t < n; t++) {
        p->kld += q.kld[t];
        if (q.err[t].status == MLA_OK) continue;
        *err = q.err[t];
        st = mla_wrap(err, "probe position %zu", row0 + t);
    }
    mla_free(q.kld);
    mla_free(q.err);
    return st;
}

static mla_status pass(mla_probe *p, mla_err *err)
{
    mla_status st = MLA_OK;
    mla_job *jobs = mla_alloc(p->rows, 1, sizeof *jobs);
    if (!jobs) return mla_fail(err, MLA_ENOMEM, "%zu probe rows", p->rows);
    p->kld = 0;
    for (size_t r = 0; st == MLA_OK && r < p->rows; r++) {
        jobs[r] = (mla_job){.ids = p->ids + r * p->row, .T = p->row};
        st = mla_seq_new(&jobs[r].seq, p->rt, p->row, err);
    }
    if (st == MLA_OK) st = mla_rt_run_sink(p->rt, jobs, p->rows, NULL, on_logits, p, err);
    for (size_t r = 0; r < p->rows; r++) mla_seq_free(jobs[r].seq);
    mla_free(jobs);
    p->kld /= (double)(p->rows * p->row);
    return st;
}

mla_status mla_probe_new(mla_probe **out, const mla_probe_opts *o, const int32_t *ids, size_t n, mla_err *err)
{
    mla_probe *p = mla_alloc(1, 1, sizeof *p);
    if (!p) return mla_fail(err, MLA_ENOMEM, "probe");
    *p = (mla_probe){.o = *o, .row = o->row_tokens, .V = mla_model_config(o->model)->vocab, .ids = ids, .record = true};
    size_t row_bytes, fit;
    mla_rt_opts ro = {.precision = o->precision, .kv_dtype = MLA_F32, .log = o->log};
    mla_status st = MLA_OK;
    if (!mla_mul(&row_bytes, p->row * sizeof(float), p->V)) st = mla_fail(err, MLA_ENOMEM, "probe rows of %zu tokens", p->row);
    else {
        fit = MLA_PROBE_BYTES / row_bytes;
        p->rows = n / p->row < fit ? n / p->row : fit > 0 ? fit : 1;
        if (p->rows == 0 || p->rows * p->row > n)
            st = mla_fail(err, MLA_EINVAL, "%zu held-out tokens: the probe needs a row of %zu", n, p->row);
    }
    if (st == MLA_OK && (!(p->base = mla_alloc_raw(p->rows * p->row, p->V, sizeof *p->base)) || !(p->z = mla_alloc(p->rows, p->row, sizeof *p->z))))
        st = mla_fail(err, MLA_ENOMEM, "base logits of %zu probe tokens", p->rows * p->row);
    if (st == MLA_OK) st = mla_rt_open(&p->rt, o->model, o->be, &ro, err);
    if (st == MLA_OK) st = pass(p, err);
    p->record = false;
    if (st == MLA_OK) *out = p;
    else mla_probe_free(p);
    return st;
}

void mla_probe_free(mla_probe *p)
{
    if (!p) return;
    mla_rt_close(p->rt);
    mla_free(p->base);
    mla_free(p->z);
    mla_free(p);
}

mla_status mla_probe_kld(mla_probe *p, double *out, const mla_factors *f, const size_t *layer, size_t n, mla_err *err)
{
    mla_status st = MLA_OK, st2;
    for (size_t i = 0; st == MLA_OK && i < n; i++) st = mla_rt_set_factors(p->rt, layer[i], &f[i], err);
    if (st == MLA_OK) st = pass(p, err);
    *out = p->kld;
    for (size_t i = 0; i < n; i++)
        if ((st2 = mla_rt_set_factors(p->rt, layer[i], NULL, err)) != MLA_OK && st == MLA_OK) st = st2;
    return st;
}

mla_status mla_probe_eta(mla_probe *p, double *eta, const mla_solution *s, const size_t *rank, size_t layers, mla_err *err)
{
    mla_progress prog = mla_progress_begin(p->o.log, "sensitivities", (double)layers, "layers");
    mla_status st = MLA_OK;
    double top = 0;
    for (size_t i = 0; st == MLA_OK && i < layers; i++) {
        size_t per = rank[i] / s[i].groups;
        mla_factors f = {0};
        double kld, tail = mla_solution_tail(&s[i], per);
        eta[i] = 0;
        if (per < s[i].n && tail > 0) {
            st = mla_solution_factors(&f, &s[i], per, false, NULL, err);
            if (st == MLA_OK) st = mla_probe_kld(p, &kld, &f, &s[i].layer, 1, err);
            if (st == MLA_OK) eta[i] = kld / tail;
            mla_factors_free(&f);
        }
        if (eta[i] > top) top = eta[i];
        mla_progress_add(&prog, 1);
    }
    for (size_t i = 0; i < layers; i++)
        if (!(eta[i] > 0)) eta[i] = top > 0 ? top : 1;
    if (st == MLA_OK) mla_progress_end(&prog);
    return st;
}
