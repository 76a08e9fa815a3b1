/* JUnit is well-formed and says what the document says, Markdown keeps to its size. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "verify/parity/parity.h"
#include "verify/report/report.h"
#include "xml.h"

static mla_json *parse(const char *text)
{
    mla_err err = {0};
    mla_json *d;
    ck_ok(mla_json_parse(&d, text, strlen(text), "document", &err));
    return d;
}

static const char DOC[] =
    "{\"schema\":\"mla-parity/1\",\"verdict\":\"fail\",\"model\":{\"name\":\"m<|>\",\"root_digest\":\"sha256:00\"},\"gates\":["
    "{\"name\":\"agreement\",\"verdict\":\"fail\",\"reason\":\"5 < 6 & \\\"7\\\" \\u0001 'x' ]]> \\ufffe line\\nbreak\"},"
    "{\"name\":\"decode\",\"verdict\":\"pass\",\"reason\":\"ok\"},"
    "{\"name\":\"kld\",\"verdict\":\"not enough evidence\",\"reason\":\"|none|\"}],"
    "\"findings\":[{\"name\":\"files\",\"text\":\"a.txt: present\"}],"
    "\"positions\":10,\"agree\":9,\"agreement\":0.9,\"confident\":{\"positions\":4,\"agree\":4,\"agreement\":1}}";

START_TEST(junit_is_well_formed_and_counts)
{
    mla_err err = {0};
    mla_json *d = parse(DOC);
    mla_str s = MLA_STR_MAX(1 << 20);
    size_t n;
    ck_ok(mla_report_junit(&s, mla_json_root(d), &err));
    const char *bad = xml_check(s.s, "testcase", &n);
    ck_assert_msg(!bad, "%s in\n%s", bad, s.s);
    ck_assert_uint_eq(n, 4);
    ck_assert_ptr_null(xml_check(s.s, "failure", &n));
    ck_assert_uint_eq(n, 2);
    ck_assert_ptr_null(xml_check(s.s, "error", &n));
    ck_assert_uint_eq(n, 1);
    ck_assert_ptr_nonnull(strstr(s.s, "tests=\"4\" failures=\"2\" errors=\"1\" skipped=\"0\""));
    ck_assert_ptr_nonnull(strstr(s.s, "5 &lt; 6 &amp; &quot;7&quot; ?"));
    ck_assert_ptr_null(strstr(s.s, "\x01"));
    mla_str_free(&s);
    mla_json_free(d);
}
END_TEST

START_TEST(xml_check_can_fail)
{
    size_t n;
    ck_assert_ptr_nonnull(xml_check("<a><b></a></b>", "a", &n));
    ck_assert_ptr_nonnull(xml_check("<a x=\"<\"/>", "a", &n));
    ck_assert_ptr_nonnull(xml_check("<a>&nbsp;</a>", "a", &n));
    ck_assert_ptr_nonnull(xml_check("<a/><b/>", "a", &n));
    ck_assert_ptr_nonnull(xml_check("<a>\x01</a>", "a", &n));
    ck_assert_ptr_null(xml_check("<?xml version=\"1.0\"?><a x=\"1\"><b/></a>\n", "b", &n));
    ck_assert_uint_eq(n, 1);
}
END_TEST

START_TEST(markdown_says_the_verdict)
{
    mla_err err = {0};
    mla_json *d = parse(DOC);
    mla_str s = MLA_STR_MAX(1 << 22);
    ck_ok(mla_report_markdown(&s, mla_json_root(d), &err));
    ck_assert_ptr_nonnull(strstr(s.s, "m\\<\\|\\> - fail"));
    ck_assert_ptr_nonnull(strstr(s.s, "| kld | **not enough evidence** | \\|none\\| |"));
    ck_assert_ptr_nonnull(strstr(s.s, "- a.txt: present"));
    mla_str_free(&s);
    mla_json_free(d);
}
END_TEST

START_TEST(markdown_stays_below_a_megabyte)
{
    mla_err err = {0};
    mla_json *d = parse(DOC);
    mla_str s = MLA_STR_MAX(1 << 24);
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    mla_jv *list = mla_jv_set_arr(mla_json_root(d), "findings");
    for (int i = 0; i < 3000; i++) mla_jv_set_str(mla_jv_add_obj(list), "text", text);
    mla_jv *dis = mla_jv_set_arr(mla_json_root(d), "disagreements");
    for (int i = 0; i < 3000; i++) mla_jv_set_str(mla_jv_add_obj(dis), "case", text);
    mla_jv_set_size(mla_json_root(d), "disagreements_total", 3000);
    ck_ok(mla_report_markdown(&s, mla_json_root(d), &err));
    ck_assert_uint_lt(s.len, 1024 * 1024);
    ck_assert_ptr_nonnull(strstr(s.s, "more in the JSON report"));
    mla_str_free(&s);
    mla_json_free(d);
}
END_TEST

Suite *suite_report(void)
{
    Suite *s = suite_create("report");
    TCase *t = tcase_create("report");
    tcase_add_test(t, junit_is_well_formed_and_counts);
    tcase_add_test(t, xml_check_can_fail);
    tcase_add_test(t, markdown_says_the_verdict);
    tcase_add_test(t, markdown_stays_below_a_megabyte);
    suite_add_tcase(s, t);
    return s;
}
