/* y = x W' for T tokens: tokens in tiles of at most 14 rows, outputs in panels of 32, k in panels of 256.
 *
 * x is packed once per block of tokens ((k panel, tile) -> rows MLA_LDA apart, rounded to bf16 for bf16 weights); then
 * each job owns a few output panels, walks k panels in order and adds each panel's sums to a small f32 buffer that
 * stays in cache, so every output is the same chain of operations whatever T, threads or tile edges are. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"

#define TILES 16                   /* token tiles per block: 224 tokens, so that a k panel of x stays in L2 */
#define GROUP 4                    /* output panels per job at most */
#define SERIAL ((size_t)32 * 1024) /* multiply-adds below which waking threads costs more than it gives */

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
} lin_job;

static const float ONES[MLA_MR] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* piece = one k panel of one tile */
static void pack_x(void *ctx, size_t begin, size_t end, size_t worker)
{
    const lin_job *j = ctx;
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        size_t tile = i % j->tiles, k0 = i / j->tiles * j->kp, n = mla_min_size(j->kp, j->w->in - k0);
        size_t m = mla_min_size(MLA_MR, j->T - tile * MLA_MR);
        uint32_t *dst = j->x + i * j->tile_elems;
        for (size_t r = 0; r < m; r++, dst += MLA_LDA) {
            const float *src = mla_cf32p(j->a->x) + (j->t0 + tile * MLA_MR + r) * j->a->ldx + k0;
            if (j->w->precision == MLA_PREC_F32)
                memcpy(dst, src, n * sizeof *src);
            else
                j->k->round_a(dst, src, n);
        }
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

/* piece = `group` output panels */
static void lin_panels(void *ctx, size_t begin, size_t end, size_t worker)
{
    const lin_job *j = ctx;
    bool bf16 = j->w->precision == MLA_PREC_BF16;
    size_t ld = j->group * MLA_NR, b_k = MLA_NR * 4 * (bf16 ? j->kp / 2 : j->kp); /* bytes of B per k panel */
    float *sums = j->sums + worker * TILES * MLA_MR * GROUP * MLA_NR;
    for (size_t g = begin; g < end; g++) {
        size_t p0 = g * j->group, np = mla_min_size(j->group, j->w->panels - p0);
        for (size_t kp = 0; kp < j->kpanels; kp++) {
            size_t k = mla_min_size(j->kp, j->w->in - kp * j->kp);
            for (size_t tile = 0; tile < j->tiles; tile++)
                for (size_t p = 0; p < np; p++) {
                    mla_tile t = {.a = j->x + (kp * j->tiles + tile) * j->tile_elems,
                                  .b = j->w->data + (p0 + p) * j->w->panel_bytes + kp * b_k,
                                  .c = sums + tile * MLA_MR * ld + p * MLA_NR, .ldc = ld,
                                  .k = bf16 ? (k + 1) / 2 : k, .alpha = kp ? ONES : NULL};
                    (bf16 ? j->k->tile_bf16 : j->k->tile_f32)(mla_min_size(MLA_MR, j->T - tile * MLA_MR), &t);
                }
        }
        store(j, sums, ld, p0 * MLA_NR, mla_min_size(np * MLA_NR, j->w->out - p0 * MLA_NR));
    }
}

mla_status mla_cpu_linear(mla_backend *be, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    mla_cpu *c = mla_cpu_of(be);
    if (a->T > 1 && (a->ldx < w->in || a->ldy < w->out))
        return mla_fail(err, MLA_EINVAL, "linear (%zu, %zu): row strides x %zu, y %zu", w->out, w->in, a->ldx, a->ldy);
    lin_job j = {.k = c->k, .w = w, .a = a, .kp = w->precision == MLA_PREC_BF16 && c->k->bf16_pairs ? 2 * MLA_KP : MLA_KP};
    j.kpanels = mla_ceil_div(w->in, j.kp);
    size_t most = mla_min_size(a->T, TILES * MLA_MR), total = 0, x_at, s_at;
    j.tile_elems = mla_min_size(most, MLA_MR) * MLA_LDA;
    char *mem;
    if (!mla_cut(&total, &x_at, j.kpanels * mla_ceil_div(most, MLA_MR), j.tile_elems, sizeof *j.x) ||
        !mla_cut(&total, &s_at, c->threads, TILES * MLA_MR * GROUP * MLA_NR, sizeof(float)))
        return mla_fail(err, MLA_ENOMEM, "linear (%zu, %zu): scratch size overflows", w->out, w->in);
    mla_status st = mla_cpu_scratch(c, total, "linear", &mem, err);
    if (st != MLA_OK) return st;
    j.x = (uint32_t *)(void *)(mem + x_at);
    j.sums = (float *)(void *)(mem + s_at);
    j.group = w->panels / (4 * c->threads);
    j.group = j.group < 1 ? 1 : mla_min_size(j.group, GROUP);
    for (j.t0 = 0; j.t0 < a->T; j.t0 += j.T) {
        j.T = mla_min_size(a->T - j.t0, TILES * MLA_MR);
        j.tiles = mla_ceil_div(j.T, MLA_MR);
        size_t work = w->in * w->out * j.T;
        mla_par_for(work < 64 * SERIAL ? NULL : c->pool, j.kpanels * j.tiles, 1, pack_x, &j);
        mla_par_for(work < SERIAL ? NULL : c->pool, mla_ceil_div(w->panels, j.group), 1, lin_panels, &j);
    }
    return MLA_OK;
}
