/* A decode step: one token of one sequence. Its position and block table are read from device memory through a cursor, so
 * that every step is the same list of operations: a device that records makes the list once and then replays it whole.
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
    if (n != 1 || jobs[0].T != 1 || tap || rt->codec || rt->o.stream_layers || rt->o.expand_decode) return false;
    for (size_t i = 0; i < rt->n_trunk; i++)
        if (!takes_cursor(rt, &rt->layer[i])) return false;
    return true;
}

mla_status rt_step_cursor(mla_seq *s, mla_err *err)
{
    mla_rt *rt = s->rt;
    int32_t len = (int32_t)(s->len + 1); /* max_tokens fits */
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

static void drop_tape(mla_seq *s)
{
    if (s->tape) RT_OP(s->rt, tape_free, s->tape);
    s->tape = NULL;
}

mla_status rt_step_run(mla_rt *rt, mla_seq *s, rt_block *b, mla_err *err)
{
    if (!rt->be->ops->record || rt->o.plain_steps) return layers(rt, b, err);
    if (s->moved != rt->moved) {
        drop_tape(s);
        s->moved = rt->moved;
        s->steps = 0;
    }
    if (!s->tape && s->steps++ < PLAIN_STEPS) return layers(rt, b, err);
    if (!s->tape) {
        RT_TRY(RT_OP(rt, record, err));
        mla_status st = layers(rt, b, err);
        mla_err ignored;
        mla_status end = RT_OP(rt, record_end, st == MLA_OK ? &s->tape : NULL, st == MLA_OK ? err : &ignored);
        if (st != MLA_OK || end != MLA_OK) return st != MLA_OK ? st : end;
    }
    return RT_OP(rt, replay, s->tape, err);
}

void rt_step_free(mla_seq *s)
{
    drop_tape(s);
    rt_buf_free(s->rt, &s->len_at);
    rt_buf_free(s->rt, &s->pages_at);
}
