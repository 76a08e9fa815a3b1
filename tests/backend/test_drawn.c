/* Packed weights with drawn codes: every kind with odd sizes and groups in every variant, bf16 products, columns in another order, what
 * is refused. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "coded_lab.h"
#include "tensor/bound.h"
#include "tensor/fp.h"

static void check_drawn(mla_backend *be, mla_isa isa)
{
    static float *ref[64]; /* of the first variant */
    ck_assert(N_DRAWN <= 64);
    for (size_t i = 0; i < N_DRAWN; i++) {
        mla_err err = {0};
        mla_coded c;
        mla_weight *w, *dense;
        drawn_make(&c, &DRAWN[i]);
        mla_weight_desc d = {.out = c.out, .in = c.in, .precision = MLA_PREC_F32, .rows = drawn_rows, .ctx = &c};
        ck_ok(be->ops->weight_new(be, &dense, &d, &err));
        d.coded = &c;
        ck_ok(be->ops->weight_new(be, &w, &d, &err));
        float *x = lab_normals(17 * c.in, 3 + i, 1), *want = product(be, dense, x, c.in, c.out, 17), *got = product(be, w, x, c.in, c.out, 17);
        ck_assert_msg(lab_same_bits("drawn", got, want, 17 * c.out), "case %zu", i);
        float *one = product(be, w, x, c.in, c.out, 1);
        ck_assert_msg(lab_same_bits("drawn", one, want, c.out), "case %zu, one row", i);
        if (isa == MLA_ISA_REF) ref[i] = lab_copy(got, 17 * c.out);
        ck_assert_msg(lab_same_bits("drawn", got, ref[i], 17 * c.out), "case %zu: another variant's bits", i);
        be->ops->weight_free(be, w), be->ops->weight_free(be, dense);
        mla_free(x), mla_free(want), mla_free(got), mla_free(one);
    }
}

START_TEST(every_code_in_odd_sizes) { lab_each_isa("codes", 3, check_drawn); }
END_TEST

/* bf16 runs, every kind of code: activations are rounded where products are no whole numbers; from 16 rows on weights may be, too, half an ulp of bf16 each. */
static void check_bf16(mla_backend *be, mla_isa isa)
{
    (void)isa;
    for (size_t n = 0; n < N_DRAWN; n++) {
        mla_err err = {0};
        mla_coded c;
        drawn_make(&c, &DRAWN[n]);
        mla_weight_desc d = {.out = c.out, .in = c.in, .precision = MLA_PREC_BF16, .rows = drawn_rows, .ctx = &c, .coded = &c};
        mla_weight *w;
        ck_ok(be->ops->weight_new(be, &w, &d, &err));
        float *x = lab_normals(40 * c.in, 5, 1), *rows = mla_alloc(c.out, c.in, sizeof *rows);
        ck_ok(drawn_rows(&c, 0, c.out, rows, &err));
        for (size_t T = 1; T <= 40; T += 13) {
            if (T < 16 && w->code.dot != MLA_DOT_NONE) continue; /* test_dot.c */
            float *y = product(be, w, x, c.in, c.out, T);
            for (size_t t = 0; t < T; t++)
                for (size_t o = 0; o < c.out; o++) {
                    double want = 0, mag = 0;
                    for (size_t i = 0; i < c.in; i++) {
                        double xr = mla_bf16_f32(mla_f32_bf16(x[t * c.in + i])), p = xr * rows[o * c.in + i];
                        want += p, mag += fabs(p);
                    }
                    double tol = mla_gamma(MLA_F32, c.in + 1) * mag + (T < 16 ? 0 : 0x1p-8 * mag);
                    ck_assert_msg(fabs(y[t * c.out + o] - want) <= tol, "case %zu, %zu rows (%zu, %zu): error %g > %g", n, T, t, o, fabs(y[t * c.out + o] - want), tol);
                }
            mla_free(y);
        }
        be->ops->weight_free(be, w);
        mla_free(x), mla_free(rows);
    }
}

START_TEST(bf16_products) { lab_each_isa("codes, bf16", 2, check_bf16); }
END_TEST

#if defined(__x86_64__)
/* The step from a decoded panel to pairs needs no bf16 instruction: the same words as from the rows themselves. */
START_TEST(pairs_of_a_panel)
{
    mla_cpu_kern ref, k;
    if (!mla_cpu_pick(MLA_ISA_REF, &ref) || !mla_cpu_pick(MLA_ISA_AVX512, &k)) {
        mla_test_skip("pairs of a panel", "this CPU lacks AVX-512", 1);
        return;
    }
    mla_cpu_fill_avx512bf16(&k);
    for (size_t n = 1; n <= 256; n += 51) {
        float *rows = lab_normals(MLA_NR * n, 31 + n, 1), *panel = mla_alloc(n + 1, MLA_NR, sizeof *panel);
        uint32_t *want = mla_alloc((n + 1) / 2, MLA_NR, sizeof *want), *got = mla_alloc((n + 1) / 2, MLA_NR, sizeof *got);
        ref.pack_f32(panel, rows, n, MLA_NR, n);
        ref.pack_bf16(want, rows, n, MLA_NR, n);
        k.pair_rows(got, panel, n);
        ck_assert(!memcmp(got, want, (n + 1) / 2 * MLA_NR * sizeof *got));
        mla_free(rows), mla_free(panel), mla_free(want), mla_free(got);
    }
}
END_TEST
#endif

/* A moved order of columns is the same sum in another order: inputs follow. */
START_TEST(columns_in_another_order)
{
    mla_err err = {0};
    mla_coded c;
    uint32_t perm[300];
    drawn_make(&c, &DRAWN[0]);
    for (uint32_t i = 0; i < 300; i++) perm[i] = i * 7 % 300;
    c.perm = perm;
    mla_backend *be = lab_open(MLA_ISA_AUTO, 2);
    mla_weight *w;
    float *rows = mla_alloc(c.out, c.in, sizeof *rows), *x = lab_normals(30 * c.in, 8, 1);
    ck_ok(drawn_rows(&c, 0, c.out, rows, &err));
    ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = c.out, .in = c.in, .rows = drawn_rows, .ctx = &c, .coded = &c}, &err));
    matrix m = {.name = "moved", .q = {.out = c.out, .in = c.in}, .w = rows};
    for (size_t T = 1; T <= 30; T += 29) {
        float *y = product(be, w, x, c.in, c.out, T);
        near_fp64(&m, x, y, T);
        mla_free(y);
    }
    float *row = lab_poisoned(c.in);
    ck_ok(be->ops->embed(be, w, dev(row), (int32_t[]){5}, 1, &err));
    ck_assert(lab_same_bits("moved row", row, rows + 5 * c.in, c.in));
    be->ops->weight_free(be, w);
    mla_backend_close(be);
    mla_free(row), mla_free(rows), mla_free(x);
}
END_TEST

static mla_status nan_fill(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    mla_status st = drawn_fill(c, row, to, err);
    if (row == 33) to->scale[1] = 0x7e;
    return st;
}

/* A scale that is no number is refused when the weight is made; running out of memory leaves nothing behind. */
START_TEST(refused)
{
    mla_err err = {0};
    mla_coded c;
    mla_weight *w = NULL;
    drawn_make(&c, &DRAWN[0]);
    mla_backend *be = lab_open(MLA_ISA_AUTO, 2);
    mla_weight_desc d = {.out = c.out, .in = c.in, .rows = drawn_rows, .ctx = &c, .coded = &c};
    c.fill = nan_fill;
    ck_refused(be->ops->weight_new(be, &w, &d, &err), MLA_EFORMAT, "not finite");
    c.fill = drawn_fill;
    for (long k = 0;; k++) {
        mla_alloc_fail_after(k);
        mla_status st = be->ops->weight_new(be, &w, &d, &err);
        mla_alloc_fail_after(-1);
        if (st == MLA_OK) break;
        ck_assert_int_eq(st, MLA_ENOMEM);
    }
    be->ops->weight_free(be, w);
    mla_backend_close(be);
}
END_TEST

Suite *suite_drawn(void)
{
    Suite *s = suite_create("drawn");
    TCase *c = tcase_create("drawn");
    tcase_add_test(c, every_code_in_odd_sizes);
    tcase_add_test(c, bf16_products);
#if defined(__x86_64__)
    tcase_add_test(c, pairs_of_a_panel);
#endif
    tcase_add_test(c, columns_in_another_order);
    tcase_add_test(c, refused);
    suite_add_tcase(s, c);
    return s;
}
