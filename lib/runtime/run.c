/* The forward pass: all jobs advance layer by layer. Their rows stand in one residual buffer, cut into blocks that
 * bound the memory of activations; each layer is loaded once per call in streaming mode. */
#include "base/alloc.h"
#include "base/ckd.h"
#include "runtime/rt.h"

typedef struct {
    mla_rt *rt;
    mla_job *job;
    size_t n, rows;          /* jobs, rows of all of them */
    mla_mem *x;              /* (rows, D) residual stream */
    rt_piece *piece;
    rt_block *block;
    size_t n_block;
    bool step;               /* a few tokens, by cursors */
} pass;

static mla_status check_ids(const mla_job *j, size_t at, size_t V, mla_err *err)
{
    for (size_t t = 0; j->ids && t < j->T; t++)
        if (j->ids[t] < 0 || (size_t)j->ids[t] >= V)
            return mla_fail(err, MLA_EINVAL, "sequence %zu: token %zu has id %d, the vocabulary has %zu", at, t, (int)j->ids[t], V);
    return MLA_OK;
}

static mla_status check_job(const mla_rt *rt, const mla_job *jobs, size_t i, bool sink, mla_err *err)
{
    const mla_job *j = &jobs[i];
    const mla_seq *s = j->seq;
    if (!s || s->rt != rt) return mla_fail(err, MLA_EINVAL, "sequence %zu does not belong to this runtime", i);
    if (s->broken) return mla_fail(err, MLA_EINVAL, "sequence %zu: an earlier run failed; reset it first", i);
    for (size_t k = 0; k < i; k++)
        if (jobs[k].seq == s) return mla_fail(err, MLA_EINVAL, "sequences %zu and %zu of one run are the same", k, i);
    if (!j->T) return mla_fail(err, MLA_EINVAL, "sequence %zu: no tokens", i);
    if (!j->ids == !j->embeds) return mla_fail(err, MLA_EINVAL, "sequence %zu: either ids or embeddings, not both", i);
    if (j->T > s->max_tokens - s->len)
        return mla_fail(err, MLA_EINVAL, "sequence %zu: %zu + %zu tokens exceed its maximum of %zu", i, s->len, j->T, s->max_tokens);
    if (j->logits_from > j->T || (j->logits_from < j->T && !j->logits && !sink))
        return mla_fail(err, MLA_EINVAL, "sequence %zu: logits from row %zu of %zu have nowhere to go", i, j->logits_from, j->T);
    return check_ids(j, i, rt->cfg->vocab, err);
}

/* Pages, positions and zeroed states. From here on a failure leaves the sequences broken. */
static mla_status prepare(pass *p, mla_err *err)
{
    for (size_t i = 0; i < p->n; i++) {
        mla_job *j = &p->job[i];
        j->seq->broken = true;
        RT_TRY(rt_seq_states(j->seq, err));
        RT_TRY(rt_seq_pages(j->seq, j->seq->len + j->T, err));
        RT_TRY(rt_seq_positions(j->seq, j->pos3, j->T, err));
        if (p->step) RT_TRY(rt_step_cursor(j->seq, j->T, err));
    }
    return MLA_OK;
}

static mla_status embed(pass *p, mla_tap_fn tap, void *ctx, mla_err *err)
{
    mla_rt *rt = p->rt;
    size_t D = rt->cfg->hidden, row = 0;
    RT_TRY(rt_scratch(rt, RT_S_X, p->rows, D, &p->x, err));
    RT_TRY(rt_embed_load(rt, err));
    for (size_t i = 0; i < p->n; i++) {
        const mla_job *j = &p->job[i];
        mla_mem *x = mla_at(p->x, row * D);
        if (j->ids) RT_TRY(RT_OP(rt, embed, rt->embed.w, x, j->ids, j->T, err));
        else RT_TRY(RT_OP(rt, upload, x, j->embeds, j->T * D * 4, err));
        if (tap) {
            mla_tap t = {.point = MLA_TAP_EMBED, .seq = i, .data = x, .rows = j->T, .width = D, .ld = D, .be = rt->be};
            RT_TRY(tap(ctx, &t, err));
        }
        row += j->T;
    }
    if (rt->o.stream_layers) {
        RT_TRY(RT_OP(rt, sync, err));
        rt_embed_drop(rt);
    }
    return MLA_OK;
}

/* Blocks of at most rt_block_rows rows, jobs in order. Who taps sees a job's rows whole: then jobs are not cut. */
static mla_status cut(pass *p, mla_tap_fn tap, void *ctx, mla_err *err)
{
    mla_rt *rt = p->rt;
    size_t half = rt->cfg->rope.rot / 2, D = rt->cfg->hidden, limit = rt_block_rows(rt), most = p->n + p->rows / limit + 1, np = 0, row = 0;
    p->piece = mla_alloc(most, sizeof *p->piece, 1);
    p->block = mla_alloc(most, sizeof *p->block, 1);
    if (!p->piece || !p->block) return mla_fail(err, MLA_ENOMEM, "run of %zu sequences", p->n);
    rt_block *b = NULL;
    for (size_t i = 0; i < p->n; i++) {
        const mla_job *j = &p->job[i];
        mla_seq *s = j->seq;
        for (size_t t = 0; t < j->T;) {
            size_t n = j->T - t, room = b ? limit - (b->rows < limit ? b->rows : limit) : 0;
            if (!b || !room || (tap && n > room)) {
                b = &p->block[p->n_block++];
                *b = (rt_block){.x = mla_at(p->x, row * D), .piece = &p->piece[np], .tap = tap, .ctx = ctx};
                room = limit;
            }
            if (!tap && n > room) n = room;
            size_t pos = s->len + t;
            p->piece[np++] = (rt_piece){.seq = s, .job = i, .row = b->rows, .n = n, .pos = pos, .cos = mla_at(s->cos.p, pos * half),
                                        .sin = mla_at(s->sin.p, pos * half), .at = p->step ? &s->at : NULL,
                                        .expand = j->T <= RT_STEP_TOKENS ? rt->o.expand_decode : !rt->o.absorb_prefill};
            b->n++;
            b->rows += n;
            row += n;
            t += n;
        }
    }
    return MLA_OK;
}

static mla_status layers(pass *p, mla_err *err)
{
    mla_rt *rt = p->rt;
    if (p->step) return rt_step_run(rt, &p->block[0], err);
    for (size_t i = 0; i < rt->n_trunk; i++) {
        rt_layer *l = &rt->layer[i];
        rt_layer *next = rt->o.stream_layers && i + 1 < rt->n_trunk ? l + 1 : NULL;
        mla_status st = rt_layer_load(rt, l, err);
        if (next) rt_layer_want(rt, next);
        for (size_t k = 0; k < p->n_block && st == MLA_OK; k++) st = rt_layer_run(rt, l, &p->block[k], err);
        if (rt->o.stream_layers) {
            if (st == MLA_OK && next && rt->be->ops->queues) st = rt_layer_load(rt, next, err); /* while this one is computed */
            if (st == MLA_OK) st = RT_OP(rt, sync, err);
            rt_layer_drop(rt, l);
        }
        if (st != MLA_OK) return st;
    }
    return MLA_OK;
}

mla_status mla_rt_run_sink(mla_rt *rt, mla_job *jobs, size_t n, mla_tap_fn tap, mla_logits_fn sink, void *ctx, mla_err *err)
{
    pass p = {.rt = rt, .job = jobs, .n = n};
    if (!n) return mla_fail(err, MLA_EINVAL, "a run without sequences");
    for (size_t i = 0; i < n; i++) {
        RT_TRY(check_job(rt, jobs, i, sink != NULL, err));
        if (!mla_add(&p.rows, p.rows, jobs[i].T)) return mla_fail(err, MLA_ENOMEM, "run of %zu sequences", n);
    }
    p.step = rt_step_fits(rt, jobs, n, tap);
    mla_status st = prepare(&p, err);
    if (st == MLA_OK) st = embed(&p, tap, ctx, err);
    if (st == MLA_OK) st = cut(&p, tap, ctx, err);
    if (st == MLA_OK) st = layers(&p, err);
    if (st == MLA_OK) st = rt_finish(rt, jobs, n, p.x, tap, sink, ctx, err);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        jobs[i].seq->len += jobs[i].T;
        jobs[i].seq->broken = false;
    }
    mla_free(p.piece);
    mla_free(p.block);
    return st;
}

mla_status mla_rt_run(mla_rt *rt, mla_job *jobs, size_t n, mla_tap_fn tap, void *tap_ctx, mla_err *err)
{
    return mla_rt_run_sink(rt, jobs, n, tap, NULL, tap_ctx, err);
}
