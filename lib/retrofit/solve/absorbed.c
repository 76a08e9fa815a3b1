/* The latent beside the rotary slots: its statistics, its factors in terms of the model's own keys, and what they lose. */
#include "retrofit/solve/absorbed.h"

#include <string.h>

#include "base/alloc.h"
#include "linalg/chol.h"
#include "linalg/wide.h"
#include "tensor/fp.h"

void mla_absorbed_free(mla_absorbed *a)
{
    if (!a) return;
    mla_rotary_free(a->rot);
    mla_free(a->C);
    mla_free(a->mu);
    mla_free(a->Q);
    mla_free(a->L);
    mla_free(a);
}

/* y (rows, n) := x P^T on the key columns, for x (rows, n): every row is a feature vector. */
static void project_rows(double *y, const double *x, size_t rows, size_t n, const mla_rotary *r)
{
    size_t gd = n / 2;
    memcpy(y, x, rows * n * sizeof *y);
    mla_dgemm(&(mla_dgemm_args){.tb = true, .M = rows, .N = gd, .K = gd, .alpha = 1, .a = x, .lda = n, .b = r->T, .ldb = gd, .c = y, .ldc = n});
}

static void transpose(double *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) {
            double t = a[i * n + j];
            a[i * n + j] = a[j * n + i];
            a[j * n + i] = t;
        }
}

/* Statistics of the remaining keys and the values: shift, sum, C projected; M = sum_h A_h Q_h A_h^T. Shares the rest. */
static mla_status remaining(mla_layer_stats *out, const mla_layer_stats *l, const mla_rotary *r, mla_err *err)
{
    size_t n = l->n, d = l->d, m = l->H / l->G;
    *out = *l;
    out->half = 0;
    out->shift = mla_alloc(n, 1, sizeof(double));
    out->sum = mla_alloc(n, 1, sizeof(double));
    out->C = mla_alloc(n, n, sizeof(double));
    out->M = mla_alloc(l->G, d * d, sizeof(double));
    double *tmp = mla_alloc(n, n, sizeof *tmp), *q = mla_alloc(d, d, sizeof *q);
    mla_status st = out->shift && out->sum && out->C && out->M && tmp && q ? MLA_OK : mla_fail(err, MLA_ENOMEM, "remaining keys of layer %zu", l->layer);
    if (st == MLA_OK) {
        project_rows(out->shift, l->shift, 1, n, r);
        project_rows(out->sum, l->sum, 1, n, r);
        project_rows(tmp, l->C, n, n, r); /* C P^T */
        transpose(tmp, n);
        project_rows(out->C, tmp, n, n, r);
    }
    for (size_t h = 0; st == MLA_OK && h < l->H; h++) {
        memcpy(q, l->Q + h * d * d, d * d * sizeof *q);
        mla_rotary_query(r, h, false, q, d, d);
        transpose(q, d);
        mla_rotary_query(r, h, false, q, d, d);
        for (size_t i = 0; i < d * d; i++) out->M[h / m * d * d + i] += q[i];
    }
    mla_free(tmp);
    mla_free(q);
    return st;
}

static void remaining_free(mla_layer_stats *l)
{
    mla_free(l->shift);
    mla_free(l->sum);
    mla_free(l->C);
    mla_free(l->M);
}

/* What the layer's keys and values carry in all: the measure that does not depend on the slots. */
static double whole_energy(const mla_absorbed *a, size_t n)
{
    const mla_rotary *r = a->rot;
    size_t gd = n / 2;
    double e = 0;
    for (size_t i = 0; i < r->blocks * r->q; i++) e += a->balance * r->energy[i];
    for (size_t h = 0; h < r->H; h++) { /* dims that never turn */
        size_t at = h / (r->H / r->G) * r->d;
        for (size_t i = 2 * r->half; i < r->d; i++)
            for (size_t j = 2 * r->half; j < r->d; j++) e += a->balance * a->Q[(h * r->d + i) * r->d + j] * a->C[(at + i) * n + at + j];
    }
    for (size_t i = 0; i < gd; i++)
        for (size_t j = 0; j < gd; j++) e += a->L[i * gd + j] * a->C[(gd + i) * n + gd + j];
    return e;
}

mla_status mla_solve_absorbed(mla_solution *out, const mla_layer_stats *l, const float *wo, size_t D, const mla_solve_opts *so, const mla_rotary_opts *o,
                              mla_err *err)
{
    *out = (mla_solution){0};
    mla_layer_stats rest = {0};
    size_t n = l->n, gd = n / 2, hq = l->H * l->d * l->d;
    mla_absorbed *a = mla_alloc(1, 1, sizeof *a);
    if (!a) return mla_fail(err, MLA_ENOMEM, "layer %zu", l->layer);
    if (!(l->wsum > 0) || !(l->tokens > 0)) {
        mla_free(a);
        return mla_fail(err, MLA_EFORMAT, "layer %zu was never observed", l->layer);
    }
    a->balance = so->balance;
    a->C = mla_alloc(n, n, sizeof(double));
    a->mu = mla_alloc(n, 1, sizeof(double));
    a->Q = mla_alloc(hq, 1, sizeof(double));
    a->L = mla_alloc(gd, gd, sizeof(double));
    mla_status st = a->C && a->mu && a->Q && a->L ? MLA_OK : mla_fail(err, MLA_ENOMEM, "layer %zu: %zu features", l->layer, n);
    if (st == MLA_OK) st = mla_rotary_new(&a->rot, l, o, err);
    if (st == MLA_OK) st = remaining(&rest, l, a->rot, err);
    if (st == MLA_OK) st = mla_solve_layer(out, &rest, MLA_LAYOUT_REBUILD, wo, D, &(mla_solve_opts){.balance = so->balance, .groups = 1, .eigen = so->eigen}, err);
    if (st == MLA_OK) st = mla_rotary_loss(&a->lost, a->rot, l, err);
    remaining_free(&rest);
    if (st == MLA_OK) {
        mla_stats_cov(l, a->C);
        mla_stats_mean(l, a->mu);
        for (size_t i = 0; i < hq; i++) a->Q[i] = l->Q[i] / l->tokens;
        for (size_t i = 0; i < gd; i++) memcpy(a->L + i * gd, out->Lambda + (gd + i) * n + gd, gd * sizeof(double));
        a->lost *= so->balance;
        a->energy = whole_energy(a, n);
        out->layout = MLA_LAYOUT_ABSORBED;
        out->absorbed = a;
        return MLA_OK;
    }
    mla_absorbed_free(a);
    mla_solution_free(out);
    return st;
}

/* D' (n, r) = P C E^T (E C E^T)^-1 for the stored E (r, n), which no other decoder beats. */
static mla_status refit(double *Dp, const double *E, const mla_absorbed *a, size_t n, size_t r, mla_pool *pool, mla_err *err)
{
    double *X = mla_alloc(r, n, sizeof *X), *Y = mla_alloc(r, n, sizeof *Y), *A = mla_alloc(r, r, sizeof *A);
    mla_status st = X && Y && A ? MLA_OK : mla_fail(err, MLA_ENOMEM, "decoder of rank %zu", r);
    if (st == MLA_OK) {
        mla_dgemm_wide(&(mla_dgemm_args){.M = r, .N = n, .K = n, .alpha = 1, .a = E, .lda = n, .b = a->C, .ldb = n, .c = X, .ldc = n}, pool); /* E C */
        mla_dgemm_wide(&(mla_dgemm_args){.tb = true, .M = r, .N = r, .K = n, .alpha = 1, .a = X, .lda = n, .b = E, .ldb = n, .c = A, .ldc = r}, pool);
        project_rows(Y, X, r, n, a->rot);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < r; k++) Dp[i * r + k] = Y[k * n + i];
        st = mla_chol(A, r, err);
    }
    if (st == MLA_OK) st = mla_chol_solve_wide(A, r, Dp, n, pool, err);
    mla_free(X);
    mla_free(Y);
    mla_free(A);
    return st;
}

static float stored(double v, bool bf16) { return bf16 ? mla_bf16_f32(mla_f32_bf16((float)v)) : (float)v; }

mla_status mla_absorbed_factors(mla_factors *out, const mla_solution *s, size_t r, bool bf16, mla_pool *pool, mla_err *err)
{
    const mla_absorbed *a = s->absorbed;
    const mla_rotary *rot = a->rot;
    size_t n = s->n, gd = n / 2, d = rot->d, m = rot->H / rot->G;
    mla_config dims = {.heads = rot->H, .kv_heads = rot->G, .head_dim = d};
    mla_status st = mla_factors_new_absorbed(out, &dims, rot->w, r, err);
    if (st != MLA_OK) return st;
    double *E = mla_alloc(r, n, sizeof *E), *D = mla_alloc(n, r, sizeof *D), *K = mla_alloc(d, r, sizeof *K);
    if (!E || !D || !K) st = mla_fail(err, MLA_ENOMEM, "layer %zu: factors of rank %zu", s->layer, r);
    if (st == MLA_OK) {
        memcpy(E, s->E, r * n * sizeof *E); /* E' P: columns of the keys times T */
        mla_dgemm_wide(&(mla_dgemm_args){.M = r, .N = gd, .K = gd, .alpha = 1, .a = s->E, .lda = n, .b = rot->T, .ldb = gd, .c = E, .ldc = n}, pool);
        for (size_t i = 0; i < r * n; i++) E[i] = out->E[i] = stored(E[i], bf16);
        mla_err why;
        if (!bf16 || refit(D, E, a, n, r, pool, &why) != MLA_OK) /* directions without energy: keep D' */
            for (size_t i = 0; i < n; i++) memcpy(D + i * r, s->D + i * n, r * sizeof *D);
        for (size_t h = 0; h < rot->H; h++) {
            memcpy(K, D + h / m * d * r, d * r * sizeof *K);
            mla_rotary_query(rot, h, true, K, r, r);
            for (size_t i = 0; i < d * r; i++) out->D[h * d * r + i] = stored(K[i], bf16);
        }
        for (size_t i = 0; i < gd * r; i++) out->D[rot->H * d * r + i] = stored(D[gd * r + i], bf16);
        for (size_t i = 0; i < n; i++) out->mu[i] = (float)a->mu[i];
        mla_rotary_maps(rot, out);
    }
    mla_free(E);
    mla_free(D);
    mla_free(K);
    if (st != MLA_OK) mla_factors_free(out);
    return st;
}

/* tr(W Z C Z^T), Z (d, n), C (n, n), W (d, d); tmp (d, n). */
static double weighted(const double *W, const double *Z, const double *C, size_t d, size_t n, double *tmp)
{
    double sum = 0;
    mla_dgemm(&(mla_dgemm_args){.M = d, .N = n, .K = n, .alpha = 1, .a = Z, .lda = n, .b = C, .ldb = n, .c = tmp, .ldc = n});
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) {
            double dot = 0;
            for (size_t k = 0; k < n; k++) dot += tmp[i * n + k] * Z[j * n + k];
            sum += W[i * d + j] * dot;
        }
    return sum;
}

/* Z (d, n) = want - K E, with want = A_h^T T_g on the keys, or the identity on KV head g's values. */
static void miss(double *Z, const mla_factors *f, const mla_rotary *r, size_t h, size_t g, const double *E)
{
    size_t n = f->n, gd = n / 2, d = r->d;
    bool value = h == r->H;
    const float *K = f->D + (value ? r->H * d + g * d : h * d) * f->r;
    memset(Z, 0, d * n * sizeof *Z);
    for (size_t i = 0; i < d; i++) {
        if (value) Z[i * n + gd + g * d + i] = 1;
        else memcpy(Z + i * n, r->T + (g * d + i) * gd, gd * sizeof *Z);
    }
    if (!value) mla_rotary_query(r, h, true, Z, n, n);
    for (size_t i = 0; i < d; i++)
        for (size_t k = 0; k < f->r; k++) {
            double c = K[i * f->r + k];
            for (size_t j = 0; j < n; j++) Z[i * n + j] -= c * E[k * n + j];
        }
}

mla_status mla_absorbed_loss(double *out, const mla_solution *s, const mla_factors *f, const mla_layer_stats *l, mla_err *err)
{
    const mla_absorbed *a = s->absorbed;
    const mla_rotary *r = a->rot;
    size_t n = s->n, gd = n / 2, d = r->d, m = r->H / r->G;
    double *C = mla_alloc(n, n, sizeof *C), *mu = mla_alloc(n, 1, sizeof *mu), *E = mla_alloc(f->r ? f->r : 1, n, sizeof *E);
    double *Z = mla_alloc(gd, n, sizeof *Z), *tmp = mla_alloc(gd, n, sizeof *tmp);
    mla_status st = C && mu && E && Z && tmp ? MLA_OK : mla_fail(err, MLA_ENOMEM, "loss of layer %zu", s->layer);
    *out = 0;
    if (st == MLA_OK) st = mla_rotary_loss(out, r, l, err);
    if (st == MLA_OK) {
        mla_stats_cov(l, C);
        mla_stats_mean(l, mu);
        for (size_t i = 0; i < f->r * n; i++) E[i] = f->E[i];
        for (size_t h = 0; h < r->H; h++) {
            miss(Z, f, r, h, h / m, E);
            *out += weighted(a->Q + h * d * d, Z, C, d, n, tmp);
        }
        *out *= a->balance;
        for (size_t i = 0; i < n; i++) mu[i] -= f->mu[i];
        for (size_t i = 0; i < n; i++) /* for the values only: a key error that all tokens share is free */
            for (size_t j = 0; j < n; j++) C[i * n + j] += mu[i] * mu[j];
        for (size_t g = 0; g < r->G; g++) miss(Z + g * d * n, f, r, r->H, g, E);
        *out += weighted(a->L, Z, C, gd, n, tmp);
    }
    mla_free(C);
    mla_free(mu);
    mla_free(E);
    mla_free(Z);
    mla_free(tmp);
    return st;
}
