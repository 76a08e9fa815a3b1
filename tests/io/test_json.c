/* JSON: what is accepted, what is refused, and text that reads back the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/json.h"
#include "io/suites.h"

static mla_status parse(const char *text, mla_err *err)
{
    mla_json *d;
    mla_status st = mla_json_parse(&d, text, strlen(text), "x", err);
    if (st == MLA_OK) mla_json_free(d);
    return st;
}

static const struct {
    const char *text, *why;
} BAD[] = {
    {"", "expected a value"},
    {" ", "expected a value"},
    {"{} x", "after the end"},
    {"{}{}", "after the end"},
    {"01", "leading zero"},
    {"-", "expected a digit"},
    {"+1", "expected a value"},
    {"1.", "after the point"},
    {".5", "expected a value"},
    {"1e", "exponent"},
    {"1e+", "exponent"},
    {"0x10", "after the end"},
    {"NaN", "expected a value"},
    {"Infinity", "expected a value"},
    {"nul", "expected a value"},
    {"True", "expected a value"},
    {"'a'", "expected a value"},
    {"\"a", "open string"},
    {"\"a\nb\"", "control character"},
    {"\"\\x\"", "unknown escape"},
    {"\"\\u12g4\"", "four hex digits"},
    {"\"\\u0000\"", "NUL"},
    {"\"\\ud800\"", "lone surrogate"},
    {"\"\\udc00\"", "lone surrogate"},
    {"\"\\ud800\\u0041\"", "lone surrogate"},
    {"\"\xff\"", "UTF-8"},
    {"\"\xed\xa0\x80\"", "UTF-8"},
    {"\xef\xbb\xbf{}", "expected a value"},
    {"[1,]", "expected a value"},
    {"[1 2]", "expected ',' or ']'"},
    {"{\"a\":1,}", "expected a string"},
    {"{\"a\" 1}", "expected ':'"},
    {"{a:1}", "expected a string"},
    {"{\"a\":1 \"b\":2}", "expected ',' or '}'"},
    {"// c\n{}", "expected a value"},
    {"{\"a\":1,\"a\":1}", "duplicate key \"a\""},
    {"{\"b\":{\"x\":[{\"a\":1,\"\\u0061\":2}]}}", "duplicate key \"a\""},
    {"1234567890123456789012345678901234567890123456789012345678901234", "63 characters"},
};

START_TEST(everything_that_is_not_json_is_refused)
{
    mla_err err;
    ck_refused(parse(BAD[_i].text, &err), MLA_EFORMAT, BAD[_i].why);
}
END_TEST

START_TEST(what_is_json_is_accepted)
{
    static const char *const GOOD[] = {"{}", "[]", " 1 ", "0", "-0", "0.5", "1e5", "1E-7", "\"\"", "null", "true",
                                       "{\"a\":1,\"A\":2}", /* keys are case-sensitive */
                                       "{\"\":1}", "\"\\ud83d\\ude00\"", "\"\x7f\"", "[[[]]]\r\n\t"};
    mla_err err;
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) ck_ok(parse(GOOD[i], &err));
}
END_TEST

START_TEST(depth_is_bounded)
{
    mla_err err;
    char text[300];
    for (int n = 64; n <= 65; n++) {
        memset(text, '[', (size_t)n);
        memset(text + n, ']', (size_t)n);
        text[2 * n] = 0;
        if (n == 64)
            ck_ok(parse(text, &err));
        else
            ck_refused(parse(text, &err), MLA_EFORMAT, "deeper than 64");
    }
    size_t many = 2000000; /* a deep text must not exhaust the stack before it is refused */
    char *deep = malloc(many);
    memset(deep, '[', many);
    mla_json *d;
    ck_refused(mla_json_parse(&d, deep, many, "x", &err), MLA_EFORMAT, "deeper than 64");
    free(deep);
}
END_TEST

START_TEST(number_of_values_is_bounded)
{
    mla_err err;
    size_t n = ((size_t)1 << 22) + 1, at = 0;
    char *text = malloc(2 * n + 8);
    text[at++] = '[';
    for (size_t i = 0; i < n; i++) {
        if (i) text[at++] = ',';
        text[at++] = '0';
    }
    text[at++] = ']';
    mla_json *d;
    ck_refused(mla_json_parse(&d, text, at, "x", &err), MLA_EFORMAT, "more values");
    free(text);
}
END_TEST

START_TEST(text_need_not_end_with_nul)
{
    mla_err err;
    mla_json *d;
    char text[] = {'{', '"', 'k', '"', ':', '1', '2', '}', '9', '9'};
    ck_ok(mla_json_parse(&d, text, 8, "x", &err));
    int64_t v;
    ck_assert(mla_jv_i64(mla_jv_get(mla_json_root(d), "k"), &v) && v == 12);
    mla_json_free(d);
    char num[] = {'1', '2', '3'};
    ck_ok(mla_json_parse(&d, num, 2, "x", &err));
    ck_assert(mla_jv_i64(mla_json_root(d), &v) && v == 12);
    mla_json_free(d);
}
END_TEST

START_TEST(numbers_keep_their_value_or_are_refused)
{
    mla_err err;
    mla_json *d;
    const char *t = "{\"big\":4294967296,\"top\":9007199254740992,\"over\":9007199254740994,\"neg\":-3,\"frac\":1.5,"
                    "\"e\":1e3,\"inf\":1e999,\"s\":\"1\",\"b\":false,\"n\":null}";
    ck_ok(mla_json_parse(&d, t, strlen(t), "x", &err));
    const mla_jv *r = mla_json_root(d);
    int64_t i;
    size_t n;
    double f;
    bool b = true;
    ck_assert(mla_jv_size(mla_jv_get(r, "big"), &n) && n == 4294967296u);
    ck_assert(mla_jv_i64(mla_jv_get(r, "top"), &i) && i == 9007199254740992);
    ck_assert(!mla_jv_i64(mla_jv_get(r, "over"), &i));
    ck_assert(mla_jv_i64(mla_jv_get(r, "neg"), &i) && i == -3);
    ck_assert(!mla_jv_size(mla_jv_get(r, "neg"), &n));
    ck_assert(!mla_jv_i64(mla_jv_get(r, "frac"), &i));
    ck_assert(mla_jv_i64(mla_jv_get(r, "e"), &i) && i == 1000);
    ck_assert(!mla_jv_f64(mla_jv_get(r, "inf"), &f));
    ck_assert(!mla_jv_f64(mla_jv_get(r, "s"), &f) && !mla_jv_f64(mla_jv_get(r, "absent"), &f));
    ck_assert(mla_jv_bool(mla_jv_get(r, "b"), &b) && !b);
    ck_assert(!mla_jv_bool(mla_jv_get(r, "big"), &b));
    ck_assert(mla_jv_is_null(mla_jv_get(r, "n")) && !mla_jv_is_null(NULL));
    ck_assert_ptr_null(mla_jv_get(r, "BIG")); /* case-sensitive */
    ck_assert_ptr_null(mla_jv_get(NULL, "x"));
    ck_assert_ptr_null(mla_jv_str(mla_jv_get(r, "big")));
    ck_assert_str_eq(mla_jv_kind(NULL), "absent");
    ck_assert_str_eq(mla_jv_kind(mla_jv_get(r, "b")), "boolean");
    ck_assert_uint_eq(mla_jv_len(r), 10);
    ck_assert_str_eq(mla_jv_key(mla_jv_next(mla_jv_first(r))), "top");
    mla_json_free(d);
}
END_TEST

START_TEST(printing_gives_shortest_digits_that_read_back)
{
    static const struct {
        double v;
        const char *text;
    } C[] = {{0, "0"}, {1, "1"}, {-7, "-7"}, {1e15, "1000000000000000"}, {9007199254740992.0, "9007199254740992"},
             {0.1, "0.1"}, {1e-6, "1e-06"}, {0.1 + 0.2, "0.30000000000000004"}, {5e-324, "4.94065645841247e-324"},
             {1.7976931348623157e308, "1.7976931348623157e+308"}, {3.141592653589793, "3.141592653589793"},
             {(double)NAN, "null"}, {(double)INFINITY, "null"}, {-0.0, "-0"}};
    mla_err err;
    for (size_t i = 0; i < sizeof C / sizeof *C; i++) {
        mla_json *d, *back;
        mla_str s = MLA_STR_MAX(1000);
        char want[64];
        double v;
        ck_ok(mla_json_new_object(&d, &err));
        ck_assert_ptr_nonnull(mla_jv_set_f64(mla_json_root(d), "v", C[i].v));
        ck_ok(mla_json_print(&s, mla_json_root(d), false, &err));
        snprintf(want, sizeof want, "{\"v\":%s}", C[i].text);
        ck_assert_str_eq(s.s, want);
        ck_ok(mla_json_parse(&back, s.s, s.len, "x", &err));
        if (isfinite(C[i].v)) {
            ck_assert(mla_jv_f64(mla_jv_get(mla_json_root(back), "v"), &v) && v == C[i].v);
            ck_assert_int_eq(!!signbit(v), !!signbit(C[i].v));
        }
        mla_json_free(back);
        mla_json_free(d);
        mla_str_free(&s);
    }
}
END_TEST

START_TEST(editing_and_printing)
{
    mla_err err;
    mla_json *d, *copy;
    ck_ok(mla_json_new_object(&d, &err));
    mla_jv *r = mla_json_root(d);
    ck_assert_ptr_nonnull(mla_jv_set_str(r, "s", "q\"\\\n\x01\xc3\xa9"));
    ck_assert_ptr_nonnull(mla_jv_set_size(r, "n", 3));
    mla_jv *a = mla_jv_set_arr(r, "a");
    ck_assert(mla_jv_add_size(a, 1) && mla_jv_add_str(a, "x") && mla_jv_add_f64(a, 0.5));
    ck_assert_ptr_nonnull(mla_jv_set_bool(mla_jv_add_obj(a), "t", true));
    ck_assert_ptr_nonnull(mla_jv_add_arr(a));
    ck_assert_ptr_nonnull(mla_jv_set_obj(r, "o"));
    ck_assert_ptr_nonnull(mla_jv_set_null(r, "gone"));
    ck_assert_ptr_nonnull(mla_jv_set_str(r, "n", "replaced in place"));
    ck_assert_ptr_nonnull(mla_jv_set_copy(r, "c", a));
    mla_jv_remove(r, "gone");
    mla_jv_remove(r, "never there");
    mla_str s = MLA_STR_MAX(1000);
    ck_ok(mla_json_print(&s, r, false, &err));
    ck_assert_str_eq(s.s, "{\"s\":\"q\\\"\\\\\\n\\u0001\xc3\xa9\",\"n\":\"replaced in place\",\"a\":[1,\"x\",0.5,{\"t\":true},[]],"
                          "\"o\":{},\"c\":[1,\"x\",0.5,{\"t\":true},[]]}");
    ck_ok(mla_json_parse(&copy, s.s, s.len, "x", &err));
    mla_str_clear(&s);
    ck_ok(mla_json_print(&s, mla_jv_get(mla_json_root(copy), "c"), true, &err));
    ck_assert_str_eq(s.s, "[\n  1,\n  \"x\",\n  0.5,\n  {\n    \"t\": true\n  },\n  []\n]\n");
    mla_str tiny = MLA_STR_MAX(10);
    ck_refused(mla_json_print(&tiny, r, false, &err), MLA_ENOMEM, "JSON text");
    ck_assert_ptr_null(mla_jv_set_str(NULL, "k", "v"));
    ck_assert_ptr_null(mla_jv_set_str(a, "k", "v"));       /* an array has no keys */
    ck_assert_ptr_null(mla_jv_add_str(r, "v"));            /* an object is no array */
    ck_assert_ptr_null(mla_jv_set_str(r, "k", NULL));
    mla_str_free(&s);
    mla_str_free(&tiny);
    mla_json_free(copy);
    mla_json_free(d);
}
END_TEST

START_TEST(replacing_the_first_last_and_only_child_keeps_the_list)
{
    mla_err err;
    mla_json *d;
    ck_ok(mla_json_new_object(&d, &err));
    mla_jv *r = mla_json_root(d);
    mla_jv_set_size(r, "a", 1);
    mla_jv_set_size(r, "a", 2); /* only */
    mla_jv_set_size(r, "b", 3);
    mla_jv_set_size(r, "b", 4); /* last */
    mla_jv_set_size(r, "a", 5); /* first */
    mla_jv_set_size(r, "c", 6); /* an append after replacements */
    mla_jv_remove(r, "c");
    mla_jv_set_size(r, "d", 7);
    mla_str s = MLA_STR_MAX(1000);
    ck_ok(mla_json_print(&s, r, false, &err));
    ck_assert_str_eq(s.s, "{\"a\":5,\"b\":4,\"d\":7}");
    mla_str_free(&s);
    mla_json_free(d);
}
END_TEST

START_TEST(many_keys_are_linear)
{
    mla_err err;
    mla_json *d, *back;
    char key[64];
    size_t n = 200000, v; /* half a second; quadratic: beyond the time that a test has */
    ck_ok(mla_json_new_object(&d, &err));
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "model.layers.%zu.weight", i);
        ck_assert_ptr_nonnull(mla_jv_put_size(mla_json_root(d), key, i));
    }
    mla_str s = MLA_STR_MAX(1 << 24);
    ck_ok(mla_json_print(&s, mla_json_root(d), false, &err));
    ck_ok(mla_json_parse(&back, s.s, s.len, "x", &err));
    mla_jindex *x;
    ck_ok(mla_json_index(&x, mla_json_root(back), &err));
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "model.layers.%zu.weight", i);
        ck_assert(mla_jv_size(mla_jindex_get(x, key), &v) && v == i);
    }
    ck_assert_ptr_null(mla_jindex_get(x, "absent"));
    mla_jindex_free(x);
    ck_refused(mla_json_index(&x, mla_jv_first(mla_json_root(back)), &err), MLA_EINVAL, "expected an object");
    /* the same text with one duplicate at the far end */
    s.s[s.len - 1] = ',';
    mla_str_put(&s, "\"model.layers.7.weight\":1}");
    mla_json *dup;
    ck_refused(mla_json_parse(&dup, s.s, s.len, "x", &err), MLA_EFORMAT, "model.layers.7.weight");
    mla_json_free(back);
    mla_json_free(d);
    mla_str_free(&s);
}
END_TEST

START_TEST(files_read_and_write)
{
    mla_err err;
    mla_json *d;
    char *dir = mla_test_tmpdir();
    ck_ok(mla_json_new_object(&d, &err));
    mla_jv_set_str(mla_json_root(d), "name", "value");
    ck_ok(mla_json_write(in_dir(dir, "a.json"), mla_json_root(d), &err));
    mla_json_free(d);
    ck_ok(mla_json_read(&d, in_dir(dir, "a.json"), 1000, &err));
    ck_assert_str_eq(mla_jv_str(mla_jv_get(mla_json_root(d), "name")), "value");
    mla_json_free(d);
    put_file(dir, "bad.json", "{\"a\"}", 5);
    ck_refused(mla_json_read(&d, in_dir(dir, "bad.json"), 1000, &err), MLA_EFORMAT, "bad.json: byte 4 ('}'): expected ':'");
    ck_refused(mla_json_read(&d, in_dir(dir, "a.json"), 4, &err), MLA_EFORMAT, "at most 4");
    drop_dir(dir);
}
END_TEST

Suite *json_suite(void)
{
    Suite *s = suite_create("json");
    TCase *t = tcase_create("json");
    tcase_add_loop_test(t, everything_that_is_not_json_is_refused, 0, (int)(sizeof BAD / sizeof *BAD));
    tcase_add_test(t, what_is_json_is_accepted);
    tcase_add_test(t, depth_is_bounded);
    tcase_add_test(t, number_of_values_is_bounded);
    tcase_add_test(t, text_need_not_end_with_nul);
    tcase_add_test(t, numbers_keep_their_value_or_are_refused);
    tcase_add_test(t, printing_gives_shortest_digits_that_read_back);
    tcase_add_test(t, editing_and_printing);
    tcase_add_test(t, replacing_the_first_last_and_only_child_keeps_the_list);
    tcase_add_test(t, many_keys_are_linear);
    tcase_add_test(t, files_read_and_write);
    suite_add_tcase(s, t);
    return s;
}
