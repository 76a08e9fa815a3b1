/* Caches side by side: the same rows through a reference and through others in step, logits compared at every position. */
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "calibrate/parts.h"
#include "runtime/score.h"

typedef struct {
    const cal_comparison *x;
    mla_cal_verdict *v;
    size_t chunk, V;
    float *logits[2];         /* (chunk, V): the reference's, another's */
    double *lse;              /* (chunk) of the reference's rows */
    double *kld;              /* (n - 1, tokens) */
} comparing;

/* The lowest id of the largest logit */
static size_t best_of(const float *x, size_t V)
{
    size_t best = 0;
    for (size_t i = 1; i < V; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static mla_status reference_rows(comparing *j, size_t rows, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; i < rows && st == MLA_OK; i++) st = mla_lse_row(&j->lse[i], j->logits[0] + i * j->V, j->V, err);
    return st;
}

static mla_status compare_rows(comparing *j, size_t other, size_t at, size_t rows, mla_err *err)
{
    for (size_t i = 0; i < rows; i++) {
        const float *p = j->logits[0] + i * j->V, *q = j->logits[1] + i * j->V;
        mla_status st = mla_kld_row_of(&j->kld[other * j->x->tokens + at + i], p, j->lse[i], q, j->V, err);
        if (st != MLA_OK) return st;
        j->v[other].agree += best_of(p, j->V) == best_of(q, j->V);
    }
    return MLA_OK;
}

/* T tokens from `at` on, a sequence of their own in every cache. */
static mla_status one_row(comparing *j, size_t at, size_t T, mla_err *err)
{
    const cal_comparison *x = j->x;
    mla_seq **s = mla_alloc(x->n, sizeof *s, 1);
    mla_status st = s ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu sequences", x->n);
    for (size_t k = 0; k < x->n && st == MLA_OK; k++) st = mla_seq_new(&s[k], x->rt[k], T, err);
    for (size_t t = 0; t < T && st == MLA_OK; t += j->chunk) {
        size_t n = T - t < j->chunk ? T - t : j->chunk;
        for (size_t k = 0; k < x->n && st == MLA_OK; k++) {
            mla_job job = {.seq = s[k], .ids = x->ids + at + t, .T = n, .logits = j->logits[k > 0]};
            if (x->codec) mla_rt_set_codec(x->rt[k], k ? x->codec : NULL, k ? x->codec_ctx[k - 1] : NULL);
            st = mla_rt_run(x->rt[k], &job, 1, k ? x->tap : NULL, x->ctx, err);
            if (st == MLA_OK) st = k ? compare_rows(j, k - 1, at + t, n, err) : reference_rows(j, n, err);
        }
    }
    for (size_t k = 0; s && k < x->n; k++) mla_seq_free(s[k]);
    mla_free(s);
    return st;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarize(double *kld, size_t n, mla_cal_verdict *v)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += kld[i]; /* before sorting: a fixed order */
    qsort(kld, n, sizeof *kld, ascending);
    v->positions = n;
    v->kld_mean = sum / (double)n;
    v->kld_max = kld[n - 1];
    v->kld_p99 = kld[(size_t)ceil(0.99 * (double)n) - 1];
}

mla_status cal_compare(const cal_comparison *x, mla_cal_verdict *v, mla_err *err)
{
    comparing j = {.x = x, .v = v, .V = mla_rt_config(x->rt[0])->vocab};
    size_t fit = ((size_t)16 << 20) / j.V; /* 64 MiB of logits for each of two caches */
    if (!x->tokens) return mla_fail(err, MLA_EINVAL, "nothing to judge: no tokens");
    j.chunk = fit < 1 ? 1 : fit < x->row_tokens ? fit : x->row_tokens;
    mla_status st = MLA_OK;
    for (size_t k = 0; k + 1 < x->n; k++) v[k] = (mla_cal_verdict){0};
    for (size_t k = 0; k < 2; k++) {
        j.logits[k] = mla_alloc_raw(j.chunk, j.V, sizeof **j.logits);
        if (!j.logits[k]) st = mla_fail(err, MLA_ENOMEM, "%zu rows of logits", j.chunk);
    }
    j.lse = mla_alloc_raw(j.chunk, 1, sizeof *j.lse);
    if (!j.lse) st = mla_fail(err, MLA_ENOMEM, "%zu rows of logits", j.chunk);
    j.kld = mla_alloc_raw(x->n - 1, x->tokens, sizeof *j.kld);
    if (!j.kld) st = mla_fail(err, MLA_ENOMEM, "%zu positions", x->tokens);
    mla_progress pr = mla_progress_begin(x->log, "judging", (double)x->tokens, "tokens");
    for (size_t at = 0; at < x->tokens && st == MLA_OK; at += x->row_tokens) {
        size_t T = x->tokens - at < x->row_tokens ? x->tokens - at : x->row_tokens;
        st = one_row(&j, at, T, err);
        mla_progress_add(&pr, (double)T);
    }
    mla_progress_end(&pr);
    for (size_t k = 0; k + 1 < x->n; k++) {
        if (st == MLA_OK) summarize(j.kld + k * x->tokens, x->tokens, &v[k]);
        else v[k] = (mla_cal_verdict){0};
    }
    mla_free(j.logits[0]);
    mla_free(j.logits[1]);
    mla_free(j.lse);
    mla_free(j.kld);
    return st;
}
