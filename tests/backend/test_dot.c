/* Products of few rows in whole numbers on the fast path (backend/cpu/dot.h): within a derived bound of fp64, for drawn codes of every
 * form and for every golden matrix; the same bits in every variant of the kernels, for every thread count and number of rows; blocks of
 * inputs at the ends of what they may hold. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "coded_lab.h"
#include "tensor/bound.h"

enum { T_MOST = 15 };
static const char *const VARIANT[] = {"ref", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "avx512fp16"};

static mla_backend *open_variant(const char *name, size_t threads)
{
    mla_backend *be = lab_open(MLA_ISA_REF, threads);
    if (mla_cpu_pick_named(name, &mla_cpu_of(be)->kern)) return be;
    mla_test_skip(name, "this CPU lacks the instruction set", 1);
    mla_backend_close(be);
    return NULL;
}

/* Errors of inputs: |x - t q| <= 0.51 t, and what a block of nothing but tiny ones loses. Roundings in f32, each at most 2^-24 of what it
 * rounds, which the terms' sizes bound: of a sum in whole numbers 1, of the sums over at most 8 units 8, of at most 33 groups 2 x 33,
 * over blocks in / 256, and 5 of the weight itself and its parts. tiny: some blocks are too small to count. */
static void near(const char *name, const mla_coded *c, const float *x, const float *y, size_t T, bool tiny)
{
    uint8_t code[2 * 2048], scale[4 * 256], offset[4 * 256];
    uint16_t super[16], off[16];
    mla_coded_row r = {code, scale, offset, super, off};
    mla_err err = {0};
    ck_assert(c->in <= 2048);
    for (size_t o = 0; o < c->out; o++) {
        ck_ok(c->fill(c, o, &r, &err));
        for (size_t t = 0; t < T; t++) {
            double want = 0, size = 0, moved = 0;
            for (size_t b = 0; b < c->in; b += 32) {
                double most = 0, n = b + 32 < c->in ? 32 : (double)(c->in - b);
                for (size_t p = b; p < b + (size_t)n; p++) most = fmax(most, fabs((double)x[t * c->in + (c->perm ? c->perm[p] : p)]));
                double e = fmax(0.51 * most / MLA_DOT_LIMIT, most < (double)MLA_DOT_LEAST ? most : 0);
                for (size_t p = b; p < b + (size_t)n; p++) {
                    double xp = (double)x[t * c->in + (c->perm ? c->perm[p] : p)];
                    coded_parts w = coded_at(c, &r, p);
                    double v = (double)w.s * w.v, m = w.m;
                    want += (v + m) * xp, moved += fabs(v + m) * e, size += (fabs(v) + fabs(m)) * (fabs(xp) + e);
                }
            }
            double tol = moved + mla_gamma(MLA_F32, 1 + 8 + 66 + c->in / 256 + 5) * size, got = (double)y[t * c->out + o];
            ck_assert_msg(fabs(got - want) <= tol, "%s (%zu, %zu): error %g > %g", name, t, o, fabs(got - want), tol);
            ck_assert_msg(tiny || tol <= 1e-3 * size, "%s: the bound %g means nothing at %g", name, tol, size);
        }
    }
}

static float *first_bits; /* of the portable variant */
static void check(const char *name, const mla_coded *c, mla_rows_fn rows, void *ctx, const float *x, bool tiny)
{
    mla_err err = {0};
    for (size_t n = 0; n < sizeof VARIANT / sizeof *VARIANT; n++)
        for (size_t threads = 1; threads <= (n ? 3 : 1); threads += 2) {
            mla_backend *be = open_variant(VARIANT[n], threads);
            mla_weight *w;
            if (!be) break;
            ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = c->out, .in = c->in, .precision = MLA_PREC_BF16, .rows = rows, .ctx = ctx, .coded = c}, &err));
            if (w->code.dot != MLA_DOT_NONE) {
                float *y = product(be, w, x, c->in, c->out, T_MOST);
                for (size_t t = 0; t < T_MOST; t += 7) {
                    float *one = product(be, w, x + t * c->in, c->in, c->out, 1);
                    ck_assert_msg(lab_same_bits(name, one, y + t * c->out, c->out), "%s, %s: row %zu alone", name, VARIANT[n], t);
                    mla_free(one);
                }
                if (n == 0) near(name, c, x, y, T_MOST, tiny), first_bits = lab_copy(y, T_MOST * c->out);
                ck_assert_msg(lab_same_bits(name, y, first_bits, T_MOST * c->out), "%s: other bits in %s, %zu threads", name, VARIANT[n], threads);
                mla_free(y);
            }
            be->ops->weight_free(be, w);
            mla_backend_close(be);
        }
    mla_free(first_bits);
    first_bits = NULL;
}

/* Inputs: normals; whole numbers that fill both bytes and 16-bit sums, of one sign; blocks of very different sizes. */
static float *inputs(size_t in, unsigned kind)
{
    float *x = lab_normals(T_MOST * in, 11 + kind, 1);
    for (size_t i = 0; i < T_MOST * in; i++) {
        size_t p = i % in;
        if (kind == 1) x[i] = (float)(i / in % 2 ? -32384 : 32384) * 0x1p-15f; /* h 127 or -126, l -128 */
        if (kind == 1 && p % 32 == 0) x[i] = 32639 * 0x1p-15f;                 /* t = 2^-15 */
        if (kind == 2) x[i] *= p / 32 % 3 == 0 ? 0x1p-95f : p / 32 % 3 == 1 ? 0x1p60f : 1;
        if (kind == 2 && p % 64 == 5) x[i] = 0;
    }
    return x;
}

static mla_dot_form form_of(const mla_coded *c, mla_rows_fn rows, void *ctx)
{
    mla_err err = {0};
    mla_backend *be = lab_open(MLA_ISA_REF, 1);
    mla_weight *w;
    ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = c->out, .in = c->in, .precision = MLA_PREC_BF16, .rows = rows, .ctx = ctx, .coded = c}, &err));
    mla_dot_form f = w->form == MLA_W_CODES ? w->code.dot : MLA_DOT_NONE;
    be->ops->weight_free(be, w);
    mla_backend_close(be);
    return f;
}

START_TEST(drawn_codes)
{
    unsigned seen = 0;
    for (size_t i = 0; i < N_DRAWN; i++) {
        mla_coded c;
        drawn_make(&c, &DRAWN[i]);
        mla_dot_form f = form_of(&c, drawn_rows, &c);
        if (f == MLA_DOT_NONE) continue;
        seen |= 1u << f;
        char name[32];
        snprintf(name, sizeof name, "case %zu", i);
        float *x = inputs(c.in, (unsigned)_i);
        check(name, &c, drawn_rows, &c, x, _i == 2);
        mla_free(x);
    }
    ck_assert_uint_eq(seen, (2u << MLA_DOT_INT8) - 2); /* every form */
}
END_TEST

/* The golden matrices, and which of them are multiplied in whole numbers: all whose codes are. */
static void check_golden(matrix *m)
{
    bool bytes = m->c.code != MLA_CODE_E4M3 && !mla_code_bare(m->c.code), groups = m->c.group >= m->c.in || m->c.group % 16 == 0;
    if (!m->fits) return;
    ck_assert_msg((form_of(&m->c, qmat_rows, &m->q) != MLA_DOT_NONE) == (bytes && groups), "%s", m->name);
    if (!bytes || !groups) return;
    float *x = inputs(m->c.in, 0);
    check(m->name, &m->c, qmat_rows, &m->q, x, false);
    mla_free(x);
}

START_TEST(golden)
{
    matrix m;
    matrix_golden(&m, (size_t)_i);
    check_golden(&m);
    matrix_drop(&m);
}
END_TEST

START_TEST(golden_gguf)
{
    matrix m;
    matrix_gguf(&m, (size_t)_i);
    check_golden(&m);
    matrix_drop(&m);
}
END_TEST

/* An input that is no number shows in every output; the largest floats do not overflow on the way; zeros give zeros. */
START_TEST(ends_of_the_range)
{
    mla_err err = {0};
    const drawn d = {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 64, 520, 32, 0, WHOLE, false};
    mla_coded c;
    drawn_make(&c, &d);
    for (size_t n = 0; n < sizeof VARIANT / sizeof *VARIANT; n++) {
        mla_backend *be = open_variant(VARIANT[n], 1);
        mla_weight *w;
        if (!be) continue;
        ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = c.out, .in = c.in, .precision = MLA_PREC_BF16, .rows = drawn_rows, .ctx = &c, .coded = &c}, &err));
        static const float ODD_ONES[] = {INFINITY, -INFINITY, NAN};
        for (size_t k = 0; k < 3; k++)
            for (size_t at = 0; at < c.in; at += 37) {
                float *x = lab_normals(c.in, 3, 1);
                x[at] = ODD_ONES[k];
                float *y = product(be, w, x, c.in, c.out, 1);
                for (size_t o = 0; o < c.out; o++) ck_assert_msg(isnan(y[o]), "%s: input %zu is %g, output %zu %g", VARIANT[n], at, (double)x[at], o, (double)y[o]);
                mla_free(x), mla_free(y);
            }
        float *x = mla_alloc(c.in, 1, sizeof *x), *y = product(be, w, x, c.in, c.out, 1);
        for (size_t o = 0; o < c.out; o++) ck_assert(y[o] == 0);
        mla_free(y);
        for (size_t i = 0; i < c.in; i++) x[i] = (i % 2 ? -1.0f : 1.0f) * 0x1p110f;
        y = product(be, w, x, c.in, c.out, 1);
        near("large", &c, x, y, 1, false);
        mla_free(x), mla_free(y);
        be->ops->weight_free(be, w);
        mla_backend_close(be);
    }
}
END_TEST

Suite *suite_dot(void)
{
    Suite *s = suite_create("dot");
    TCase *c = tcase_create("dot");
    tcase_add_loop_test(c, drawn_codes, 0, 3);
    tcase_add_loop_test(c, golden, 0, N_CODED_GOLDEN);
    tcase_add_loop_test(c, golden_gguf, 0, N_CODED_GGUF);
    tcase_add_test(c, ends_of_the_range);
    suite_add_tcase(s, c);
    return s;
}
