/* Wilson intervals against figures worked out by hand, the bootstrap's determinism and width, quantiles, the gate. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "verify/parity/stats.h"

START_TEST(wilson_reproduces_known_intervals)
{
    mla_interval w = mla_wilson(1000, 1000, MLA_Z95);
    ck_assert_double_eq_tol(w.low, 0.9962, 5e-5);
    ck_assert_double_eq(w.high, 1);
    w = mla_wilson(998, 1000, MLA_Z95);
    ck_assert_double_eq_tol(w.low, 0.9927, 5e-5);
    ck_assert_double_eq_tol(w.high, 0.9995, 5e-5);
    w = mla_wilson(9922, 10000, MLA_Z95);
    ck_assert_double_eq_tol(w.low, 0.9903, 5e-5);
    ck_assert_double_eq_tol(w.high, 0.9938, 6e-5); /* 0.993745, printed rounded outwards */
    w = mla_wilson(0, 50, MLA_Z95);
    ck_assert_double_eq(w.low, 0);
    w = mla_wilson(0, 0, MLA_Z95);
    ck_assert(w.low == 0 && w.high == 1);
}
END_TEST

START_TEST(needed_counts_are_the_published_ones)
{
    ck_assert_uint_eq(mla_wilson_needed(0.99, MLA_Z95), 381);
    ck_assert_uint_eq(mla_wilson_needed(0.995, MLA_Z95), 765);
    ck_assert_uint_eq(mla_wilson_needed(0.999, MLA_Z95), 3838);
    ck_assert(mla_wilson(380, 380, MLA_Z95).low < 0.99);
    ck_assert(mla_wilson(381, 381, MLA_Z95).low >= 0.99);
}
END_TEST

START_TEST(gate_tells_three_outcomes)
{
    ck_assert_int_eq(mla_gate_agreement(765, 765, 0.995), MLA_PASS);
    ck_assert_int_eq(mla_gate_agreement(764, 764, 0.995), MLA_NO_EVIDENCE);
    ck_assert_int_eq(mla_gate_agreement(0, 0, 0.995), MLA_NO_EVIDENCE);
    ck_assert_int_eq(mla_gate_agreement(764, 765, 0.995), MLA_FAIL);
    ck_assert_int_eq(mla_gate_agreement(10, 20, 0.995), MLA_FAIL);       /* small, but already shown worse */
    ck_assert_int_eq(mla_gate_agreement(9943, 10000, 0.995), MLA_FAIL);
    ck_assert_int_eq(mla_gate_agreement(9970, 10000, 0.995), MLA_PASS);
    ck_assert_int_eq(mla_gate_agreement(1000000, 1000000, 1), MLA_NO_EVIDENCE);
    ck_assert_int_eq(mla_gate_agreement(1, 2, 0), MLA_PASS);
}
END_TEST

/* Clustered data: the whole prompt is right or wrong. The clustered interval must then be as wide as one over
 * prompts, and far wider than Wilson's over positions. */
START_TEST(bootstrap_sees_clusters)
{
    mla_err err = {0};
    enum { C = 40, N = 100 };
    double num[C], den[C];
    for (size_t i = 0; i < C; i++) {
        num[i] = i % 4 ? N : 0;
        den[i] = N;
    }
    mla_bootstrap_opts o = {.resamples = 4000, .seed = 7, .level = 0.95};
    mla_interval b, again, other;
    ck_ok(mla_cluster_bootstrap(&b, num, den, C, &o, &err));
    mla_interval positions = mla_wilson(30 * N, C * N, MLA_Z95), prompts = mla_wilson(30, C, MLA_Z95);
    ck_assert(b.high - b.low > 5 * (positions.high - positions.low));
    ck_assert_double_eq_tol(b.high - b.low, prompts.high - prompts.low, 0.03);
    ck_assert(b.low < 0.75 && b.high > 0.75);
    ck_ok(mla_cluster_bootstrap(&again, num, den, C, &o, &err));
    ck_assert(again.low == b.low && again.high == b.high);
    for (size_t i = 0; i < C; i++) den[i] = N + 0.37 * (double)i; /* unequal prompts: hardly two draws alike */
    ck_ok(mla_cluster_bootstrap(&b, num, den, C, &o, &err));
    o.seed = 8;
    ck_ok(mla_cluster_bootstrap(&other, num, den, C, &o, &err));
    ck_assert(other.low != b.low || other.high != b.high);
}
END_TEST

START_TEST(bootstrap_edges)
{
    mla_err err = {0};
    mla_interval b;
    double one = 3, three = 4;
    mla_bootstrap_opts o = {.resamples = 100, .seed = 1, .level = 0.95};
    ck_ok(mla_cluster_bootstrap(&b, &one, &three, 1, &o, &err));
    ck_assert(b.low == 0.75 && b.high == 0.75);
    ck_ok(mla_cluster_bootstrap(&b, NULL, NULL, 0, &o, &err));
    ck_assert(b.low == 0 && b.high == 1);
    o.level = 1;
    ck_refused(mla_cluster_bootstrap(&b, &one, &three, 1, &o, &err), MLA_EINVAL, "level");
    o.level = 0.95;
    mla_alloc_fail_after(0);
    ck_refused(mla_cluster_bootstrap(&b, &one, &three, 1, &o, &err), MLA_ENOMEM, "bootstrap");
    mla_alloc_fail_after(-1);
}
END_TEST

START_TEST(quantiles_and_summary)
{
    double x[] = {4, 1, 3, 2, 5};
    mla_summary s = mla_summarise(x, 5);
    ck_assert_uint_eq(s.n, 5);
    ck_assert_double_eq(s.mean, 3);
    ck_assert_double_eq(s.p50, 3);
    ck_assert_double_eq_tol(s.p90, 4.6, 1e-12);
    ck_assert_double_eq(s.max, 5);
    double y[] = {1, NAN, 3, INFINITY};
    s = mla_summarise(y, 4);
    ck_assert_uint_eq(s.n, 2);
    ck_assert_uint_eq(s.nonfinite, 2);
    ck_assert_double_eq(s.mean, 2);
    s = mla_summarise(NULL, 0);
    ck_assert_uint_eq(s.n, 0);
    ck_assert_double_eq(s.max, 0);
    double z[] = {7};
    ck_assert_double_eq(mla_quantile(z, 1, 0.99), 7);
}
END_TEST

Suite *suite_stats(void)
{
    Suite *s = suite_create("stats");
    TCase *t = tcase_create("stats");
    tcase_add_test(t, wilson_reproduces_known_intervals);
    tcase_add_test(t, needed_counts_are_the_published_ones);
    tcase_add_test(t, gate_tells_three_outcomes);
    tcase_add_test(t, bootstrap_sees_clusters);
    tcase_add_test(t, bootstrap_edges);
    tcase_add_test(t, quantiles_and_summary);
    suite_add_tcase(s, t);
    return s;
}
