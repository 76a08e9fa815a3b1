/* Causal attention: cuts the call into rounds of queries and of key blocks, and each round into tiles (attn.h).
 *
 * Decode: a unit is one tile or two, which widen their own pieces. Prefill: blocks are widened once per round for all tiles. */
#include <stdint.h>
#include <string.h>

#include "backend/cpu/attn.h"

#define ROWS_MAX 56                       /* rows of a tile: four microkernel calls of 14 */
#define ROUND_ROWS 4096                   /* query rows (tokens x heads) packed at once */
#define BLOCKS_BYTES ((size_t)4 << 20)    /* widened keys and values of a round */
#define SERIAL ((size_t)64 * 1024)        /* multiply-adds below which threads are not woken */

static mla_status check(const mla_attn_args *a, mla_err *err)
{
    mla_status st;
    size_t k2h = a->q2 ? a->k2h : 1;
    if (!a->H || !a->kh || !a->vh || !k2h || a->H % a->kh || a->H % a->vh || a->H % k2h)
        return mla_fail(err, MLA_EINVAL, "attention: %zu heads over %zu K, %zu rotary K and %zu V heads: must divide", a->H, a->kh,
                        k2h, a->vh);
    if (!a->dk || !a->dv || (a->q2 && !a->dk2)) return mla_fail(err, MLA_EINVAL, "attention: empty head");
    if ((st = mla_kv_check(&a->k, "attention k", err)) != MLA_OK) return st;
    if (a->q2 && (st = mla_kv_check(&a->k2, "attention k2", err)) != MLA_OK) return st;
    if (a->divh && a->H % a->divh) return mla_fail(err, MLA_EINVAL, "attention: %zu heads over %zu divisors: must divide", a->H, a->divh);
    if (a->divh && (st = mla_divisor_check(&a->div, "attention", err)) != MLA_OK) return st;
    return mla_kv_check(&a->v, "attention v", err);
}

static size_t gcd(size_t a, size_t b)
{
    while (b) {
        size_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* Everything that does not depend on the round. */
static void shape(mla_attn_job *j, const mla_cpu *c, const mla_attn_args *a)
{
    size_t k2h = a->q2 ? a->k2h : 0, dvp = mla_ceil_div(a->dv, MLA_NR) * MLA_NR;
    *j = (mla_attn_job){.k = c->k, .a = a, .units = gcd(a->kh, a->vh)};
    j->U = a->H / j->units;
    j->pairs = a->bf16 && c->k->bf16_pairs;
    j->kp = j->pairs ? 2 * MLA_KP : MLA_KP;
    j->kpanels = mla_ceil_div(a->dk, j->kp);
    j->k2panels = k2h ? mla_ceil_div(a->dk2, j->kp) : 0;
    j->ldo = dvp + 16; /* not a multiple of the L1 way size */
    j->kblk = MLA_BLOCK * a->dk;
    j->k2blk = k2h ? MLA_BLOCK * a->dk2 : 0;
    j->vblk = MLA_BLOCK * dvp;
    j->vpairs = j->pairs ? MLA_BLOCK / 2 * dvp : 0;
}

/* Tile shape for T queries. With an observer it must not depend on the thread count: partial sums follow tiles. */
static void tile_shape(mla_attn_job *j, size_t T, size_t threads)
{
    bool fixed = j->a->p2 != NULL;
    j->T = T;
    j->nh = mla_min_size(j->U, ROWS_MAX);
    j->nt = mla_min_size(T, ROWS_MAX / j->nh);
    while (!fixed && j->nh > 2 && j->units * mla_ceil_div(j->U, j->nh) * mla_ceil_div(T, j->nt) < threads) j->nh = (j->nh + 1) / 2;
    j->htiles = mla_ceil_div(j->U, j->nh);
    j->ttiles = mla_ceil_div(T, j->nt);
    j->ntiles = j->units * j->htiles * j->ttiles;
    j->fused = j->ttiles == 1 && j->htiles <= 2; /* two tiles widening the same keys cost less than waiting for each other */
    size_t k2h = j->a->q2 ? j->a->k2h : 0, widest = j->a->dk > j->a->dk2 ? j->a->dk : j->a->dk2;
    if (widest < 3 * MLA_BLOCK / 2) widest = 3 * MLA_BLOCK / 2; /* a piece of values has 64 rows, and 32 of pairs */
    j->block_elems = j->fused ? widest * MLA_NR : j->a->kh * j->kblk + k2h * j->k2blk + j->a->vh * (j->vblk + j->vpairs);
    j->work_elems = mla_attn_work_elems(j);
}

static size_t round_blocks(const mla_attn_job *j)
{
    size_t n = !j->fused ? BLOCKS_BYTES / (j->block_elems * sizeof(float)) : j->a->p2 || j->a->probs ? 64 : SIZE_MAX;
    return n ? n : 1;
}

static mla_status take_scratch(mla_attn_job *j, mla_cpu *c, mla_err *err)
{
    size_t at[7], total = 0, R = mla_attn_rows(j), nb = round_blocks(j);
    char *mem;
    bool ok = mla_cut(&total, &at[0], j->ntiles * (j->kpanels + j->k2panels), R * MLA_LDA, sizeof(float)) &&
              mla_cut(&total, &at[1], j->ntiles * R, j->ldo, sizeof(float)) &&
              mla_cut(&total, &at[2], j->ntiles, R, sizeof(float)) && mla_cut(&total, &at[3], j->ntiles, R, sizeof(float)) &&
              mla_cut(&total, &at[4], j->fused ? c->threads : nb, j->block_elems, sizeof(float)) &&
              mla_cut(&total, &at[5], c->threads, j->work_elems, sizeof(float)) &&
              mla_cut(&total, &at[6], j->a->p2 || j->a->probs ? j->ntiles : 0, nb == SIZE_MAX ? 0 : nb * MLA_BLOCK, sizeof(double));
    if (!ok) return mla_fail(err, MLA_ENOMEM, "attention over %zu queries: scratch size overflows", j->T);
    mla_status st = mla_cpu_scratch(c, total, "attention", &mem, err);
    if (st != MLA_OK) return st;
    j->q = (float *)(void *)(mem + at[0]);
    j->o = (float *)(void *)(mem + at[1]);
    j->m = (float *)(void *)(mem + at[2]);
    j->l = (float *)(void *)(mem + at[3]);
    j->blocks = (float *)(void *)(mem + at[4]);
    j->work = (float *)(void *)(mem + at[5]);
    j->part = (double *)(void *)(mem + at[6]);
    return MLA_OK;
}

/* p2[key] += the tiles' partial sums, in tile order */
static void add_p2(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_attn_job *j = ctx;
    (void)worker;
    for (size_t s = begin; s < end; s++) {
        double sum = 0;
        for (size_t t = 0; t < j->ntiles; t++) sum += j->part[t * j->nb * MLA_BLOCK + s];
        mla_f64p(j->a->p2)[j->b0 * MLA_BLOCK + s] += sum;
    }
}

static void run_pass(mla_attn_job *j, mla_pool *pool, bool observe)
{
    const mla_attn_args *a = j->a;
    size_t keys = a->pos0 + j->t0 + j->T, all = observe && a->probs ? a->pos0 + a->T : keys;
    size_t blocks = mla_ceil_div(all, MLA_BLOCK), most = round_blocks(j), used = mla_ceil_div(keys, MLA_BLOCK);
    size_t heads = a->kh + (a->q2 ? a->k2h : 0) + (observe ? 0 : a->vh);
    j->observe = observe;
    for (j->b0 = 0; j->b0 < blocks; j->b0 += j->nb) {
        j->nb = mla_min_size(most, blocks - j->b0);
        if (!j->fused && j->b0 < used) mla_par_for(pool, mla_min_size(j->nb, used - j->b0) * heads, 1, mla_attn_widen, j);
        mla_par_for(pool, j->ntiles, j->fused ? mla_ceil_div(j->ntiles, mla_pool_threads(pool)) : 1, mla_attn_tiles, j);
        if (observe && a->p2 && j->b0 < used)
            mla_par_for(pool, mla_min_size(j->nb * MLA_BLOCK, keys - j->b0 * MLA_BLOCK), 256, add_p2, j);
    }
    if (!observe) mla_par_for(pool, j->ntiles, 1, mla_attn_finish, j);
}

mla_status mla_cpu_attention(mla_backend *be, const mla_attn_args *args, mla_err *err)
{
    mla_cpu *c = mla_cpu_of(be);
    mla_attn_job j;
    mla_attn_args found = *args, *a = &found;
    mla_status st = mla_cursor_get(args->at, args->T, &found.pos0, &found.k.pages, "attention", err);
    if (args->at) found.k2.pages = found.v.pages = found.k.pages;
    if (st == MLA_OK) st = check(a, err);
    if (st != MLA_OK) return st;
    shape(&j, c, a);
    size_t round = ROUND_ROWS / a->H ? ROUND_ROWS / a->H : 1;
    for (size_t t0 = 0; t0 < a->T; t0 += round) {
        j.t0 = t0;
        tile_shape(&j, mla_min_size(round, a->T - t0), c->threads);
        if ((st = take_scratch(&j, c, err)) != MLA_OK) return st;
        size_t work = j.T * a->H * (a->pos0 + t0 + j.T) * (a->dk + a->dk2 + a->dv);
        mla_pool *pool = work < SERIAL ? NULL : c->pool;
        run_pass(&j, pool, false);
        if (a->p2 || a->probs) run_pass(&j, pool, true);
    }
    return MLA_OK;
}
