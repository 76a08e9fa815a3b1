/* Chunked teacher forcing, alone and side by side with a base, and greedy decoding. */
#include "verify/parity/forward.h"

#include "base/alloc.h"

#define CHUNK_MOST 512
#define CHUNK_LEAST 16

size_t mla_forward_chunk(size_t vocab)
{
    size_t n = ((size_t)128 << 20) / 4 / (vocab ? vocab : 1);
    return n < CHUNK_LEAST ? CHUNK_LEAST : n > CHUNK_MOST ? CHUNK_MOST : n;
}

/* Delivers the rows of one run; token `base` of the sequence is row 0. */
typedef struct {
    mla_row_fn fn;
    void *ctx;
    size_t base, V;
} sink_ctx;

static mla_status sink(void *ctx, size_t job, size_t row0, size_t n, const float *logits, mla_err *err)
{
    const sink_ctx *s = ctx;
    (void)job;
    for (size_t i = 0; i < n; i++) {
        mla_status st = s->fn(s->ctx, s->base + row0 + i, logits + i * s->V, err);
        if (st != MLA_OK) return st;
    }
    return MLA_OK;
}

/* Runs tokens [at, at + T) and delivers the wanted rows among them. They are all of the image or all behind it. */
static mla_status one_chunk(mla_rt *rt, mla_seq *seq, const mla_forced *f, size_t at, size_t T, mla_row_fn fn, void *ctx, mla_err *err)
{
    sink_ctx s = {.fn = fn, .ctx = ctx, .base = at, .V = mla_rt_config(rt)->vocab};
    mla_job job = {.seq = seq, .T = T, .logits_from = f->from <= at ? 0 : f->from - at < T ? f->from - at : T};
    const mla_embedded *e = f->image;
    if (!e || at >= e->n) {
        job.ids = f->ids + at;
        return mla_rt_run_sink(rt, &job, 1, NULL, sink, &s, err);
    }
    if (e->width != mla_rt_config(rt)->hidden)
        return mla_fail(err, MLA_EFORMAT, "embeddings \"%s\": expected width %zu (the model's), found %zu", e->name, mla_rt_config(rt)->hidden, e->width);
    int32_t *pos = mla_alloc(3, T, sizeof *pos);
    if (!pos) return mla_fail(err, MLA_ENOMEM, "positions of %zu tokens", T);
    for (size_t i = 0; i < 3 * T; i++) pos[i] = e->pos3[i / T * e->n + at + i % T];
    job.embeds = e->embeds + at * e->width;
    job.pos3 = pos;
    mla_status st = mla_rt_run_sink(rt, &job, 1, NULL, sink, &s, err);
    mla_free(pos);
    return st;
}

/* Tokens of the chunk at `at`: an image ends one. */
static size_t chunk_at(const mla_forced *f, size_t at)
{
    size_t end = f->image && at < f->image->n && f->image->n < f->n ? f->image->n : f->n;
    return end - at < f->chunk ? end - at : f->chunk;
}

mla_status mla_forward_forced(mla_rt *rt, mla_seq *seq, const mla_forced *f, mla_row_fn fn, void *ctx, mla_err *err)
{
    mla_seq_reset(seq);
    for (size_t at = 0; at < f->n;) {
        size_t T = chunk_at(f, at);
        mla_status st = one_chunk(rt, seq, f, at, T, fn, ctx, err);
        if (st != MLA_OK) return st;
        if (f->prog) mla_progress_add(f->prog, (double)T);
        at += T;
    }
    return MLA_OK;
}

typedef struct { /* base rows of the current chunk, then the pairing of the model's rows with them */
    float *rows;    /* (chunk, V) */
    size_t base, V; /* token of row 0 */
    mla_pair_fn fn;
    void *ctx;
} pair_ctx;

static mla_status keep_row(void *ctx, size_t at, const float *logits, mla_err *err)
{
    pair_ctx *p = ctx;
    (void)err;
    float *dst = p->rows + (at - p->base) * p->V;
    for (size_t i = 0; i < p->V; i++) dst[i] = logits[i];
    return MLA_OK;
}

static mla_status meet_row(void *ctx, size_t at, const float *logits, mla_err *err)
{
    pair_ctx *p = ctx;
    return p->fn(p->ctx, at, p->rows + (at - p->base) * p->V, logits, err);
}

mla_status mla_forward_pair(const mla_pair *p, const mla_forced *f, mla_pair_fn fn, void *ctx, mla_err *err)
{
    size_t V = mla_rt_config(p->base)->vocab;
    if (mla_rt_config(p->model)->vocab != V)
        return mla_fail(err, MLA_EFORMAT, "vocabularies: expected %zu (the base's), found %zu", V, mla_rt_config(p->model)->vocab);
    size_t most = f->n < f->chunk ? f->n : f->chunk;
    pair_ctx c = {.rows = mla_alloc_raw(most, V, sizeof(float)), .V = V, .fn = fn, .ctx = ctx};
    if (!c.rows) return mla_fail(err, MLA_ENOMEM, "logits of %zu tokens over %zu ids; a smaller --chunk needs less", most, V);
    mla_status st = MLA_OK;
    mla_seq_reset(p->base_seq);
    mla_seq_reset(p->model_seq);
    for (size_t at = 0; at < f->n && st == MLA_OK;) {
        size_t T = chunk_at(f, at);
        c.base = at;
        st = one_chunk(p->base, p->base_seq, f, at, T, keep_row, &c, err);
        if (st != MLA_OK) {
            st = mla_wrap(err, "base");
            break;
        }
        st = one_chunk(p->model, p->model_seq, f, at, T, meet_row, &c, err);
        if (f->prog) mla_progress_add(f->prog, (double)T);
        at += T;
    }
    mla_free(c.rows);
    return st;
}

typedef struct {
    float *row; /* (V) */
    size_t V;
} last_ctx;

static mla_status keep_last(void *ctx, size_t at, const float *logits, mla_err *err)
{
    last_ctx *l = ctx;
    (void)at;
    (void)err;
    for (size_t i = 0; i < l->V; i++) l->row[i] = logits[i];
    return MLA_OK;
}

mla_status mla_forward_greedy(mla_rt *rt, mla_seq *seq, const mla_greedy *g, mla_step_fn fn, void *ctx, mla_err *err)
{
    size_t V = mla_rt_config(rt)->vocab;
    last_ctx l = {.row = mla_alloc_raw(V, 1, sizeof(float)), .V = V};
    if (!l.row) return mla_fail(err, MLA_ENOMEM, "logits of %zu ids", V);
    mla_forced f = {.ids = g->prompt, .image = g->image, .n = g->n_prompt, .from = g->n_prompt - 1, .chunk = g->chunk, .prog = g->prog};
    mla_status st = mla_forward_forced(rt, seq, &f, keep_last, &l, err);
    for (size_t k = 0; k < g->steps && st == MLA_OK; k++) {
        mla_score s;
        int32_t next = -1;
        st = mla_score_row(&s, l.row, V, -1, err);
        if (st == MLA_OK) st = fn(ctx, k, &s, &next, err);
        if (st != MLA_OK || next < 0 || k + 1 == g->steps) break;
        mla_job job = {.seq = seq, .ids = &next, .T = 1, .logits_from = 0, .logits = l.row};
        st = mla_rt_run(rt, &job, 1, NULL, NULL, err);
        if (g->prog) mla_progress_add(g->prog, 1);
    }
    mla_free(l.row);
    return st;
}
