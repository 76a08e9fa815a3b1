/* A sequence: its block table, the positions and rotation tables of its tokens, its delta net states. */
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "runtime/rt.h"

static size_t pages_for(const mla_rt *rt, size_t tokens)
{
    return tokens / rt->pool.page_tokens + (tokens % rt->pool.page_tokens != 0);
}

/* conv (K-1, C) and state (nv, dk, dv) of every delta net layer */
static mla_status new_states(mla_seq *s, mla_err *err)
{
    mla_rt *rt = s->rt;
    const mla_config *c = rt->cfg;
    size_t C = 2 * c->lin_k_heads * c->lin_k_dim + c->lin_v_heads * c->lin_v_dim;
    for (size_t i = 0; i < rt->n_layer; i++) {
        if (rt->layer[i].kind != RT_GDN) continue;
        RT_TRY(rt_buf_new(rt, &s->conv[i], (c->lin_conv - 1) * C, 4, err));
        RT_TRY(rt_buf_new(rt, &s->state[i], c->lin_v_heads * c->lin_k_dim * c->lin_v_dim, 4, err));
    }
    return MLA_OK;
}

static mla_status check_scales(const mla_rt *rt, mla_err *err)
{
    char text[32];
    if (rt->o.kv_dtype != MLA_F8_E4M3) return MLA_OK;
    for (size_t i = 0; i < rt->n_layer; i++)
        if (rt_row(rt, &rt->layer[i]).bytes && !rt->layer[i].scale.present)
            return mla_fail(err, MLA_EINVAL, "%s: an FP8 KV cache needs scales, and none are stored or set for it",
                            rt_layer_text(&rt->layer[i], text));
    return MLA_OK;
}

mla_status mla_seq_new(mla_seq **out, mla_rt *rt, size_t max_tokens, mla_err *err)
{
    const mla_config *c = rt->cfg;
    *out = NULL;
    if (!max_tokens || max_tokens > INT32_MAX / 4)
        return mla_fail(err, MLA_EINVAL, "a sequence of %zu tokens: expected 1 to %d", max_tokens, INT32_MAX / 4);
    RT_TRY(check_scales(rt, err));
    mla_seq *s = mla_alloc(1, sizeof *s, 1);
    if (!s) return mla_fail(err, MLA_ENOMEM, "sequence");
    s->rt = rt;
    s->max_tokens = max_tokens;
    s->fresh = true;
    rt->open_seqs++;
    rt->pool.want += pages_for(rt, max_tokens);
    s->conv = mla_alloc(rt->n_layer, sizeof *s->conv, 1);
    s->state = mla_alloc(rt->n_layer, sizeof *s->state, 1);
    s->inv_freq = mla_alloc(c->rope.rot / 2 + 1, sizeof *s->inv_freq, 1);
    mla_status st = s->conv && s->state && s->inv_freq ? MLA_OK : mla_fail(err, MLA_ENOMEM, "sequence of %zu layers", rt->n_layer);
    if (st == MLA_OK) st = new_states(s, err);
    if (st != MLA_OK) {
        mla_seq_free(s);
        return st;
    }
    /* kinds of RoPE that depend on the length take the sequence's own maximum, so that chunks cannot change it */
    mla_rope_inv_freq(c, max_tokens, s->inv_freq);
    *out = s;
    return MLA_OK;
}

static void give_pages(mla_seq *s)
{
    while (s->n_pages) rt_pool_give(s->rt, s->pages[--s->n_pages]);
    s->sent = 0;
}

void mla_seq_free(mla_seq *s)
{
    if (!s) return;
    mla_rt *rt = s->rt;
    give_pages(s);
    rt_step_free(s);
    for (size_t i = 0; i < rt->n_layer; i++) {
        if (s->conv) rt_buf_free(rt, &s->conv[i]);
        if (s->state) rt_buf_free(rt, &s->state[i]);
    }
    rt_buf_free(rt, &s->cos);
    rt_buf_free(rt, &s->sin);
    mla_free(s->conv);
    mla_free(s->state);
    mla_free(s->inv_freq);
    mla_free(s->pages);
    mla_free(s->pos);
    rt->pool.want -= pages_for(rt, s->max_tokens);
    rt->open_seqs--;
    mla_free(s);
}

size_t mla_seq_len(const mla_seq *s) { return s->len; }

void mla_seq_reset(mla_seq *s)
{
    give_pages(s);
    s->len = s->mtp_len = s->table = 0;
    s->next_pos = 0;
    s->fresh = true;
    s->broken = false;
}

mla_status rt_seq_states(mla_seq *s, mla_err *err)
{
    if (!s->fresh) return MLA_OK;
    for (size_t i = 0; i < s->rt->n_layer; i++) {
        if (s->conv[i].p) RT_TRY(RT_OP(s->rt, zero, s->conv[i].p, s->conv[i].bytes, err));
        if (s->state[i].p) RT_TRY(RT_OP(s->rt, zero, s->state[i].p, s->state[i].bytes, err));
    }
    s->fresh = false;
    return MLA_OK;
}

mla_status rt_seq_room(mla_seq *s, size_t pages, mla_err *err)
{
    if (pages <= s->cap_pages) return MLA_OK;
    size_t cap = pages < 16 ? 16 : pages + pages / 2;
    int32_t *p = mla_realloc(s->pages, cap, sizeof *p);
    if (!p) return mla_fail(err, MLA_ENOMEM, "block table of %zu pages", cap);
    s->pages = p;
    s->cap_pages = cap;
    return MLA_OK;
}

mla_status rt_seq_pages(mla_seq *s, size_t tokens, mla_err *err)
{
    size_t need = pages_for(s->rt, tokens);
    RT_TRY(rt_seq_room(s, need, err));
    while (s->n_pages < need) {
        RT_TRY(rt_pool_take(s->rt, &s->pages[s->n_pages], err));
        s->n_pages++;
    }
    return MLA_OK;
}

mla_status rt_seq_tables(mla_seq *s, size_t rows, mla_err *err)
{
    mla_rt *rt = s->rt;
    size_t half = rt->cfg->rope.rot / 2, cap = s->cap_pos ? 2 * s->cap_pos : 256;
    if (rows <= s->cap_pos) return MLA_OK;
    if (cap < rows) cap = rows;
    int32_t *pos = mla_realloc(s->pos, cap, 3 * sizeof *pos);
    if (!pos) return mla_fail(err, MLA_ENOMEM, "positions of %zu tokens", cap);
    s->pos = pos;
    rt_buf *b[2] = {&s->cos, &s->sin};
    for (size_t i = 0; i < 2; i++) {
        rt_buf n;
        RT_TRY(rt_buf_new(rt, &n, cap * half, 4, err));
        mla_status st = s->table && half ? RT_OP(rt, copy, n.p, b[i]->p, s->table * half * 4, err) : MLA_OK;
        if (st == MLA_OK) st = RT_OP(rt, sync, err);
        if (st != MLA_OK) {
            rt_buf_free(rt, &n);
            return st;
        }
        rt_buf_free(rt, b[i]);
        *b[i] = n;
    }
    s->cap_pos = cap;
    return MLA_OK;
}

/* Host positions of the new tokens; the next position after an image block is its largest coordinate + 1. */
static mla_status fill_positions(mla_seq *s, const int32_t *pos3, size_t T, mla_err *err)
{
    const size_t *sec = s->rt->cfg->rope.mrope_section;
    bool three = (sec[0] | sec[1] | sec[2]) != 0;
    for (size_t t = 0; t < T; t++) {
        int32_t *p = s->pos + 3 * (s->table + t);
        for (size_t a = 0; a < 3; a++) p[a] = pos3 ? pos3[a * T + t] : s->next_pos;
        for (size_t a = 0; a < 3; a++) {
            if (p[a] < 0 || p[a] == INT32_MAX)
                return mla_fail(err, MLA_EINVAL, "token %zu: position %d is out of range", s->table + t, (int)p[a]);
            if (!three && p[a] != p[0])
                return mla_fail(err, MLA_EINVAL, "token %zu: positions %d %d %d differ, and this model has one-dimensional positions",
                                s->table + t, (int)p[0], (int)p[1], (int)p[2]);
            if (p[a] >= s->next_pos) s->next_pos = p[a] + 1;
        }
    }
    return MLA_OK;
}

mla_status rt_seq_positions(mla_seq *s, const int32_t *pos3, size_t T, mla_err *err)
{
    mla_rt *rt = s->rt;
    size_t half = rt->cfg->rope.rot / 2;
    RT_TRY(rt_seq_tables(s, s->table + T, err));
    RT_TRY(fill_positions(s, pos3, T, err));
    float *cs = mla_alloc_raw(T, half + 1, 2 * sizeof *cs);
    if (!cs) return mla_fail(err, MLA_ENOMEM, "rotation of %zu tokens", T);
    rt_rope_rows(rt->cfg, s->inv_freq, s->pos + 3 * s->table, T, cs, cs + T * half);
    mla_status st = MLA_OK;
    if (half) st = RT_OP(rt, upload, mla_at(s->cos.p, s->table * half), cs, T * half * 4, err);
    if (half && st == MLA_OK) st = RT_OP(rt, upload, mla_at(s->sin.p, s->table * half), cs + T * half, T * half * 4, err);
    mla_free(cs);
    if (st == MLA_OK) s->table += T;
    return st;
}
