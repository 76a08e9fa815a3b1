/* Sequential calibration: its factors are the least of the ridged objective, the symmetric ones where nothing has moved, and a
 * layer that follows a prefix is fitted with the same bits for any number of threads. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "retrofit/refine/sequential.h"
#include "synth.h"
#include "tiny_refiner.h"

static const mla_eigen HOST = {0};

enum { H = 6, G = 2, D = 8, DK = 6, HIDDEN = 40, N = G * (DK + D), T = 600, R = 7 };

typedef struct {
    mla_layer_stats l;
    mla_solution s;
    mla_cross_moments m;
    float y[T * N], y2[T * N];
    double w[T];
} lab;

/* Rows y of correlated features, and y2: the same, damped and mixed with what a prefix might add. */
static void lab_new(lab *b, bool moved)
{
    static float wo[HIDDEN * H * D];
    mla_err err;
    synth_layer(&b->l, H, G, D, DK, wo, HIDDEN);
    ck_ok(mla_solve_layer(&b->s, &b->l, MLA_LAYOUT_N, wo, HIDDEN, &(mla_solve_opts){.balance = 1, .groups = 1}, &err));
    for (size_t t = 0; t < T; t++) {
        b->w[t] = 0.5 + mla_rng_unit(3, t);
        for (size_t i = 0; i < N; i++) {
            double v = b->s.mu[i] + mla_rng_normal(4, t * N + i) + mla_rng_normal(5, t * N + i / 4);
            double noise = moved ? 0.3 * mla_rng_normal(6, t * N + i) + 0.2 * mla_rng_normal(5, t * N + (i + 7) % N) : 0;
            b->y[t * N + i] = (float)v;
            b->y2[t * N + i] = (float)(moved ? b->s.mu[i] + 0.8 * (v - b->s.mu[i]) + noise : v);
        }
    }
    ck_ok(mla_cross_moments_new(&b->m, 1, N, &err));
    ck_ok(mla_cross_moments_add(&b->m, b->y, b->y2, b->w, T, b->s.mu, NULL, &err));
    for (size_t i = 0; i < N * N; i++) b->s.C[i] = b->m.yy[i] / b->m.wsum; /* as if the statistics were of this text */
}

static void lab_free(lab *b)
{
    mla_cross_moments_free(&b->m);
    mla_solution_free(&b->s);
    synth_free(&b->l);
}

/* sum_t w |Lambda^1/2 (y - D E y2)|^2 + rho |Lambda^1/2 (I - D E) S^1/2|^2, token by token, over the weights' sum; about mu. */
static double objective(const lab *b, const double *DE, double rho)
{
    double sum = 0, wsum = 0, e[N], S[N] = {0};
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; i < N; i++) {
            double v = b->y[t * N + i] - b->s.mu[i];
            e[i] = v;
            S[i] += b->w[t] * v * v;
            for (size_t j = 0; j < N; j++) e[i] -= DE[i * N + j] * (b->y2[t * N + j] - b->s.mu[j]);
        }
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < N; j++) sum += b->w[t] * e[i] * b->s.Lambda[i * N + j] * e[j];
        wsum += b->w[t];
    }
    for (size_t k = 0; k < N; k++)
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < N; j++) sum += rho * S[k] * ((i == k) - DE[i * N + k]) * b->s.Lambda[i * N + j] * ((j == k) - DE[j * N + k]);
    return sum / wsum;
}

static void product(double *P, const mla_factors *f)
{
    memset(P, 0, N * N * sizeof *P);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < f->r; k++)
            for (size_t j = 0; j < N; j++) P[i * N + j] += (double)f->D[i * f->r + k] * f->E[k * N + j];
}

START_TEST(no_other_factors_are_better)
{
    lab *b = mla_alloc(1, 1, sizeof *b);
    mla_err err;
    const double RHO[] = {1e-3, 0.1, 1};
    ck_assert_ptr_nonnull(b);
    lab_new(b, true);
    for (size_t k = 0; k < 3; k++) {
        mla_factors f, g;
        double P[N * N], Q[N * N];
        ck_ok(mla_sequential_factors(&f, &b->m, &b->s, R, RHO[k], &HOST, NULL, &err));
        product(P, &f);
        double best = objective(b, P, RHO[k]);
        for (unsigned trial = 0; trial < 24; trial++) { /* f32 factors: 2^-24 of the whole at most; steps are far above */
            ck_ok(mla_factors_copy(&g, &f, &err));
            float *x = trial % 2 ? g.D : g.E;
            for (size_t i = 0; i < R * N; i++) x[i] *= (float)(1 + 0.01 * mla_rng_normal(trial + 30, i));
            product(Q, &g);
            ck_assert_msg(objective(b, Q, RHO[k]) > best, "rho %g, trial %u", RHO[k], trial);
            mla_factors_free(&g);
        }
        ck_ok(mla_solution_factors(&g, &b->s, R, false, NULL, &err)); /* another covariance's solution */
        product(Q, &g);
        ck_assert(objective(b, Q, RHO[k]) > 1.001 * best);
        mla_factors_free(&g);
        mla_factors_free(&f);
    }
    lab_free(b);
    mla_free(b);
}
END_TEST

START_TEST(nothing_moved_is_the_symmetric_solution)
{
    lab *b = mla_alloc(1, 1, sizeof *b);
    mla_err err;
    mla_factors f, g;
    mla_solution s;
    double P[N * N], Q[N * N], C[N * N], rho = 0;
    ck_assert_ptr_nonnull(b);
    lab_new(b, false);
    for (size_t i = 0; i < N * N; i++) C[i] = b->s.C[i];
    ck_ok(mla_solution_of(&s, &b->s, C, &HOST, NULL, &err));
    ck_ok(mla_solution_factors(&g, &s, R, false, NULL, &err));
    ck_ok(mla_sequential_factors(&f, &b->m, &b->s, R, rho, &HOST, NULL, &err));
    product(P, &f);
    product(Q, &g);
    for (size_t i = 0; i < N * N; i++) ck_assert_msg(fabs(P[i] - Q[i]) <= 1e-5, "%zu: %g, %g", i, P[i], Q[i]); /* f32 factors of order 1 */
    mla_factors_free(&f);
    mla_factors_free(&g);
    mla_solution_free(&s);
    lab_free(b);
    mla_free(b);
}
END_TEST

/* C (224, 224) of layer 5 over the rows to fit, about 0, with a diagonal that keeps it positive behind the prefix. */
static void covariance(double *C, mla_refiner *r)
{
    const mla_rows *rows;
    size_t first, count;
    mla_err err;
    static float y[48 * 224];
    ck_ok(mla_refiner_rows(r, 5, &rows, &first, &count, &err));
    for (size_t k = first; k < first + count; k++) {
        mla_rows_features(rows, k, y);
        for (size_t t = 0; t < 48; t++)
            for (size_t i = 0; i < 224; i++)
                for (size_t j = 0; j < 224; j++) C[i * 224 + j] += y[t * 224 + i] * y[t * 224 + j] / (48.0 * (double)count);
    }
    for (size_t i = 0; i < 224; i++) C[i * 224 + i] *= 4;
}

/* Layer 5 of the tiny hybrid behind layers 1 and 3 of rank 6. */
static void behind(mla_factors *f, mla_sequential_result *out, size_t threads)
{
    tiny_refiner t;
    mla_err err;
    mla_factors prefix[2];
    const size_t layer[2] = {1, 3};
    mla_solution s = {.layout = MLA_LAYOUT_N, .layer = 5, .groups = 1, .kv_heads = 4, .n = 224, .keys = 96};
    tiny_refiner_open(&t, threads, 2);
    for (size_t k = 0; k < 2; k++) tiny_refiner_factors(&prefix[k], 6, 6, 9);
    s.mu = mla_alloc(224, 1, sizeof(double));
    s.C = mla_alloc(224, 224, sizeof(double));
    s.Lambda = mla_alloc(224, 224, sizeof(double));
    ck_assert(s.mu && s.C && s.Lambda);
    for (size_t i = 0; i < 224; i++) s.Lambda[i * 224 + i] = 1;
    covariance(s.C, t.r);
    tiny_refiner_factors(f, 60, 24, 9); /* poor ones: any fit is better */
    double alone, followed;
    ck_ok(mla_refine_measure(t.r, 5, f, &alone, &err));
    ck_ok(mla_refiner_follow(t.r, 5, prefix, layer, 2, &err));
    ck_ok(mla_refine_measure(t.r, 5, f, &followed, &err));
    ck_assert_msg(followed != alone, "the prefix changed nothing: %g", alone);
    ck_ok(mla_sequential(t.r, &s, &HOST, f, out, NULL, &err));
    ck_assert(out->before == followed && out->kept == (out->after < out->before));
    ck_ok(mla_refine_measure(t.r, 5, f, &alone, &err));
    ck_assert(alone == out->after);
    for (size_t k = 0; k < 2; k++) mla_factors_free(&prefix[k]);
    mla_free(s.mu);
    mla_free(s.C);
    mla_free(s.Lambda);
    tiny_refiner_close(&t);
}

START_TEST(a_prefix_is_followed_with_the_same_bits)
{
    mla_factors one, f;
    mla_sequential_result a, b;
    behind(&one, &a, 1);
    ck_assert_msg(a.kept && a.after < 0.99 * a.before, "held-out error %g -> %g", a.before, a.after);
    const size_t threads[] = {2, 3, 8};
    for (size_t k = 0; k < 3; k++) {
        behind(&f, &b, threads[k]);
        ck_assert(a.before == b.before && a.after == b.after);
        ck_assert(memcmp(one.E, f.E, 60 * 224 * 4) == 0 && memcmp(one.D, f.D, 60 * 224 * 4) == 0);
        mla_factors_free(&f);
    }
    mla_factors_free(&one);
}
END_TEST

Suite *suite_sequential(void);
Suite *suite_sequential(void)
{
    Suite *s = suite_create("sequential");
    TCase *c = tcase_create("sequential");
    tcase_add_test(c, no_other_factors_are_better);
    tcase_add_test(c, nothing_moved_is_the_symmetric_solution);
    tcase_add_test(c, a_prefix_is_followed_with_the_same_bits);
    tcase_set_timeout(c, 600);
    suite_add_tcase(s, c);
    return s;
}
