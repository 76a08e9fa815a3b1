/* Widening cached keys and values to f32 panels, one block of 64 positions at a time. */
#include <string.h>

#include "backend/cpu/attn.h"

/* Keys of the block that exist for the last query of this round. */
static size_t block_keys(const mla_attn_job *j, size_t block)
{
    size_t keys = j->a->pos0 + j->t0 + j->T, from = block * MLA_BLOCK;
    return keys > from ? mla_min_size(MLA_BLOCK, keys - from) : 0;
}

void mla_attn_widen_head(const mla_attn_job *j, int part, size_t head, size_t block, float *dst)
{
    const mla_attn_args *a = j->a;
    const mla_kv_view *v = part == 0 ? &a->k : part == 1 ? &a->k2 : &a->v;
    size_t d = part == 0 ? a->dk : part == 1 ? a->dk2 : a->dv, n = block_keys(j, block), es = mla_kv_elem_bytes(v->dtype);
    const void *rows[MLA_BLOCK], *next[MLA_BLOCK];
    size_t more = block_keys(j, block + 1), s0 = block * MLA_BLOCK;
    for (size_t s = 0; s < n; s++) {
        rows[s] = mla_kv_at(v, es, s0 + s, head * v->head_stride);
        next[s] = s < more ? mla_kv_at(v, es, s0 + MLA_BLOCK + s, head * v->head_stride) : rows[s];
    }
    mla_stored_rows r = {.row = rows, .next = next, .dtype = v->dtype, .n = n, .d = d, .scale = v->scale};
    if (part == 2) {
        j->k->values(dst, &r);
        return;
    }
    for (size_t half = 0; half < n; half += MLA_NR) {
        r.row = rows + half;
        r.next = next + half;
        r.n = mla_min_size(MLA_NR, n - half);
        j->k->keys(dst + half * d, &r);
    }
}

/* piece = (block, head of one part) */
void mla_attn_widen(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_attn_job *j = ctx;
    const mla_attn_args *a = j->a;
    size_t k2h = a->q2 ? a->k2h : 0, per = a->kh + k2h + (j->observe ? 0 : a->vh);
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        size_t b = i / per, h = i % per;
        float *dst = j->blocks + b * j->block_elems;
        if (h < a->kh)
            mla_attn_widen_head(j, 0, h, j->b0 + b, dst + h * j->kblk);
        else if (h < a->kh + k2h)
            mla_attn_widen_head(j, 1, h - a->kh, j->b0 + b, dst + a->kh * j->kblk + (h - a->kh) * j->k2blk);
        else
            mla_attn_widen_head(j, 2, h - a->kh - k2h, j->b0 + b,
                                dst + a->kh * j->kblk + k2h * j->k2blk + (h - a->kh - k2h) * j->vblk);
    }
}

mla_attn_block mla_attn_block_of(const mla_attn_job *j, const mla_attn_tile *t, size_t block, size_t worker)
{
    const mla_attn_args *a = j->a;
    size_t k2h = a->q2 ? a->k2h : 0;
    if (!j->fused) {
        const float *p = j->blocks + (block - j->b0) * j->block_elems;
        return (mla_attn_block){.k = p, .k2 = p + a->kh * j->kblk, .v = p + a->kh * j->kblk + k2h * j->k2blk};
    }
    float *p = j->blocks + worker * j->block_elems;
    size_t ku = a->kh / j->units, vu = a->vh / j->units, h0 = t->u * j->U;
    mla_attn_block b = {.first_k = t->u * ku, .first_v = t->u * vu, .first_k2 = k2h ? h0 * k2h / a->H : 0};
    b.k = p;
    for (size_t i = 0; i < ku; i++, p += j->kblk) mla_attn_widen_head(j, 0, b.first_k + i, block, p);
    b.k2 = p;
    if (k2h)
        for (size_t i = b.first_k2; i <= (h0 + j->U - 1) * k2h / a->H; i++, p += j->k2blk)
            mla_attn_widen_head(j, 1, i, block, p);
    b.v = p;
    if (!j->observe)
        for (size_t i = 0; i < vu; i++, p += j->vblk) mla_attn_widen_head(j, 2, b.first_v + i, block, p);
    return b;
}
