/* y = x W' for T tokens: tokens in tiles of at most 14 rows, outputs in panels of 32, k in panels of 256.
 *
 * x is packed once per block of tokens ((k panel, tile) -> rows MLA_LDA apart, rounded to bf16 for bf16 weights); then
 * each job owns a few output panels, walks k panels in order and adds each panel's sums to a small f32 buffer that
 * stays in cache, so every output is the same chain of operations whatever T, threads or tile edges are.
 * Weights that are not decoded: one row is multiplied with codes directly, on the fast path in whole numbers (dot.h), a few rows
 * too; with more, each worker decodes a k panel of its
 * outputs into its own buffer, which all tokens then share. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/ckd.h"
#include "tensor/fp.h"

#define TILES 16                   /* token tiles per block: 224 tokens, so that a k panel of x stays in L2 */
#define GROUP 4                    /* output panels per job at most */
#define SERIAL ((size_t)32 * 1024) /* multiply-adds below which waking threads costs more than it gives */
#define PAIRS_FROM 16              /* rows from which packed weights are rounded to bf16 pairs, with MLA_PREC_BF16 */

typedef struct {
    const mla_cpu_kern *k;
    const mla_weight *w;
    const mla_linear_args *a;
    size_t t0, T;            /* tokens of this block */
    size_t kp, kpanels;      /* values per k panel */
    size_t tiles, tile_elems;
    uint32_t *x;             /* (kpanels, tiles, rows, MLA_LDA) f32 or bf16 pairs */
    float *sums;             /* per worker (T, GROUP * MLA_NR) */
    size_t group;
    bool bf16;               /* products of bf16: pairs, or f32 holding bf16 */
    bool dot;                /* products in whole numbers: x holds an mla_dot_x for every row of a k panel */
    float *room;             /* not DECODED: per worker room_elems: what it decodes */
    size_t room_elems;
    mla_status *st;          /* UNDECODED: (threads) */
    mla_err *errs;
} lin_job;

#define BLOCK ((size_t)MLA_KP * MLA_NR)

static const float ONES[MLA_MR] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* n inputs of token t from place k0 on, as they go into products */
static void pack_row(const lin_job *j, uint32_t *dst, size_t t, size_t k0, size_t n)
{
    const float *row = mla_cf32p(j->a->x) + t * j->a->ldx, *src = row + k0;
    float *f = (float *)(void *)dst, moved[2 * MLA_KP];
    if (j->w->perm) {
        for (size_t i = 0; i < n; i++) moved[i] = row[j->w->perm[k0 + i]];
        src = moved;
    }
    if (j->dot) {
        j->k->dot_row((mla_dot_x *)(void *)dst, src, n, j->w->code.dot);
        return;
    }
    if (j->bf16) {
        j->k->round_a(dst, src, n);
        return;
    }
    memcpy(f, src, n * sizeof *f);
    for (size_t i = 0; j->w->precision == MLA_PREC_BF16 && j->w->form != MLA_W_TRELLIS && i < n; i++) f[i] = mla_bf16_f32(mla_f32_bf16(f[i]));
    for (size_t i = n; i % 8; i++) f[i] = 0; /* packed codes come in octets */
}

/* piece = one k panel of one tile */
static void pack_x(void *ctx, size_t begin, size_t end, size_t worker)
{
    const lin_job *j = ctx;
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        size_t tile = i % j->tiles, k0 = i / j->tiles * j->kp, n = mla_min_size(j->kp, j->w->in - k0);
        size_t m = mla_min_size(MLA_MR, j->T - tile * MLA_MR);
        for (size_t r = 0; r < m; r++) pack_row(j, j->x + i * j->tile_elems + r * MLA_LDA, j->t0 + tile * MLA_MR + r, k0, n);
    }
}

static void store(const lin_job *j, const float *sums, size_t ld, size_t n0, size_t n)
{
    const float *bias = j->a->bias ? mla_cf32p(j->a->bias) + n0 : NULL;
    for (size_t t = 0; t < j->T; t++, sums += ld) {
        float *y = mla_f32p(j->a->y) + (j->t0 + t) * j->a->ldy + n0;
        if (!bias && !j->a->accumulate) {
            memcpy(y, sums, n * sizeof *y);
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            float v = bias ? sums[i] + bias[i] : sums[i];
            y[i] = j->a->accumulate ? y[i] + v : v;
        }
    }
}

/* k panel kp (k values) of panel p, as tiles want it: in place, or decoded into slot `slot` of the worker */
static const void *panel_at(const lin_job *j, float *room, size_t slot, size_t p, size_t kp, size_t k)
{
    const mla_weight *w = j->w;
    float *dst = room + slot * (j->kp * MLA_NR), *scales = room + j->group * (j->kp * MLA_NR), *wide = scales + MLA_CODE_SCALES;
    if (w->form == MLA_W_DECODED) return w->data + p * w->panel_bytes + kp * (MLA_NR * 4 * (j->bf16 ? j->kp / 2 : j->kp));
    if (w->form == MLA_W_UNDECODED) { /* rows of the one panel of this group stand in `wide` */
        size_t rows = mla_min_size(MLA_NR, w->out - p * MLA_NR);
        if (j->bf16) j->k->pack_bf16((uint32_t *)(void *)dst, wide + kp * j->kp, w->in, rows, k);
        else j->k->pack_f32(dst, wide + kp * j->kp, w->in, rows, k);
        return dst;
    }
    if (!j->bf16) {
        mla_cpu_code_tile(j->k, w, p, kp, dst, scales);
        return dst;
    }
    for (size_t i = 0; i * MLA_KP < k; i++) {
        size_t n = mla_min_size(MLA_KP, k - i * MLA_KP);
        mla_cpu_code_tile(j->k, w, p, kp * (j->kp / MLA_KP) + i, wide, scales);
        if (n % 2) memset(wide + n * MLA_NR, 0, MLA_NR * sizeof *wide);
        j->k->pair_rows((uint32_t *)(void *)dst + i * BLOCK / 2, wide, n);
    }
    return dst;
}

/* piece = `group` output panels */
static void lin_panels(void *ctx, size_t begin, size_t end, size_t worker)
{
    const lin_job *j = ctx;
    size_t ld = j->group * MLA_NR;
    float *sums = j->sums + worker * TILES * MLA_MR * GROUP * MLA_NR, *room = j->room + worker * j->room_elems;
    for (size_t g = begin; g < end; g++) {
        size_t p0 = g * j->group, np = mla_min_size(j->group, j->w->panels - p0);
        if (j->w->form == MLA_W_UNDECODED) { /* group is 1 */
            float *wide = room + j->kp * MLA_NR + MLA_CODE_SCALES;
            if (j->st[worker] == MLA_OK)
                j->st[worker] = j->w->rows(j->w->ctx, p0 * MLA_NR, mla_min_size(MLA_NR, j->w->out - p0 * MLA_NR), wide, &j->errs[worker]);
            if (j->st[worker] != MLA_OK) return;
        }
        for (size_t kp = 0; kp < j->kpanels; kp++) {
            size_t k = mla_min_size(j->kp, j->w->in - kp * j->kp);
            const void *b[GROUP] = {NULL};
            for (size_t p = 0; p < np; p++) b[p] = panel_at(j, room, p, p0 + p, kp, k);
            for (size_t tile = 0; tile < j->tiles; tile++)
                for (size_t p = 0; p < np; p++) {
                    mla_tile t = {.a = j->x + (kp * j->tiles + tile) * j->tile_elems, .b = b[p],
                                  .c = sums + tile * MLA_MR * ld + p * MLA_NR, .ldc = ld,
                                  .k = j->bf16 ? (k + 1) / 2 : k, .alpha = kp ? ONES : NULL};
                    (j->bf16 ? j->k->tile_bf16 : j->k->tile_f32)(mla_min_size(MLA_MR, j->T - tile * MLA_MR), &t);
                }
        }
        store(j, sums, ld, p0 * MLA_NR, mla_min_size(np * MLA_NR, j->w->out - p0 * MLA_NR));
    }
}

_Static_assert(sizeof(mla_dot_x) <= MLA_LDA * 4 && MLA_LDA * 4 % _Alignof(mla_dot_x) == 0, "a row's integers take its place");

/* piece = MLA_CODE_PANELS output panels; one token, or a few in whole numbers */
static void lin_codes(void *ctx, size_t begin, size_t end, size_t worker)
{
    const lin_job *j = ctx;
    float *room = j->room + worker * j->room_elems, *sums = j->sums + worker * TILES * MLA_MR * GROUP * MLA_NR;
    for (size_t g = begin; g < end; g++) {
        size_t p0 = g * MLA_CODE_PANELS, np = mla_min_size(MLA_CODE_PANELS, j->w->panels - p0);
        if (!j->dot)
            for (size_t kp = 0; kp < j->kpanels; kp++)
                mla_cpu_code_gemv(j->k, j->w, p0, np, kp, (const float *)(const void *)(j->x + kp * j->tile_elems), sums, room);
        for (size_t i = 0; j->dot && i < np * j->kpanels; i++) { /* panel by panel: codes in the order in which they lie */
            size_t p = i / j->kpanels, kp = i % j->kpanels;
            mla_code_block q = mla_cpu_code_dot_block(j->k, j->w, p0 + p, kp, room);
            for (size_t t = 0; t < j->T; t++) {
                const uint32_t *x = j->x + (kp * j->tiles + t / MLA_MR) * j->tile_elems + t % MLA_MR * MLA_LDA;
                j->k->dot_gemv(sums + (t * np + p) * MLA_NR, (const mla_dot_x *)(const void *)x, &q, kp > 0);
            }
        }
        store(j, sums, np * MLA_NR, p0 * MLA_NR, mla_min_size(np * MLA_NR, j->w->out - p0 * MLA_NR));
    }
}

/* The scratch of a product over at most `most` tokens at once. */
static mla_status take_scratch(mla_cpu *c, lin_job *j, size_t most, mla_err *err)
{
    const mla_weight *w = j->w;
    size_t total = 0, x_at, s_at, r_at, e_at, st_at, rows = 0;
    bool ok = w->form != MLA_W_UNDECODED || mla_mul(&rows, w->in, MLA_NR);
    j->room_elems = w->form == MLA_W_DECODED ? 0 : j->group * j->kp * MLA_NR + MLA_CODE_SCALES + (rows > BLOCK ? rows : BLOCK);
    ok = ok && j->room_elems >= rows && mla_cut(&total, &x_at, j->kpanels * mla_ceil_div(most, MLA_MR), j->tile_elems, sizeof *j->x) &&
         mla_cut(&total, &s_at, c->threads, TILES * MLA_MR * GROUP * MLA_NR, sizeof(float)) &&
         mla_cut(&total, &r_at, c->threads, j->room_elems, sizeof(float)) && mla_cut(&total, &st_at, c->threads, sizeof *j->st, 1) &&
         mla_cut(&total, &e_at, c->threads, sizeof *j->errs, 1);
    if (!ok) return mla_fail(err, MLA_ENOMEM, "linear (%zu, %zu): scratch size overflows", w->out, w->in);
    char *mem;
    mla_status st = mla_cpu_scratch(c, total, "linear", &mem, err);
    if (st != MLA_OK) return st;
    j->x = (uint32_t *)(void *)(mem + x_at);
    j->sums = (float *)(void *)(mem + s_at);
    j->room = (float *)(void *)(mem + r_at);
    j->st = (mla_status *)(void *)(mem + st_at);
    j->errs = (mla_err *)(void *)(mem + e_at);
    for (size_t i = 0; i < c->threads; i++) j->st[i] = MLA_OK;
    return MLA_OK;
}

static mla_status product(mla_cpu *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    bool packed = w->form == MLA_W_CODES || w->form == MLA_W_TRELLIS, pairs = c->k->bf16_pairs;
    lin_job j = {.k = c->k, .w = w, .a = a};
    j.bf16 = w->precision == MLA_PREC_BF16 && (!packed || (pairs && a->T >= PAIRS_FROM && w->form == MLA_W_CODES));
    j.dot = w->form == MLA_W_CODES && w->precision == MLA_PREC_BF16 && w->code.dot != MLA_DOT_NONE && a->T < PAIRS_FROM;
    j.kp = j.bf16 && pairs ? 2 * MLA_KP : MLA_KP;
    j.kpanels = mla_ceil_div(w->in, j.kp);
    size_t most = mla_min_size(a->T, TILES * MLA_MR);
    j.tile_elems = mla_min_size(most, MLA_MR) * MLA_LDA;
    j.group = w->panels / (4 * c->threads);
    j.group = w->form == MLA_W_UNDECODED || j.group < 1 ? 1 : mla_min_size(j.group, GROUP);
    mla_status st = take_scratch(c, &j, most, err);
    if (st != MLA_OK) return st;
    for (j.t0 = 0; j.t0 < a->T; j.t0 += j.T) {
        j.T = mla_min_size(a->T - j.t0, TILES * MLA_MR);
        j.tiles = mla_ceil_div(j.T, MLA_MR);
        size_t work = w->in * w->out * j.T;
        mla_pool *pool = work < SERIAL ? NULL : c->pool;
        mla_par_for(work < 64 * SERIAL ? NULL : c->pool, j.kpanels * j.tiles, 1, pack_x, &j);
        if (packed && (a->T == 1 || j.dot)) mla_par_for(pool, mla_ceil_div(w->panels, MLA_CODE_PANELS), 1, lin_codes, &j);
        else mla_par_for(pool, mla_ceil_div(w->panels, j.group), 1, lin_panels, &j);
        for (size_t i = 0; i < c->threads; i++)
            if (j.st[i] != MLA_OK) {
                *err = j.errs[i];
                return j.st[i];
            }
    }
    return MLA_OK;
}

typedef struct {
    const mla_cpu_kern *k;
    const mla_weight *w;
    const mla_linear_args *a;
    float *x2, *y2; /* (T, in128), (T, out128) */
    size_t t0;
} side_job;

static void side_in(void *ctx, size_t begin, size_t end, size_t worker)
{
    const side_job *j = ctx;
    (void)worker;
    for (size_t t = begin; t < end; t++) mla_cpu_trellis_in(j->k, j->w, j->x2 + t * j->w->in, mla_cf32p(j->a->x) + (j->t0 + t) * j->a->ldx);
}

static void side_out(void *ctx, size_t begin, size_t end, size_t worker)
{
    const side_job *j = ctx;
    size_t ld = j->w->panels * MLA_NR;
    (void)worker;
    for (size_t t = begin; t < end; t++) {
        mla_cpu_trellis_out(j->k, j->w, j->y2 + t * ld);
        lin_job s = {.a = j->a, .t0 = j->t0 + t, .T = 1};
        store(&s, j->y2 + t * ld, ld, 0, j->w->out);
    }
}

/* EXL3: activations transformed, multiplied, transformed again, TILES * MLA_MR tokens at a time. */
static mla_status trellis(mla_cpu *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    size_t ld = w->panels * MLA_NR, most = mla_min_size(a->T, TILES * MLA_MR), n;
    mla_weight stored = *w; /* stored dims on both sides */
    stored.out = ld;
    if (!mla_mul(&n, most, w->in + ld)) return mla_fail(err, MLA_ENOMEM, "linear (%zu, %zu): scratch size overflows", w->out, w->in);
    float *x2 = mla_alloc_raw(n, 1, sizeof *x2);
    if (!x2) return mla_fail(err, MLA_ENOMEM, "linear (%zu, %zu): transformed activations", w->out, w->in);
    side_job j = {c->k, w, a, x2, x2 + most * w->in, 0};
    mla_status st = MLA_OK;
    for (size_t T; st == MLA_OK && j.t0 < a->T; j.t0 += T) {
        T = mla_min_size(a->T - j.t0, most);
        mla_linear_args mid = {.y = (mla_mem *)(void *)j.y2, .ldy = ld, .x = (mla_mem *)(void *)j.x2, .ldx = w->in, .T = T};
        mla_par_for(T > 1 ? c->pool : NULL, T, 1, side_in, &j);
        st = product(c, &stored, &mid, err);
        if (st == MLA_OK) mla_par_for(T > 1 ? c->pool : NULL, T, 1, side_out, &j);
    }
    mla_free(x2);
    return st;
}

mla_status mla_cpu_linear(mla_backend *be, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    mla_cpu *c = mla_cpu_of(be);
    size_t in = w->form == MLA_W_TRELLIS ? w->trellis_in : w->in;
    if (a->T > 1 && (a->ldx < in || a->ldy < w->out))
        return mla_fail(err, MLA_EINVAL, "linear (%zu, %zu): row strides x %zu, y %zu", w->out, in, a->ldx, a->ldy);
    return w->form == MLA_W_TRELLIS ? trellis(c, w, a, err) : product(c, w, a, err);
}
