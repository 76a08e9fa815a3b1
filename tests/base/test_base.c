/* base: errors, checked sizes, text, map, pool, random numbers. */
#include <stdio.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "base/map.h"
#include "base/par.h"
#include "base/rng.h"
#include "base/str.h"
#include "harness.h"

START_TEST(error_context_and_exit_codes)
{
    mla_err err = {0};
    ck_assert_int_eq(mla_fail(&err, MLA_EFORMAT, "rank %d", 3), MLA_EFORMAT);
    ck_assert_int_eq(mla_wrap(&err, "layer %d", 7), MLA_EFORMAT);
    ck_assert_str_eq(err.msg, "layer 7: rank 3");
    (void)mla_fail(&err, MLA_EFORMAT, "method \"%s\"", "a\nb\x1b[31m\x7f\t\xc3\xa9");
    ck_assert_str_eq(err.msg, "method \"a?b?[31m??\xc3\xa9\"");
    (void)mla_wrap(&err, "file \"%s\"", "x\r\ny");
    ck_assert_str_eq(err.msg, "file \"x??y\": method \"a?b?[31m??\xc3\xa9\"");
    mla_err of[4] = {0}, first = {0};
    ck_assert_int_eq(mla_first_error(of, 4, &first), MLA_OK);
    (void)mla_fail(&of[3], MLA_EIO, "later");
    (void)mla_fail(&of[2], MLA_ENOMEM, "earlier");
    ck_assert_int_eq(mla_first_error(of, 4, &first), MLA_ENOMEM);
    ck_assert_str_eq(first.msg, "earlier");
    ck_assert_int_eq(mla_exit_code(MLA_OK), 0);
    ck_assert_int_eq(mla_exit_code(MLA_EDIFFER), 1);
    ck_assert_int_eq(mla_exit_code(MLA_EINVAL), 2);
    ck_assert_int_eq(mla_exit_code(MLA_EIO), 3);
}
END_TEST

START_TEST(sizes_do_not_wrap)
{
    size_t v;
    uint64_t u;
    ck_assert(!mla_mul(&v, SIZE_MAX / 2, 3));
    ck_assert(!mla_align_up64(&u, UINT64_MAX - 3, 32));
    ck_assert(mla_align_up64(&u, 33, 32) && u == 64);
    ck_assert_ptr_null(mla_alloc(SIZE_MAX / 4, 8, 4));
    /* 4194305 * 4194305 * 211106198978564 wraps to exactly 4 in 64 bits */
    ck_assert_ptr_null(mla_alloc(4194305, 4194305, 211106198978564u));
}
END_TEST

START_TEST(text_has_a_maximum)
{
    mla_str b = MLA_STR_MAX(8);
    mla_str_put(&b, "12345678");
    ck_assert(mla_str_ok(&b));
    mla_str_put(&b, "9");
    ck_assert(!mla_str_ok(&b));
    ck_assert_str_eq(mla_str_c(&b), "12345678");
    mla_str_free(&b);
    double v;
    ck_assert(mla_parse_bytes("96GB", &v) && v == 96e9);
    ck_assert(mla_parse_bytes("24GiB", &v) && v == 24.0 * 1073741824);
    ck_assert(!mla_parse_bytes("-1", &v) && !mla_parse_bytes("9x", &v));
    size_t n;
    ck_assert(!mla_parse_size("18446744073709551616", &n) && !mla_parse_size("", &n) && mla_parse_size("42", &n) && n == 42);
    ck_assert(mla_utf8_valid("a\xc3\xa9", 3) && !mla_utf8_valid("\xed\xa0\x80", 3) && !mla_utf8_valid("\xc0\x80", 2));
}
END_TEST

START_TEST(map_finds_every_key)
{
    mla_map *m;
    mla_err err;
    ck_ok(mla_map_new(&m, &err));
    char key[32];
    for (size_t i = 0; i < 5000; i++) {
        bool had;
        int n = snprintf(key, sizeof key, "layers.%zu", i);
        ck_ok(mla_map_add(m, key, (size_t)n, i, &had, &err));
        ck_assert(!had);
    }
    bool had;
    ck_ok(mla_map_add(m, "layers.7", 8, 99, &had, &err));
    ck_assert(had);
    for (size_t i = 0; i < 5000; i++) {
        size_t v;
        int n = snprintf(key, sizeof key, "layers.%zu", i);
        ck_assert(mla_map_get(m, key, (size_t)n, &v) && v == i);
        ck_assert_str_eq(mla_map_key(m, i, NULL), key);
    }
    ck_assert(!mla_map_has(m, "layers.5000"));
    mla_map_free(m);
}
END_TEST

static void add_piece(void *ctx, size_t b, size_t e, size_t w)
{
    (void)w;
    unsigned char *seen = ctx;
    for (size_t i = b; i < e; i++) seen[i]++;
}

START_TEST(parallel_for_covers_once)
{
    mla_pool *p;
    mla_err err;
    ck_ok(mla_pool_new(&p, 3, &err));
    static unsigned char seen[1000];
    for (int r = 0; r < 200; r++) mla_par_for(p, 1000, 7, add_piece, seen);
    for (size_t i = 0; i < 1000; i++) ck_assert_uint_eq(seen[i], 200);
    mla_pool_free(p);
}
END_TEST

START_TEST(random_numbers_are_functions_of_index)
{
    ck_assert_uint_eq(mla_rng_u64(1, 5), mla_rng_u64(1, 5));
    double s = 0, s2 = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        double v = mla_rng_normal(7, i);
        s += v;
        s2 += v * v;
        ck_assert(mla_rng_below(3, i, 10) < 10);
    }
    ck_assert(s / 20000 < 0.04 && s / 20000 > -0.04); /* 5 sigma = 0.035 */
    ck_assert(s2 / 20000 > 0.94 && s2 / 20000 < 1.06); /* 5 sigma = 0.05 */
}
END_TEST

START_TEST(allocation_can_be_made_to_fail)
{
    mla_err err;
    int failures = 0;
    for (long k = 0;; k++) {
        mla_map *m = NULL;
        mla_alloc_fail_after(k);
        mla_status st = mla_map_new(&m, &err);
        if (st == MLA_OK) st = mla_map_add(m, "a", 1, 1, NULL, &err);
        mla_alloc_fail_after(-1);
        mla_map_free(m);
        if (st == MLA_OK) break;
        ck_assert_int_eq(st, MLA_ENOMEM);
        failures++;
    }
    ck_assert_int_eq(failures, 4);
}
END_TEST

Suite *suite_base(void);
Suite *suite_base(void)
{
    Suite *s = suite_create("base");
    TCase *c = tcase_create("base");
    tcase_add_test(c, error_context_and_exit_codes);
    tcase_add_test(c, sizes_do_not_wrap);
    tcase_add_test(c, text_has_a_maximum);
    tcase_add_test(c, map_finds_every_key);
    tcase_add_test(c, parallel_for_covers_once);
    tcase_add_test(c, random_numbers_are_functions_of_index);
    tcase_add_test(c, allocation_can_be_made_to_fail);
    suite_add_tcase(s, c);
    return s;
}

Suite *suite_svg(void);

int main(void)
{
    const mla_suite_fn all[] = {suite_base, suite_svg};
    return mla_test_main("base", all, sizeof all / sizeof *all);
}
