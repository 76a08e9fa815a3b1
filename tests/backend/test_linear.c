/* Linear layers: both precisions against fp64, the f32 contract bit by bit across variants, threads and token counts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lab.h"
#include "tensor/bound.h"
#include "tensor/fp.h"

static const struct {
    size_t T, in, out;
} SHAPES[] = {
    {1, 1, 1},     {1, 256, 32},  {3, 31, 33},   {2, 257, 31},   {14, 64, 64},  {15, 255, 97}, {31, 513, 160},
    {33, 33, 257}, {1, 1030, 35}, {4, 700, 513}, {57, 96, 1056}, {230, 40, 37}, {29, 512, 129},
};
#define NSHAPES (sizeof SHAPES / sizeof *SHAPES)

/* The contract in plain C: panels of 256, one fmaf chain each, panel sums added in order. */
static float contract_dot(const float *x, const float *w, size_t n)
{
    float sum = 0;
    for (size_t p = 0; p < n; p += 256) {
        float s = 0;
        for (size_t k = p; k < n && k < p + 256; k++) s = fmaf(x[k], w[k], s);
        sum = p ? sum + s : s;
    }
    return sum;
}

static void run(mla_backend *be, const mla_weight *w, float *y, size_t ldy, const float *x, size_t ldx, size_t T)
{
    mla_err err = {0};
    ck_ok(be->ops->linear(be, w, &(mla_linear_args){.y = dev(y), .ldy = ldy, .x = dev(x), .ldx = ldx, .T = T}, &err));
}

static void check_f32(mla_backend *be, mla_isa isa)
{
    static float *wanted[NSHAPES]; /* (T, out): no variant's own */
    (void)isa;
    for (size_t s = 0; s < NSHAPES; s++) {
        size_t T = SHAPES[s].T, in = SHAPES[s].in, out = SHAPES[s].out, ldx = in + 3, ldy = out + 5;
        float *x = lab_normals(T * ldx, 10 + s, 1), *w = lab_normals(out * in, 50 + s, 1), *y = lab_poisoned(T * ldy);
        mla_weight *wt = lab_weight(be, w, out, in, MLA_PREC_F32);
        run(be, wt, y, ldy, x, ldx, T);
        if (!wanted[s]) {
            wanted[s] = mla_alloc(T * out, sizeof **wanted, 1);
            for (size_t i = 0; i < T * out; i++) wanted[s][i] = contract_dot(x + i / out * ldx, w + i % out * in, in);
        }
        for (size_t t = 0; t < T; t++)
            for (size_t n = 0; n < out; n++) {
                float want = wanted[s][t * out + n], got = y[t * ldy + n];
                ck_assert_msg(mla_f32_bits(got) == mla_f32_bits(want), "shape %zu (%zu,%zu): %.9g, want %.9g", s, t, n, (double)got, (double)want);
            }
        for (size_t t = 0; t < T; t++)
            for (size_t n = out; n < ldy; n++) ck_assert_msg(isnan(y[t * ldy + n]), "wrote past the row");
        be->ops->weight_free(be, wt);
        mla_free(x), mla_free(w), mla_free(y);
    }
}

START_TEST(f32_is_the_contract_bit_by_bit) { lab_each_isa("f32 linear", 2, check_f32); }
END_TEST

/* bf16: |error| <= gamma_k sum |x w| with the inputs rounded to bf16; the pair instruction flushes subnormal products. */
static void check_bf16(mla_backend *be, mla_isa isa)
{
    (void)isa;
    for (size_t s = 0; s < NSHAPES; s++) {
        size_t T = SHAPES[s].T, in = SHAPES[s].in, out = SHAPES[s].out;
        float *x = lab_normals(T * in, 20 + s, 1), *w = lab_normals(out * in, 60 + s, 1), *y = lab_poisoned(T * out);
        mla_weight *wt = lab_weight(be, w, out, in, MLA_PREC_BF16);
        run(be, wt, y, out, x, in, T);
        for (size_t t = 0; t < T; t++)
            for (size_t n = 0; n < out; n++) {
                double want = 0, mag = 0;
                for (size_t k = 0; k < in; k++) {
                    double p = (double)mla_bf16_f32(mla_f32_bf16(x[t * in + k])) * mla_bf16_f32(mla_f32_bf16(w[n * in + k]));
                    want += p;
                    mag += fabs(p);
                }
                double e = fabs(y[t * out + n] - want), tol = mla_gamma(MLA_F32, in + 1) * mag;
                ck_assert_msg(e <= tol, "shape %zu (%zu,%zu): error %g > %g", s, t, n, e, tol);
            }
        be->ops->weight_free(be, wt);
        mla_free(x), mla_free(w), mla_free(y);
    }
}

START_TEST(bf16_is_within_its_bound) { lab_each_isa("bf16 linear", 2, check_bf16); }
END_TEST

/* Token t of a call of T tokens has the bits of the same token alone, for both precisions and any thread count. */
static void check_split(mla_backend *be, mla_isa isa)
{
    const size_t T = 37, in = 300, out = 170;
    float *x = lab_normals(T * in, 3, 1), *w = lab_normals(out * in, 4, 1), *all = lab_poisoned(T * out), *one = lab_poisoned(T * out);
    for (int p = 0; p < 2; p++) {
        mla_weight *wt = lab_weight(be, w, out, in, p ? MLA_PREC_BF16 : MLA_PREC_F32);
        run(be, wt, all, out, x, in, T);
        for (size_t t = 0, n; t < T; t += n) {
            n = t % 5 + 1 < T - t ? t % 5 + 1 : T - t;
            run(be, wt, one + t * out, out, x + t * in, in, n);
        }
        ck_assert(lab_same_bits("tokens apart", one, all, T * out));
        for (size_t threads = 1; threads <= 5; threads += threads == 3 ? 2 : 1) {
            mla_backend *b2 = lab_open(isa, threads);
            mla_weight *w2 = lab_weight(b2, w, out, in, p ? MLA_PREC_BF16 : MLA_PREC_F32);
            memset(one, 0xff, T * out * sizeof *one);
            run(b2, w2, one, out, x, in, T);
            ck_assert(lab_same_bits("threads", one, all, T * out));
            b2->ops->weight_free(b2, w2);
            mla_backend_close(b2);
        }
        be->ops->weight_free(be, wt);
    }
    one[T * out / 2] = nextafterf(one[T * out / 2], 1e9f); /* negative control */
    ck_assert(!lab_same_bits("control", one, all, T * out));
    mla_free(x), mla_free(w), mla_free(all), mla_free(one);
}

START_TEST(bits_do_not_depend_on_tokens_or_threads) { lab_each_isa("linear split", 2, check_split); }
END_TEST

static void check_bias(mla_backend *be, mla_isa isa)
{
    const size_t T = 5, in = 270, out = 45;
    mla_err err = {0};
    (void)isa;
    float *x = lab_normals(T * in, 5, 1), *w = lab_normals(out * in, 6, 1), *b = lab_normals(out, 7, 1), *y = lab_normals(T * out, 8, 1);
    float *base = lab_copy(y, T * out), *plain = lab_poisoned(T * out);
    mla_weight *wt = lab_weight(be, w, out, in, MLA_PREC_F32);
    run(be, wt, plain, out, x, in, T);
    mla_linear_args a = {.y = dev(y), .ldy = out, .x = dev(x), .ldx = in, .T = T, .bias = dev(b), .accumulate = true};
    ck_ok(be->ops->linear(be, wt, &a, &err));
    for (size_t i = 0; i < T * out; i++) ck_assert(mla_f32_bits(y[i]) == mla_f32_bits(base[i] + (plain[i] + b[i % out])));
    a.accumulate = false;
    ck_ok(be->ops->linear(be, wt, &a, &err));
    for (size_t i = 0; i < T * out; i++) ck_assert(mla_f32_bits(y[i]) == mla_f32_bits(plain[i] + b[i % out]));
    be->ops->weight_free(be, wt);
    mla_free(x), mla_free(w), mla_free(b), mla_free(y), mla_free(base), mla_free(plain);
}

START_TEST(bias_and_accumulate) { lab_each_isa("linear bias", 2, check_bias); }
END_TEST

static void check_embed(mla_backend *be, mla_isa isa)
{
    const size_t V = 70, D = 37;
    const int32_t ids[] = {0, 69, 31, 32, 5, 5};
    mla_err err = {0};
    (void)isa;
    float *w = lab_normals(V * D, 9, 1), *y = lab_poisoned(6 * D);
    for (int p = 0; p < 2; p++) {
        mla_weight *wt = lab_weight(be, w, V, D, p ? MLA_PREC_BF16 : MLA_PREC_F32);
        ck_ok(be->ops->embed(be, wt, dev(y), ids, 6, &err));
        for (size_t i = 0; i < 6 * D; i++) {
            float e = w[(size_t)ids[i / D] * D + i % D];
            ck_assert(y[i] == (p ? mla_bf16_f32(mla_f32_bf16(e)) : e));
        }
        ck_refused(be->ops->embed(be, wt, dev(y), (const int32_t[]){70}, 1, &err), MLA_EINVAL, "token id 70");
        ck_refused(be->ops->embed(be, wt, dev(y), (const int32_t[]){-1}, 1, &err), MLA_EINVAL, "token id -1");
        be->ops->weight_free(be, wt);
    }
    mla_free(w), mla_free(y);
}

START_TEST(embed_returns_the_rows) { lab_each_isa("embed", 2, check_embed); }
END_TEST

/* A NaN or infinity in x reaches every output of its own token and no other token. */
static void check_nonfinite(mla_backend *be, mla_isa isa)
{
    const size_t T = 3, in = 40, out = 33;
    (void)isa;
    for (int p = 0; p < 2; p++) {
        float *x = lab_normals(T * in, 11, 1), *w = lab_normals(out * in, 12, 1), *y = lab_poisoned(T * out);
        mla_weight *wt = lab_weight(be, w, out, in, p ? MLA_PREC_BF16 : MLA_PREC_F32);
        x[1 * in + 7] = p ? INFINITY : NAN;
        run(be, wt, y, out, x, in, T);
        ck_assert_uint_eq(mla_count_nonfinite(y, T * out, NULL), out);
        ck_assert_uint_eq(mla_count_nonfinite(y + out, out, NULL), out);
        be->ops->weight_free(be, wt);
        mla_free(x), mla_free(w), mla_free(y);
    }
}

START_TEST(nonfinite_inputs_stay_in_their_token) { lab_each_isa("linear non-finite", 2, check_nonfinite); }
END_TEST

static mla_status broken_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    (void)ctx, (void)n, (void)dst;
    return mla_fail(err, MLA_EFORMAT, "row %zu is broken", row0);
}

START_TEST(weight_new_reports_failures)
{
    mla_err err = {0};
    mla_backend *be = lab_open(MLA_ISA_AUTO, 1);
    mla_weight *w = NULL;
    mla_weight_desc d = {.out = 40, .in = 8, .rows = broken_rows};
    ck_refused(be->ops->weight_new(be, &w, &d, &err), MLA_EFORMAT, "row 0 is broken");
    d.in = 0;
    ck_refused(be->ops->weight_new(be, &w, &d, &err), MLA_EINVAL, "empty");
    d.in = (size_t)1 << 40, d.out = (size_t)1 << 40;
    ck_refused(be->ops->weight_new(be, &w, &d, &err), MLA_ENOMEM, "overflows");
    d = (mla_weight_desc){.out = 3, .in = 8, .rows = broken_rows};
    for (long k = 0; k < 3; k++) {
        mla_alloc_fail_after(k);
        ck_refused(be->ops->weight_new(be, &w, &d, &err), MLA_ENOMEM, "weight (3, 8)");
    }
    mla_alloc_fail_after(-1);
    ck_assert_ptr_null(w);
    mla_backend_close(be);
}
END_TEST

START_TEST(opening_refuses_what_is_missing)
{
    mla_err err = {0};
    mla_backend *be = NULL;
    mla_isa isa;
    ck_refused(mla_backend_open(&be, &(mla_backend_opts){.device = "tpu"}, &err), MLA_EINVAL, "tpu");
    ck_refused(mla_backend_open(&be, &(mla_backend_opts){.device = "cpux"}, &err), MLA_EINVAL, "cpux");
    ck_assert(mla_isa_parse("avx2", &isa) && isa == MLA_ISA_AVX2);
    ck_assert(mla_isa_parse(mla_isa_name(), &isa));
    ck_assert(!mla_isa_parse("AVX2", &isa));
    ck_ok(mla_backend_open(&be, NULL, &err));
    ck_assert_ptr_nonnull(strstr(be->ops->describe(be), mla_isa_name()));
    mla_backend_close(be);
    mla_backend_close(NULL);
    for (long k = 0; k < 4; k++) {
        be = NULL;
        mla_alloc_fail_after(k);
        ck_refused(mla_backend_open(&be, &(mla_backend_opts){.threads = 2}, &err), MLA_ENOMEM, "");
        ck_assert_ptr_null(be);
    }
    mla_alloc_fail_after(-1);
}
END_TEST

Suite *suite_linear(void)
{
    Suite *s = suite_create("linear");
    TCase *t = tcase_create("linear");
    tcase_add_test(t, f32_is_the_contract_bit_by_bit);
    tcase_add_test(t, bf16_is_within_its_bound);
    tcase_add_test(t, bits_do_not_depend_on_tokens_or_threads);
    tcase_add_test(t, bias_and_accumulate);
    tcase_add_test(t, embed_returns_the_rows);
    tcase_add_test(t, nonfinite_inputs_stay_in_their_token);
    tcase_add_test(t, weight_new_reports_failures);
    tcase_add_test(t, opening_refuses_what_is_missing);
    suite_add_tcase(s, t);
    return s;
}
