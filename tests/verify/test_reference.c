/* Reference files: the recorded fixture, round trip, and one refusal per rule. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "suites.h"
#include "verify/reference/reference.h"

static const char GOOD[] =
    "{\"format\":\"mla-reference/1\",\"model\":\"m\",\"min_margin_nats\":1.0,\"extra\":{},\"cases\":["
    "{\"name\":\"a\",\"kind\":\"greedy\",\"prompt_ids\":[1,2],\"completion_ids\":[3,4],\"top1\":[3,4],"
    "\"top1_logprob\":[-0.1,-0.5],\"margin\":[1.0,0.5],\"target_logprob\":[-0.1,-0.5]},"
    "{\"name\":\"b@de\",\"kind\":\"forced\",\"prompt_ids\":[1],\"completion_ids\":[7],\"top1\":[9],"
    "\"top1_logprob\":[0],\"margin\":[2.5],\"target_logprob\":[-3]}]}";

static mla_status parse(mla_reference *r, const char *text, mla_err *err)
{
    mla_json *d = NULL;
    *r = (mla_reference){0};
    if (mla_json_parse(&d, text, strlen(text), "reference", err) != MLA_OK) return err->status;
    mla_status st = mla_reference_from_json(r, mla_json_root(d), err);
    mla_json_free(d);
    return st;
}

START_TEST(good_file_is_read)
{
    mla_err err = {0};
    mla_reference r;
    ck_ok(parse(&r, GOOD, &err));
    ck_assert_uint_eq(r.n, 2);
    ck_assert(!r.c[0].forced && r.c[1].forced);
    ck_assert(r.c[0].confident[0] && !r.c[0].confident[1] && r.c[1].confident[0]);
    ck_assert_uint_eq(r.c[0].decode_steps, 2);
    ck_assert_uint_eq(r.c[1].decode_steps, 0);
    ck_assert_str_eq(r.c[1].language, "de");
    ck_assert_ptr_null(r.c[0].language);
    ck_assert_uint_eq(mla_reference_positions(&r), 3);
    ck_assert_uint_eq(mla_reference_longest(&r), 4);
    ck_ok(mla_reference_check_vocab(&r, 10, &err));
    ck_refused(mla_reference_check_vocab(&r, 9, &err), MLA_EFORMAT, "case \"b@de\": top1[0]: expected an id below 9");
    mla_reference_free(&r);
}
END_TEST

/* Each row replaces the first `from` of the good file by `to`. */
static const struct {
    const char *from, *to, *message;
} BAD[] = {
    {"mla-reference/1", "mla-reference/2", "format: expected \"mla-reference/1\", found \"mla-reference/2\""},
    {"\"format\":\"mla-reference/1\",", "", "format: expected"},
    {"\"min_margin_nats\":1.0", "\"min_margin_nats\":-1", "min_margin_nats: expected a number >= 0"},
    {"\"min_margin_nats\":1.0", "\"min_margin_nats\":\"1\"", "min_margin_nats: expected a number >= 0, found string"},
    {"\"prompt_ids\":[1,2]", "\"prompt_ids\":[]", "cases[0] \"a\": prompt_ids: expected at least one id"},
    {"\"prompt_ids\":[1,2]", "\"prompt_ids\":[1,-2]", "cases[0] \"a\": prompt_ids[1]: expected a token id"},
    {"\"prompt_ids\":[1,2]", "\"prompt_ids\":[1,2147483648]", "prompt_ids[1]: expected a token id"},
    {"\"prompt_ids\":[1,2]", "\"prompt_ids\":[1,\"2\"]", "prompt_ids[1]: expected a token id, found string"},
    {"\"prompt_ids\":[1,2]", "\"prompt_ids\":7", "prompt_ids: expected an array, found number"},
    {"\"top1\":[3,4]", "\"top1\":[3]", "cases[0] \"a\": top1: expected 2 values (as completion_ids), found 1"},
    {"\"top1\":[3,4]", "\"top1\":[3,5]", "completion_ids[1]: a greedy case answers its top1 5, found 4"},
    {"\"margin\":[1.0,0.5]", "\"margin\":[1.0]", "margin: expected 2 values"},
    {"\"margin\":[1.0,0.5]", "\"margin\":[1.0,-0.5]", "margin[1]: expected a value >= 0, found -0.5"},
    {"\"margin\":[1.0,0.5]", "\"margin\":[1.0,null]", "margin[1]: expected a number, found null"},
    {"\"top1_logprob\":[-0.1,-0.5]", "\"top1_logprob\":[-0.1,0.5]", "top1_logprob[1]: expected a value <= 0"},
    {"\"name\":\"b@de\"", "\"name\":\"a\"", "cases[1] \"a\": name is used by an earlier case"},
    {"\"name\":\"b@de\"", "\"name\":7", "cases[1]: name: expected a string, found number"},
    {"\"kind\":\"forced\"", "\"kind\":\"loose\"", "kind: expected \"greedy\" or \"forced\", found loose"},
};

START_TEST(each_defect_is_named)
{
    mla_err err = {0};
    mla_reference r;
    const char *at = strstr(GOOD, BAD[_i].from);
    ck_assert_ptr_nonnull(at);
    mla_str text = MLA_STR_MAX(1 << 16);
    mla_str_putn(&text, GOOD, (size_t)(at - GOOD));
    mla_str_put(&text, BAD[_i].to);
    mla_str_put(&text, at + strlen(BAD[_i].from));
    ck_refused(parse(&r, text.s, &err), MLA_EFORMAT, BAD[_i].message);
    ck_assert_uint_eq(r.n, 0);
    mla_str_free(&text);
}
END_TEST

START_TEST(no_cases_or_no_object)
{
    mla_err err = {0};
    mla_reference r;
    ck_refused(parse(&r, "[]", &err), MLA_EFORMAT, "expected an object, found array");
    ck_refused(parse(&r, "{\"format\":\"mla-reference/1\",\"min_margin_nats\":1,\"cases\":[]}", &err), MLA_EFORMAT, "at least one");
    ck_refused(parse(&r, "{\"format\":\"mla-reference/1\",\"min_margin_nats\":1,\"cases\":[3]}", &err), MLA_EFORMAT,
               "cases[0]: expected an object, found number");
}
END_TEST

START_TEST(probe_file_is_read)
{
    mla_err err = {0};
    mla_reference r;
    ck_ok(parse(&r,
                "{\"source\":\"base\",\"min_margin_nats\":0.5,\"cases\":[{\"name\":\"p\",\"prompt_ids\":[5],"
                "\"completion_ids\":[6,7,8],\"confident_steps\":[0,2],\"decode_steps\":3,\"decode_must_match\":2}]}",
                &err));
    ck_assert(r.probe);
    ck_assert_str_eq(r.model, "base");
    ck_assert(r.c[0].judged[0] && !r.c[0].judged[1] && r.c[0].judged[2]);
    ck_assert_uint_eq(mla_reference_positions(&r), 2);
    ck_assert_uint_eq(r.c[0].decode_steps, 3);
    ck_assert_uint_eq(r.c[0].decode_must_match, 2);
    ck_assert_ptr_null(r.c[0].margin);
    mla_reference_free(&r);
    ck_refused(parse(&r,
                     "{\"source\":\"base\",\"min_margin_nats\":0.5,\"cases\":[{\"name\":\"p\",\"prompt_ids\":[5],"
                     "\"completion_ids\":[6],\"confident_steps\":[1]}]}",
                     &err),
               MLA_EFORMAT, "confident_steps[0]: expected an index below 1");
    ck_refused(parse(&r,
                     "{\"source\":\"base\",\"min_margin_nats\":0.5,\"cases\":[{\"name\":\"p\",\"prompt_ids\":[5],"
                     "\"completion_ids\":[6],\"confident_steps\":[],\"decode_must_match\":2}]}",
                     &err),
               MLA_EFORMAT, "decode_must_match: expected a count of at most 1");
}
END_TEST

START_TEST(write_reads_back_the_same)
{
    mla_err err = {0};
    mla_reference r, again;
    char *dir = mla_test_tmpdir(), *a = mla_path_join(dir, "a.json"), *b = mla_path_join(dir, "b.json");
    ck_ok(parse(&r, GOOD, &err));
    r.c[0].margin[0] = 1.0000049; /* rounds to 1.0 */
    ck_ok(mla_reference_write(&r, a, &err));
    ck_ok(mla_reference_read(&again, a, &err));
    ck_assert_uint_eq(again.n, r.n);
    ck_assert_double_eq(again.c[0].margin[0], 1);
    ck_assert_str_eq(again.c[1].language, "de");
    ck_assert(!memcmp(again.c[0].completion, r.c[0].completion, 2 * sizeof(int32_t)));
    ck_ok(mla_reference_write(&again, b, &err));
    char *ta, *tb;
    size_t na, nb;
    ck_ok(mla_file_read(&ta, &na, a, 1 << 20, &err));
    ck_ok(mla_file_read(&tb, &nb, b, 1 << 20, &err));
    ck_assert(na == nb && !memcmp(ta, tb, na));
    mla_reference_free(&r);
    ck_refused(mla_reference_read(&r, dir, &err), MLA_EIO, dir);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(ta);
    mla_free(tb);
    mla_free(a);
    mla_free(b);
    mla_free(dir);
    mla_reference_free(&again);
}
END_TEST

/* Every allocation failed in turn: an error, never a crash or a leak (the sanitizer build counts). */
START_TEST(allocation_failures)
{
    mla_err err = {0};
    mla_reference r;
    mla_json *d = NULL;
    ck_ok(mla_json_parse(&d, GOOD, strlen(GOOD), "reference", &err));
    long k = 0;
    for (;; k++) {
        mla_alloc_fail_after(k);
        mla_status st = mla_reference_from_json(&r, mla_json_root(d), &err);
        mla_alloc_fail_after(-1);
        if (st == MLA_OK) break;
        ck_assert_int_eq(st, MLA_ENOMEM);
        ck_assert_uint_eq(r.n, 0);
    }
    ck_assert_int_gt(k, 20);
    mla_reference_free(&r);
    mla_json_free(d);
}
END_TEST

Suite *suite_reference(void)
{
    Suite *s = suite_create("reference");
    TCase *t = tcase_create("reference");
    tcase_add_test(t, good_file_is_read);
    tcase_add_loop_test(t, each_defect_is_named, 0, sizeof BAD / sizeof *BAD);
    tcase_add_test(t, no_cases_or_no_object);
    tcase_add_test(t, probe_file_is_read);
    tcase_add_test(t, write_reads_back_the_same);
    tcase_add_test(t, allocation_failures);
    suite_add_tcase(s, t);
    return s;
}
