/* A sequence continued twice. Pages that both caches of a sequence have filled are never written again, so they are
 * shared; the others are copied, as are positions, rotation tables and delta net states. */
#include <string.h>

#include "runtime/rt.h"

static mla_status copy_page(mla_rt *rt, int32_t to, int32_t from, mla_err *err)
{
    for (size_t i = 0; i < rt->n_layer; i++) {
        const rt_layer *l = &rt->layer[i];
        size_t bytes = rt_row(rt, l).bytes * rt->pool.page_tokens;
        if (bytes) RT_TRY(RT_OP(rt, copy, mla_at_bytes(l->cache.p, (size_t)to * bytes), mla_at_bytes(l->cache.p, (size_t)from * bytes), bytes, err));
    }
    return MLA_OK;
}

static mla_status take_pages(mla_seq *s, const mla_seq *src, mla_err *err)
{
    mla_rt *rt = s->rt;
    size_t done = rt->o.mtp && src->mtp_len < src->len ? src->mtp_len : src->len; /* the MTP head may still write behind */
    size_t shared = done / rt->pool.page_tokens;
    if (shared > src->n_pages) shared = src->n_pages;
    RT_TRY(rt_seq_room(s, src->n_pages, err));
    for (size_t i = 0; i < shared; i++) {
        s->pages[s->n_pages++] = src->pages[i];
        rt_pool_share(rt, src->pages[i]);
    }
    while (s->n_pages < src->n_pages) {
        RT_TRY(rt_pool_take(rt, &s->pages[s->n_pages], err));
        s->n_pages++;
        RT_TRY(copy_page(rt, s->pages[s->n_pages - 1], src->pages[s->n_pages - 1], err));
    }
    return MLA_OK;
}

static mla_status copy_state(mla_seq *s, const mla_seq *src, mla_err *err)
{
    mla_rt *rt = s->rt;
    size_t half = rt->cfg->rope.rot / 2;
    RT_TRY(rt_seq_tables(s, src->table, err));
    if (src->table) memcpy(s->pos, src->pos, src->table * 3 * sizeof *s->pos);
    if (src->table && half) {
        RT_TRY(RT_OP(rt, copy, s->cos.p, src->cos.p, src->table * half * 4, err));
        RT_TRY(RT_OP(rt, copy, s->sin.p, src->sin.p, src->table * half * 4, err));
    }
    for (size_t i = 0; i < rt->n_layer; i++) {
        if (s->conv[i].p) RT_TRY(RT_OP(rt, copy, s->conv[i].p, src->conv[i].p, s->conv[i].bytes, err));
        if (s->state[i].p) RT_TRY(RT_OP(rt, copy, s->state[i].p, src->state[i].p, s->state[i].bytes, err));
    }
    return RT_OP(rt, sync, err);
}

mla_status mla_seq_fork(mla_seq **out, const mla_seq *src, size_t max_tokens, mla_err *err)
{
    mla_rt *rt = src->rt;
    mla_seq *s;
    size_t least = src->mtp_len > src->len ? src->mtp_len : src->len;
    *out = NULL;
    if (src->broken) return mla_fail(err, MLA_EINVAL, "fork: an earlier run of the sequence failed");
    if (max_tokens < least) return mla_fail(err, MLA_EINVAL, "fork: at most %zu tokens, and the sequence has %zu", max_tokens, least);
    RT_TRY(mla_seq_new(&s, rt, max_tokens, err));
    mla_status st = MLA_OK;
    if (memcmp(s->inv_freq, src->inv_freq, rt->cfg->rope.rot / 2 * sizeof *s->inv_freq))
        st = mla_fail(err, MLA_EINVAL, "fork: rotation depends on the length, so at most %zu tokens are expected, not %zu", src->max_tokens, max_tokens);
    if (st == MLA_OK) st = take_pages(s, src, err);
    if (st == MLA_OK) st = copy_state(s, src, err);
    if (st != MLA_OK) {
        mla_seq_free(s);
        return st;
    }
    s->len = src->len;
    s->mtp_len = src->mtp_len;
    s->next_pos = src->next_pos;
    s->table = src->table;
    s->fresh = src->fresh;
    *out = s;
    return MLA_OK;
}
