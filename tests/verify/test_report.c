/* JUnit is well-formed and says what the document says, Markdown keeps to its size, charts are well-formed SVG. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/svg.h"
#include "suites.h"
#include "verify/parity.h"
#include "verify/report.h"
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

START_TEST(svg_lines_bars_gaps)
{
    mla_err err = {0};
    mla_str s = MLA_STR_MAX(1 << 20);
    double x[] = {1, 2, 3, 4, 5}, y[] = {1e-6, 1e-3, 0, 1e-2, NAN}, rule = 1e-4;
    mla_svg_series series[] = {{"a & b", x, y, 5}, {"second", NULL, x, 5}};
    mla_svg_chart c = {.title = "<t>", .x_label = "x", .y_label = "y", .log_y = true, .rule = &rule, .series = series, .n = 2};
    size_t n;
    ck_ok(mla_svg_write(&s, &c, &err));
    const char *bad = xml_check(s.s, "polyline", &n);
    ck_assert_msg(!bad, "%s in\n%s", bad, s.s);
    ck_assert_uint_eq(n, 3); /* the zero cuts the first line in two */
    ck_assert_ptr_null(strstr(s.s, "nan"));
    ck_assert_ptr_null(strstr(s.s, "inf"));
    mla_str again = MLA_STR_MAX(1 << 20);
    ck_ok(mla_svg_write(&again, &c, &err));
    ck_assert_str_eq(s.s, again.s);
    mla_str_clear(&s);
    c.log_y = false;
    c.bars = true;
    ck_ok(mla_svg_write(&s, &c, &err));
    ck_assert_ptr_null(xml_check(s.s, "rect", &n));
    ck_assert_uint_eq(n, 1 + 4); /* the background, and the four finite bars */
    mla_str_clear(&s);
    c.n = 0;
    ck_ok(mla_svg_write(&s, &c, &err));
    ck_assert_ptr_nonnull(strstr(s.s, "no data"));
    c.n = 9;
    ck_refused(mla_svg_write(&s, &c, &err), MLA_EINVAL, "9 series");
    mla_str_free(&s);
    mla_str_free(&again);
}
END_TEST

/* A flat line, one point, and enormous or tiny ranges still give finite coordinates. */
START_TEST(svg_degenerate_ranges)
{
    static const double CASE[][2] = {{0, 0}, {5, 5}, {-3, -3}, {1e-300, 2e-300}, {-1e300, 1e300}, {1, 1.0000000001}};
    mla_err err = {0};
    size_t n;
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        mla_str s = MLA_STR_MAX(1 << 20);
        mla_svg_series series[] = {{NULL, NULL, CASE[i], 2}};
        ck_ok(mla_svg_write(&s, &(mla_svg_chart){.series = series, .n = 1}, &err));
        ck_assert_ptr_null(xml_check(s.s, "polyline", &n));
        ck_assert_uint_eq(n, 1);
        ck_assert_ptr_null(strstr(s.s, "nan"));
        ck_assert_ptr_null(strstr(s.s, "inf"));
        mla_str_free(&s);
    }
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
    tcase_add_test(t, svg_lines_bars_gaps);
    tcase_add_test(t, svg_degenerate_ranges);
    suite_add_tcase(s, t);
    return s;
}
