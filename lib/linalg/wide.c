/* Blocks of rows; forward substitution by lines of columns, for the cache. */
#include "linalg/wide.h"

#include <string.h>

#include "base/alloc.h"
#include "linalg/chol.h"

enum { ROWS = MLA_WIDE_ROWS, LINE = 16 }; /* columns at a time */

static void some_rows(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    const mla_dgemm_args *g = ctx;
    mla_dgemm_args part = *g;
    part.M = e - b;
    part.a += g->ta ? b : b * g->lda;
    part.c += b * g->ldc;
    mla_dgemm(&part);
}

void mla_dgemm_wide(const mla_dgemm_args *g, mla_pool *pool)
{
    mla_dgemm_args all = *g;
    mla_par_for(pool, g->M, ROWS, some_rows, &all);
}

typedef struct {
    const double *l;
    double *b;
    size_t n;
    mla_err *err; /* of each block */
} sides;

static void some_sides(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    sides *s = ctx;
    mla_err *err = &s->err[b / ROWS];
    err->status = mla_chol_solve(s->l, s->n, s->b + b * s->n, e - b, err);
}

mla_status mla_chol_solve_wide(const double *l, size_t n, double *b, size_t rows, mla_pool *pool, mla_err *err)
{
    size_t blocks = (rows + ROWS - 1) / ROWS;
    sides s = {l, b, n, mla_alloc(blocks + 1, 1, sizeof(mla_err))};
    if (!s.err) return mla_fail(err, MLA_ENOMEM, "solve for %zu rows", rows);
    mla_par_for(pool, rows, ROWS, some_sides, &s);
    mla_status st = mla_first_error(s.err, blocks, err);
    mla_free(s.err);
    return st;
}

typedef struct {
    double *E;
    const double *L;
    size_t r, n;
} lower;

/* e (LINE) -= sum_k l_k E_k over `count` rows E_k (ld). */
static void subtract_rows(double e[LINE], const double *l, const double *E, size_t ld, size_t count)
{
    double v[LINE];
    memcpy(v, e, sizeof v);
    for (size_t k = 0; k < count; k++)
        for (size_t j = 0; j < LINE; j++) v[j] -= l[k] * E[k * ld + j];
    memcpy(e, v, sizeof v);
}

static void some_columns(void *ctx, size_t j0, size_t end, size_t worker)
{
    (void)worker;
    const lower *s = ctx;
    double *E = s->E;
    size_t n = s->n, m = end - j0;
    for (size_t i = 0; i < s->r; i++) {
        const double *l = s->L + i * s->r;
        double *e = E + i * n + j0;
        if (m == LINE) subtract_rows(e, l, E + j0, n, i);
        for (size_t k = 0; m < LINE && k < i; k++)
            for (size_t j = 0; j < m; j++) e[j] -= l[k] * E[k * n + j0 + j];
        for (size_t j = 0; j < m; j++) e[j] /= l[i];
    }
}

void mla_lower_solve(double *E, const double *L, size_t r, size_t n, mla_pool *pool)
{
    lower s = {E, L, r, n};
    mla_par_for(pool, n, LINE, some_columns, &s);
}
