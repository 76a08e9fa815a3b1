/* Row-wise ops: norms, rotary embedding, activations, copies, ranges. Rows are independent, so threads cannot change
 * a bit; long vectors are cut into fixed pieces. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"

#define PIECE ((size_t)4096) /* elements per piece of a flat op */

/* Rows per piece so that a piece holds about PIECE elements. */
static size_t rows_grain(size_t d) { return d >= PIECE ? 1 : d == 0 ? PIECE : PIECE / d; }

typedef struct {
    const mla_cpu_kern *k;
    const void *a;
} row_job;

static void norm_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const row_job *j = ctx;
    const mla_norm_args *a = j->a;
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const float *x = mla_cf32p(a->x) + r * a->ldx;
        float inv = (float)(1 / sqrt((double)j->k->sumsq(x, a->d) / (double)a->d + a->eps));
        j->k->norm(mla_f32p(a->y) + r * a->ldy, x, mla_cf32p(a->gain), inv, a->d);
    }
}

mla_status mla_cpu_rmsnorm(mla_backend *be, const mla_norm_args *a, mla_err *err)
{
    (void)err;
    row_job j = {mla_cpu_of(be)->k, a};
    mla_par_for(mla_cpu_of(be)->pool, a->rows, rows_grain(a->d), norm_rows, &j);
    return MLA_OK;
}

static void gated_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const row_job *j = ctx;
    const mla_gated_norm_args *a = j->a;
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const float *x = mla_cf32p(a->x) + r * a->d;
        float inv = (float)(1 / sqrt((double)j->k->sumsq(x, a->d) / (double)a->d + a->eps));
        j->k->gated(mla_f32p(a->y) + r * a->d, x, mla_cf32p(a->gain), mla_cf32p(a->z) + r * a->d, inv, a->d);
    }
}

mla_status mla_cpu_gated_norm(mla_backend *be, const mla_gated_norm_args *a, mla_err *err)
{
    (void)err;
    row_job j = {mla_cpu_of(be)->k, a};
    mla_par_for(mla_cpu_of(be)->pool, a->rows, rows_grain(a->d), gated_rows, &j);
    return MLA_OK;
}

static void rope_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const row_job *j = ctx;
    const mla_rope_args *a = j->a;
    size_t half = a->rot / 2;
    (void)worker;
    for (size_t t = begin; t < end; t++)
        for (size_t h = 0; h < a->heads; h++)
            j->k->rope(mla_f32p(a->x) + t * a->ldx + h * a->head_stride, mla_cf32p(a->cos) + t * half,
                       mla_cf32p(a->sin) + t * half, half);
}

mla_status mla_cpu_rope(mla_backend *be, const mla_rope_args *a, mla_err *err)
{
    if (a->rot % 2) return mla_fail(err, MLA_EINVAL, "rope: %zu rotated dims, must be even", a->rot);
    mla_rope_args at = *a;
    size_t pos0 = 0;
    mla_status st = mla_cursor_get(a->at, a->T, &pos0, NULL, "rope", err);
    if (st != MLA_OK) return st;
    at.cos = mla_at(a->cos, pos0 * (a->rot / 2));
    at.sin = mla_at(a->sin, pos0 * (a->rot / 2));
    row_job j = {mla_cpu_of(be)->k, &at};
    mla_par_for(mla_cpu_of(be)->pool, a->T, rows_grain(a->heads * a->rot), rope_rows, &j);
    return MLA_OK;
}

typedef struct {
    const mla_cpu_kern *k;
    float *y;
    const float *a, *b;
    size_t ldy, lda, d;
    float s;
} flat_job;

static void add_piece(void *ctx, size_t begin, size_t end, size_t worker)
{
    const flat_job *j = ctx;
    (void)worker;
    j->k->add(j->y + begin, j->a + begin, 1, end - begin);
}

mla_status mla_cpu_add(mla_backend *be, mla_mem *y, const mla_mem *x, size_t n, mla_err *err)
{
    (void)err;
    flat_job j = {.k = mla_cpu_of(be)->k, .y = mla_f32p(y), .a = mla_cf32p(x)};
    mla_par_for(mla_cpu_of(be)->pool, n, PIECE, add_piece, &j);
    return MLA_OK;
}

static void add_row_piece(void *ctx, size_t begin, size_t end, size_t worker)
{
    const flat_job *j = ctx;
    (void)worker;
    for (size_t r = begin; r < end; r++) j->k->add(j->y + r * j->ldy, j->a, j->s, j->d);
}

mla_status mla_cpu_add_rows(mla_backend *be, mla_mem *y, size_t ldy, size_t rows, size_t d, const mla_mem *v, float s, mla_err *err)
{
    (void)err;
    flat_job j = {.k = mla_cpu_of(be)->k, .y = mla_f32p(y), .a = mla_cf32p(v), .ldy = ldy, .d = d, .s = s};
    mla_par_for(mla_cpu_of(be)->pool, rows, rows_grain(d), add_row_piece, &j);
    return MLA_OK;
}

static void silu_piece(void *ctx, size_t begin, size_t end, size_t worker)
{
    const flat_job *j = ctx;
    (void)worker;
    j->k->silu_mul(j->y + begin, j->a + begin, j->b + begin, end - begin);
}

mla_status mla_cpu_silu_mul(mla_backend *be, mla_mem *y, const mla_mem *a, const mla_mem *b, size_t n, mla_err *err)
{
    (void)err;
    flat_job j = {.k = mla_cpu_of(be)->k, .y = mla_f32p(y), .a = mla_cf32p(a), .b = mla_cf32p(b)};
    mla_par_for(mla_cpu_of(be)->pool, n, PIECE, silu_piece, &j);
    return MLA_OK;
}

static void sigmoid_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const flat_job *j = ctx;
    (void)worker;
    for (size_t r = begin; r < end; r++) j->k->sigmoid_mul(j->y + r * j->d, j->a + r * j->lda, j->d);
}

mla_status mla_cpu_sigmoid_mul(mla_backend *be, mla_mem *x, const mla_mem *gate, size_t rows, size_t d, size_t ldg, mla_err *err)
{
    (void)err;
    flat_job j = {.k = mla_cpu_of(be)->k, .y = mla_f32p(x), .a = mla_cf32p(gate), .lda = ldg, .d = d};
    mla_par_for(mla_cpu_of(be)->pool, rows, rows_grain(d), sigmoid_rows, &j);
    return MLA_OK;
}

static void copy_piece(void *ctx, size_t begin, size_t end, size_t worker)
{
    const flat_job *j = ctx;
    (void)worker;
    for (size_t r = begin; r < end; r++) memcpy(j->y + r * j->ldy, j->a + r * j->lda, j->d * sizeof *j->y);
}

mla_status mla_cpu_copy_rows(mla_backend *be, mla_mem *y, size_t ldy, const mla_mem *x, size_t ldx, size_t rows, size_t d, mla_err *err)
{
    (void)err;
    flat_job j = {.y = mla_f32p(y), .a = mla_cf32p(x), .ldy = ldy, .lda = ldx, .d = d};
    mla_par_for(mla_cpu_of(be)->pool, rows, rows_grain(d), copy_piece, &j);
    return MLA_OK;
}

/* Range: fixed groups of rows, one partial each, added in order. */
typedef struct {
    const float *x;
    size_t rows, d, ld, grain;
    mla_range *part;
} range_job;

static void range_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const range_job *j = ctx;
    mla_range p = {0};
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const float *x = j->x + r * j->ld;
        float top = 0;
        for (size_t i = 0; i < j->d; i++) {
            float a = fabsf(x[i]);
            if (!(a <= 3.402823466e38f)) { /* NaN or infinity */
                p.nonfinite++;
                continue;
            }
            top = a > top ? a : top;
            p.sum2 += (double)a * a;
        }
        p.amax = top > p.amax ? top : p.amax;
    }
    p.n = (uint64_t)(end - begin) * j->d;
    j->part[begin / j->grain] = p;
}

mla_status mla_cpu_range(mla_backend *be, const mla_mem *x, size_t rows, size_t d, size_t ld, mla_range *out, mla_err *err)
{
    mla_cpu *c = mla_cpu_of(be);
    range_job j = {.x = mla_cf32p(x), .rows = rows, .d = d, .ld = ld, .grain = rows_grain(d)};
    size_t parts = mla_ceil_div(rows, j.grain), total = 0, at;
    char *mem;
    if (!mla_cut(&total, &at, parts, 1, sizeof *j.part)) return mla_fail(err, MLA_ENOMEM, "range of %zu rows", rows);
    mla_status st = mla_cpu_scratch(c, total, "range", &mem, err);
    if (st != MLA_OK) return st;
    j.part = (mla_range *)(void *)mem;
    mla_par_for(c->pool, rows, j.grain, range_rows, &j);
    *out = (mla_range){0};
    for (size_t i = 0; i < parts; i++) {
        out->amax = j.part[i].amax > out->amax ? j.part[i].amax : out->amax;
        out->sum2 += j.part[i].sum2;
        out->n += j.part[i].n;
        out->nonfinite += j.part[i].nonfinite;
    }
    return MLA_OK;
}
