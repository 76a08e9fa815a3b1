/* Prefixes of one solution against solving at the smaller rank, bit for bit; what cannot be cut is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "harness.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "retrofit/build/graft.h"
#include "retrofit/solve/prefix.h"
#include "synth.h"

enum { H = 6, G = 2, d = 8, dk = 6, D = 40 };

static void solve(mla_solution *s, mla_layer_stats *l, size_t groups)
{
    static float wo[D * H * d];
    mla_err err;
    synth_layer(l, H, G, d, dk, wo, D);
    mla_solve_opts o = {.balance = 1, .groups = groups};
    ck_ok(mla_solve_layer(s, l, MLA_LAYOUT_N, wo, D, &o, &err));
}

/* From full rank and from a middle one, in both precisions, one group and two. */
START_TEST(a_prefix_is_the_solution_at_that_rank)
{
    size_t groups = _i == 0 ? 1 : 2;
    mla_layer_stats l;
    mla_solution s;
    mla_err err;
    mla_nested full, half;
    solve(&s, &l, groups);
    size_t n = s.n, mid = n / 2 + 1;
    ck_ok(mla_nested_of(&full, &s, n, true, NULL, &err));
    ck_ok(mla_nested_of(&half, &s, mid, true, NULL, &err));
    for (size_t r = 1; r <= n; r++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int k = 0; k < (r <= mid || r == n ? 2 : 1); k++) {
                mla_factors want, got;
                ck_ok(mla_solution_factors(&want, &s, r, bf16, NULL, &err));
                ck_ok(mla_nested_factors(&got, k ? &half : &full, r, bf16, NULL, &err));
                ck_assert(!memcmp(got.E, want.E, groups * r * n * 4) && !memcmp(got.D, want.D, groups * r * n * 4) &&
                          !memcmp(got.mu, want.mu, groups * n * 4));
                mla_factors_free(&want);
                mla_factors_free(&got);
            }
    mla_factors f, plain;
    ck_refused(mla_nested_factors(&f, &half, mid + 1, true, NULL, &err), MLA_EINVAL, "the factors hold");
    /* the refit is not a prefix: taking stored columns instead would be seen */
    ck_ok(mla_solution_factors(&f, &s, 5, true, NULL, &err));
    ck_ok(mla_solution_factors(&plain, &s, mid, true, NULL, &err));
    size_t differ = 0;
    for (size_t i = 0; i < n; i++) differ += memcmp(f.D + i * 5, plain.D + i * mid, 5 * 4) != 0;
    ck_assert(differ > 0);
    for (size_t r = 1; r < n; r++) {
        ck_assert(mla_nested_tail(&full, r) == mla_solution_tail(&s, r));
        ck_assert(fabs(mla_nested_k_share(&full, r) - mla_solution_k_share(&s, r)) < 1e-5); /* f32 products of unit-variance factors */
    }
    mla_factors_free(&f);
    mla_factors_free(&plain);
    mla_nested_free(&full);
    mla_nested_free(&half);
    mla_solution_free(&s);
    synth_free(&l);
}
END_TEST

/* Four layers of plain factors of the tiny hybrid's shape, as a factors file would give them. */
typedef struct {
    mla_model *m;
    mla_factor_source src;
} plain;

static plain plain_source(size_t r, bool identity)
{
    static const size_t LAYER[] = {1, 3, 5, 7};
    mla_err err;
    plain p = {.src = {.layers = 4, .f32 = true}};
    ck_ok(mla_model_open(&p.m, mla_fixture("tiny-hybrid"), &err));
    p.src.layer = mla_alloc(4, sizeof *p.src.layer, 1);
    for (size_t i = 0; i < 4; i++) {
        mla_nested *ne = &p.src.layer[i];
        ne->layer = LAYER[i];
        ck_ok(mla_factors_new(&ne->f, MLA_LAYOUT_N, 1, 224, r, &err));
        if (identity) mla_factors_identity(&ne->f);
        else
            for (size_t k = 0; k < r * 224; k++) ne->f.E[k] = (float)k, ne->f.D[k] = (float)(k % r);
    }
    return p;
}

START_TEST(plain_files_give_prefixes_and_say_when_they_differ)
{
    mla_err err;
    plain p = plain_source(100, false);
    const mla_config *c = mla_model_config(p.m);
    mla_recipe r = mla_recipe_default();
    mla_factorization f;
    mla_str note = MLA_STR_MAX(1000);
    const size_t ranks[] = {100, 7, 33, 1};
    mla_prefix_opts o = {.recipe = &r, .rank = ranks, .n_rank = 4};
    ck_ok(mla_prefix(&f, &p.src, c, &o, &note, &err));
    ck_assert(note.len == 0 && f.layers == 4 && f.f32);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(f.factors[i].r, ranks[i]);
        ck_assert(!memcmp(f.factors[i].E, p.src.layer[i].f.E, ranks[i] * 224 * 4));
        for (size_t j = 0; j < 224 * ranks[i]; j++) ck_assert(f.factors[i].D[j] == (float)(j % ranks[i]));
        ck_assert(f.result[i].rank == ranks[i] && f.result[i].predicted < 0);
    }
    mla_factorization_free(&f);
    p.src.f32 = false;
    ck_ok(mla_prefix(&f, &p.src, c, &o, &note, &err));
    ck_assert(strstr(mla_str_c(&note), "3 of 4 layers cut below the rank of bf16 factors"));
    mla_factorization_free(&f);
    o.n_rank = 3;
    ck_refused(mla_prefix(&f, &p.src, c, &o, &note, &err), MLA_EINVAL, "3 given, the model has 4");
    o = (mla_prefix_opts){.recipe = &r};
    r.budget.keep = 0.5;
    r.allocation = MLA_ALLOC_SPECTRUM;
    ck_refused(mla_prefix(&f, &p.src, c, &o, &note, &err), MLA_EINVAL, "solve the factors with --nested");
    r.allocation = MLA_ALLOC_PROBE;
    ck_refused(mla_prefix(&f, &p.src, c, &o, &note, &err), MLA_EINVAL, "--ranks");
    r.allocation = MLA_ALLOC_UNIFORM;
    r.budget.keep = 0.75;
    ck_refused(mla_prefix(&f, &p.src, c, &o, &note, &err), MLA_EINVAL, "multiples of 1 up to 100");
    r.budget.keep = 0.5;
    p.src.refined = mla_strdup("250 steps");
    ck_refused(mla_prefix(&f, &p.src, c, &o, &note, &err), MLA_EINVAL, "refined after solving (250 steps) and are exact at their own rank 100 only");
    r.budget = (mla_budget){.rank = 100};
    ck_ok(mla_prefix(&f, &p.src, c, &o, &note, &err));
    mla_factorization_free(&f);
    mla_factor_source_free(&p.src);
    mla_model_close(p.m);
    p = plain_source(224, true);
    r.budget = (mla_budget){.rank = 96};
    ck_refused(mla_prefix(&f, &p.src, mla_model_config(p.m), &o, &note, &err), MLA_EINVAL, "identity of full rank");
    mla_factor_source_free(&p.src);
    mla_model_close(p.m);
    mla_str_free(&note);
}
END_TEST

/* A nested file reads back bit for bit; damaged ones are refused by name. */
START_TEST(nested_files)
{
    mla_err err;
    plain p = plain_source(100, false);
    mla_factor_source got;
    unsigned char digest[32];
    char path[512], bad[512], *dir = mla_test_tmpdir();
    for (size_t i = 0; i < 4; i++) {
        mla_nested *ne = &p.src.layer[i];
        ne->cross = mla_alloc(224, 100, sizeof *ne->cross);
        ne->sigma = mla_alloc(224, 1, sizeof *ne->sigma);
        for (size_t k = 0; k < 22400; k++) ne->cross[k] = (double)k / 3;
        for (size_t k = 0; k < 224; k++) ne->sigma[k] = 1.0 / (double)(k + 1);
    }
    snprintf(path, sizeof path, "%s/f.safetensors", dir);
    snprintf(bad, sizeof bad, "%s/bad.safetensors", dir);
    ck_ok(mla_nested_write(path, p.m, p.src.layer, 4, false, digest, &err));
    ck_ok(mla_factor_source_read(&got, path, p.m, &err));
    ck_assert(got.nested && !got.f32 && !got.refined && got.layers == 4 && got.layer[2].layer == 5 && got.layer[2].keys == 96);
    ck_assert(!memcmp(got.layer[3].cross, p.src.layer[3].cross, 22400 * 8) && !memcmp(got.layer[3].sigma, p.src.layer[3].sigma, 224 * 8));
    mla_factor_source_free(&got);
    p.src.layer[1].cross[7] = NAN;
    ck_refused(mla_nested_write(bad, p.m, p.src.layer, 4, false, digest, &err), MLA_EFORMAT, "layers.3.self_attn.mla.nested.cross: 1 of 22400");
    ck_assert(!mla_path_exists(bad));
    p.src.layer[1].cross[7] = 0;
    ck_ok(mla_nested_write(bad, p.m, p.src.layer, 3, false, digest, &err));
    ck_refused(mla_factor_source_read(&got, bad, p.m, &err), MLA_EFORMAT, "layers.7.self_attn.mla.encoder.weight is missing");
    mla_factor_source_free(&p.src);
    mla_model_close(p.m);
    mla_free(dir);
}
END_TEST

Suite *suite_nested(void);
Suite *suite_nested(void)
{
    Suite *s = suite_create("nested");
    TCase *c = tcase_create("nested");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, a_prefix_is_the_solution_at_that_rank, 0, 2);
    tcase_add_test(c, plain_files_give_prefixes_and_say_when_they_differ);
    tcase_add_test(c, nested_files);
    suite_add_tcase(s, c);
    return s;
}
