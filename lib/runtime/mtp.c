/* The MTP head: fc([norm(embedding of the next token) | norm(hidden)]), one full-attention layer with a cache of its
 * own at the embedded token's position, its norm, the trunk's lm_head. */
#include "base/alloc.h"
#include "runtime/rt.h"

/* Position rows (T, 3) of the embedded tokens: entry j of the head's cache embeds trunk token j + 1; drafts run past
 * what the trunk has seen and count on from its next position. */
static void positions(const mla_seq *s, size_t T, int32_t *pos)
{
    for (size_t t = 0; t < T; t++) {
        size_t at = s->mtp_len + t + 1;
        for (size_t a = 0; a < 3; a++)
            pos[3 * t + a] = at < s->len ? s->pos[3 * at + a] : s->next_pos + (int32_t)(at - s->len);
    }
}

static mla_status rotation(mla_seq *s, size_t T, mla_mem **cos_out, mla_mem **sin_out, mla_err *err)
{
    mla_rt *rt = s->rt;
    size_t half = rt->cfg->rope.rot / 2;
    RT_TRY(rt_scratch(rt, RT_S_COS, T, half, cos_out, err));
    RT_TRY(rt_scratch(rt, RT_S_SIN, T, half, sin_out, err));
    float *cs = mla_alloc_raw(T, half + 1, 2 * sizeof *cs);
    int32_t *pos = mla_alloc_raw(T, 3, sizeof *pos);
    mla_status st = cs && pos ? MLA_OK : mla_fail(err, MLA_ENOMEM, "rotation of %zu tokens", T);
    if (st == MLA_OK && half) {
        positions(s, T, pos);
        rt_rope_rows(rt->cfg, s->inv_freq, pos, T, cs, cs + T * half);
        st = RT_OP(rt, upload, *cos_out, cs, T * half * 4, err);
        if (st == MLA_OK) st = RT_OP(rt, upload, *sin_out, cs + T * half, T * half * 4, err);
    }
    mla_free(cs);
    mla_free(pos);
    return st;
}

/* x (T, D) = fc([norm_e(embed(ids)) | norm_h(hidden)]) */
static mla_status input(mla_rt *rt, const mla_mtp_job *j, mla_mem *x, mla_err *err)
{
    size_t D = rt->cfg->hidden;
    mla_mem *raw, *cat; /* (T, D), (T, 2D) */
    RT_TRY(rt_scratch(rt, RT_S_H, j->T, D, &raw, err));
    RT_TRY(rt_scratch(rt, RT_S_B1, j->T, 2 * D, &cat, err));
    RT_TRY(RT_OP(rt, embed, rt->embed.w, raw, j->next_ids, j->T, err));
    RT_TRY(rt_norm(rt, &rt->mtp_embed_norm, (rt_rows){cat, 2 * D}, (rt_rows){raw, D}, j->T, D, err));
    RT_TRY(RT_OP(rt, upload, raw, j->hidden, j->T * D * 4, err));
    RT_TRY(rt_norm(rt, &rt->mtp_hidden_norm, (rt_rows){mla_at(cat, D), 2 * D}, (rt_rows){raw, D}, j->T, D, err));
    return rt_linear(rt, &rt->mtp_fc, (rt_rows){x, D}, (rt_rows){cat, 2 * D}, j->T, err);
}

/* At most rt_block_rows tokens, or any number when tapped. */
static mla_status chunk(mla_rt *rt, const mla_mtp_job *j, mla_tap_fn tap, void *ctx, mla_err *err)
{
    mla_seq *s = j->seq;
    size_t D = rt->cfg->hidden, V = rt->cfg->vocab, most = rt_logit_rows(rt);
    rt_layer *l = &rt->layer[rt->n_trunk];
    rt_piece p = {.seq = s, .n = j->T, .pos = s->mtp_len, .expand = j->T > 4};
    rt_block b = {.rows = j->T, .piece = &p, .n = 1, .tap = tap, .ctx = ctx};
    mla_mem *y;
    RT_TRY(rt_seq_pages(s, s->mtp_len + j->T, err));
    RT_TRY(rotation(s, j->T, &p.cos, &p.sin, err));
    RT_TRY(rt_scratch(rt, RT_S_X, j->T, D, &b.x, err));
    RT_TRY(input(rt, j, b.x, err));
    RT_TRY(rt_layer_run(rt, l, &b, err));
    RT_TRY(rt_scratch(rt, RT_S_H, j->T, D, &y, err));
    RT_TRY(rt_norm(rt, &rt->mtp_norm, (rt_rows){y, D}, (rt_rows){b.x, D}, j->T, D, err));
    RT_TRY(rt_tap(rt, &b, MLA_TAP_MTP_OUT, l->index, (rt_rows){y, D}, D, err));
    if (j->out) RT_TRY(RT_OP(rt, download, j->out, y, j->T * D * 4, err));
    for (size_t t = 0; j->logits && t < j->T; t += most) {
        size_t n = j->T - t < most ? j->T - t : most;
        RT_TRY(rt_logits(rt, mla_at(y, t * D), n, j->logits + t * V, err));
    }
    s->mtp_len += j->T;
    return MLA_OK;
}

static mla_status check(const mla_rt *rt, const mla_mtp_job *j, mla_err *err)
{
    const mla_seq *s = j->seq;
    if (!rt->o.mtp) return mla_fail(err, MLA_EINVAL, "the runtime was opened without the MTP head");
    if (!s || s->rt != rt) return mla_fail(err, MLA_EINVAL, "MTP: the sequence does not belong to this runtime");
    if (s->broken) return mla_fail(err, MLA_EINVAL, "MTP: an earlier run failed; reset the sequence first");
    if (!j->T || j->T > s->max_tokens - s->mtp_len)
        return mla_fail(err, MLA_EINVAL, "MTP: %zu + %zu tokens, expected 1 to %zu", s->mtp_len, j->T, s->max_tokens);
    for (size_t t = 0; t < j->T; t++)
        if (j->next_ids[t] < 0 || (size_t)j->next_ids[t] >= rt->cfg->vocab)
            return mla_fail(err, MLA_EINVAL, "MTP: token %zu has id %d, the vocabulary has %zu", t, (int)j->next_ids[t], rt->cfg->vocab);
    return MLA_OK;
}

mla_status mla_rt_mtp_run(mla_rt *rt, const mla_mtp_job *job, mla_tap_fn tap, void *ctx, mla_err *err)
{
    RT_TRY(check(rt, job, err));
    size_t step = tap ? job->T : rt_block_rows(rt), D = rt->cfg->hidden;
    job->seq->broken = true;
    mla_status st = rt_embed_load(rt, err);
    if (st == MLA_OK) st = rt_mtp_load(rt, err);
    if (st == MLA_OK) st = rt_layer_load(rt, &rt->layer[rt->n_trunk], err);
    if (st == MLA_OK) st = rt_head_load(rt, err);
    for (size_t t = 0; t < job->T && st == MLA_OK; t += step) {
        mla_mtp_job j = *job;
        j.T = job->T - t < step ? job->T - t : step;
        j.hidden += t * D;
        j.next_ids += t;
        if (j.logits) j.logits += t * rt->cfg->vocab;
        if (j.out) j.out += t * D;
        st = chunk(rt, &j, tap, ctx, err);
    }
    if (rt->o.stream_layers) {
        if (st == MLA_OK) st = RT_OP(rt, sync, err);
        rt_mtp_drop(rt);
        rt_layer_drop(rt, &rt->layer[rt->n_trunk]);
        rt_head_drop(rt);
        rt_embed_drop(rt);
    }
    job->seq->broken = st != MLA_OK;
    return st;
}

mla_status mla_rt_mtp(mla_rt *rt, mla_seq *seq, const float *hidden, const int32_t *next_ids, size_t T, float *logits, float *out,
                      mla_err *err)
{
    mla_mtp_job j = {.seq = seq, .hidden = hidden, .next_ids = next_ids, .T = T, .logits = logits, .out = out};
    return mla_rt_mtp_run(rt, &j, NULL, NULL, err);
}
