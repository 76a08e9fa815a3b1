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

static void widen_piece(const mla_attn_job *j, const mla_attn_head *h, size_t from, float *dst)
{
    const mla_kv_view *v = view_of(j, h->part);
    bool values = h->part == MLA_PART_V;
    size_t at = values ? 0 : from, d = dim_of(j, h->part);
    mla_stored_rows r = {.row = h->row + at, .next = h->next + at, .dtype = v->dtype, .n = h->n - at, .scale = v->scale};
    r.d = values ? mla_min_size(MLA_NR, d - from) : d;
    if (values) {
        r.col = from;
        j->k->values(dst, &r);
        return;
    }
    r.n = mla_min_size(MLA_NR, r.n);
    j->k->keys(dst, &r);
}

/* Where a head's block lies in the shared area. */
static float *shared(const mla_attn_job *j, int part, size_t head, size_t block)
{
    const mla_attn_args *a = j->a;
    float *p = j->blocks + (block - j->b0) * j->block_elems;
    if (part == MLA_PART_K) return p + head * j->kblk;
    p += a->kh * j->kblk;
    if (part == MLA_PART_K2) return p + head * j->k2blk;
    return p + (a->q2 ? a->k2h : 0) * j->k2blk + head * j->vblk;
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
        float *dst = shared(j, part, h.head, h.block);
        size_t d = dim_of(j, part), end_of = part == MLA_PART_V ? d : h.n, step = part == MLA_PART_V ? MLA_BLOCK : d;
        for (size_t from = 0; from < end_of; from += MLA_NR) widen_piece(j, &h, from, dst + from * step);
    }
}

void mla_attn_find(const mla_attn_job *j, int part, size_t head, size_t block, mla_attn_head *h)
{
    if (j->fused)
        find_rows(j, part, head, block, h);
    else
        h->part = part, h->head = head, h->block = block;
}

const float *mla_attn_piece(const mla_attn_job *j, const mla_attn_head *h, size_t from, float *buf)
{
    if (!j->fused) return shared(j, h->part, h->head, h->block) + from * (h->part == MLA_PART_V ? MLA_BLOCK : dim_of(j, h->part));
    widen_piece(j, h, from, buf);
    return buf;
}
