/* Assembling Lambda and S, and the symmetric eigenproblem. */
#include "retrofit/solve/solve.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/wide.h"
#include "retrofit/stats/divisor.h"
#include "retrofit/solve/metric.h"

#define LAMBDA_FLOOR 1e-6 /* relative; only Lambda is inverted (algorithms 8, point 4) */

size_t mla_group_feature(const mla_layer_stats *l, size_t groups, size_t a, size_t j)
{
    size_t per = l->G / groups, keys = per * l->dk;
    if (j < keys) return a * keys + j;
    return l->G * l->dk + a * per * l->d + (j - keys);
}

/* Lambda of group a (n, n) from M and the whole value metric L (G d, G d). */
static void assemble_lambda(double *lam, const mla_layer_stats *l, const double *L, size_t groups, size_t a, double balance)
{
    size_t per = l->G / groups, n = per * (l->dk + l->d), keys = per * l->dk, vd = l->G * l->d;
    memset(lam, 0, n * n * sizeof *lam);
    for (size_t g = 0; g < per; g++) {
        const double *M = l->M + (a * per + g) * l->dk * l->dk;
        for (size_t i = 0; i < l->dk; i++)
            for (size_t j = 0; j < l->dk; j++) lam[(g * l->dk + i) * n + g * l->dk + j] = balance * M[i * l->dk + j] / l->tokens;
    }
    for (size_t i = 0; i < per * l->d; i++)
        for (size_t j = 0; j < per * l->d; j++)
            lam[(keys + i) * n + keys + j] = L[(a * per * l->d + i) * vd + a * per * l->d + j];
}

/* What is solved as one: n features whose metric is zero between its parts (each KV head's keys, the values). */
typedef struct {
    size_t n, heads, key; /* the first heads * key features: one part per head; the rest: the last part */
    const double *C, *Lambda;
    double *E, *D, *sigma;
    const mla_eigen *eigen;
    mla_pool *pool;
} problem;

/* F and its inverse from Lambda = V diag(l) V^T, part by part: F = diag(sqrt l) V^T (n, n), Fi = V diag(1/sqrt l), with
 * eigenvalues below LAMBDA_FLOOR of the largest of all parts raised to it. A metric of zeros (nothing of these features
 * reaches the layer's output) sets *dead and gives the identity. */
static mla_status root_of_lambda(double *F, double *Fi, bool *dead, const problem *p, size_t *floored, mla_err *err)
{
    size_t n = p->n, rest = n - p->heads * p->key, most = p->key > rest ? p->key : rest;
    double *w = mla_alloc(n, 1, sizeof *w), *v = mla_alloc_raw(most, most, sizeof *v), top = 0;
    mla_status st = w && v ? MLA_OK : mla_fail(err, MLA_ENOMEM, "metric of %zu features", n);
    memset(F, 0, n * n * sizeof *F);
    memset(Fi, 0, n * n * sizeof *Fi);
    for (size_t part = 0, at = 0; st == MLA_OK && at < n; part++) { /* rows of F: eigenvectors for now */
        size_t m = part < p->heads ? p->key : rest;
        for (size_t i = 0; i < m; i++) memcpy(v + i * m, p->Lambda + (at + i) * n + at, m * sizeof *v);
        st = mla_eigen_solve(p->eigen, v, w + at, m, err);
        for (size_t i = 0; st == MLA_OK && i < m; i++) memcpy(F + (at + i) * n + at, v + i * m, m * sizeof *v);
        if (st == MLA_OK && m && w[at + m - 1] > top) top = w[at + m - 1];
        at += m;
    }
    *dead = st == MLA_OK && !(top > 0);
    for (size_t k = 0; st == MLA_OK && k < n; k++) {
        double e = w[k], lo = *dead ? 1 : LAMBDA_FLOOR * top;
        if (!(e >= lo)) e = lo, ++*floored;
        double s = sqrt(e);
        for (size_t i = 0; i < n; i++) {
            Fi[i * n + k] = F[k * n + i] / s;
            F[k * n + i] *= s;
        }
    }
    mla_free(w);
    mla_free(v);
    return st;
}

/* c = a b, or a b^T, all (n, n) */
static void square_mul(double *c, const double *a, const double *b, size_t n, bool tb, mla_pool *pool)
{
    mla_dgemm_wide(&(mla_dgemm_args){.tb = tb, .M = n, .N = n, .K = n, .alpha = 1, .a = a, .lda = n, .b = b, .ldb = n, .c = c, .ldc = n}, pool);
}

static mla_status solve_problem(const problem *p, size_t *floored, mla_err *err)
{
    size_t n = p->n;
    double *buf = mla_alloc_raw(4 * n, n, sizeof *buf), *w = mla_alloc(n, 1, sizeof *w);
    if (!buf || !w) {
        mla_free(buf);
        mla_free(w);
        return mla_fail(err, MLA_ENOMEM, "solution of %zu features", n);
    }
    double *F = buf, *Fi = buf + n * n, *T = buf + 2 * n * n, *S = buf + 3 * n * n;
    double *E = p->E, *D = p->D, *sig = p->sigma;
    bool dead;
    mla_status st = root_of_lambda(F, Fi, &dead, p, floored, err);
    if (st == MLA_OK) {
        square_mul(T, F, p->C, n, false, p->pool);
        square_mul(S, T, F, n, true, p->pool);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < i; j++) S[i * n + j] = S[j * n + i] = 0.5 * (S[i * n + j] + S[j * n + i]);
        st = mla_eigen_solve(p->eigen, S, w, n, err);
    }
    if (st == MLA_OK) {
        for (size_t i = 0; i < n / 2; i++) /* descending */
            for (size_t j = 0; j < n; j++) {
                double t = S[i * n + j];
                S[i * n + j] = S[(n - 1 - i) * n + j];
                S[(n - 1 - i) * n + j] = t;
            }
        for (size_t i = 0; i < n; i++) sig[i] = w[n - 1 - i] > 0 ? w[n - 1 - i] : 0;
        square_mul(E, S, F, n, false, p->pool);  /* E = U^T F */
        square_mul(D, Fi, S, n, true, p->pool);  /* D = F^-1 U */
        /* gauge: unit variance per coordinate (Var c_i = sigma_i), so that one FP8 scale fits all of them. A direction that
         * calibration hardly saw is not blown up beyond 1e4: with 1e-3 of the largest variance in other text it still
         * stays below FP8's 448, and bf16 rounding of its row leaks little. */
        double lo = 1e-8 * sig[0];
        for (size_t i = 0; i < n && sig[0] > 0; i++) {
            double g = sqrt(sig[i] > lo ? sig[i] : lo);
            for (size_t j = 0; j < n; j++) {
                E[i * n + j] /= g;
                D[j * n + i] *= g;
            }
        }
        if (dead) memset(sig, 0, n * sizeof *sig);
    }
    mla_free(buf);
    mla_free(w);
    return st;
}

/* Features [f0, f0 + m) of group a on their own; direction k of theirs becomes direction place(k) of the group's. */
static mla_status solve_side(mla_solution *s, size_t a, bool keys, const mla_eigen *eigen, mla_pool *pool, mla_err *err)
{
    size_t n = s->n, f0 = keys ? 0 : s->keys, m = keys ? s->keys : n - s->keys, other = n - m;
    double *buf = mla_alloc(4 * m, m, sizeof *buf), *sig = mla_alloc(m, 1, sizeof *sig);
    mla_status st = buf && sig ? MLA_OK : mla_fail(err, MLA_ENOMEM, "solution of %zu features", m);
    if (st == MLA_OK) {
        double *C = buf, *L = buf + m * m, *E = buf + 2 * m * m, *D = buf + 3 * m * m;
        for (size_t i = 0; i < m; i++) {
            memcpy(C + i * m, s->C + (a * n + f0 + i) * n + f0, m * sizeof *C);
            memcpy(L + i * m, s->Lambda + (a * n + f0 + i) * n + f0, m * sizeof *L);
        }
        problem p = {.n = m, .C = C, .Lambda = L, .E = E, .D = D, .sigma = sig, .eigen = eigen, .pool = pool};
        st = solve_problem(&p, &s->floored, err);
        for (size_t k = 0; st == MLA_OK && k < m; k++) {
            size_t to = k < other ? 2 * k + !keys : other + k; /* K, V, K, V, ... until one side is used up */
            s->sigma[a * n + to] = sig[k];
            memcpy(s->E + (a * n + to) * n + f0, E + k * m, m * sizeof *E);
            for (size_t i = 0; i < m; i++) s->D[(a * n + f0 + i) * n + to] = D[i * m + k];
        }
    }
    mla_free(buf);
    mla_free(sig);
    return st;
}

static mla_status solve_group(mla_solution *s, size_t a, size_t heads, const mla_eigen *eigen, mla_pool *pool, mla_err *err)
{
    size_t n = s->n;
    if (s->separate) {
        mla_status st = solve_side(s, a, true, eigen, pool, err);
        return st == MLA_OK ? solve_side(s, a, false, eigen, pool, err) : st;
    }
    problem p = {.n = n, .heads = heads, .key = s->keys / heads, .C = s->C + a * n * n, .Lambda = s->Lambda + a * n * n,
                 .E = s->E + a * n * n, .D = s->D + a * n * n, .sigma = s->sigma + a * n, .eigen = eigen, .pool = pool};
    return solve_problem(&p, &s->floored, err);
}

/* Refuses sums that are not finite, and text over which no feature varies: factors would be made of rounding errors. */
static mla_status check_moments(const mla_layer_stats *l, const double *C, const double *mu, mla_err *err)
{
    bool varies = false, mean = false;
    for (size_t i = 0; i < l->n; i++) {
        double v = C[i * l->n + i], m = mu[i] * mu[i];
        varies |= v > 1e-10 * m; /* 0 and 0: a dead feature */
        mean |= m > 0;
    }
    for (size_t i = 0; i < l->n * l->n; i++)
        if (!isfinite(C[i]) || !isfinite(mu[i / l->n])) return mla_fail(err, MLA_EFORMAT, "moments of feature %zu are not finite", i / l->n);
    if (!varies && mean) return mla_fail(err, MLA_EFORMAT, "no key or value varies over the calibration text: longer or other text is needed");
    return MLA_OK;
}

/* C (l->n, l->n), mu (l->n) over all features; ours: also the value metric L (G d, G d); published: the key weight. */
static mla_status layer_moments(const mla_layer_stats *l, const float *wo, size_t D, const mla_solve_opts *o, double *C, double *mu, double *L,
                                double *key_weight, mla_err *err)
{
    if (o->objective != MLA_OBJ_OURS) return mla_objective_moments(o->objective, l, o->proj, C, mu, key_weight, err);
    size_t blocks, dim;
    mla_metric_blocks(l->H, l->G, l->d, &blocks, &dim);
    double *WW = mla_alloc(blocks, dim * dim, sizeof *WW);
    mla_status st = WW ? mla_metric_wo_gram(WW, wo, D, l, err) : mla_fail(err, MLA_ENOMEM, "Gram of %zu dims", dim);
    if (st == MLA_OK) {
        mla_metric_gate(WW, l);
        mla_metric_value(L, WW, l);
        mla_stats_mean(l, mu);
        mla_stats_cov(l, C);
    }
    mla_free(WW);
    return st;
}

/* The arrays of a solution whose sizes are set. */
static mla_status allocate(mla_solution *out, mla_err *err)
{
    size_t gs = out->groups, n = out->n;
    double **const part[] = {&out->sigma, &out->mu, &out->E, &out->D, &out->C, &out->Lambda};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (!(*part[i] = mla_alloc(gs, i < 2 ? n : n * n, sizeof(double)))) {
            mla_solution_free(out);
            return mla_fail(err, MLA_ENOMEM, "solution of %zu features", n);
        }
    return MLA_OK;
}

mla_status mla_solve_layer(mla_solution *out, const mla_layer_stats *l, mla_layout layout, const float *wo, size_t D,
                           const mla_solve_opts *o, mla_err *err)
{
    *out = (mla_solution){.layout = layout, .layer = l->layer, .groups = o->groups, .kv_heads = l->G};
    if (o->groups == 0 || l->G % o->groups) return mla_fail(err, MLA_EINVAL, "groups %zu do not divide %zu KV heads", o->groups, l->G);
    if (!(l->wsum > 0) || !(l->tokens > 0)) return mla_fail(err, MLA_EFORMAT, "layer %zu was never observed", l->layer);
    size_t n = l->G / o->groups * (l->dk + l->d), gs = o->groups;
    bool ours = o->objective == MLA_OBJ_OURS;
    out->n = n;
    out->keys = l->G / gs * l->dk;
    out->separate = mla_objective_separate(o->objective);
    mla_status st = allocate(out, err);
    double *L = mla_alloc(l->G * l->d, l->G * l->d, sizeof *L), key_weight = 1;
    double *C = mla_alloc(l->n, l->n, sizeof *C), *mu = mla_alloc(l->n, 1, sizeof *mu);
    if (st == MLA_OK && (!L || !C || !mu)) st = mla_fail(err, MLA_ENOMEM, "layer %zu: %zu features", l->layer, n);
    if (st == MLA_OK) st = layer_moments(l, wo, D, o, C, mu, L, &key_weight, err);
    if (st == MLA_OK) st = check_moments(l, C, mu, err);
    if (st == MLA_OK && l->divisor) {
        out->heads = l->G;
        out->center = mla_alloc(l->G, 1, sizeof *out->center);
        if (!out->center) st = mla_fail(err, MLA_ENOMEM, "layer %zu: divisors of %zu heads", l->layer, l->G);
        else mla_divisor_centers(l, out->center);
    }
    for (size_t a = 0; st == MLA_OK && a < gs; a++) {
        double *Lam = out->Lambda + a * n * n;
        for (size_t i = 0; i < n; i++) {
            size_t fi = mla_group_feature(l, gs, a, i);
            out->mu[a * n + i] = mu[fi];
            for (size_t j = 0; j < n; j++) out->C[(a * n + i) * n + j] = C[fi * l->n + mla_group_feature(l, gs, a, j)];
        }
        if (ours) assemble_lambda(Lam, l, L, gs, a, o->balance);
        for (size_t i = 0; !ours && i < n; i++) Lam[i * n + i] = i < out->keys ? key_weight : 1;
        for (size_t i = 0; st == MLA_OK && i < n * n; i++)
            if (!isfinite(Lam[i])) st = mla_fail(err, MLA_EFORMAT, "the metric of feature %zu is not finite", i / n);
        if (st != MLA_OK) break;
        st = solve_group(out, a, l->G / gs, &o->eigen, NULL, err);
    }
    mla_free(L);
    mla_free(C);
    mla_free(mu);
    if (st == MLA_OK) return st;
    mla_solution_free(out);
    return mla_wrap(err, "layer %zu", l->layer);
}

mla_status mla_solution_of(mla_solution *out, const mla_solution *s, const double *C, const mla_eigen *eigen, mla_pool *pool, mla_err *err)
{
    size_t n = s->n, gs = s->groups, all = gs * n * n, heads = s->kv_heads / gs;
    *out = (mla_solution){.layout = s->layout, .layer = s->layer, .groups = gs, .kv_heads = s->kv_heads, .n = n, .keys = s->keys, .separate = s->separate};
    mla_status st = s->absorbed ? mla_fail(err, MLA_EINVAL, "layout absorbed-rope: its problem has slots beside the latent") : MLA_OK;
    if (st == MLA_OK) st = allocate(out, err);
    if (st != MLA_OK) return st;
    memcpy(out->mu, s->mu, gs * n * sizeof *out->mu);
    memcpy(out->C, C, all * sizeof *out->C);
    memcpy(out->Lambda, s->Lambda, all * sizeof *out->Lambda);
    for (size_t a = 0; st == MLA_OK && a < gs; a++) st = solve_group(out, a, heads, eigen, pool, err);
    if (st != MLA_OK) mla_solution_free(out);
    return st;
}
