/* Widening cached keys and values to f32 panels, one block of 64 positions at a time. */
#include <string.h>

#include "backend/cpu/attn.h"

/* Keys of the block that exist for the last query of this round. */
static size_t block_keys(const mla_attn_job *j, size_t block)
{
    return mla_min_size(MLA_BLOCK, j->a->pos0 + j->t0 + j->T - block * MLA_BLOCK);
}

static void widen_row(const mla_attn_job *j, const mla_kv_view *v, size_t head, size_t s, size_t d, float *dst)
{
    j->k->widen(dst, mla_kv_at(v, mla_kv_elem_bytes(v->dtype), s, head * v->head_stride), v->dtype, d, v->scale);
}

void mla_attn_widen_head(const mla_attn_job *j, int part, size_t head, size_t block, float *dst, float *rows)
{
    const mla_attn_args *a = j->a;
    const mla_kv_view *v = part == 0 ? &a->k : part == 1 ? &a->k2 : &a->v;
    size_t d = part == 0 ? a->dk : part == 1 ? a->dk2 : a->dv, n = block_keys(j, block), s0 = block * MLA_BLOCK;
    if (part < 2) {
        for (size_t half = 0; half < MLA_BLOCK; half += MLA_NR) {
            size_t r = n > half ? mla_min_size(MLA_NR, n - half) : 0;
            for (size_t i = 0; i < r; i++) widen_row(j, v, head, s0 + half + i, d, rows + i * d);
            j->k->pack_f32(dst + half * d, rows, d, r, d);
        }
        return;
    }
    size_t panels = mla_ceil_div(d, MLA_NR);
    memset(rows, 0, panels * MLA_NR * sizeof *rows);
    for (size_t s = 0; s < n; s++) {
        widen_row(j, v, head, s0 + s, d, rows);
        for (size_t p = 0; p < panels; p++)
            memcpy(dst + (p * MLA_BLOCK + s) * MLA_NR, rows + p * MLA_NR, MLA_NR * sizeof *dst);
    }
}

/* piece = (block, head of one part) */
void mla_attn_widen(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_attn_job *j = ctx;
    const mla_attn_args *a = j->a;
    size_t k2h = a->q2 ? a->k2h : 0, per = a->kh + k2h + (j->observe ? 0 : a->vh);
    float *rows = j->work + worker * j->work_elems;
    for (size_t i = begin; i < end; i++) {
        size_t b = i / per, h = i % per;
        float *dst = j->blocks + b * j->block_elems;
        if (h < a->kh)
            mla_attn_widen_head(j, 0, h, j->b0 + b, dst + h * j->kblk, rows);
        else if (h < a->kh + k2h)
            mla_attn_widen_head(j, 1, h - a->kh, j->b0 + b, dst + a->kh * j->kblk + (h - a->kh) * j->k2blk, rows);
        else
            mla_attn_widen_head(j, 2, h - a->kh - k2h, j->b0 + b,
                                dst + a->kh * j->kblk + k2h * j->k2blk + (h - a->kh - k2h) * j->vblk, rows);
    }
}

mla_attn_block mla_attn_block_of(const mla_attn_job *j, const mla_attn_tile *t, size_t block, size_t worker, float *rows)
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
    for (size_t i = 0; i < ku; i++, p += j->kblk) mla_attn_widen_head(j, 0, b.first_k + i, block, p, rows);
    b.k2 = p;
    if (k2h)
        for (size_t i = b.first_k2; i <= (h0 + j->U - 1) * k2h / a->H; i++, p += j->k2blk)
            mla_attn_widen_head(j, 1, i, block, p, rows);
    b.v = p;
    if (!j->observe)
        for (size_t i = 0; i < vu; i++, p += j->vblk) mla_attn_widen_head(j, 2, b.first_v + i, block, p, rows);
    return b;
}
