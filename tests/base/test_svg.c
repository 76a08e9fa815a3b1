/* Charts are well-formed, draw what can be drawn and nothing else, and come out the same every time. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/svg.h"
#include "harness.h"
#include "xml.h"

/* Elements named `tag` in the chart, which must be well-formed and free of non-finite numbers. */
static size_t count(const mla_svg_chart *c, const char *tag, mla_str *out)
{
    mla_err err = {0};
    mla_str again = MLA_STR_MAX(1 << 20);
    size_t n;
    mla_str_clear(out);
    ck_ok(mla_svg_write(out, c, &err));
    ck_ok(mla_svg_write(&again, c, &err));
    ck_assert_str_eq(out->s, again.s);
    mla_str_free(&again);
    const char *bad = xml_check(out->s, tag, &n);
    ck_assert_msg(!bad, "%s in\n%s", bad, out->s);
    ck_assert_ptr_null(strstr(out->s, "nan"));
    ck_assert_ptr_null(strstr(out->s, "inf"));
    return n;
}

START_TEST(gaps_and_escapes)
{
    double x[] = {1, 2, 3, 4, 5}, y[] = {1e-6, 1e-3, 0, 1e-2, NAN}, rule = 1e-4;
    mla_svg_series series[] = {{.label = "a & b", .x = x, .y = y, .n = 5}, {.label = "\x01\xff", .y = x, .n = 5}};
    mla_svg_chart c = {.title = "<t>\"'", .x_label = "x", .y_label = "y", .log_y = true, .rule = &rule, .series = series, .n = 2};
    mla_str s = MLA_STR_MAX(1 << 20);
    ck_assert_uint_eq(count(&c, "polyline", &s), 3); /* the zero cuts the first line in two */
    ck_assert_ptr_nonnull(strstr(s.s, "&lt;t&gt;&quot;&#39;"));
    ck_assert_ptr_nonnull(strstr(s.s, "a &amp; b"));
    ck_assert_ptr_nonnull(strstr(s.s, ">?" "?<"));
    ck_assert_uint_eq(count(&c, "circle", &s), 3 + 5);
    series[0].kind = MLA_SVG_BARS;
    c.log_y = false;
    ck_assert_uint_eq(count(&c, "rect", &s), 1 + 4); /* the background, and the four finite bars */
    ck_assert_ptr_nonnull(strstr(s.s, "prefers-color-scheme:dark"));
    c.n = 0;
    (void)count(&c, "text", &s);
    ck_assert_ptr_nonnull(strstr(s.s, "no data"));
    mla_str_free(&s);
}
END_TEST

START_TEST(steps_hold_their_value)
{
    double y[] = {4, 2, 0};
    mla_svg_series series[] = {{.y = y, .n = 3, .kind = MLA_SVG_STEP}};
    mla_str s = MLA_STR_MAX(1 << 20);
    ck_assert_uint_eq(count(&(mla_svg_chart){.series = series, .n = 1}, "polyline", &s), 1);
    double p[5][2];
    const char *at = strstr(s.s, "points=\"");
    ck_assert_int_eq(sscanf(at, "points=\"%lf,%lf %lf,%lf %lf,%lf %lf,%lf %lf,%lf\"", &p[0][0], &p[0][1], &p[1][0], &p[1][1], &p[2][0], &p[2][1],
                            &p[3][0], &p[3][1], &p[4][0], &p[4][1]), 10);
    for (size_t i = 1; i < 5; i++) ck_assert(p[i][0] == p[i - 1][0] || p[i][1] == p[i - 1][1]); /* never slanted */
    ck_assert(p[1][1] == p[0][1] && p[2][1] > p[1][1] && p[2][0] == p[1][0]);
    mla_str_free(&s);
}
END_TEST

START_TEST(bands_and_bars_side_by_side)
{
    double lo[] = {1, 2, NAN, 3}, hi[] = {2, 4, 5, 6}, mid[] = {1.5, 3, 4, 5}, neg[] = {-1, 2, -3, 4};
    mla_svg_series series[] = {{.label = "mean", .y = mid, .n = 4}, {.y = lo, .hi = hi, .n = 4, .kind = MLA_SVG_BAND}};
    mla_svg_chart c = {.series = series, .n = 2};
    mla_str s = MLA_STR_MAX(1 << 20);
    ck_assert_uint_eq(count(&c, "polygon", &s), 2); /* cut where the lower edge is missing */
    ck_assert_ptr_nonnull(strstr(s.s, "class=\"n c0\"")); /* in the colour of its line */
    ck_assert_ptr_null(strstr(s.s, "class=\"n c1\""));
    mla_svg_series bars[] = {{.label = "a", .y = mid, .n = 4, .kind = MLA_SVG_BARS}, {.label = "b", .y = neg, .n = 4, .kind = MLA_SVG_BARS}};
    c = (mla_svg_chart){.series = bars, .n = 2};
    ck_assert_uint_eq(count(&c, "rect", &s), 1 + 8);
    ck_assert_ptr_null(strstr(s.s, "height=\"-")); /* bars below zero hang, they are not negative */
    mla_str_free(&s);
}
END_TEST

/* Counts get whole ticks, a close-up does not begin at zero, few decades end where the data do, bars have no tick beyond them. */
START_TEST(ticks_say_what_they_stand_for)
{
    double share[] = {0.975, 0.98, 1, 0.99}, context[] = {256, 512, 1024, 12000}, odd[] = {1, 3, 5, 7};
    mla_svg_series one = {.y = share, .n = 4};
    mla_svg_chart c = {.series = &one, .n = 1};
    mla_str s = MLA_STR_MAX(1 << 20);
    (void)count(&c, "text", &s);
    for (size_t i = 0; i < 4; i++) ck_assert_ptr_nonnull(strstr(s.s, (const char *[]){">0<", ">1<", ">2<", ">3<"}[i]));
    ck_assert_ptr_null(strstr(s.s, ">1.5<"));
    ck_assert_ptr_null(strstr(s.s, ">-0<"));
    c.close_up = c.log_x = true;
    one.x = context;
    (void)count(&c, "text", &s);
    ck_assert_ptr_null(strstr(s.s, ">0<"));
    for (size_t i = 0; i < 3; i++) ck_assert_ptr_nonnull(strstr(s.s, (const char *[]){">200<", ">10000<", ">20000<"}[i]));
    ck_assert_ptr_null(strstr(s.s, ">100<"));
    c = (mla_svg_chart){.series = &one, .n = 1, .close_up = true};
    one.x = odd;
    one.kind = MLA_SVG_BARS;
    (void)count(&c, "text", &s);
    ck_assert_ptr_null(strstr(s.s, ">-1<"));
    ck_assert_ptr_nonnull(strstr(s.s, ">0<")); /* heights of bars compare from zero, whatever is asked */
    ck_assert_ptr_nonnull(strstr(s.s, ">7<"));
    mla_str_free(&s);
}
END_TEST

START_TEST(a_ramp_takes_a_series_per_layer)
{
    enum { N = MLA_SVG_SERIES_MAX };
    double y[2][2] = {{1, 2}, {3, 1}};
    mla_svg_series series[N + 1];
    mla_err err = {0};
    mla_str s = MLA_STR_MAX(1 << 20);
    for (size_t i = 0; i <= N; i++) series[i] = (mla_svg_series){.label = i % (N - 1) ? NULL : "layer", .y = y[i % 2], .n = 2};
    mla_svg_chart c = {.series = series, .n = N, .ramp = true, .log_y = true};
    ck_assert_uint_eq(count(&c, "polyline", &s), N);
    ck_assert_ptr_nonnull(strstr(s.s, "color:#4a6fd0")); /* both ends of the ramp */
    ck_assert_ptr_nonnull(strstr(s.s, "color:#d0455a"));
    c.n = N + 1;
    mla_str_clear(&s);
    ck_refused(mla_svg_write(&s, &c, &err), MLA_EINVAL, "129 series: at most 128");
    c.n = MLA_SVG_COLORS + 1;
    c.ramp = false;
    ck_refused(mla_svg_write(&s, &c, &err), MLA_EINVAL, "10 series: at most 9");
    mla_str_free(&s);
}
END_TEST

/* A flat line, one point, and enormous or tiny ranges still give finite coordinates; short logarithmic ranges get more ticks. */
START_TEST(degenerate_ranges)
{
    static const double CASE[][2] = {{0, 0}, {5, 5}, {-3, -3}, {1e-300, 2e-300}, {-1e300, 1e300}, {1, 1.0000000001}};
    mla_str s = MLA_STR_MAX(1 << 20);
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        mla_svg_series series[] = {{.y = CASE[i], .n = 2}};
        ck_assert_uint_eq(count(&(mla_svg_chart){.series = series, .n = 1}, "polyline", &s), 1);
    }
    double y[] = {0.2, 0.7};
    mla_svg_series series[] = {{.y = y, .n = 2}};
    (void)count(&(mla_svg_chart){.series = series, .n = 1, .log_y = true}, "text", &s);
    ck_assert_ptr_nonnull(strstr(s.s, ">0.2<"));
    ck_assert_ptr_nonnull(strstr(s.s, ">0.5<"));
    mla_str_free(&s);
    mla_str small = MLA_STR_MAX(256);
    mla_err err = {0};
    ck_refused(mla_svg_write(&small, &(mla_svg_chart){.series = series, .n = 1}, &err), MLA_ENOMEM, "more than 256 bytes");
    mla_str_free(&small);
}
END_TEST

Suite *suite_svg(void);
Suite *suite_svg(void)
{
    Suite *s = suite_create("svg");
    TCase *t = tcase_create("svg");
    tcase_add_test(t, gaps_and_escapes);
    tcase_add_test(t, steps_hold_their_value);
    tcase_add_test(t, bands_and_bars_side_by_side);
    tcase_add_test(t, ticks_say_what_they_stand_for);
    tcase_add_test(t, a_ramp_takes_a_series_per_layer);
    tcase_add_test(t, degenerate_ranges);
    suite_add_tcase(s, t);
    return s;
}
