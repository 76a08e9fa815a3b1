/* score: hand-computed rows, ties, non-finite values. */
#include <math.h>
#include <string.h>

#include "suites.h"

START_TEST(known_rows)
{
    mla_err err = {0};
    mla_score s;
    float x[4] = {0, logf(2), logf(4), 0}; /* probabilities 1/8 2/8 4/8 1/8 */
    ck_ok(mla_score_row(&s, x, 4, 3, &err));
    ck_assert(s.top1 == 2 && s.top2 == 1);
    ck_assert(fabs(s.logprob - log(0.5)) < 1e-7 && fabs(s.margin - log(2)) < 1e-7);
    ck_assert(fabs(s.target_logprob - log(0.125)) < 1e-7 && fabs(s.lse - log(8)) < 1e-7);
    float big[3] = {30000, 29999, -30000};
    ck_ok(mla_score_row(&s, big, 3, -1, &err));
    ck_assert(s.top1 == 0 && s.margin == 1 && fabs(s.logprob + log1p(exp(-1))) < 1e-12 && s.target_logprob == 0);
}
END_TEST

START_TEST(ties_go_to_the_lowest_id)
{
    mla_err err = {0};
    mla_score s;
    float x[5] = {1, 3, 2, 3, 3};
    ck_ok(mla_score_row(&s, x, 5, -1, &err));
    ck_assert(s.top1 == 1 && s.top2 == 3 && s.margin == 0);
    float y[3] = {5, 5, 5};
    ck_ok(mla_score_row(&s, y, 3, -1, &err));
    ck_assert(s.top1 == 0 && s.top2 == 1);
    float z[3] = {1, 2, 2};
    ck_ok(mla_score_row(&s, z, 3, -1, &err));
    ck_assert(s.top1 == 1 && s.top2 == 2);
}
END_TEST

START_TEST(divergence)
{
    mla_err err = {0};
    double k;
    float p[2] = {0, 0}, q[2] = {0, logf(3)}; /* 1/2 1/2 against 1/4 3/4 */
    ck_ok(mla_kld_row(&k, p, q, 2, &err));
    ck_assert(fabs(k - (0.5 * log(2) + 0.5 * log(2.0 / 3))) < 1e-7);
    double z, same;
    ck_ok(mla_lse_row(&z, p, 2, &err));
    ck_assert(fabs(z - log(2)) < 1e-15);
    ck_ok(mla_kld_row_of(&same, p, z, q, 2, &err));
    ck_assert(same == k);
    ck_ok(mla_kld_row(&k, q, q, 2, &err));
    ck_assert(k == 0);
    float shifted[2] = {7, 7 + logf(3)};
    ck_ok(mla_kld_row(&k, q, shifted, 2, &err));
    ck_assert(k >= 0 && k < 1e-12);
}
END_TEST

START_TEST(refused_rows)
{
    mla_err err = {0};
    mla_score s;
    double k;
    float x[3] = {0, NAN, 1}, y[3] = {0, 1, INFINITY}, z[3] = {0, 1, 2};
    ck_refused(mla_score_row(&s, x, 3, 0, &err), MLA_EFORMAT, "logit 1");
    ck_refused(mla_score_row(&s, y, 3, 0, &err), MLA_EFORMAT, "logit 2");
    ck_refused(mla_score_row(&s, z, 3, 3, &err), MLA_EINVAL, "target id 3");
    ck_refused(mla_score_row(&s, z, 1, -1, &err), MLA_EINVAL, "1 logits");
    ck_refused(mla_kld_row(&k, z, x, 3, &err), MLA_EFORMAT, "second row");
}
END_TEST

Suite *score_suite(void)
{
    Suite *s = suite_create("score");
    TCase *t = tcase_create("score");
    tcase_add_test(t, known_rows);
    tcase_add_test(t, ties_go_to_the_lowest_id);
    tcase_add_test(t, divergence);
    tcase_add_test(t, refused_rows);
    suite_add_tcase(s, t);
    return s;
}
