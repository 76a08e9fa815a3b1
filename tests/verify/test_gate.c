/* Policies are read strictly; the bootstrap of a divergence draws only what was measured; references join. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "verify/parity/parity_parts.h"
#include "verify/gate/policy.h"
#include "verify/reference/reference.h"
#include "verify/report/report.h"
#include "xml.h"

static mla_status read(mla_policy *p, const char *sections, mla_err *err)
{
    mla_json *d;
    mla_str s = MLA_STR_MAX(1 << 16);
    mla_str_printf(&s, "{\"schema\": \"mla-policy/1\", \"name\": \"t\", %s}", sections);
    mla_status st = mla_json_parse(&d, s.s, s.len, "policy", err);
    if (st == MLA_OK) st = mla_policy_from_json(p, mla_json_root(d), err);
    mla_json_free(d);
    mla_str_free(&s);
    return st;
}

START_TEST(policy_fields)
{
    mla_err err = {0};
    mla_policy p;
    ck_ok(read(&p, "\"parity\": {\"min_agreement\": 0.995, \"contexts\": [1024, 4096], \"strata\": [{\"by\": \"language\", \"is\": \"de\", "
                   "\"min_agreement\": 0.9}]}, \"capacity\": {\"gpu_memory\": \"96GB\", \"min_sequences\": 2}", &err));
    ck_assert(p.parity && p.capacity && !p.receipts && !p.selfcheck);
    ck_assert_double_eq(p.min_agreement, 0.995);
    ck_assert(isnan(p.max_kld) && isnan(p.max_ppl_ratio) && isnan(p.max_kv_ratio));
    ck_assert_double_eq(p.near_tie, 0.1);
    ck_assert_uint_eq(p.n_context, 2);
    ck_assert_uint_eq(p.context[1], 4096);
    ck_assert_str_eq(p.stratum[0].is, "de");
    ck_assert_double_eq(p.gpu_memory, 96e9);
    ck_ok(read(&p, "\"run\": {\"kv_dtype\": \"fp8-keys16\"}, \"capacity\": {\"max_kv_bytes_per_token\": 9}", &err));
    ck_assert_str_eq(p.kv_dtype, "fp8-keys16");
    ck_ok(mla_policy_read(&p, mla_fixture("../../configs/gate-keep50.json"), &err));
    ck_assert_uint_eq(strlen(p.sha256), 64);
}
END_TEST

START_TEST(policy_refusals)
{
    static const struct { const char *sections, *says; } BAD[] = {
        {"\"parity\": {\"min_agrement\": 0.9}", "parity.min_agrement: unknown field"},
        {"\"partiy\": {}", "partiy: unknown section"},
        {"\"run\": {\"kv_dtype\": \"f32\"}", "no section to judge"},
        {"\"parity\": 3", "parity: expected an object"},
        {"\"parity\": {\"min_agreement\": 1}", "parity.min_agreement: expected 0 to"},
        {"\"parity\": {\"min_agreement\": \"0.9\"}", "parity.min_agreement: expected a number"},
        {"\"parity\": {\"contexts\": []}", "parity.contexts: expected 1 to"},
        {"\"parity\": {\"strata\": [{\"by\": \"colour\", \"min_agreement\": 0.9}]}", "strata[0].by: expected one of"},
        {"\"run\": {\"kv_dtype\": \"fp4\"}, \"parity\": {}", "run.kv_dtype: expected one of"},
        {"\"receipts\": {\"base\": 1}", "receipts.base: expected true or false"},
        {"\"capacity\": {\"min_sequences\": 2}", "expected gpu_memory"},
        {"\"comment\": 1, \"parity\": {}", "comment: expected a string"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        mla_err err = {0};
        mla_policy p;
        ck_refused(read(&p, BAD[i].sections, &err), MLA_EFORMAT, BAD[i].says);
    }
}
END_TEST

/* Cases without a divergence must not be drawn as a ratio of 1. */
START_TEST(divergence_interval_of_few_rows)
{
    mla_err err = {0};
    mla_json *d;
    mla_parity_pos pos[5] = {0};
    mla_parity_case c[5] = {0};
    char name[] = "c";
    for (size_t i = 0; i < 5; i++) {
        c[i] = (mla_parity_case){.name = name, .kind = i < 4 ? "greedy" : "row", .first = i, .n = 1};
        pos[i] = (mla_parity_pos){.case_index = (uint32_t)i, .context = 1, .has_kld = i == 4, .kld = 0.25};
    }
    mla_parity p = {.opts = mla_parity_defaults(), .pos = pos, .n = 5, .c = c, .ncases = 5};
    ck_ok(mla_json_new_object(&d, &err));
    ck_ok(mla_parity_put_kld(mla_json_root(d), &p, &err));
    const mla_jv *k = mla_jv_get(mla_json_root(d), "kld");
    ck_assert_double_eq(mla_doc_num(k, "mean_low"), 0.25);
    ck_assert_double_eq(mla_doc_num(k, "mean_high"), 0.25);
    mla_json_free(d);
}
END_TEST

/* Two prompts of German, one right and one wrong, beside one of French: the interval of a stratum draws its own prompts alone. */
START_TEST(strata_count_their_own)
{
    mla_err err = {0};
    mla_json *d;
    mla_parity_pos pos[6] = {0};
    mla_parity_case c[3] = {0};
    char name[] = "c", de[] = "de", fr[] = "fr";
    for (size_t i = 0; i < 6; i++)
        pos[i] = (mla_parity_pos){.case_index = (uint32_t)(i / 2), .context = i == 5 ? 600 : 1, .judged = true, .confident = true, .expected = 1, .got = i / 2 == 1 ? 2 : 1};
    for (size_t i = 0; i < 3; i++) c[i] = (mla_parity_case){.name = name, .language = i < 2 ? de : fr, .kind = "forced", .first = 2 * i, .n = 2};
    mla_parity p = {.opts = mla_parity_defaults(), .pos = pos, .n = 6, .c = c, .ncases = 3};
    ck_ok(mla_json_new_object(&d, &err));
    ck_ok(mla_parity_put_strata(mla_json_root(d), &p, &err));
    static const struct { const char *by, *is; double agreement, low, high; } WANT[] = {
        {"context", NULL, 0.6, 0, 1}, {"context", NULL, 1, 1, 1}, {"language", "de", 0.5, 0, 1}, {"language", "fr", 1, 1, 1}, {"kind", "forced", 4 / 6.0, 0, 1}};
    const mla_jv *o = mla_jv_first(mla_jv_get(mla_json_root(d), "strata"));
    for (size_t i = 0; i < sizeof WANT / sizeof *WANT; i++, o = mla_jv_next(o)) {
        const mla_jv *sure = mla_jv_get(o, "confident");
        ck_assert_str_eq(mla_doc_str(o, "by", ""), WANT[i].by);
        if (WANT[i].is) ck_assert_str_eq(mla_doc_str(o, WANT[i].by, ""), WANT[i].is);
        ck_assert_double_eq(mla_doc_num(o, "agreement"), WANT[i].agreement);
        ck_assert_double_eq(mla_doc_num(o, "bootstrap_low"), WANT[i].low);
        ck_assert_double_eq(mla_doc_num(sure, "bootstrap_low"), WANT[i].low);
        ck_assert_double_eq(mla_doc_num(sure, "bootstrap_high"), WANT[i].high);
    }
    ck_assert_ptr_null(o);
    mla_json_free(d);
}
END_TEST

START_TEST(references_join)
{
    mla_err err = {0};
    int32_t prompt[1] = {3};
    mla_reference all = {0}, one = {0};
    for (size_t i = 0; i < 2; i++) {
        one.c = mla_alloc(1, sizeof *one.c, 1);
        ck_ok(mla_ref_case_new(one.c, "a", prompt, 1, 2, &err));
        one.n = 1;
        ck_ok(mla_reference_append(&all, &one, i ? "second.json" : NULL, &err));
        ck_assert_uint_eq(one.n, 0);
        mla_reference_free(&one);
    }
    ck_assert_uint_eq(all.n, 2);
    ck_assert_str_eq(all.c[1].name, "second.json/a");
    one.c = mla_alloc(1, sizeof *one.c, 1);
    ck_ok(mla_ref_case_new(one.c, "a", prompt, 1, 2, &err));
    one.n = 1;
    ck_refused(mla_reference_append(&all, &one, NULL, &err), MLA_EFORMAT, "stands in two references");
    mla_reference_free(&one);
    mla_reference_free(&all);
}
END_TEST

START_TEST(not_applicable_is_skipped)
{
    static const char DOC[] = "{\"schema\":\"mla-gate/1\",\"gates\":[{\"name\":\"a\",\"verdict\":\"not applicable\",\"reason\":\"r\"},"
                              "{\"name\":\"b\",\"verdict\":\"pass\",\"reason\":\"r\",\"value\":0.5,\"threshold\":0.25}]}";
    mla_err err = {0};
    mla_json *d;
    mla_str s = MLA_STR_MAX(1 << 16);
    size_t n;
    ck_ok(mla_json_parse(&d, DOC, strlen(DOC), "document", &err));
    ck_ok(mla_report_junit(&s, mla_json_root(d), &err));
    ck_assert_ptr_null(xml_check(s.s, "skipped", &n));
    ck_assert_uint_eq(n, 1);
    ck_assert_ptr_nonnull(strstr(s.s, "tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"1\""));
    mla_str_clear(&s);
    ck_ok(mla_report_markdown(&s, mla_json_root(d), &err));
    ck_assert_ptr_nonnull(strstr(s.s, "| b | **pass** | 0.5 |  | 0.25 | r |"));
    mla_str_free(&s);
    mla_json_free(d);
}
END_TEST

Suite *suite_gate(void)
{
    Suite *s = suite_create("gate");
    TCase *t = tcase_create("gate");
    tcase_add_test(t, policy_fields);
    tcase_add_test(t, policy_refusals);
    tcase_add_test(t, divergence_interval_of_few_rows);
    tcase_add_test(t, strata_count_their_own);
    tcase_add_test(t, references_join);
    tcase_add_test(t, not_applicable_is_skipped);
    suite_add_tcase(s, t);
    return s;
}
