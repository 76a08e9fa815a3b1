/* The closed form against its definition: predicted tail = objective of the factors, optimality under perturbation,
 * nested prefixes, gauge, identity at full rank, GLA groups. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "linalg/eigh.h"
#include "retrofit/solve/solve.h"
#include "synth.h"

enum { H = 6, G = 2, d = 8, dk = 6, D = 40, N = G * (dk + d) };

static void solve(mla_solution *s, mla_layer_stats *l, size_t groups)
{
    static float wo[D * H * d];
    mla_err err;
    synth_layer(l, H, G, d, dk, wo, D);
    mla_solve_opts o = {.balance = 1, .groups = groups};
    ck_ok(mla_solve_layer(s, l, MLA_LAYOUT_N, wo, D, &o, &err));
}

START_TEST(tail_is_the_objective_of_the_factors)
{
    size_t groups = _i == 0 ? 1 : 2;
    mla_layer_stats l;
    mla_solution s;
    mla_err err;
    solve(&s, &l, groups);
    double total = mla_solution_tail(&s, 0), prev = total;
    ck_assert(total > 0);
    for (size_t r = 1; r < s.n; r++) {
        mla_factors f;
        ck_ok(mla_solution_factors(&f, &s, r, false, NULL, &err));
        double got = synth_objective(&s, &f), want = mla_solution_tail(&s, r);
        /* f32 factors of unit-variance coordinates: relative error 2^-24 per product, n products, of the total */
        ck_assert_msg(fabs(got - want) <= (double)s.n * 0x1p-22 * total, "r=%zu: objective %.12g, tail %.12g of %.12g", r, got, want, total);
        ck_assert(want <= prev);
        prev = want;
        /* any nudge of E makes it worse or equal (first-order optimal), beyond rounding */
        for (unsigned t = 0; t < 3; t++) {
            mla_factors p = f;
            float E[N * N];
            memcpy(E, f.E, groups * r * s.n * sizeof *E);
            p.E = E;
            for (size_t i = 0; i < groups * r * s.n; i++) E[i] += 0.02f * (float)mla_rng_normal(100 + t, i);
            ck_assert(synth_objective(&s, &p) >= got);
        }
        mla_factors_free(&f);
    }
    mla_solution_free(&s);
    synth_free(&l);
}
END_TEST

START_TEST(ranks_are_nested_prefixes)
{
    mla_layer_stats l;
    mla_solution s;
    mla_err err;
    solve(&s, &l, 1);
    mla_factors a, b;
    ck_ok(mla_solution_factors(&a, &s, 5, true, NULL, &err));
    ck_ok(mla_solution_factors(&b, &s, 9, true, NULL, &err));
    ck_assert_mem_eq(a.E, b.E, 5 * s.n * sizeof(float));
    mla_factors_free(&a);
    mla_factors_free(&b);
    ck_ok(mla_solution_factors(&a, &s, s.n, true, NULL, &err));
    for (size_t i = 0; i < s.n; i++)
        for (size_t j = 0; j < s.n; j++) ck_assert(a.E[i * s.n + j] == (i == j) && a.D[i * s.n + j] == (i == j));
    mla_factors_free(&a);
    ck_refused(mla_solution_factors(&a, &s, s.n + 1, true, NULL, &err), MLA_EINVAL, "rank 29");
    mla_solution_free(&s);
    synth_free(&l);
}
END_TEST

START_TEST(bf16_refit_is_no_worse_than_plain_rounding)
{
    mla_layer_stats l;
    mla_solution s;
    mla_err err;
    solve(&s, &l, 1);
    for (size_t r = 4; r < s.n; r += 6) {
        mla_factors f, g;
        ck_ok(mla_solution_factors(&f, &s, r, false, NULL, &err));
        ck_ok(mla_solution_factors(&g, &s, r, true, NULL, &err));
        double best = synth_objective(&s, &f), got = synth_objective(&s, &g);
        double total = mla_solution_tail(&s, 0);
        ck_assert(got >= best - 1e-6 * total && got <= best + 3e-5 * total); /* 2^-9 relative, squared, times a few */
        mla_factors_free(&f);
        mla_factors_free(&g);
    }
    mla_solution_free(&s);
    synth_free(&l);
}
END_TEST

START_TEST(joint_latent_never_loses_to_groups)
{
    mla_layer_stats l1, l2;
    mla_solution one, two;
    solve(&one, &l1, 1);
    solve(&two, &l2, 2);
    /* the grouped objective drops the cross-group value metric, so compare under a block-diagonal kappa */
    for (size_t h = 0; h < H; h++)
        for (size_t k = 0; k < H; k++)
            if (h / (H / G) != k / (H / G)) l1.kappa[h * H + k] = 0;
    static float wo[D * H * d];
    for (size_t i = 0; i < D * H * d; i++) wo[i] = (float)mla_rng_normal(5, i) * 0.2f;
    mla_solution_free(&one);
    mla_err err;
    mla_solve_opts o = {.balance = 1, .groups = 1};
    ck_ok(mla_solve_layer(&one, &l1, MLA_LAYOUT_N, wo, D, &o, &err));
    for (size_t r = 1; r <= two.n; r++)
        ck_assert(mla_solution_tail(&one, 2 * r) <= mla_solution_tail(&two, r) * (1 + 1e-9) + 1e-9 * mla_solution_tail(&one, 0));
    double share = mla_solution_k_share(&one, one.n);
    ck_assert(fabs(share - (double)(G * dk) / N) < 1e-6);
    mla_solution_free(&one);
    mla_solution_free(&two);
    synth_free(&l1);
    synth_free(&l2);
}
END_TEST

START_TEST(held_out_loss_of_the_same_tokens_is_the_tail)
{
    mla_layer_stats l;
    mla_solution s;
    mla_err err;
    solve(&s, &l, 2);
    mla_factors f;
    ck_ok(mla_solution_factors(&f, &s, 5, false, NULL, &err));
    double loss, total = mla_solution_tail(&s, 0);
    ck_ok(mla_solution_loss(&loss, &s, &f, &l, &err));
    ck_assert(fabs(loss - mla_solution_tail(&s, 5)) <= 1e-5 * total);
    for (size_t i = 0; i < l.n; i++) l.shift[i] += 0.5; /* another mean: the loss must see it */
    ck_ok(mla_solution_loss(&loss, &s, &f, &l, &err));
    ck_assert(loss > mla_solution_tail(&s, 5) + 1e-3 * total);
    mla_factors_free(&f);
    mla_solution_free(&s);
    synth_free(&l);
}
END_TEST

/* A device of which only the eigensolver is asked: it fails as told, or solves as the host does and turns every vector. */
typedef struct {
    mla_backend base;
    mla_status answer;
    int asked;
} solver_only;
static mla_status device_eigh(mla_backend *be, double *a, double *w, size_t n, mla_err *err)
{
    solver_only *s = (solver_only *)(void *)be;
    s->asked++;
    if (s->answer != MLA_OK) return mla_fail(err, s->answer, "the device gives up");
    mla_status st = mla_eigh(a, w, n, err);
    for (size_t i = 0; i < n * n; i++) a[i] = -a[i];
    return st;
}

START_TEST(eigenproblems_go_to_the_device_and_come_back_when_it_fails)
{
    static double a[MLA_EIGEN_MIN * MLA_EIGEN_MIN], v[MLA_EIGEN_MIN * MLA_EIGEN_MIN], host[MLA_EIGEN_MIN * MLA_EIGEN_MIN], w[MLA_EIGEN_MIN], want[MLA_EIGEN_MIN];
    const mla_backend_ops ops = {.name = "solver", .eigh = device_eigh};
    const size_t n = MLA_EIGEN_MIN;
    mla_log log = {.quiet = true};
    mla_err err;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) a[i * n + j] = (i == j ? (double)i : 0) + mla_rng_unit(7, (i < j ? i : j) * n + (i < j ? j : i));
    memcpy(host, a, sizeof a);
    ck_ok(mla_eigh(host, want, n, &err));
    const mla_status answers[] = {MLA_OK, MLA_EINTERNAL, MLA_ENOMEM, MLA_EINVAL};
    for (size_t i = 0; i < 4; i++) {
        solver_only s = {.base = {&ops}, .answer = answers[i]};
        mla_eigen e = {&s.base, i ? NULL : &log};
        memcpy(v, a, sizeof a);
        if (answers[i] == MLA_EINVAL) {
            ck_refused(mla_eigen_solve(&e, v, w, n, &err), MLA_EINVAL, "gives up"); /* the matrix is to blame: no second try */
            continue;
        }
        ck_ok(mla_eigen_solve(&e, v, w, n, &err));
        ck_assert(s.asked == 1 && !memcmp(w, want, sizeof w));
        for (size_t j = 0; j < n * n; j++) ck_assert(v[j] == (i ? host[j] : -host[j]));
        ck_ok(mla_eigen_solve(&e, v, w, 8, &err)); /* small: the host at once */
        ck_assert_int_eq(s.asked, 1);
    }
}
END_TEST

Suite *suite_solve(void);
Suite *suite_solve(void)
{
    Suite *s = suite_create("solve");
    TCase *c = tcase_create("solve");
    tcase_add_loop_test(c, tail_is_the_objective_of_the_factors, 0, 2);
    tcase_add_test(c, ranks_are_nested_prefixes);
    tcase_add_test(c, bf16_refit_is_no_worse_than_plain_rounding);
    tcase_add_test(c, joint_latent_never_loses_to_groups);
    tcase_add_test(c, held_out_loss_of_the_same_tokens_is_the_tail);
    tcase_add_test(c, eigenproblems_go_to_the_device_and_come_back_when_it_fails);
    suite_add_tcase(s, c);
    return s;
}
