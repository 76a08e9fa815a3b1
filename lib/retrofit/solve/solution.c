/* What a solved layer gives: factors of any rank, what they lose, and the keys' share of the latent. */
#include "retrofit/solve/solve.h"

#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"
#include "linalg/wide.h"
#include "retrofit/solve/absorbed.h"
#include "retrofit/solve/nested.h"

void mla_solution_free(mla_solution *s)
{
    mla_free(s->sigma);
    mla_free(s->E);
    mla_free(s->D);
    mla_free(s->mu);
    mla_free(s->C);
    mla_free(s->Lambda);
    mla_free(s->center);
    mla_absorbed_free(s->absorbed);
    *s = (mla_solution){0};
}

double mla_solution_tail(const mla_solution *s, size_t r)
{
    double t = s->absorbed ? s->absorbed->lost : 0;
    for (size_t a = 0; a < s->groups; a++)
        for (size_t i = s->n; i-- > r;) t += s->sigma[a * s->n + i]; /* small terms first */
    return t;
}

mla_status mla_solution_factors(mla_factors *out, const mla_solution *s, size_t r, bool bf16, mla_pool *pool, mla_err *err)
{
    mla_nested ne;
    *out = (mla_factors){0};
    if (r == 0 || r > s->n) return mla_fail(err, MLA_EINVAL, "layer %zu: rank %zu per group outside 1..%zu", s->layer, r, s->n);
    if (s->absorbed) return mla_absorbed_factors(out, s, r, bf16, pool, err);
    mla_status st = mla_nested_of(&ne, s, r, bf16 && r < s->n, pool, err);
    if (st != MLA_OK) return st;
    st = mla_nested_factors(out, &ne, r, bf16, pool, err);
    mla_nested_free(&ne);
    return st;
}

double mla_solution_k_share(const mla_solution *s, size_t r)
{
    /* U_i^(K) . U_i^(K) = sum over key features of E_ij D_ji: the gauge and F cancel, Lambda being block-diagonal */
    size_t n = s->n;
    double k = 0;
    if (r == 0 || r > n) return 0;
    for (size_t a = 0; a < s->groups; a++)
        for (size_t i = 0; i < r; i++)
            for (size_t j = 0; j < s->keys; j++) k += s->E[(a * n + i) * n + j] * s->D[(a * n + j) * n + i];
    return k / (double)(r * s->groups);
}

/* Q (n, n) = I - D E; buf (2 n r). */
static void rest_of(double *Q, const float *D, const float *E, size_t n, size_t r, double *buf)
{
    double *d = buf, *e = buf + n * r;
    for (size_t i = 0; i < n * r; i++) d[i] = D[i], e[i] = E[i];
    memset(Q, 0, n * n * sizeof *Q);
    for (size_t i = 0; i < n; i++) Q[i * n + i] = 1;
    mla_dgemm(&(mla_dgemm_args){.M = n, .N = n, .K = r, .alpha = -1, .beta = 1, .a = d, .lda = r, .b = e, .ldb = n, .c = Q, .ldc = n});
}

/* tr(Lambda Q C Q^T), as the sum of (Lambda Q) o (Q C); L2, C2 (n, n) scratch. Without factors Q is I. */
static double lost(const double *Lambda, const double *Q, const double *C, size_t n, bool factors, double *L2, double *C2)
{
    const mla_dgemm_args square = {.M = n, .N = n, .K = n, .alpha = 1, .lda = n, .ldb = n, .ldc = n};
    mla_dgemm_args left = square, right = square;
    double sum = 0;
    left.a = Lambda, left.b = Q, left.c = L2;
    right.a = Q, right.b = C, right.c = C2;
    if (factors) mla_dgemm_wide(&left, NULL), mla_dgemm_wide(&right, NULL);
    const double *l = factors ? L2 : Lambda, *c = factors ? C2 : C;
    for (size_t i = 0; i < n * n; i++) sum += l[i] * c[i];
    return sum;
}

mla_status mla_solution_loss(double *out, const mla_solution *s, const mla_factors *f, const mla_layer_stats *held, mla_err *err)
{
    size_t n = s->n, r = f->r;
    if (s->absorbed) return mla_absorbed_loss(out, s, f, held, err);
    double *Q = mla_alloc(n, n, sizeof *Q), *T = mla_alloc(n, n, sizeof *T), *T2 = mla_alloc(n, n, sizeof *T2), *C2 = mla_alloc(n, n, sizeof *C2);
    double *C = mla_alloc(held->n, held->n, sizeof *C), *mu = mla_alloc(held->n, 1, sizeof *mu), *buf = mla_alloc(2 * r + 1, n, sizeof *buf);
    mla_status st = Q && T && T2 && C2 && C && mu && buf ? MLA_OK : mla_fail(err, MLA_ENOMEM, "held-out loss of layer %zu", s->layer);
    if (st == MLA_OK) {
        mla_stats_cov(held, C);
        mla_stats_mean(held, mu);
    }
    *out = 0;
    for (size_t a = 0; st == MLA_OK && a < s->groups; a++) {
        if (r) rest_of(Q, f->D + a * n * r, f->E + a * r * n, n, r, buf);
        for (size_t i = 0; i < n; i++) { /* second moment of y - mu_fit on the held-out tokens */
            size_t fi = mla_group_feature(held, s->groups, a, i);
            double di = mu[fi] - f->mu[a * n + i];
            for (size_t j = 0; j < n; j++) {
                size_t fj = mla_group_feature(held, s->groups, a, j);
                C2[i * n + j] = C[fi * held->n + fj] + di * (mu[fj] - f->mu[a * n + j]);
            }
        }
        *out += lost(s->Lambda + a * n * n, Q, C2, n, r > 0, T, T2);
    }
    mla_free(buf);
    mla_free(T2);
    mla_free(Q);
    mla_free(T);
    mla_free(C2);
    mla_free(C);
    mla_free(mu);
    return st;
}
