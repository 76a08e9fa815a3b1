/* The end of a pass: final norm, hidden states, logits. Only rows that somebody wants are normed and multiplied, in
 * blocks, so that (T, V) never has to be in memory at once. */
#include <string.h>

#include "base/alloc.h"
#include "runtime/rt.h"
#include "tensor/compare.h"

size_t rt_logit_rows(const mla_rt *rt)
{
    size_t n = ((size_t)16 << 20) / rt->cfg->vocab; /* 64 MiB of logits */
    return n < 1 ? 1 : n > rt_block_rows(rt) ? rt_block_rows(rt) : n;
}

mla_status rt_logits(mla_rt *rt, mla_mem *x, size_t rows, float *logits, mla_err *err)
{
    size_t V = rt->cfg->vocab;
    mla_mem *y;
    RT_TRY(rt_scratch(rt, RT_S_LOGITS, rows, V, &y, err));
    RT_TRY(rt_linear(rt, &rt->head, (rt_rows){y, V}, (rt_rows){x, rt->cfg->hidden}, rows, err));
    return RT_OP(rt, download, logits, y, rows * V * 4, err);
}

/* Hidden states after the final norm, for the job and for who taps. */
static mla_status hidden(mla_rt *rt, mla_job *j, size_t at, mla_mem *x, mla_tap_fn tap, void *ctx, mla_err *err)
{
    size_t D = rt->cfg->hidden, step = tap ? j->T : rt_block_rows(rt);
    mla_mem *h;
    if (!j->hidden && !tap) return MLA_OK;
    for (size_t t = 0; t < j->T; t += step) {
        size_t n = j->T - t < step ? j->T - t : step;
        RT_TRY(rt_scratch(rt, RT_S_H, n, D, &h, err));
        RT_TRY(rt_norm(rt, &rt->final_norm, (rt_rows){h, D}, (rt_rows){mla_at(x, t * D), D}, n, D, err));
        mla_tap p = {.point = MLA_TAP_NORM, .seq = at, .data = h, .rows = n, .width = D, .ld = D, .be = rt->be};
        if (tap) RT_TRY(tap(ctx, &p, err));
        if (j->hidden) RT_TRY(RT_OP(rt, download, j->hidden + t * D, h, n * D * 4, err));
    }
    return MLA_OK;
}

typedef struct { /* the next wanted row */
    size_t job, row;
} cursor;

/* Wanted rows of one job from the cursor on, at most `room`; moves the cursor to the next job when one is done. */
static size_t take(const mla_job *jobs, size_t n, cursor *c, size_t room, cursor *from)
{
    while (c->job < n) {
        const mla_job *j = &jobs[c->job];
        if (c->row < j->logits_from) c->row = j->logits_from;
        if (c->row < j->T) {
            size_t k = j->T - c->row < room ? j->T - c->row : room;
            *from = *c;
            c->row += k;
            return k;
        }
        *c = (cursor){c->job + 1, 0};
    }
    return 0;
}

static mla_status deliver(mla_rt *rt, mla_job *jobs, cursor at, size_t n, const float *logits, mla_logits_fn sink, void *ctx, mla_err *err)
{
    size_t V = rt->cfg->vocab, first;
    mla_job *j = &jobs[at.job];
    size_t bad = mla_count_nonfinite(logits, n * V, &first);
    if (bad)
        return mla_fail(err, MLA_EFORMAT, "logits of token %zu of sequence %zu are not finite (id %zu, %zu values in %zu rows)",
                        j->seq->len + at.row + first / V, at.job, first % V, bad, n);
    if (sink) return sink(ctx, at.job, at.row, n, logits, err);
    memcpy(j->logits + (at.row - j->logits_from) * V, logits, n * V * sizeof *logits);
    return MLA_OK;
}

typedef struct {
    mla_job *jobs;
    const size_t *row0;      /* (n) first row of each job in x */
    size_t n;
    mla_mem *x, *h;
    float *host;             /* (rt_logit_rows, V) */
    mla_logits_fn sink;
    void *ctx;
} heads;

static mla_status all_logits(mla_rt *rt, heads *a, mla_err *err)
{
    size_t D = rt->cfg->hidden, V = rt->cfg->vocab, most = rt_logit_rows(rt), fill;
    cursor c = {0}, from, start;
    do {
        start = c;
        fill = 0;
        for (size_t k; fill < most && (k = take(a->jobs, a->n, &c, most - fill, &from)) > 0; fill += k) {
            rt_rows x = {mla_at(a->x, (a->row0[from.job] + from.row) * D), D};
            RT_TRY(rt_norm(rt, &rt->final_norm, (rt_rows){mla_at(a->h, fill * D), D}, x, k, D, err));
        }
        if (fill) RT_TRY(rt_logits(rt, a->h, fill, a->host, err));
        for (size_t done = 0, k; done < fill && (k = take(a->jobs, a->n, &start, fill - done, &from)) > 0; done += k)
            RT_TRY(deliver(rt, a->jobs, from, k, a->host + done * V, a->sink, a->ctx, err));
    } while (fill);
    return MLA_OK;
}

mla_status rt_finish(mla_rt *rt, mla_job *jobs, size_t n, mla_mem *x, mla_tap_fn tap, mla_logits_fn sink, void *ctx, mla_err *err)
{
    size_t D = rt->cfg->hidden, most = rt_logit_rows(rt), row = 0, wanted = 0;
    heads a = {.jobs = jobs, .n = n, .x = x, .sink = sink, .ctx = ctx};
    size_t *row0 = mla_alloc(n, sizeof *row0, 1);
    mla_status st = row0 ? rt_head_load(rt, err) : mla_fail(err, MLA_ENOMEM, "logits of %zu sequences", n);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        row0[i] = row;
        st = hidden(rt, &jobs[i], i, mla_at(x, row * D), tap, ctx, err);
        row += jobs[i].T;
        wanted += jobs[i].T - jobs[i].logits_from;
    }
    if (st == MLA_OK && wanted) {
        size_t rows = wanted < most ? wanted : most;
        a.row0 = row0;
        a.host = mla_alloc_raw(rows, rt->cfg->vocab, sizeof *a.host);
        st = a.host ? rt_scratch(rt, RT_S_H, rows, D, &a.h, err) : mla_fail(err, MLA_ENOMEM, "%zu rows of logits", rows);
        if (st == MLA_OK) st = all_logits(rt, &a, err);
    }
    if (rt->o.stream_layers) rt_head_drop(rt);
    mla_free(a.host);
    mla_free(row0);
    return st;
}
