/* A decode step: a few tokens of one sequence or of several. Positions and block tables are read from device memory through
 * cursors, so that every step of the same sequences and numbers of tokens is the same list of operations: a device that records
 * makes the list once and then replays it whole.
 *
 * A tape names memory. What frees some of it (a cache that grows, wider scratch) or changes a number it holds counts in
 * `moved`; the next steps are plain again, and after two of them nothing grows any more and the step is recorded anew. */
#include "runtime/rt.h"

enum { PLAIN_STEPS = 2 }; /* before a step is recorded */

/* Whether layer l takes a cursor: not where keys of all tokens are rebuilt, nor with divisors; of attention over
 * keys and values with bf16 products only what a kernel of few tokens serves. */
static bool takes_cursor(const mla_rt *rt, const rt_layer *l)
{
    if (l->kind == RT_GDN) return true;
    if (l->kind == RT_GQA) return rt->o.precision == MLA_PREC_F32 || (rt->o.kv_dtype == MLA_BF16 && (l->dim.d == 128 || l->dim.d == 256));
    return l->kind != RT_LATENT_REBUILD && !l->dim.divs;
}

bool rt_step_fits(const mla_rt *rt, const mla_job *jobs, size_t n, mla_tap_fn tap)
{
    size_t rows = 0;
    if (n > RT_STEP_ROWS || tap || rt->codec || rt->o.stream_layers || rt->o.expand_decode) return false;
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].T > RT_STEP_TOKENS) return false;
        rows += jobs[i].T;
    }
    if (rows > RT_STEP_ROWS) return false;
    for (size_t i = 0; i < rt->n_trunk; i++)
        if (!takes_cursor(rt, &rt->layer[i])) return false;
    return true;
}

mla_status rt_step_cursor(mla_seq *s, size_t T, mla_err *err)
{
    mla_rt *rt = s->rt;
    int32_t len = (int32_t)(s->len + T); /* max_tokens fits */
    if (!s->len_at.p) {
        RT_TRY(rt_buf_new(rt, &s->len_at, 1, sizeof len, err));
        RT_TRY(rt_buf_new(rt, &s->pages_at, s->max_tokens / rt->pool.page_tokens + 1, sizeof *s->pages, err));
    }
    if (s->sent < s->n_pages) {
        RT_TRY(RT_OP(rt, upload, mla_at(s->pages_at.p, s->sent), s->pages + s->sent, (s->n_pages - s->sent) * sizeof *s->pages, err));
        s->sent = s->n_pages;
    }
    s->at = (mla_cursor){.len = s->len_at.p, .pages = s->pages_at.p, .pool = rt->pool.cap};
    return RT_OP(rt, upload, s->len_at.p, &len, sizeof len, err);
}

static mla_status layers(mla_rt *rt, rt_block *b, mla_err *err)
{
    for (size_t i = 0; i < rt->n_trunk; i++) RT_TRY(rt_layer_run(rt, &rt->layer[i], b, err));
    return MLA_OK;
}

static void drop_tape(mla_rt *rt, rt_tape *t)
{
    if (t->tape) RT_OP(rt, tape_free, t->tape);
    *t = (rt_tape){0};
}

static bool same_step(const rt_tape *t, const rt_block *b)
{
    if (t->n != b->n) return false;
    for (size_t i = 0; i < b->n; i++)
        if (t->seq[i] != b->piece[i].seq || t->T[i] != b->piece[i].n) return false;
    return true;
}

/* The block's place among the runtime's steps, void ones forgotten. */
static rt_tape *find(mla_rt *rt, const rt_block *b)
{
    rt_tape *t = NULL, *oldest = rt->tape;
    for (size_t i = 0; i < RT_TAPES; i++) {
        rt_tape *k = &rt->tape[i];
        if (k->moved != rt->moved) drop_tape(rt, k);
        if (same_step(k, b)) t = k;
        if (k->used < oldest->used) oldest = k;
    }
    if (!t) {
        drop_tape(rt, t = oldest);
        t->n = b->n;
        for (size_t i = 0; i < b->n; i++) t->seq[i] = b->piece[i].seq, t->T[i] = b->piece[i].n;
    }
    t->moved = rt->moved;
    t->used = ++rt->steps;
    return t;
}

mla_status rt_step_run(mla_rt *rt, rt_block *b, mla_err *err)
{
    if (!rt->be->ops->record || rt->o.plain_steps) return layers(rt, b, err);
    rt_tape *t = find(rt, b);
    if (!t->tape && t->steps++ < PLAIN_STEPS) return layers(rt, b, err);
    if (!t->tape) {
        RT_TRY(RT_OP(rt, record, err));
        mla_status st = layers(rt, b, err);
        mla_err ignored;
        mla_status end = RT_OP(rt, record_end, st == MLA_OK ? &t->tape : NULL, st == MLA_OK ? err : &ignored);
        if (st != MLA_OK || end != MLA_OK) return st != MLA_OK ? st : end;
    }
    return RT_OP(rt, replay, t->tape, err);
}

void rt_step_free(mla_seq *s)
{
    mla_rt *rt = s->rt;
    for (size_t i = 0; i < RT_TAPES; i++)
        for (size_t k = 0; k < rt->tape[i].n; k++)
            if (rt->tape[i].seq[k] == s) {
                drop_tape(rt, &rt->tape[i]);
                break;
            }
    rt_buf_free(rt, &s->len_at);
    rt_buf_free(rt, &s->pages_at);
}
