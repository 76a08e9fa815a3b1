/* Judging: the same rows through a bf16 and an FP8 cache in step, their logits compared position by position. */
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "calibrate/parts.h"
#include "runtime/score.h"
#include "tensor/fp.h"

typedef struct {
    mla_cal *c;
    mla_rt *rt[2];            /* bf16, FP8 */
    const int32_t *ids;
    size_t n, chunk, V;
    float *logits[2];         /* (chunk, V) */
    double *kld;              /* (n) */
    size_t done;
    cal_pass pass;
} judging;

/* What the FP8 cache does to the values it is given. */
static mla_status count(void *ctx, const mla_tap *t, mla_err *err)
{
    judging *j = ctx;
    mla_cal_part *p = cal_part(j->c, t);
    const float *x;
    if (!p) return MLA_OK;
    mla_status st = cal_fetch(&j->pass, t, &x, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < t->rows; i++)
        for (size_t k = 0; k < t->width; k++) {
            float v = x[i * t->ld + k] / p->scale;
            p->saturated += fabsf(v) > 448;
            p->underflowed += v != 0 && (mla_f32_e4m3(v) & 0x7f) == 0;
        }
    p->judged += t->rows * t->width;
    return MLA_OK;
}

static mla_status compare_rows(judging *j, size_t rows, mla_err *err)
{
    for (size_t i = 0; i < rows; i++) {
        const float *p = j->logits[0] + i * j->V, *q = j->logits[1] + i * j->V;
        mla_score a, b;
        mla_status st = mla_kld_row(&j->kld[j->done], p, q, j->V, err);
        if (st == MLA_OK) st = mla_score_row(&a, p, j->V, -1, err);
        if (st == MLA_OK) st = mla_score_row(&b, q, j->V, -1, err);
        if (st != MLA_OK) return st;
        j->c->verdict.agree += a.top1 == b.top1;
        j->done++;
    }
    return MLA_OK;
}

static mla_status judge_row(judging *j, size_t at, size_t T, mla_err *err)
{
    mla_seq *s[2] = {NULL, NULL};
    mla_status st = MLA_OK;
    for (size_t k = 0; k < 2 && st == MLA_OK; k++) st = mla_seq_new(&s[k], j->rt[k], T, err);
    for (size_t t = 0; t < T && st == MLA_OK; t += j->chunk) {
        size_t n = T - t < j->chunk ? T - t : j->chunk;
        for (size_t k = 0; k < 2 && st == MLA_OK; k++) {
            mla_job job = {.seq = s[k], .ids = j->ids + at + t, .T = n, .logits = j->logits[k]};
            st = mla_rt_run(j->rt[k], &job, 1, k ? count : NULL, j, err);
        }
        if (st == MLA_OK) st = compare_rows(j, n, err);
    }
    mla_seq_free(s[0]);
    mla_seq_free(s[1]);
    return st;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarize(judging *j)
{
    mla_cal_verdict *v = &j->c->verdict;
    double sum = 0;
    for (size_t i = 0; i < j->done; i++) sum += j->kld[i]; /* before sorting: a fixed order */
    qsort(j->kld, j->done, sizeof *j->kld, ascending);
    v->positions = j->done;
    v->kld_mean = sum / (double)j->done;
    v->kld_max = j->kld[j->done - 1];
    v->kld_p99 = j->kld[(size_t)ceil(0.99 * (double)j->done) - 1];
}

static mla_status rows(judging *j, mla_err *err)
{
    size_t w = j->c->o.row_tokens;
    mla_progress pr = mla_progress_begin(j->c->o.log, "judging", (double)j->n, "tokens");
    mla_status st = MLA_OK;
    for (size_t at = 0; at < j->n && st == MLA_OK; at += w) {
        size_t T = j->n - at < w ? j->n - at : w;
        st = judge_row(j, at, T, err);
        mla_progress_add(&pr, (double)T);
    }
    mla_progress_end(&pr);
    return st;
}

mla_status mla_cal_judge(mla_cal *c, mla_rt *rt, const int32_t *ids, size_t n, mla_err *err)
{
    judging j = {.c = c, .ids = ids, .n = n, .V = mla_rt_config(rt)->vocab, .pass.c = c};
    size_t fit = ((size_t)16 << 20) / j.V; /* 64 MiB of logits for each cache */
    if (!n) return mla_fail(err, MLA_EINVAL, "nothing to judge: no tokens");
    j.chunk = fit < 1 ? 1 : fit < c->o.row_tokens ? fit : c->o.row_tokens;
    c->verdict = (mla_cal_verdict){0};
    for (size_t i = 0; i < c->n; i++) {
        mla_cal_part *p[2] = {&c->layer[i].k, &c->layer[i].v};
        for (size_t k = 0; k < 2; k++) p[k]->judged = p[k]->saturated = p[k]->underflowed = 0;
    }
    mla_status st = mla_rt_share(&j.rt[0], rt, MLA_BF16, err);
    if (st == MLA_OK) st = mla_rt_share(&j.rt[1], rt, MLA_F8_E4M3, err);
    if (st == MLA_OK) st = mla_cal_apply(c, j.rt[1], err);
    for (size_t k = 0; k < 2 && st == MLA_OK; k++) {
        j.logits[k] = mla_alloc_raw(j.chunk, j.V, sizeof **j.logits);
        if (!j.logits[k]) st = mla_fail(err, MLA_ENOMEM, "%zu rows of logits", j.chunk);
    }
    if (st == MLA_OK && !(j.kld = mla_alloc_raw(n, sizeof *j.kld, 1))) st = mla_fail(err, MLA_ENOMEM, "%zu positions", n);
    if (st == MLA_OK) st = rows(&j, err);
    if (st == MLA_OK) summarize(&j);
    else c->verdict = (mla_cal_verdict){0};
    for (size_t k = 0; k < 2; k++) {
        mla_free(j.logits[k]);
        mla_rt_close(j.rt[k]);
    }
    mla_free(j.kld);
    mla_free(j.pass.host);
    return st;
}
