/* Paths of a server, drafting and layers on the bundled model: all equal as it is, and each check sees a difference. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "verify/paths/drafts.h"
#include "verify/parity/layers.h"
#include "verify/paths/paths.h"
#include "verify/report/report.h"

typedef struct {
    mla_backend *be;
    mla_model *m;
    mla_reference ref;
    mla_path_text text[3];
    size_t n;
    int32_t *buffer;
} world;

static void start(world *w, size_t tokens)
{
    mla_err err = {0};
    *w = (world){0};
    ck_ok(mla_backend_open(&w->be, &(mla_backend_opts){.threads = 2}, &err));
    ck_ok(mla_model_open(&w->m, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_reference_read(&w->ref, mla_fixture("references/tiny-hybrid.json"), &err));
    ck_ok(mla_paths_texts(w->text, &w->n, &w->buffer, &(mla_path_source){.ref = &w->ref, .cases = 3, .tokens = tokens}, &err));
    ck_assert_uint_eq(w->n, 3);
    ck_assert_uint_eq(w->text[2].n, tokens);
    ck_assert_uint_eq(w->text[0].n, tokens / 3);
}

static mla_rt *open_rt(world *w, bool mtp)
{
    mla_err err = {0};
    mla_rt *rt;
    ck_ok(mla_rt_open(&rt, w->m, w->be, &(mla_rt_opts){.kv_dtype = MLA_F32, .mtp = mtp}, &err));
    return rt;
}

static void stop(world *w)
{
    mla_free(w->buffer);
    mla_reference_free(&w->ref);
    mla_model_close(w->m);
    mla_backend_close(w->be);
}

/* Exact factors of a layer, then with their second half cut away. */
static void set_factors(mla_rt *rt, size_t layer, size_t groups, bool half)
{
    mla_err err = {0};
    mla_factors f;
    size_t n;
    ck_ok(mla_factors_dims(mla_rt_config(rt), MLA_LAYOUT_N, groups, &n, &err));
    ck_ok(mla_factors_new(&f, MLA_LAYOUT_N, groups, n, n, &err));
    mla_factors_identity(&f);
    for (size_t i = n / 2; half && i < n; i++) f.E[i * n + i] = 0;
    ck_ok(mla_rt_set_factors(rt, layer, &f, &err));
    mla_factors_free(&f);
}

static mla_verdict check(world *w, mla_rt *rt, mla_rt *other, const char *path, mla_json **d)
{
    mla_err err = {0};
    mla_verdict v;
    mla_paths_opts o = {.rt = rt, .other = other, .be = w->be, .kv = {MLA_F32, false}, .text = w->text, .n_text = w->n, .near_tie = 0.1, .max_logprob = 0.06, .max_change = 1e-3,
                        .max_fp8_kld = 0.01, .max_split_error = 1e-4};
    ck_ok(mla_json_new_object(d, &err));
    ck_ok(mla_paths_check(mla_json_root(*d), &o, &path, 1, &v, &err));
    ck_assert_uint_eq(mla_jv_len(mla_jv_get(mla_json_root(*d), "gates")), 1);
    return v;
}

START_TEST(paths_agree)
{
    static const char *const PATH[] = {"chunked", "prefix", "batch"};
    world w;
    start(&w, 84);
    mla_rt *rt = open_rt(&w, false);
    for (size_t i = 0; i < 3; i++) {
        mla_json *d;
        ck_assert_int_eq(check(&w, rt, NULL, PATH[i], &d), MLA_PASS);
        for (const mla_jv *p = mla_jv_first(mla_jv_get(mla_json_root(d), "paths")); p; p = mla_jv_next(p)) {
            ck_assert_double_gt(mla_doc_num(p, "positions"), 0);
            ck_assert_double_eq(mla_doc_num(p, "logprob_change_max"), 0); /* the reference path: the same bits */
        }
        mla_json_free(d);
    }
    mla_rt_close(rt);
    stop(&w);
}
END_TEST

/* A runtime that answers otherwise is seen, and the place is named. */
START_TEST(a_difference_is_named)
{
    world w;
    mla_json *d;
    start(&w, 84);
    mla_rt *rt = open_rt(&w, false), *other = open_rt(&w, false);
    ck_assert_int_eq(check(&w, rt, other, "threads", &d), MLA_PASS);
    mla_json_free(d);
    set_factors(other, 3, 1, true);
    ck_assert_int_eq(check(&w, rt, other, "threads", &d), MLA_FAIL);
    ck_assert_ptr_nonnull(strstr(mla_doc_str(mla_jv_first(mla_jv_get(mla_json_root(d), "gates")), "reason", ""), "other threads, chunks of 48 in "));
    mla_json_free(d);
    ck_assert_int_eq(check(&w, rt, NULL, "threads", &d), MLA_NO_EVIDENCE);
    mla_json_free(d);
    ck_assert_int_eq(check(&w, rt, NULL, "fp8", &d), MLA_NO_EVIDENCE); /* no scales */
    mla_json_free(d);
    ck_assert_int_eq(check(&w, rt, NULL, "split", &d), MLA_PASS);
    ck_assert_str_eq(mla_doc_str(mla_jv_first(mla_jv_get(mla_json_root(d), "gates")), "verdict", ""), MLA_NOT_APPLICABLE);
    mla_json_free(d);
    mla_rt_close(rt);
    mla_rt_close(other);
    stop(&w);
}
END_TEST

START_TEST(a_layer_stands_out)
{
    mla_err err = {0};
    mla_layer_errors e[64];
    world w;
    start(&w, 48);
    mla_rt *base = open_rt(&w, false), *rt = open_rt(&w, false);
    size_t n = mla_rt_config(rt)->layers;
    ck_ok(mla_layers_compare(e, base, rt, w.text[2].ids, w.text[2].n, &err));
    for (size_t l = 0; l < n; l++) ck_assert_double_eq(e[l].error[MLA_PART_MIXER], 0);
    set_factors(rt, 3, 1, true);
    ck_ok(mla_layers_compare(e, base, rt, w.text[2].ids, w.text[2].n, &err));
    for (size_t l = 0; l < n; l++) { /* one layer stands out, and it still takes queries, keys and values from the base */
        ck_assert(l == 3 ? e[l].error[MLA_PART_MIXER] > 0.1 : e[l].error[MLA_PART_MIXER] == 0);
        ck_assert(l == 3 ? e[l].constant >= 0 && e[l].constant <= 1 : isnan(e[l].constant)); /* no error has no share */
        ck_assert(isnan(e[l].error[MLA_PART_Q]) == (mla_rt_config(rt)->layer_kind[l] != MLA_LAYER_FULL));
        for (size_t p = MLA_PART_Q; p <= MLA_PART_V; p++) ck_assert(isnan(e[l].error[p]) || e[l].error[p] == 0);
    }
    mla_rt_close(base);
    mla_rt_close(rt);
    stop(&w);
}
END_TEST

START_TEST(drafts_change_nothing)
{
    mla_err err = {0};
    mla_drafts r[4], b[4];
    mla_json *d;
    mla_verdict v;
    world w;
    start(&w, 36);
    mla_rt *rt = open_rt(&w, true);
    mla_drafts_opts o = {.prompt = w.text, .n_prompt = 2, .tokens = 20, .most = 4, .near_tie = 0.1};
    ck_ok(mla_drafts_run(r, rt, &o, &err));
    for (size_t k = 0; k < 4; k++) {
        ck_assert_uint_eq(r[k].exact, 2);
        ck_assert_uint_gt(r[k].accepted[0], 0);
        ck_assert_uint_lt(r[k].rounds, r[k].tokens); /* drafts were kept */
        for (size_t i = 1; i <= k; i++) ck_assert_uint_le(r[k].accepted[i], r[k].accepted[i - 1]);
    }
    memcpy(b, r, sizeof b);
    ck_ok(mla_json_new_object(&d, &err));
    mla_drafts_report(mla_json_root(d), r, b, 4, 0.1, &v);
    ck_assert_int_eq(v, MLA_NO_EVIDENCE); /* a handful of rounds shows no acceptance */
    for (size_t i = 0; i < 4; i++) r[3].accepted[i] = 10, b[3].accepted[i] = 200;
    r[3].rounds = b[3].rounds = 400;
    mla_drafts_report(mla_json_root(d), r, b, 4, 0.1, &v);
    ck_assert_int_eq(v, MLA_FAIL);
    mla_drafts_report(mla_json_root(d), b, b, 4, 0.1, &v);
    ck_assert_int_eq(v, MLA_PASS);
    mla_json_free(d);
    mla_rt_close(rt);
    stop(&w);
}
END_TEST

/* Newcombe 1998, table II (a), method 10. */
START_TEST(newcombe)
{
    mla_interval w = mla_newcombe(56, 70, 48, 80);
    ck_assert_double_eq_tol(w.low, 0.0524, 5e-5);
    ck_assert_double_eq_tol(w.high, 0.3339, 5e-5);
}
END_TEST

Suite *suite_paths(void)
{
    Suite *s = suite_create("paths");
    TCase *t = tcase_create("paths");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, paths_agree);
    tcase_add_test(t, a_difference_is_named);
    tcase_add_test(t, a_layer_stands_out);
    tcase_add_test(t, drafts_change_nothing);
    tcase_add_test(t, newcombe);
    suite_add_tcase(s, t);
    return s;
}
