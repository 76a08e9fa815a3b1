/* The backend's attention of a few new tokens with bf16 products, over cached latents or over keys and values of their own:
 * one call of the decode kernels. */
#include "cuda/attn.cuh"
#include "cuda/be.cuh"

enum { DECODE_TOKENS = 8 };

/* Heads of a part stand side by side in its rows. */
static bool packed(const mla_kv_view *v, size_t heads, size_t d) { return heads == 1 || v->head_stride == d; }

static bool same_pages(const mla_attn_args *a, const mla_kv_view *x)
{
    return (a->at || x->pages == a->k.pages) && x->dtype == a->k.dtype && x->page_tokens == a->k.page_tokens;
}
/* Absorbed attention: keys and values the same cached latents, rotary keys beside them. */
static bool over_latents(const mla_attn_args *a)
{
    const mla_kv_view *k = &a->k, *v = &a->v;
    return k->data == v->data && k->col == v->col && k->head_stride == v->head_stride && a->kh == a->vh && a->dk == a->dv && a->dk % 128 == 0 && a->dk >= 256 &&
           (k->dtype == MLA_BF16 || k->dtype == MLA_F8_E4M3) && a->q2 && same_pages(a, &a->k2) && packed(&a->k2, a->k2h, a->dk2);
}
/* Keys and values of their own: heads that decode_gqa.cuh is built for. */
static bool over_heads(const mla_attn_args *a)
{
    return !a->q2 && a->k.dtype == MLA_BF16 && a->kh == a->vh && a->dk == a->dv && (a->dk == 128 || a->dk == 256) && same_pages(a, &a->v) && packed(&a->v, a->vh, a->dv);
}

/* Over 64-token pages, without observation. */
bool attn_decode_fits(const mla_attn_args *a)
{
    const mla_kv_view *k = &a->k, *r = a->q2 ? &a->k2 : &a->v;
    const size_t per16 = k->dtype == MLA_BF16 ? 8 : 16;
    return a->bf16 && !a->p2 && !a->probs && !a->divh && a->T && a->T <= DECODE_TOKENS && (a->at || k->pages) && k->page_tokens == MLA_DECODE_PAGE &&
           packed(k, a->kh, a->dk) && (over_latents(a) || over_heads(a)) && k->row_elems % per16 == 0 && r->row_elems % per16 == 0 &&
           ((uintptr_t)k->data | (uintptr_t)r->data) % 16 == 0;
}

static mla_decode problem(const mla_attn_args *a)
{
    mla_decode d = {};
    d.B = 1, d.s_q = a->T, d.H = a->H, d.groups = a->kh, d.lat = a->dk;
    d.cache = a->k.dtype;
    d.c = {a->k.data, (int64_t)a->k.row_elems, (int64_t)a->k.col, a->k.scale};
    if (a->q2) {
        d.rope = a->dk2, d.rope_heads = a->k2h;
        d.r = {a->k2.data, (int64_t)a->k2.row_elems, (int64_t)a->k2.col, a->k2.scale};
    } else d.v = {a->v.data, (int64_t)a->v.row_elems, (int64_t)a->v.col, a->v.scale};
    const size_t n = (a->pos0 + a->T + MLA_DECODE_PAGE - 1) / MLA_DECODE_PAGE;
    if (a->at) d.pages = a->at->pool;
    for (size_t i = 0; i < n && !a->at; i++)
        if ((size_t)a->k.pages[i] >= d.pages) d.pages = (size_t)a->k.pages[i] + 1;
    d.table_stride = (int64_t)n;
    d.q = {a->q, 0, (int64_t)a->ldq, (int64_t)a->qh_stride, MLA_F32};
    d.q2 = {a->q2, 0, (int64_t)a->ldq2, (int64_t)a->q2h_stride, MLA_F32};
    d.o = {a->o, 0, (int64_t)a->ldo, (int64_t)a->dv, MLA_F32};
    d.scale = a->scale;
    return d;
}

mla_status attn_decode(mla_cuda *c, const mla_attn_args *a, mla_err *err)
{
    mla_decode d = problem(a);
    const size_t table = a->at ? 0 : pad256((size_t)d.table_stride * 4);
    const int32_t len = (int32_t)(a->pos0 + a->T);
    char *s;
    if (a->pos0 + a->T > INT32_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "attention: %zu tokens, at most %d", a->pos0 + a->T, INT32_MAX);
    const size_t ws = pad256(mla_decode_ws_bytes(&d)), rounded = cu_heads_room(c, a);
    mla_status st = cu_scratch(c, table + 256 + ws + rounded, "attention", &s, err);
    if (a->at) d.table = (const int32_t *)a->at->pages, d.len = (const int32_t *)a->at->len;
    else {
        if (!st) st = cu_put_i32(c, s, a->k.pages, (size_t)d.table_stride, "attention", err);
        if (!st) st = cu_put_i32(c, s + table, &len, 1, "attention", err);
        d.table = (const int32_t *)s, d.len = (const int32_t *)(s + table);
    }
    if (st) return st;
    d.ws = s + table + 256;
    if (rounded) {
        char *q = s + table + 256 + ws;
        if ((st = cu_heads_round(c, a, q, err))) return st;
        d.q = {q, 0, (int64_t)(a->H * a->dk), (int64_t)a->dk, MLA_BF16};
        d.q2 = {q + pad256(a->T * a->H * a->dk * 2), 0, (int64_t)(a->H * a->dk2), (int64_t)a->dk2, MLA_BF16};
    }
    st = mla_decode_plan(&d, c->stream, err);
    return st ? st : mla_decode_run(&d, c->stream, err);
}
