/* Cache rows of two element types (fp8-keys16): bytes, error beside bf16 and FP8, the same bits for any page, cut and fork, and
 * the refusal where a device has no such rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "tensor/kv_row.h"

enum { N = 72 };
#define FP8_KEYS16 .kv_dtype = MLA_F8_E4M3, .keys16 = true

typedef struct {
    mla_layout layout;
    size_t groups, rank;     /* rank 0: full; an odd one leaves a byte before the keys */
    size_t first, second, divs; /* values of a layer's row */
} mixed_case;

static const mixed_case CASES[] = {
    {MLA_LAYOUT_NONE, 0, 0, 128, 128, 0}, {MLA_LAYOUT_N, 1, 181, 181, 32, 0}, {MLA_LAYOUT_P, 1, 0, 224, 32, 4},
    {MLA_LAYOUT_N, 1, 0, 224, 32, 0},     {MLA_LAYOUT_N, 2, 91, 182, 32, 0},  {MLA_LAYOUT_REBUILD, 1, 0, 256, 0, 0},
};

#ifdef __SANITIZE_ADDRESS__
enum { LAST = 3 }; /* one of each kind of row */
#else
enum { LAST = sizeof CASES / sizeof *CASES };
#endif

static mla_rt *open_rt(const world *w, const mixed_case *c, mla_rt_opts o)
{
    mla_err err = {0};
    mla_rt *rt = world_rt(w, o);
    mla_factors f = {0};
    size_t n;
    if (c->layout != MLA_LAYOUT_NONE) {
        ck_ok(mla_factors_dims(w->c, c->layout, c->groups, &n, &err));
        ck_ok(mla_factors_new(&f, c->layout, c->groups, n, c->rank ? c->rank : n, &err));
        mla_factors_identity(&f);
    }
    for (size_t l = 0; l < w->c->layers; l++) {
        if (w->c->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (f.E) ck_ok(mla_rt_set_factors(rt, l, &f, &err));
        ck_ok(mla_rt_set_kv_scale(rt, l, (mla_kv_scale){true, 0.031f, 0.037f}, &err));
    }
    mla_factors_free(&f);
    return rt;
}

static size_t even(size_t n) { return (n + 1) & ~(size_t)1; }

START_TEST(bytes_and_error)
{
    const mixed_case *c = &CASES[_i];
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab, layers = mla_config_full_layers(w.c);
    double kld[3];
    mla_rt *rt = open_rt(&w, c, (mla_rt_opts){0});
    float *want = run_chunks(rt, ids, N, 0, 0, 0);
    mla_rt_close(rt);
    for (int k = 0; k < 3; k++) {
        rt = open_rt(&w, c, (mla_rt_opts){.kv_dtype = k ? MLA_F8_E4M3 : MLA_BF16, .keys16 = k == 2});
        size_t bytes = mla_rt_kv_bytes_per_token(rt), all = c->first + c->second + c->divs;
        if (k < 2) ck_assert_uint_eq(bytes, layers * all * (k ? 1 : 2));
        else if (c->layout == MLA_LAYOUT_NONE) ck_assert_uint_eq(bytes, layers * (2 * c->first + c->second));
        else ck_assert_uint_eq(bytes, c->second ? layers * even(even(c->first) + 2 * c->second + c->divs) : layers * c->first);
        float *got = run_chunks(rt, ids, N, 0, 50, 0);
        kld[k] = mean_kld(want, got, N, V);
        mla_free(got);
        mla_rt_close(rt);
    }
    if (getenv("MLA_TEST_FIGURES")) printf("layout %d rank %zu: KLD bf16 %.3g, fp8 %.3g, fp8-keys16 %.3g\n", (int)c->layout, c->rank, kld[0], kld[1], kld[2]);
    if (c->second) ck_assert_msg(kld[0] < kld[2] && kld[2] < kld[1] / 2, "bf16 %g, fp8 %g, fp8-keys16 %g", kld[0], kld[1], kld[2]);
    else ck_assert(kld[2] == kld[1]);
    mla_free(want), mla_free(ids);
    world_close(&w);
}
END_TEST

/* Pages of 1, 7 and 64 tokens, prompts whole and cut, two threads, the portable kernels, absorbed prefill left alone: the same bits. */
START_TEST(pages_cuts_kernels)
{
    static const size_t PAGE[] = {1, 7, 64};
    const mixed_case *c = &CASES[_i];
    int32_t *ids = some_ids(N);
    float *want = NULL;
    for (size_t i = 0; i < 5; i++) {
        mla_err err = {0};
        world w = world_open(NULL, i == 3 ? 2 : 1);
        if (i == 4) {
            mla_backend_close(w.be);
            ck_ok(mla_backend_open(&w.be, &(mla_backend_opts){.threads = 1, .isa = MLA_ISA_REF}, &err));
        }
        mla_rt *rt = open_rt(&w, c, (mla_rt_opts){FP8_KEYS16, .page_tokens = PAGE[i % 3]});
        float *got = run_chunks(rt, ids, N, 0, i ? 31 : 0, 0);
        if (want) ck_assert_msg(!memcmp(got, want, N * w.c->vocab * sizeof *got), "run %zu differs", i);
        if (want) mla_free(got);
        else want = got;
        mla_rt_close(rt);
        world_close(&w);
    }
    mla_free(want), mla_free(ids);
}
END_TEST

START_TEST(forked)
{
    enum { P = 37 };
    mla_err err = {0};
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    mla_rt *rt = open_rt(&w, &CASES[1], (mla_rt_opts){FP8_KEYS16, .page_tokens = 16});
    float *want = run_chunks(rt, ids, N, 0, 0, 0), *logits = mla_alloc(N, V, 4);
    mla_seq *root, *s;
    ck_ok(mla_seq_new(&root, rt, N, &err));
    ck_ok(mla_rt_run(rt, &(mla_job){.seq = root, .ids = ids, .T = P, .logits_from = P}, 1, NULL, NULL, &err));
    ck_ok(mla_seq_fork(&s, root, N, &err));
    mla_seq_free(root);
    ck_ok(mla_rt_run(rt, &(mla_job){.seq = s, .ids = ids + P, .T = N - P, .logits = logits}, 1, NULL, NULL, &err));
    ck_assert(!memcmp(logits, want + P * V, (N - P) * V * sizeof *want));
    mla_seq_free(s);
    mla_free(want), mla_free(logits), mla_free(ids);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

START_TEST(a_device_without_such_rows)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    const mla_backend_ops *ops = w.be->ops;
    mla_backend_ops plain = *ops;
    mla_rt *rt;
    plain.name = "other";
    plain.mixed_rows = false;
    w.be->ops = &plain;
    ck_refused(mla_rt_open(&rt, w.m, w.be, &(mla_rt_opts){FP8_KEYS16}, &err), MLA_EUNSUPPORTED, "fp8-keys16: the other backend");
    ck_assert(rt == NULL);
    w.be->ops = ops;
    world_close(&w);
}
END_TEST

START_TEST(names)
{
    static const char *const NAME[] = {"f32", "bf16", "fp8", "fp8-keys16"};
    mla_kv_type t;
    for (size_t i = 0; i < 4; i++) {
        ck_assert(mla_kv_type_parse(NAME[i], &t));
        ck_assert_str_eq(mla_kv_type_name(t), NAME[i]);
    }
    ck_assert(!mla_kv_type_parse("fp4", &t));
    ck_assert_str_eq(mla_kv_type_name((mla_kv_type){MLA_BF16, true}), "bf16"); /* says something of FP8 caches only */
}
END_TEST

Suite *mixed_suite(void)
{
    Suite *s = suite_create("mixed");
    TCase *t = tcase_create("mixed");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, bytes_and_error, 0, LAST);
    tcase_add_loop_test(t, pages_cuts_kernels, 0, 3);
    tcase_add_test(t, forked);
    tcase_add_test(t, a_device_without_such_rows);
    tcase_add_test(t, names);
    suite_add_tcase(s, t);
    return s;
}
