/* Rank allocation against dynamic programming; budgets. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "harness.h"
#include "retrofit/solve/ranks.h"
#include "retrofit/solve/shares.h"

START_TEST(greedy_equals_dynamic_programming)
{
    enum { L = 4, n = 12, B = 20 };
    mla_err err;
    for (unsigned trial = 0; trial < 100; trial++) {
        double sigma[L][n], eta[L];
        mla_solution s[L];
        for (size_t i = 0; i < L; i++) {
            eta[i] = 0.1 + mla_rng_unit(trial, 1000 + i);
            double v = 1;
            for (size_t k = 0; k < n; k++) sigma[i][k] = v *= mla_rng_unit(trial * 7 + 1, i * n + k);
            s[i] = (mla_solution){.groups = 1, .n = n, .sigma = sigma[i]};
        }
        double best[B + 1]; /* largest removed loss using exactly b values */
        for (size_t b = 0; b <= B; b++) best[b] = b ? -INFINITY : 0;
        for (size_t i = 0; i < L; i++) {
            double next[B + 1];
            for (size_t b = 0; b <= B; b++) {
                next[b] = -INFINITY;
                double sum = 0;
                for (size_t k = 0; k <= n && k <= b; k++) {
                    if (k) sum += eta[i] * sigma[i][k - 1];
                    if (k >= 1 && best[b - k] + sum > next[b]) next[b] = best[b - k] + sum;
                }
            }
            memcpy(best, next, sizeof best);
        }
        size_t rank[L], used = 0;
        double got = 0;
        ck_ok(mla_rank_allocate(rank, s, L, eta, B, 1, &err));
        for (size_t i = 0; i < L; i++) {
            used += rank[i];
            for (size_t k = 0; k < rank[i]; k++) got += eta[i] * sigma[i][k];
        }
        ck_assert_uint_eq(used, B);
        ck_assert(fabs(got - best[B]) <= 1e-12);
    }
}
END_TEST

START_TEST(shares_are_the_best_of_all)
{
    enum { L = 3, n = 7, W = 3, B = 16 };
    mla_err err;
    for (unsigned trial = 0; trial < 60; trial++) {
        double tail[L][W * n], best = INFINITY, got = 0;
        mla_share_curve c[L];
        mla_share_cost cost[L];
        size_t width[L], rank[L], used = 0, a[L];
        for (size_t l = 0; l < L; l++) {
            cost[l] = (mla_share_cost){0.1 + mla_rng_unit(trial, 50 + l), 0.1 + mla_rng_unit(trial, 60 + l)};
            c[l] = (mla_share_curve){.widths = W, .n = n, .width = {2, 4, 6}, .tail = tail[l]};
            for (size_t k = 0; k < W; k++) {
                double v = 1;
                c[l].lost[k] = (double)(W - 1 - k) * mla_rng_unit(trial, 70 + l);
                tail[l][k * n] = INFINITY;
                for (size_t r = 1; r < n; r++) tail[l][k * n + r] = v *= mla_rng_unit(trial * 5 + 2, (l * W + k) * n + r);
            }
        }
        for (a[0] = 0; a[0] < W * n; a[0]++)
            for (a[1] = 0; a[1] < W * n; a[1]++)
                for (a[2] = 0; a[2] < W * n; a[2]++) {
                    double sum = 0;
                    size_t values = 0;
                    for (size_t l = 0; l < L; l++) {
                        values += c[l].width[a[l] / n] + a[l] % n;
                        sum += cost[l].rotary * c[l].lost[a[l] / n] + cost[l].latent * tail[l][a[l]];
                    }
                    if (values <= B && sum < best) best = sum;
                }
        ck_ok(mla_share_out(width, rank, c, L, cost, B, &err));
        for (size_t l = 0; l < L; l++) {
            size_t k = width[l] / 2 - 1;
            ck_assert(width[l] >= 2 && width[l] <= 6 && width[l] % 2 == 0 && rank[l] >= 1 && rank[l] < n);
            used += width[l] + rank[l];
            got += cost[l].rotary * c[l].lost[k] + cost[l].latent * tail[l][k * n + rank[l]];
        }
        ck_assert_msg(used <= B && fabs(got - best) <= 1e-12, "%zu values lose %g, the best %g", used, got, best);
        ck_refused(mla_share_out(width, rank, c, L, NULL, 3 * L - 1, &err), MLA_EINVAL, "budget too small");
    }
}
END_TEST

START_TEST(budgets)
{
    mla_layer_kind kind[4] = {MLA_LAYER_FULL, MLA_LAYER_FULL, MLA_LAYER_LINEAR, MLA_LAYER_FULL};
    mla_config c = {.layers = 4, .heads = 12, .kv_heads = 4, .head_dim = 32, .layer_kind = kind};
    c.rope.rot = 8;
    size_t r;
    mla_err err;
    const struct { double keep; size_t want; } K[] = {{1, 224}, {.75, 160}, {.5, 96}, {.375, 64}, {.25, 32}};
    for (size_t i = 0; i < 5; i++) {
        ck_ok(mla_rank_uniform(&r, &c, MLA_LAYOUT_N, 1, (mla_budget){.keep = K[i].keep}, &err));
        ck_assert_uint_eq(r, K[i].want);
    }
    ck_ok(mla_rank_uniform(&r, &c, MLA_LAYOUT_N, 4, (mla_budget){.kv_bytes = 3 * 2 * (32 + 71)}, &err));
    ck_assert_uint_eq(r, 68);
    ck_refused(mla_rank_uniform(&r, &c, MLA_LAYOUT_N, 1, (mla_budget){.keep = .1}, &err), MLA_EINVAL, "budget too small");
    ck_refused(mla_rank_uniform(&r, &c, MLA_LAYOUT_N, 1, (mla_budget){.rank = 225}, &err), MLA_EINVAL, "lossless rank of this layout is 224");
    ck_refused(mla_rank_uniform(&r, &c, MLA_LAYOUT_N, 4, (mla_budget){.rank = 30}, &err), MLA_EINVAL, "multiple of 4");
    ck_refused(mla_rank_uniform(&r, &c, MLA_LAYOUT_N, 1, (mla_budget){.rank = 3, .keep = .5}, &err), MLA_EINVAL, "exactly one");
}
END_TEST

START_TEST(ranks_from_a_set)
{
    enum { L = 5, n = 28 };
    mla_err err;
    mla_layer_kind kind[L] = {MLA_LAYER_FULL, MLA_LAYER_FULL, MLA_LAYER_FULL, MLA_LAYER_FULL, MLA_LAYER_FULL};
    mla_config c = {.layers = L, .heads = 4, .kv_heads = 2, .head_dim = 8, .layer_kind = kind, .qk_norm = true};
    c.rope.rot = 2; /* 2 heads of 6 + 8 features */
    mla_rank_set set, bad = {.rank = {4, 4}, .n = 2};
    size_t r;
    ck_ok(mla_rank_set_default(&set, &c, MLA_LAYOUT_P, 1, &err));
    ck_assert(set.n == 3 && set.rank[0] == 4 && set.rank[1] == 12 && set.rank[2] == 28);
    ck_ok(mla_rank_set_default(&set, &c, MLA_LAYOUT_P, 2, &err));
    ck_assert(set.n == 3 && set.rank[0] == 4 && set.rank[1] == 12 && set.rank[2] == 28);
    ck_refused(mla_rank_set_check(&bad, &c, MLA_LAYOUT_P, 1, &err), MLA_EINVAL, "rank_set: 4");
    bad = (mla_rank_set){.rank = {29}, .n = 1};
    ck_refused(mla_rank_set_check(&bad, &c, MLA_LAYOUT_P, 1, &err), MLA_EINVAL, "lossless rank 28");
    ck_ok(mla_rank_in_set(&r, &set, 27, &err));
    ck_assert_uint_eq(r, 12);
    ck_refused(mla_rank_in_set(&r, &set, 3, &err), MLA_EINVAL, "smallest rank of the set is 4");
    for (unsigned trial = 0; trial < 40; trial++) {
        double sigma[L][n], eta[L], best = INFINITY, got = 0;
        mla_solution s[L];
        size_t rank[L], used = 0, budget = 20 + trial * 3;
        for (size_t i = 0; i < L; i++) {
            double v = 1;
            eta[i] = 0.1 + mla_rng_unit(trial, i);
            for (size_t k = 0; k < n; k++) sigma[i][k] = v *= mla_rng_unit(trial + 50, i * n + k);
            s[i] = (mla_solution){.groups = 1, .n = n, .sigma = sigma[i]};
        }
        for (size_t x = 0; x < 243; x++) { /* all 3^5 */
            double loss = 0;
            size_t sum = 0;
            for (size_t i = 0, y = x; i < L; i++, y /= 3) sum += set.rank[y % 3], loss += eta[i] * mla_solution_tail(&s[i], set.rank[y % 3]);
            if (sum <= budget && loss < best) best = loss;
        }
        ck_ok(mla_rank_allocate_set(rank, s, L, eta, budget, &set, &err));
        for (size_t i = 0; i < L; i++) used += rank[i], got += eta[i] * mla_solution_tail(&s[i], rank[i]);
        ck_assert_msg(used <= budget && fabs(got - best) <= 1e-12, "trial %u: loss %g, best %g", trial, got, best);
    }
    mla_solution one = {.groups = 1, .n = n};
    ck_refused(mla_rank_allocate_set(&r, &one, 1, NULL, 3, &set, &err), MLA_EINVAL, "smallest rank of the set, 4");
    /* divisors count; the lossless rank is what keep 1 means */
    ck_ok(mla_rank_uniform(&r, &c, MLA_LAYOUT_P, 1, (mla_budget){.keep = .5}, &err));
    ck_assert_uint_eq(r, 16 - 4 - 2);
    ck_ok(mla_rank_uniform(&r, &c, MLA_LAYOUT_P, 1, (mla_budget){.keep = 1}, &err));
    ck_assert_uint_eq(r, 28);
    char arch[] = "LlamaForCausalLM";
    c.architecture = arch;
    c.qk_norm = false;
    ck_refused(mla_layout_fits(&c, MLA_LAYOUT_P, &err), MLA_EINVAL, "LlamaForCausalLM has no QK-norm");
    c.rope.rot = 8;
    ck_refused(mla_layout_fits(&c, MLA_LAYOUT_P, &err), MLA_EINVAL, "rotates all 8");
}
END_TEST

Suite *suite_ranks(void);
Suite *suite_ranks(void)
{
    Suite *s = suite_create("ranks");
    TCase *c = tcase_create("ranks");
    tcase_add_test(c, greedy_equals_dynamic_programming);
    tcase_add_test(c, shares_are_the_best_of_all);
    tcase_add_test(c, budgets);
    tcase_add_test(c, ranks_from_a_set);
    suite_add_tcase(s, c);
    return s;
}
