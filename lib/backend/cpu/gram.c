/* Second moments in fp64: panels of 512 tokens are widened and shifted once, then every tile of the upper triangle adds
 * its panel sum, one fused chain per element over tokens ascending. The partition is fixed, so neither threads nor
 * the instruction set change a bit; the lower triangle is a copy of the upper one. */
#include <string.h>

#include "backend/cpu/cpu.h"

#define PANEL 512 /* tokens: the sums are read and written once per panel */
#define TILE 48   /* rows and columns of a tile: a multiple of the microkernels' 8 x 24 and 4 x 12 */

typedef struct {
    const mla_cpu_kern *k;
    const mla_gram_args *a;
    size_t t0, T, tiles;
    double *y, *wy; /* (tiles, PANEL, TILE): one tile's columns lie together; wy == y without weights */
} gram_job;

static void fill_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const gram_job *j = ctx;
    const mla_gram_args *a = j->a;
    const double *shift = a->shift ? mla_f64p(a->shift) : NULL;
    (void)worker;
    for (size_t t = begin; t < end; t++) {
        const float *x = mla_cf32p(a->x) + (j->t0 + t) * a->ldx;
        double w = a->w ? mla_f64p(a->w)[j->t0 + t] : 1;
        for (size_t i = 0; i < a->n; i += TILE) {
            size_t at = i * PANEL + t * TILE, n = mla_min_size(TILE, a->n - i);
            for (size_t e = 0; e < n; e++) j->y[at + e] = shift ? x[i + e] - shift[i + e] : x[i + e];
            for (size_t e = 0; a->w && e < n; e++) j->wy[at + e] = w * j->y[at + e];
        }
    }
}

/* Tile number i of the upper triangle, by rows: (bi, bj), bi <= bj. */
static void tile_of(size_t i, size_t tiles, size_t *bi, size_t *bj)
{
    size_t r = 0;
    while (i >= tiles - r) i -= tiles - r++;
    *bi = r;
    *bj = r + i;
}

static void gram_tiles(void *ctx, size_t begin, size_t end, size_t worker)
{
    const gram_job *j = ctx;
    size_t n = j->a->n;
    double *acc = mla_f64p(j->a->acc);
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        size_t bi, bj;
        tile_of(i, j->tiles, &bi, &bj);
        mla_gram_tile t = {.a = j->wy + bi * TILE * PANEL, .b = j->y + bj * TILE * PANEL, .c = acc + bi * TILE * n + bj * TILE,
                           .lda = TILE, .ldb = TILE, .ldc = n, .T = j->T, .m = mla_min_size(TILE, n - bi * TILE),
                           .n = mla_min_size(TILE, n - bj * TILE)};
        j->k->tile_gram(&t);
    }
}

/* piece = one row of tiles of the lower triangle, tile by tile so that both sides stay in cache */
static void mirror_tiles(void *ctx, size_t begin, size_t end, size_t worker)
{
    const gram_job *j = ctx;
    size_t n = j->a->n;
    double *acc = mla_f64p(j->a->acc);
    (void)worker;
    for (size_t b = begin * TILE; b < end * TILE; b += TILE)
        for (size_t c0 = 0; c0 <= b; c0 += TILE)
            for (size_t r = b; r < mla_min_size(b + TILE, n); r++)
                for (size_t c = c0; c < mla_min_size(c0 + TILE, r); c++) acc[r * n + c] = acc[c * n + r];
}

static void sum_columns(void *ctx, size_t begin, size_t end, size_t worker)
{
    const gram_job *j = ctx;
    double *sum = mla_f64p(j->a->sum);
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        double s = 0;
        for (size_t t = 0; t < j->T; t++) s += j->wy[i / TILE * TILE * PANEL + t * TILE + i % TILE];
        sum[i] += s;
    }
}

mla_status mla_cpu_gram(mla_backend *be, const mla_gram_args *a, mla_err *err)
{
    mla_cpu *c = mla_cpu_of(be);
    size_t total = 0, y_at, w_at;
    char *mem;
    if (a->T == 0 || a->n == 0) return MLA_OK;
    size_t tiles = mla_ceil_div(a->n, TILE);
    if (!mla_cut(&total, &y_at, PANEL * TILE, tiles, sizeof(double)) || !mla_cut(&total, &w_at, PANEL * TILE, tiles, sizeof(double)))
        return mla_fail(err, MLA_ENOMEM, "gram of %zu features", a->n);
    mla_status st = mla_cpu_scratch(c, total, "gram", &mem, err);
    if (st != MLA_OK) return st;
    gram_job j = {.k = c->k, .a = a, .tiles = tiles, .y = (double *)(void *)(mem + y_at)};
    j.wy = a->w ? (double *)(void *)(mem + w_at) : j.y;
    for (j.t0 = 0; j.t0 < a->T; j.t0 += j.T) {
        j.T = mla_min_size(PANEL, a->T - j.t0);
        mla_par_for(c->pool, j.T, 16, fill_rows, &j);
        if (a->acc) mla_par_for(c->pool, j.tiles * (j.tiles + 1) / 2, 1, gram_tiles, &j);
        if (a->sum) mla_par_for(c->pool, a->n, 64, sum_columns, &j);
    }
    if (a->acc) mla_par_for(c->pool, tiles, 1, mirror_tiles, &j);
    return MLA_OK;
}
