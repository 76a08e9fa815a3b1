/* tensor: float codecs against definitions written independently, comparisons that NaN cannot pass. */
#include <math.h>
#include <string.h>

#include "harness.h"
#include "tensor/bound.h"
#include "tensor/compare.h"
#include "tensor/dtype.h"
#include "tensor/fp.h"
#include "tensor/tensor.h"

/* value of an e4m3 code from its definition */
static double e4m3_def(unsigned b)
{
    int e = (int)(b >> 3 & 15), m = (int)(b & 7);
    if (e == 15 && m == 7) return NAN;
    double v = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
    return b & 0x80 ? -v : v;
}

START_TEST(e4m3_codes)
{
    for (unsigned b = 0; b < 256; b++) {
        double want = e4m3_def(b), got = mla_e4m3_f32((uint8_t)b);
        if (isnan(want)) {
            ck_assert(isnan(got));
            continue;
        }
        ck_assert(got == want && signbit(got) == signbit(want));
        ck_assert_uint_eq(mla_f32_e4m3((float)want), b);
    }
    /* nearest, ties to even: brute force over a fine grid */
    for (int i = -70000; i <= 70000; i++) {
        float x = (float)i * (460.0f / 70000.0f) * (i % 3 ? 1.0f : 0.001f);
        double best = INFINITY;
        unsigned code = 0;
        for (unsigned b = 0; b < 256; b++) {
            double v = e4m3_def(b);
            if (isnan(v) || (signbit(v) != 0) != (signbit(x) != 0)) continue;
            double d = fabs(v - (double)x);
            if (d < best || (d == best && !(b & 1))) best = d, code = b;
        }
        ck_assert_msg(mla_f32_e4m3(x) == code, "%.9g -> %02x, wanted %02x", (double)x, mla_f32_e4m3(x), code);
    }
    ck_assert_uint_eq(mla_f32_e4m3(1e30f), 0x7e);
    ck_assert_uint_eq(mla_f32_e4m3(-INFINITY), 0xfe);
    ck_assert_uint_eq(mla_f32_e4m3(NAN) & 0x7f, 0x7f);
    ck_assert_uint_eq(mla_f32_e4m3(0x1p-10f), 0);        /* half of the smallest subnormal: tie to even */
    ck_assert_uint_eq(mla_f32_e4m3(0x1.02p-10f), 1);
}
END_TEST

START_TEST(f16_and_bf16_codes)
{
    for (unsigned h = 0; h < 65536; h++) {
        float x = mla_f16_f32((uint16_t)h);
        int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
        double want = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1 + m / 1024.0, e - 15) : ldexp(m / 1024.0, -14);
        if (h & 0x8000) want = -want;
        if (isnan(want)) ck_assert(isnan(x));
        else {
            ck_assert(x == want);
            ck_assert_uint_eq(mla_f32_f16(x), h);
        }
        float y = mla_bf16_f32((uint16_t)h);
        if (!isnan(y)) ck_assert_uint_eq(mla_f32_bf16(y), h);
        else ck_assert(isnan(mla_bf16_f32(mla_f32_bf16(y))));
    }
    ck_assert_uint_eq(mla_f32_f16(65519.99f), 0x7bff);
    ck_assert_uint_eq(mla_f32_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(mla_f32_f16(1.0f + 0x1p-11f), 0x3c00);            /* tie to even */
    ck_assert_uint_eq(mla_f32_f16(1.0f + 0x1p-10f + 0x1p-11f), 0x3c02); /* tie to even, upwards */
    ck_assert_uint_eq(mla_f32_f16(0x1p-25f), 0);
    ck_assert_uint_eq(mla_f32_bf16(1.0f + 0x1p-8f), 0x3f80);
}
END_TEST

START_TEST(nan_never_passes)
{
    float a[5] = {1, 2, 3, 4, 5}, b[5] = {1, 2, 3, 4, 5};
    ck_assert(mla_cmp_ok(mla_compare(a, b, 5), 0));
    b[2] = 3.5f;
    mla_cmp c = mla_compare(a, b, 5);
    ck_assert(c.worst == 2 && c.max_abs == 0.5 && !mla_cmp_ok(c, 0.4) && mla_cmp_ok(c, 0.5));
    a[2] = NAN;
    ck_assert(!mla_cmp_ok(mla_compare(a, b, 5), INFINITY));
    for (int i = 0; i < 5; i++) a[i] = b[i] = NAN;
    ck_assert(!mla_cmp_ok(mla_compare(a, b, 5), INFINITY));
    ck_assert(!mla_cmp_ok(mla_compare(b, b, 5), NAN));
}
END_TEST

/* Numbers that are not finite, at every place of short arrays and at some of long ones, which are looked at in blocks. */
START_TEST(odd_numbers_are_counted)
{
    static float x[13000];
    for (size_t n = 0; n < 13000; n += n < 40 ? 1 : 977)
        for (size_t p = 0, f = 99; p < n; p += n / 37 + 1) {
            for (size_t i = 0; i < n; i++) x[i] = i % 3 ? -3.4e38f : 0;
            ck_assert_uint_eq(mla_count_nonfinite(x, n, &f), 0);
            x[p] = p % 2 ? NAN : -INFINITY;
            if (n > p + 5000) x[p + 4999] = INFINITY;
            ck_assert_uint_eq(mla_count_nonfinite(x, n, &f), 1u + (n > p + 5000));
            ck_assert_uint_eq(f, p);
        }
    ck_assert_uint_eq(mla_count_nonfinite(x, 0, NULL), 0);
}
END_TEST

START_TEST(dtype_table)
{
    mla_dtype t;
    for (unsigned i = 0; i < MLA_DTYPE_N; i++) {
        ck_assert(mla_dtype_parse(mla_dtype_name((mla_dtype)i), &t));
        ck_assert_uint_eq(t, i);
    }
    ck_assert(!mla_dtype_parse("bf16", &t));
    char buf[64];
    mla_tensor v = {.dtype = MLA_BF16, .ndim = 2, .shape = {128, 256}};
    ck_assert_str_eq(mla_tensor_text(&v, buf, sizeof buf), "BF16 [128, 256]");
    ck_assert(mla_gamma(MLA_F32, 1000) > 5.9e-5 && mla_gamma(MLA_F32, 1000) < 6.1e-5);
    float x[3] = {1, -2.5f, 0.1f}, y[3];
    uint16_t h[3];
    ck_assert(mla_from_f32(h, x, MLA_BF16, 3) && mla_to_f32(y, h, MLA_BF16, 3) && y[1] == -2.5f && y[2] != 0.1f);
}
END_TEST

Suite *suite_tensor(void);
Suite *suite_tensor(void)
{
    Suite *s = suite_create("tensor");
    TCase *c = tcase_create("tensor");
    tcase_add_test(c, e4m3_codes);
    tcase_add_test(c, f16_and_bf16_codes);
    tcase_add_test(c, nan_never_passes);
    tcase_add_test(c, odd_numbers_are_counted);
    tcase_add_test(c, dtype_table);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    const mla_suite_fn all[] = {suite_tensor};
    return mla_test_main("tensor", all, 1);
}
