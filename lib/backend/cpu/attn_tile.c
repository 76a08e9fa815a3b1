/* One tile of queries against its key blocks: logits by the microkernel, online softmax row by row, values by the
 * microkernel. Every row meets its keys block by block from position 0 and only its own keys, so its bits do not
 * depend on which other rows share the tile. */
#include <math.h>
#include <string.h>

#include "backend/cpu/attn.h"

static const float ONES[MLA_MR] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

typedef struct { /* a worker's scratch, cut for the current tile shape */
    float *s;    /* (rows, 64) logits */
    float *p;    /* (rows, MLA_LDA) probabilities */
    float *al;   /* (rows) factors of the running output */
    unsigned char *n;   /* (rows) visible keys */
    unsigned short *to; /* (rows) where a row's probabilities go */
    float *buf;  /* fused: one widened piece */
} tile_work;

size_t mla_attn_work_elems(const mla_attn_job *j)
{
    return (mla_attn_rows(j) * (MLA_BLOCK + MLA_LDA + 3) + 15) / 16 * 16; /* n and to: one float's room each */
}

static tile_work cut_work(const mla_attn_job *j, size_t worker)
{
    float *p = j->work + worker * j->work_elems;
    size_t R = mla_attn_rows(j);
    tile_work w = {.p = p, .buf = j->fused ? j->blocks + worker * j->block_elems : NULL};
    w.s = p + R * MLA_LDA;
    w.al = w.s + R * MLA_BLOCK;
    w.to = (unsigned short *)(void *)(w.al + R);
    w.n = (unsigned char *)(void *)(w.al + 2 * R);
    return w;
}

mla_attn_tile mla_attn_tile_at(const mla_attn_job *j, size_t index)
{
    size_t per = j->htiles * j->ttiles, R = mla_attn_rows(j), rest = index % per;
    mla_attn_tile t = {.index = index, .u = index / per};
    size_t hl = rest / j->ttiles * j->nh;
    t.ta = rest % j->ttiles * j->nt;
    t.h0 = t.u * j->U + hl;
    t.nh = mla_min_size(j->nh, j->U - hl);
    t.nt = mla_min_size(j->nt, j->T - t.ta);
    t.q = j->q + index * (j->kpanels + j->k2panels) * R * MLA_LDA;
    t.o = j->o + index * R * j->ldo;
    t.m = j->m + index * R;
    t.l = j->l + index * R;
    return t;
}

/* One query by k panels, R rows apart; returns where the next part goes. */
static float *pack_query(const mla_attn_job *j, float *dst, const float *q, size_t d)
{
    for (size_t p = 0; p < d; p += j->kp, dst += mla_attn_rows(j) * MLA_LDA) {
        size_t n = mla_min_size(j->kp, d - p);
        if (j->pairs)
            j->k->round_a(dst, q + p, n);
        else
            memcpy(dst, q + p, n * sizeof *q);
    }
    return dst;
}

/* Packs the queries of a tile and empties its running state. */
static void start_tile(const mla_attn_job *j, const mla_attn_tile *t)
{
    const mla_attn_args *a = j->a;
    size_t R = mla_attn_rows(j);
    for (size_t h = 0; h < t->nh; h++)
        for (size_t i = 0; i < t->nt; i++) {
            size_t row = h * t->nt + i, tok = j->t0 + t->ta + i;
            const float *q = mla_cf32p(a->q) + tok * a->ldq + (t->h0 + h) * a->qh_stride;
            float *dst = pack_query(j, t->q + row * MLA_LDA, q, a->dk);
            if (a->q2) pack_query(j, dst, mla_cf32p(a->q2) + tok * a->ldq2 + (t->h0 + h) * a->q2h_stride, a->dk2);
            t->m[row] = -INFINITY;
            t->l[row] = 0;
        }
    memset(t->o, 0, R * j->ldo * sizeof *t->o);
}

/* Heads [h, end) of the tile that share head h's K (or V) head when the model has `heads` of them. */
static size_t run_end(const mla_attn_job *j, const mla_attn_tile *t, size_t h, size_t heads)
{
    size_t share = j->a->H / heads, abs = t->h0 + h, last = (abs / share + 1) * share;
    return mla_min_size(t->nh, last - t->h0);
}

/* s (rows, 64) = or += q-part . k-part for one part of the dot product, n keys of the block */
static void part_logits(const mla_attn_job *j, const mla_attn_tile *t, int part, size_t block, size_t n, const tile_work *w)
{
    const mla_attn_args *a = j->a;
    bool second = part == MLA_PART_K2;
    size_t heads = second ? a->k2h : a->kh, d = second ? a->dk2 : a->dk, R = mla_attn_rows(j);
    size_t panels = second ? j->k2panels : j->kpanels;
    const float *q = t->q + (second ? j->kpanels : 0) * R * MLA_LDA;
    mla_attn_head head;
    for (size_t h = 0, he; h < t->nh; h = he) {
        he = run_end(j, t, h, heads);
        mla_attn_find(j, part, (t->h0 + h) * heads / a->H, block, &head);
        for (size_t half = 0; half < n; half += MLA_NR) {
            const float *k = mla_attn_piece(j, &head, half, j->pairs, w->buf); /* or pairs: elements of the same size */
            for (size_t p = 0; p < panels; p++)
                for (size_t r = h * t->nt; r < he * t->nt; r += MLA_MR) {
                    size_t n_k = mla_min_size(j->kp, d - p * j->kp);
                    mla_tile g = {.a = q + (p * R + r) * MLA_LDA, .b = k + p * MLA_KP * MLA_NR, .c = w->s + r * MLA_BLOCK + half,
                                  .ldc = MLA_BLOCK, .k = j->pairs ? (n_k + 1) / 2 : n_k, .alpha = second || p ? ONES : NULL};
                    (j->pairs ? j->k->tile_bf16 : j->k->tile_f32)(mla_min_size(MLA_MR, he * t->nt - r), &g);
                }
        }
    }
}

/* s = (s + qb) / divisor on the first part of the logits of n keys: row by row, so that no row's bits depend on the tile. */
static void divide_logits(const mla_attn_job *j, const mla_attn_tile *t, size_t block, size_t n, const tile_work *w)
{
    const mla_attn_args *a = j->a;
    float m[MLA_BLOCK];
    for (size_t h = 0, he; h < t->nh; h = he) {
        he = run_end(j, t, h, a->divh);
        mla_divisor_inverse(m, &a->div, (t->h0 + h) * a->divh / a->H, block * MLA_BLOCK, n);
        for (size_t r = h * t->nt; r < he * t->nt; r++) {
            size_t tok = j->t0 + t->ta + r % t->nt;
            float qb = a->qb ? mla_cf32p(a->qb)[tok * a->ldq + (t->h0 + r / t->nt) * a->qh_stride] : 0, *s = w->s + r * MLA_BLOCK;
            for (size_t k = 0; k < n; k++) s[k] = (s[k] + qb) * m[k];
        }
    }
}

typedef struct { /* rows of one product o = al o + p v */
    size_t row, rows;  /* of p and al */
    float *o;
    size_t ldo, keys;
} value_rows;

static void add_rows(const mla_attn_job *j, const tile_work *w, const value_rows *v, const void *panel)
{
    bool pairs = j->pairs && v->keys == MLA_BLOCK;
    for (size_t r = 0; r < v->rows; r += MLA_MR) {
        mla_tile g = {.a = w->p + (v->row + r) * MLA_LDA, .b = panel, .c = v->o + r * v->ldo, .ldc = v->ldo, .k = pairs ? MLA_BLOCK / 2 : v->keys,
                      .alpha = w->al + v->row + r};
        (pairs ? j->k->tile_bf16 : j->k->tile_f32)(mla_min_size(MLA_MR, v->rows - r), &g);
    }
}

/* Keys of this block that token i of the tile may see. */
static size_t visible(const mla_attn_job *j, const mla_attn_tile *t, size_t i, size_t block)
{
    size_t upto = j->a->pos0 + j->t0 + t->ta + i + 1, from = block * MLA_BLOCK;
    return upto <= from ? 0 : mla_min_size(MLA_BLOCK, upto - from);
}

/* Adds the block's values. whole: every row has all 64 keys, rows of p ordered as the tile's; otherwise each token has
 * its own number of keys and rows of p are ordered (token, head). */
static void add_values(const mla_attn_job *j, const mla_attn_tile *t, size_t block, bool whole, const tile_work *w)
{
    const mla_attn_args *a = j->a;
    bool pairs = j->pairs && visible(j, t, t->nt - 1, block) == MLA_BLOCK;
    mla_attn_head head;
    for (size_t h = 0, he; h < t->nh; h = he) {
        he = run_end(j, t, h, a->vh);
        mla_attn_find(j, MLA_PART_V, (t->h0 + h) * a->vh / a->H, block, &head);
        for (size_t c = 0; c < a->dv; c += MLA_NR) {
            const void *part = j->pairs && whole ? NULL : mla_attn_piece(j, &head, c, false, w->buf);
            const void *full = pairs ? mla_attn_piece(j, &head, c, true, w->buf + (j->fused ? MLA_BLOCK * MLA_NR : 0)) : part;
            value_rows v = {h * t->nt, (he - h) * t->nt, t->o + h * t->nt * j->ldo + c, j->ldo, MLA_BLOCK};
            if (whole) add_rows(j, w, &v, full);
            for (size_t i = 0; !whole && i < t->nt; i++) {
                v = (value_rows){i * t->nh + h, he - h, t->o + (h * t->nt + i) * j->ldo + c, t->nt * j->ldo, visible(j, t, i, block)};
                if (v.keys) add_rows(j, w, &v, v.keys == MLA_BLOCK ? full : part);
            }
        }
    }
}

static void attend(const mla_attn_job *j, const mla_attn_tile *t, size_t block, const tile_work *w)
{
    bool whole = visible(j, t, 0, block) == MLA_BLOCK;
    for (size_t i = 0; i < t->nt; i++)
        for (size_t h = 0, n = visible(j, t, i, block); h < t->nh; h++) {
            w->n[h * t->nt + i] = (unsigned char)n;
            w->to[h * t->nt + i] = (unsigned short)(whole ? h * t->nt + i : i * t->nh + h);
        }
    mla_softmax_rows r = {w->s, w->n, w->to, w->p, w->al, t->m, t->l, t->nh * t->nt, j->a->scale};
    j->k->softmax(&r);
    for (size_t row = 0; j->pairs && row < r.rows; row++)
        if (w->n[row] == MLA_BLOCK) j->k->round_a(w->p + w->to[row] * MLA_LDA, w->p + w->to[row] * MLA_LDA, MLA_BLOCK);
    add_values(j, t, block, whole, w);
}

/* Final probabilities of one block: sums of squares by key, in row order, and the rows themselves where asked. */
static void observe(const mla_attn_job *j, const mla_attn_tile *t, size_t block, const tile_work *w)
{
    const mla_attn_args *a = j->a;
    size_t S = a->pos0 + a->T;
    double *part = j->part + (t->index * j->nb + block - j->b0) * MLA_BLOCK;
    memset(part, 0, MLA_BLOCK * sizeof *part);
    for (size_t h = 0; h < t->nh; h++)
        for (size_t i = 0; i < t->nt; i++) {
            size_t n = visible(j, t, i, block), row = h * t->nt + i;
            float *p = w->p;
            j->k->probs(p, w->s + row * MLA_BLOCK, n, a->scale, t->m[row], 1 / t->l[row]);
            for (size_t s = 0; s < n; s++) part[s] += (double)p[s] * p[s];
            if (!a->probs) continue;
            float *out = mla_f32p(a->probs) + ((t->h0 + h) * a->T + j->t0 + t->ta + i) * S + block * MLA_BLOCK;
            size_t all = mla_min_size(MLA_BLOCK, S - block * MLA_BLOCK);
            memcpy(out, p, n * sizeof *p);
            memset(out + n, 0, (all - n) * sizeof *p);
        }
}

static void tile_block(const mla_attn_job *j, size_t index, size_t block, const tile_work *w)
{
    mla_attn_tile t = mla_attn_tile_at(j, index);
    size_t n = visible(j, &t, t.nt - 1, block);
    if (block == 0 && !j->observe) start_tile(j, &t);
    if (n) {
        part_logits(j, &t, MLA_PART_K, block, n, w);
        if (j->a->divh) divide_logits(j, &t, block, n, w);
        if (j->a->q2) part_logits(j, &t, MLA_PART_K2, block, n, w);
        if (!j->observe) attend(j, &t, block, w);
    }
    if (j->observe) observe(j, &t, block, w);
}

/* Block by block over all tiles of the piece: in decode the heads of a block lie in the same cache rows. */
void mla_attn_tiles(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_attn_job *j = ctx;
    tile_work w = cut_work(j, worker);
    for (size_t b = j->b0; b < j->b0 + j->nb; b++)
        for (size_t i = begin; i < end; i++) tile_block(j, i, b, &w);
}

void mla_attn_finish(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_attn_job *j = ctx;
    const mla_attn_args *a = j->a;
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        mla_attn_tile t = mla_attn_tile_at(j, i);
        for (size_t h = 0; h < t.nh; h++)
            for (size_t k = 0; k < t.nt; k++) {
                size_t row = h * t.nt + k;
                float *o = mla_f32p(a->o) + (j->t0 + t.ta + k) * a->ldo + (t.h0 + h) * a->dv;
                j->k->scale(o, t.o + row * j->ldo, 1 / t.l[row], a->dv);
            }
    }
}
