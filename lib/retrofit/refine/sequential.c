/* Cross moments of recorded rows, the asymmetric solution, acceptance. */
#include "retrofit/refine/sequential.h"

#include <math.h>

#include "base/alloc.h"
#include "linalg/chol.h"
#include "linalg/wide.h"

static const double RIDGE[] = {1e-3, 1e-2, 1e-1, 1};

mla_status mla_cross_moments_new(mla_cross_moments *m, size_t groups, size_t n, mla_err *err)
{
    *m = (mla_cross_moments){.groups = groups, .n = n, .yy = mla_alloc(groups, n * n, sizeof(double)), .yz = mla_alloc(groups, n * n, sizeof(double)),
                             .zz = mla_alloc(groups, n * n, sizeof(double))};
    if (m->yy && m->yz && m->zz) return MLA_OK;
    mla_cross_moments_free(m);
    return mla_fail(err, MLA_ENOMEM, "cross moments of %zu features", groups * n);
}

void mla_cross_moments_free(mla_cross_moments *m)
{
    mla_free(m->yy);
    mla_free(m->yz);
    mla_free(m->zz);
    *m = (mla_cross_moments){0};
}

mla_status mla_cross_moments_add(mla_cross_moments *m, const float *y, const float *y2, const double *w, size_t T, const double *mu, mla_pool *pool, mla_err *err)
{
    size_t n = m->n, ld = m->groups * n;
    double *a = mla_alloc_raw(2 * T, ld, sizeof *a);
    if (!a) return mla_fail(err, MLA_ENOMEM, "cross moments of %zu tokens", T);
    double *b = a + T * ld;
    for (size_t t = 0; t < T; t++) {
        double s = sqrt(w[t]);
        m->wsum += w[t];
        for (size_t i = 0; i < ld; i++) {
            a[t * ld + i] = s * (y[t * ld + i] - mu[i]);
            b[t * ld + i] = s * (y2[t * ld + i] - mu[i]);
        }
    }
    for (size_t g = 0; g < m->groups; g++) {
        const double *const left[3] = {a, a, b}, *const right[3] = {a, b, b};
        double *const to[3] = {m->yy, m->yz, m->zz};
        for (size_t k = 0; k < 3; k++)
            mla_dgemm_wide(&(mla_dgemm_args){.ta = true, .M = n, .N = n, .K = T, .alpha = 1, .beta = 1, .a = left[k] + g * n, .lda = ld, .b = right[k] + g * n,
                                        .ldb = ld, .c = to[k] + g * n * n, .ldc = n}, pool);
    }
    mla_free(a);
    return MLA_OK;
}

/* B (n, n) and the covariance M = B (C' + rho S) B^T = B (P + rho S)^T of group g from the layer's own C; A (n, n) scratch. */
static mla_status correction(double *B, double *M, double *A, const mla_cross_moments *m, const double *C, size_t g, double rho,
                             mla_pool *pool, mla_err *err)
{
    size_t n = m->n, at = g * n * n;
    double top = 0;
    for (size_t i = 0; i < n; i++) top = C[i * n + i] > top ? C[i * n + i] : top;
    for (size_t i = 0; i < n * n; i++) {
        double ridge = i / n == i % n ? rho * (C[i] > 1e-12 * top ? C[i] : 1e-12 * top) : 0; /* a dead feature has a ridge, too */
        A[i] = C[i] + (m->zz[at + i] - m->yy[at + i]) / m->wsum + ridge;
        B[i] = M[i] = C[i] + (m->yz[at + i] - m->yy[at + i]) / m->wsum + ridge;
    }
    mla_status st = mla_chol(A, n, err);
    if (st == MLA_OK) st = mla_chol_solve_wide(A, n, B, n, pool, err);
    if (st != MLA_OK) return st;
    mla_dgemm_wide(&(mla_dgemm_args){.tb = true, .M = n, .N = n, .K = n, .alpha = 1, .a = B, .lda = n, .b = M, .ldb = n, .c = A, .ldc = n}, pool);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) M[i * n + j] = 0.5 * (A[i * n + j] + A[j * n + i]);
    return MLA_OK;
}

mla_status mla_sequential_factors(mla_factors *out, const mla_cross_moments *m, const mla_solution *s, size_t r, double rho, const mla_eigen *eigen, mla_pool *pool,
                                  mla_err *err)
{
    size_t n = m->n, gs = m->groups;
    mla_solution t = {0};
    mla_status st = mla_factors_new(out, s->layout, gs, n, r, err);
    if (st != MLA_OK) return st;
    double *B = mla_alloc(2 * gs + 1, n * n, sizeof *B), *M = B ? B + gs * n * n : NULL, *A = B ? M + gs * n * n : NULL, *E = mla_alloc(r, n, sizeof *E);
    if (!B || !E) st = mla_fail(err, MLA_ENOMEM, "sequential solution of %zu features", n);
    for (size_t g = 0; st == MLA_OK && g < gs; g++) st = correction(B + g * n * n, M + g * n * n, A, m, s->C + g * n * n, g, rho, pool, err);
    if (st == MLA_OK) st = mla_solution_of(&t, s, M, eigen, pool, err);
    for (size_t g = 0; st == MLA_OK && g < gs; g++) {
        mla_dgemm_wide(&(mla_dgemm_args){.M = r, .N = n, .K = n, .alpha = 1, .a = t.E + g * n * n, .lda = n, .b = B + g * n * n, .ldb = n, .c = E, .ldc = n}, pool);
        for (size_t i = 0; i < r * n; i++) out->E[g * r * n + i] = (float)E[i];
        for (size_t i = 0; i < n; i++) {
            out->mu[g * n + i] = (float)s->mu[g * n + i];
            for (size_t k = 0; k < r; k++) out->D[(g * n + i) * r + k] = (float)t.D[(g * n + i) * n + k];
        }
    }
    mla_solution_free(&t);
    mla_free(B);
    mla_free(E);
    if (st != MLA_OK) mla_factors_free(out);
    return st;
}

enum { ROWS = 16 }; /* whose weights are computed side by side */

typedef struct {
    const mla_rows *rows;
    mla_local_work **work; /* per worker */
    size_t first;
    float *buf[ROWS], *y[ROWS];
    const float *y2[ROWS];
    double *w[ROWS];
} some_rows;

static void weigh_rows(void *ctx, size_t b, size_t e, size_t worker)
{
    some_rows *s = ctx;
    for (size_t i = b; i < e; i++) {
        mla_local_row row;
        mla_rows_get(s->rows, s->first + i, s->buf[i], &row);
        mla_rows_features(s->rows, s->first + i, s->y[i]);
        s->y2[i] = row.y;
        row.y = s->y[i];
        mla_local_weights(s->w[i], mla_rows_problem(s->rows), s->work[worker], &row);
    }
}

/* Sums over the rows that are there to fit, in row order. */
static mla_status gather(mla_cross_moments *m, const mla_rows *rows, size_t first, size_t count, const mla_solution *s, mla_pool *pool, mla_err *err)
{
    const mla_local *p = mla_rows_problem(rows);
    size_t threads = mla_pool_threads(pool), features = p->groups * p->n;
    some_rows r = {.rows = rows, .work = mla_alloc(threads, 1, sizeof(mla_local_work *))};
    mla_status st = r.work ? MLA_OK : mla_fail(err, MLA_ENOMEM, "rows of %zu tokens", p->max_T);
    for (size_t i = 0; st == MLA_OK && i < ROWS && i < count; i++) {
        r.buf[i] = mla_alloc_raw(mla_rows_scratch(rows), 1, sizeof(float));
        r.y[i] = mla_alloc_raw(p->max_T, features, sizeof(float));
        r.w[i] = mla_alloc(p->max_T, 1, sizeof(double));
        if (!r.buf[i] || !r.y[i] || !r.w[i]) st = mla_fail(err, MLA_ENOMEM, "rows of %zu tokens", p->max_T);
    }
    for (size_t i = 0; st == MLA_OK && i < threads; i++) st = mla_local_work_new(&r.work[i], p, 1, 0, err);
    for (size_t at = 0; st == MLA_OK && at < count; at += ROWS) {
        size_t n = count - at < ROWS ? count - at : ROWS;
        r.first = first + at;
        mla_par_for(pool, n, 1, weigh_rows, &r);
        for (size_t i = 0; st == MLA_OK && i < n; i++) st = mla_cross_moments_add(m, r.y[i], r.y2[i], r.w[i], mla_rows_shape(rows)->T, s->mu, pool, err);
    }
    for (size_t i = 0; i < ROWS; i++) mla_free(r.buf[i]), mla_free(r.y[i]), mla_free(r.w[i]);
    for (size_t i = 0; r.work && i < threads; i++) mla_local_work_free(r.work[i]);
    mla_free(r.work);
    return st;
}

mla_status mla_sequential(mla_refiner *r, const mla_solution *s, const mla_eigen *eigen, mla_factors *f, mla_sequential_result *out, mla_pool *pool, mla_err *err)
{
    mla_cross_moments m = {0};
    const mla_rows *rows;
    size_t first, count;
    *out = (mla_sequential_result){0};
    mla_status st = mla_refiner_rows(r, s->layer, &rows, &first, &count, err);
    if (st == MLA_OK) st = mla_refine_measure(r, s->layer, f, &out->before, err);
    out->after = out->before;
    if (st == MLA_OK) st = mla_cross_moments_new(&m, f->groups, f->n, err);
    if (st == MLA_OK) st = gather(&m, rows, first, count, s, pool, err);
    for (size_t k = 0; st == MLA_OK && k < sizeof RIDGE / sizeof *RIDGE; k++) {
        mla_factors t = {0};
        double loss = INFINITY;
        mla_status could = mla_sequential_factors(&t, &m, s, f->r, RIDGE[k], eigen, pool, err);
        if (could == MLA_EINVAL) continue; /* not positive definite: too little text for so small a ridge */
        st = could;
        if (st == MLA_OK) st = mla_refine_measure(r, s->layer, &t, &loss, err);
        if (st == MLA_OK && loss < out->after) { /* also false when not finite */
            mla_factors swap = *f;
            *f = t;
            t = swap;
            out->after = loss;
            out->kept = true;
        }
        mla_factors_free(&t);
    }
    mla_cross_moments_free(&m);
    return st == MLA_OK ? st : mla_wrap(err, "sequential calibration of layer %zu", s->layer);
}
