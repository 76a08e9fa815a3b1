/* The backend's attention of a few new tokens over a cache, with bf16 products: one call of the decode kernel. */
#include "cuda/attn.cuh"
#include "cuda/be.cuh"

enum { DECODE_TOKENS = 8 };

/* Heads of a part stand side by side in its rows. */
static bool packed(const mla_kv_view *v, size_t heads, size_t d) { return heads == 1 || v->head_stride == d; }

/* Over 64-token pages, no observation: absorbed attention, keys and values the same cached latents; or keys and values of
 * 128 or 256 of their own in bf16. */
bool attn_decode_fits(const mla_attn_args *a)
{
    const mla_kv_view *k = &a->k, *r = &a->k2, *v = &a->v;
    const bool same = k->data == v->data && k->col == v->col, paged = a->at || (k->pages && k->pages == v->pages && (!a->q2 || k->pages == r->pages));
    const bool latent = same && a->dk % 128 == 0 && a->dk >= 256 && a->q2 && r->dtype == k->dtype && r->page_tokens == k->page_tokens && packed(r, a->k2h, a->dk2);
    const bool gqa = !same && !a->q2 && k->dtype == MLA_BF16 && (a->dk == 128 || a->dk == 256);
    const size_t per16 = k->dtype == MLA_BF16 ? 8 : 16;
    return a->bf16 && !a->p2 && !a->probs && a->T && a->T <= DECODE_TOKENS && (latent || gqa) && a->kh == a->vh && a->dk == a->dv && packed(k, a->kh, a->dk) &&
           packed(v, a->vh, a->dv) && paged && k->page_tokens == MLA_DECODE_PAGE && v->page_tokens == MLA_DECODE_PAGE && v->dtype == k->dtype &&
           (k->dtype == MLA_BF16 || k->dtype == MLA_F8_E4M3) && k->row_elems % per16 == 0 && v->row_elems % per16 == 0 && (gqa || r->row_elems % per16 == 0) &&
           ((uintptr_t)k->data | (uintptr_t)v->data | (gqa ? 0 : (uintptr_t)r->data)) % 16 == 0;
}

static mla_decode problem(const mla_attn_args *a)
{
    mla_decode d = {};
    d.B = 1, d.s_q = a->T, d.H = a->H, d.groups = a->kh, d.lat = a->dk, d.rope = a->q2 ? a->dk2 : 0, d.rope_heads = a->k2h;
    d.cache = a->k.dtype;
    d.c = {a->k.data, (int64_t)a->k.row_elems, (int64_t)a->k.col, a->k.scale};
    if (a->q2) d.r = {a->k2.data, (int64_t)a->k2.row_elems, (int64_t)a->k2.col, a->k2.scale};
    else d.v = {a->v.data, (int64_t)a->v.row_elems, (int64_t)a->v.col, a->v.scale};
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
    mla_status st = cu_scratch(c, table + 256 + mla_decode_ws_bytes(&d), "attention", &s, err);
    if (a->at) d.table = (const int32_t *)a->at->pages, d.len = (const int32_t *)a->at->len;
    else {
        if (!st) st = cu_put_i32(c, s, a->k.pages, (size_t)d.table_stride, "attention", err);
        if (!st) st = cu_put_i32(c, s + table, &len, 1, "attention", err);
        d.table = (const int32_t *)s, d.len = (const int32_t *)(s + table);
    }
    if (st) return st;
    d.ws = s + table + 256;
    st = mla_decode_plan(&d, c->stream, err);
    return st ? st : mla_decode_run(&d, c->stream, err);
}
