/* Finding cached rows and widening them to f32 panels. */
#include <string.h>

#include "backend/cpu/attn.h"

static const mla_kv_view *view_of(const mla_attn_job *j, int part)
{
    return part == MLA_PART_K ? &j->a->k : part == MLA_PART_K2 ? &j->a->k2 : &j->a->v;
}

static size_t dim_of(const mla_attn_job *j, int part)
{
    return part == MLA_PART_K ? j->a->dk : part == MLA_PART_K2 ? j->a->dk2 : j->a->dv;
}

/* Keys of the block that exist for the last query of this round. */
static size_t block_keys(const mla_attn_job *j, size_t block)
{
    size_t keys = j->a->pos0 + j->t0 + j->T, from = block * MLA_BLOCK;
    return keys > from ? mla_min_size(MLA_BLOCK, keys - from) : 0;
}

/* Addresses of n rows from token s on: one look-up per page. */
static void locate(const mla_kv_view *v, size_t head, size_t s, size_t n, const void **row)
{
    size_t es = mla_kv_elem_bytes(v->dtype), stride = v->row_elems * es, left = 0;
    const char *p = NULL;
    for (size_t i = 0; i < n; i++, left--, p += stride) {
        if (!left) {
            p = mla_kv_at(v, es, s + i, head * v->head_stride);
            left = v->pages ? v->page_tokens - (s + i) % v->page_tokens : n;
        }
        row[i] = p;
    }
}

static void find_rows(const mla_attn_job *j, int part, size_t head, size_t block, mla_attn_head *h)
{
    const mla_kv_view *v = view_of(j, part);
    size_t more = block_keys(j, block + 1);
    *h = (mla_attn_head){.part = part, .head = head, .block = block, .n = block_keys(j, block)};
    locate(v, head, block * MLA_BLOCK, h->n, h->row);
    locate(v, head, (block + 1) * MLA_BLOCK, more, h->next);
    for (size_t i = more; i < h->n; i++) h->next[i] = h->row[i];
}

static void widen_piece(const mla_attn_job *j, const mla_attn_head *h, size_t from, bool pairs, void *dst)
{
    const mla_kv_view *v = view_of(j, h->part);
    bool values = h->part == MLA_PART_V;
    size_t at = values ? 0 : from, d = dim_of(j, h->part);
    mla_stored_rows r = {.row = h->row + at, .next = h->next + at, .dtype = v->dtype, .n = h->n - at, .scale = v->scale};
    r.d = values ? mla_min_size(MLA_NR, d - from) : d;
    r.col = values ? from : 0;
    if (!values) r.n = mla_min_size(MLA_NR, r.n);
    if (pairs)
        (values ? j->k->value_pairs : j->k->key_pairs)(dst, &r);
    else
        (values ? j->k->values : j->k->keys)(dst, &r);
}

/* Where a piece lies in the shared area: [k heads][k2 heads][v heads, f32][v heads, pairs]. */
static float *shared(const mla_attn_job *j, const mla_attn_head *h, size_t from, bool pairs)
{
    const mla_attn_args *a = j->a;
    float *p = j->blocks + (h->block - j->b0) * j->block_elems;
    if (h->part == MLA_PART_K) return p + h->head * j->kblk + from * a->dk;
    p += a->kh * j->kblk;
    if (h->part == MLA_PART_K2) return p + h->head * j->k2blk + from * a->dk2;
    p += (a->q2 ? a->k2h : 0) * j->k2blk;
    if (!pairs) return p + h->head * j->vblk + from * MLA_BLOCK;
    return p + a->vh * j->vblk + h->head * j->vpairs + from * (MLA_BLOCK / 2);
}

/* piece = (block, head of one part) */
void mla_attn_widen(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_attn_job *j = ctx;
    const mla_attn_args *a = j->a;
    size_t k2h = a->q2 ? a->k2h : 0, per = a->kh + k2h + (j->observe ? 0 : a->vh);
    mla_attn_head h;
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        size_t b = i / per, x = i % per;
        int part = x < a->kh ? MLA_PART_K : x < a->kh + k2h ? MLA_PART_K2 : MLA_PART_V;
        find_rows(j, part, part == MLA_PART_K ? x : part == MLA_PART_K2 ? x - a->kh : x - a->kh - k2h, j->b0 + b, &h);
        bool values = part == MLA_PART_V, partial = (h.block + 1) * MLA_BLOCK > a->pos0 + j->t0 + 1; /* for some query */
        for (size_t from = 0; from < (values ? a->dv : h.n); from += MLA_NR) {
            if (j->pairs && (!values || h.n == MLA_BLOCK)) widen_piece(j, &h, from, true, shared(j, &h, from, true));
            if (!j->pairs || (values && partial)) widen_piece(j, &h, from, false, shared(j, &h, from, false));
        }
    }
}

void mla_attn_find(const mla_attn_job *j, int part, size_t head, size_t block, mla_attn_head *h)
{
    if (j->fused)
        find_rows(j, part, head, block, h);
    else
        h->part = part, h->head = head, h->block = block;
}

const void *mla_attn_piece(const mla_attn_job *j, const mla_attn_head *h, size_t from, bool pairs, float *buf)
{
    if (!j->fused) return shared(j, h, from, pairs);
    widen_piece(j, h, from, pairs, buf);
    return buf;
}
