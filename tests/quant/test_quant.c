/* quant: every ggml type against the library's own dequantization, bit for bit; refusals; the mla_qmat door. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "harness.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "quant/gguf_blocks.h"
#include "quant/quant.h"
#include "suites.h"
#include "tensor/fp.h"

static const struct {
    const char *file;
    uint32_t type;
} GOLDEN[] = {
    {"f16", MLA_GT_F16},       {"bf16", MLA_GT_BF16},   {"q4_0", MLA_GT_Q4_0}, {"q4_1", MLA_GT_Q4_1},
    {"q5_0", MLA_GT_Q5_0},     {"q5_1", MLA_GT_Q5_1},   {"q8_0", MLA_GT_Q8_0}, {"q2_k", MLA_GT_Q2_K},
    {"q3_k", MLA_GT_Q3_K},     {"q4_k", MLA_GT_Q4_K},   {"q5_k", MLA_GT_Q5_K}, {"q6_k", MLA_GT_Q6_K},
    {"iq4_nl", MLA_GT_IQ4_NL}, {"iq4_xs", MLA_GT_IQ4_XS}, {"tq1_0", MLA_GT_TQ1_0}, {"tq2_0", MLA_GT_TQ2_0},
    {"mxfp4", MLA_GT_MXFP4},
};
enum { N_GOLDEN = sizeof GOLDEN / sizeof *GOLDEN };

static mla_gguf_tensor view(const char *name, uint32_t type, size_t in, size_t out, const void *data, size_t nbytes)
{
    return (mla_gguf_tensor){.name = name, .type = type, .ndim = 2, .ne = {in, out, 1, 1}, .data = data, .nbytes = nbytes};
}

static mla_st *open_golden(size_t i)
{
    mla_err err;
    mla_st *s = NULL;
    char name[64];
    snprintf(name, sizeof name, "golden-gguf/gguf_%s.safetensors", GOLDEN[i].file);
    ck_ok(mla_st_open(&s, mla_fixture(name), &err));
    return s;
}

START_TEST(golden_rows)
{
    mla_err err;
    mla_st *s = open_golden((size_t)_i);
    const mla_tensor *blocks = mla_st_find(s, "m.blocks"), *want = mla_st_find(s, "m.dequantized");
    ck_assert_ptr_nonnull(blocks);
    ck_assert_ptr_nonnull(want);
    size_t out = want->shape[0], in = want->shape[1];
    mla_gguf_tensor t = view(GOLDEN[_i].file, GOLDEN[_i].type, in, out, blocks->data, blocks->nbytes);
    float *got = mla_alloc(out, in, sizeof *got);
    ck_ok(mla_gguf_rows_f32(&t, 0, out, got, &err));
    ck_assert(memcmp(got, want->data, want->nbytes) == 0);
    /* any row alone, through the qmat door */
    mla_qmat m;
    ck_ok(mla_qmat_gguf(&m, &t, &err));
    ck_assert_uint_eq(m.out, out);
    ck_assert_uint_eq(m.in, in);
    ck_assert_uint_eq(mla_qmat_bytes(&m), blocks->nbytes);
    for (size_t r = 0; r < out; r++) {
        memset(got, 0xff, in * sizeof *got);
        ck_ok(mla_qmat_rows_f32(&m, r, 1, got, &err));
        ck_assert(memcmp(got, (const float *)want->data + r * in, in * sizeof *got) == 0);
    }
    /* control: one flipped bit of the codes must show */
    unsigned char *bad = mla_alloc(blocks->nbytes, 1, 1);
    memcpy(bad, blocks->data, blocks->nbytes);
    bad[blocks->nbytes / 2] ^= 0x10;
    t.data = bad;
    ck_ok(mla_gguf_rows_f32(&t, 0, out, got, &err));
    ck_assert(memcmp(got, want->data, want->nbytes) != 0);
    mla_free(bad);
    mla_free(got);
    mla_st_close(s);
}
END_TEST

/* Every tensor of the small complete file, in whatever shape it is stored. */
START_TEST(tiny_file)
{
    mla_err err;
    mla_gguf *g = NULL;
    mla_st *s = NULL;
    ck_ok(mla_gguf_open(&g, mla_fixture("golden-gguf/tiny.gguf"), &err));
    ck_ok(mla_st_open(&s, mla_fixture("golden-gguf/tiny.safetensors"), &err));
    ck_assert_uint_ge(mla_gguf_count(g), 8);
    for (size_t i = 0; i < mla_gguf_count(g); i++) {
        const mla_gguf_tensor *t = mla_gguf_at(g, i);
        const mla_tensor *want = mla_st_find(s, t->name);
        ck_assert_ptr_nonnull(want);
        float *got = mla_alloc(mla_tensor_numel(want), 1, sizeof *got);
        ck_ok(mla_gguf_rows_f32(t, 0, t->ne[1] * t->ne[2] * t->ne[3], got, &err));
        ck_assert_msg(memcmp(got, want->data, want->nbytes) == 0, "%s", t->name);
        if (t->ndim <= 2) {
            mla_qmat m;
            char text[64];
            ck_ok(mla_qmat_gguf(&m, t, &err));
            ck_assert_uint_eq(m.in, t->ne[0]);
            ck_assert_ptr_nonnull(strstr(mla_qmat_text(&m, text, sizeof text), "GGUF "));
        }
        mla_free(got);
    }
    mla_st_close(s);
    mla_gguf_close(g);
}
END_TEST

START_TEST(gguf_refusals)
{
    mla_err err;
    float dst[512];
    unsigned char data[288] = {0};
    mla_gguf_tensor t = view("blk.0.w", MLA_GT_Q4_K, 256, 2, data, 288);
    mla_qmat m;
    ck_ok(mla_gguf_rows_f32(&t, 0, 2, dst, &err));
    ck_ok(mla_gguf_rows_f32(&t, 2, 0, dst, &err));
    ck_refused(mla_gguf_rows_f32(&t, 1, 2, dst, &err), MLA_EINVAL, "blk.0.w");
    ck_refused(mla_gguf_rows_f32(&t, 3, 0, dst, &err), MLA_EINVAL, "has 2");
    ck_refused(mla_gguf_rows_f32(&t, 1, SIZE_MAX, dst, &err), MLA_EINVAL, "has 2");
    t.ne[1] = SIZE_MAX / 64;
    ck_refused(mla_gguf_rows_f32(&t, 0, 1, dst, &err), MLA_EFORMAT, "288 bytes");
    ck_refused(mla_qmat_gguf(&m, &t, &err), MLA_EFORMAT, "288 bytes");
    t = view("w", MLA_GT_Q4_K, 255, 1, data, 288);
    ck_refused(mla_gguf_rows_f32(&t, 0, 1, dst, &err), MLA_EFORMAT, "whole");
    ck_refused(mla_qmat_gguf(&m, &t, &err), MLA_EFORMAT, "span");
    t = view("w", 9999, 256, 1, data, 288);
    ck_refused(mla_gguf_rows_f32(&t, 0, 1, dst, &err), MLA_EUNSUPPORTED, "9999");
    ck_refused(mla_qmat_gguf(&m, &t, &err), MLA_EUNSUPPORTED, "9999");
    t = view("w", MLA_GT_I32, 4, 1, data, 16);
    ck_refused(mla_gguf_rows_f32(&t, 0, 1, dst, &err), MLA_EUNSUPPORTED, "I32");
    t = view("w", MLA_GT_Q4_K, 256, 2, data, 288);
    t.ndim = 3;
    ck_refused(mla_qmat_gguf(&m, &t, &err), MLA_EUNSUPPORTED, "3 dimensions");
    ck_assert(!mla_ggml_decodes(9999) && !mla_ggml_decodes(MLA_GT_I8) && mla_ggml_decodes(MLA_GT_MXFP4));
    ck_assert_str_eq(mla_ggml_format(MLA_GT_Q4_1), "GGUF Q4_1");
}
END_TEST

/* The library's reading of the extreme MXFP4 scale bytes: 0 and 1 are subnormal halves, 255 is a number. */
START_TEST(mxfp4_edges)
{
    static const struct { unsigned char e; float one; } CASE[] = {{0, 0x1p-127f}, {1, 0x1p-126f}, {2, 0x1p-125f}, {127, 1}, {254, 0x1p127f}};
    unsigned char b[17];
    float y[32];
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        memset(b, 0x22, sizeof b); /* every code: 1.0 */
        b[0] = CASE[i].e;
        ck_assert(mla_ggml_blocks_f32(MLA_GT_MXFP4, b, 1, y));
        ck_assert(y[0] == CASE[i].one && y[31] == CASE[i].one);
    }
    b[0] = 255;
    b[1] = 0x81; /* 0.5 in the low half, minus zero in the high half */
    ck_assert(mla_ggml_blocks_f32(MLA_GT_MXFP4, b, 1, y));
    ck_assert(y[0] == 0x1p127f && y[16] == 0 && isinf(y[1]));
}
END_TEST

static mla_tensor dense(const char *name, mla_dtype t, size_t ndim, size_t a, size_t b, const void *data)
{
    mla_tensor x = {.name = name, .dtype = t, .ndim = ndim, .shape = {a, b}, .data = data};
    x.nbytes = a * (ndim == 2 ? b : 1) * (mla_dtype_bits(t) / 8);
    return x;
}

START_TEST(dense_types)
{
    mla_err err;
    static const mla_dtype TYPES[] = {MLA_F32, MLA_F64, MLA_BF16, MLA_F16};
    float src[6] = {1, -2, 0.5f, 448, -0.0f, 3}, dst[6];
    unsigned char store[49];
    for (size_t i = 0; i < 4; i++) {
        mla_qmat m;
        unsigned char *odd = store + 1; /* stored bytes need no alignment */
        ck_assert(mla_from_f32(odd, src, TYPES[i], 6));
        mla_tensor t = dense("w.weight", TYPES[i], 2, 2, 3, odd);
        ck_ok(mla_qmat_dense(&m, &t, &err));
        ck_assert_str_eq(m.format, mla_dtype_name(TYPES[i]));
        ck_assert(m.out == 2 && m.in == 3 && mla_qmat_bytes(&m) == 6 * (mla_dtype_bits(TYPES[i]) / 8));
        ck_ok(mla_qmat_rows_f32(&m, 0, 2, dst, &err));
        ck_assert(memcmp(dst, src, sizeof src) == 0);
        ck_ok(mla_qmat_rows_f32(&m, 1, 1, dst, &err));
        ck_assert(memcmp(dst, src + 3, 3 * sizeof *src) == 0);
        ck_refused(mla_qmat_rows_f32(&m, 1, 2, dst, &err), MLA_EINVAL, "w.weight");
        ck_refused(mla_qmat_rows_f32(&m, SIZE_MAX, 2, dst, &err), MLA_EINVAL, "has 2");
        t = dense("norm", TYPES[i], 1, 6, 0, odd);
        ck_ok(mla_qmat_dense(&m, &t, &err));
        ck_assert(m.out == 1 && m.in == 6);
        ck_ok(mla_qmat_rows_f32(&m, 0, 1, dst, &err));
        ck_assert(memcmp(dst, src, sizeof src) == 0);
    }
}
END_TEST

START_TEST(dense_refusals)
{
    mla_err err;
    mla_qmat m;
    float x[8] = {0};
    mla_tensor t = dense("a.weight", MLA_I32, 2, 2, 3, x);
    ck_refused(mla_qmat_dense(&m, &t, &err), MLA_EUNSUPPORTED, "I32 [2, 3]");
    t = dense("a.weight", MLA_F8_E4M3, 2, 2, 3, x); /* codes without their scale are no matrix */
    ck_refused(mla_qmat_dense(&m, &t, &err), MLA_EUNSUPPORTED, "a.weight");
    t = dense("a.weight", MLA_F32, 2, 2, 3, x);
    t.ndim = 0;
    ck_refused(mla_qmat_dense(&m, &t, &err), MLA_EUNSUPPORTED, "matrix");
    t.ndim = 3;
    ck_refused(mla_qmat_dense(&m, &t, &err), MLA_EUNSUPPORTED, "matrix");
    t = dense("a.weight", MLA_F32, 2, 2, 3, x);
    t.nbytes = 20;
    ck_refused(mla_qmat_dense(&m, &t, &err), MLA_EFORMAT, "20 bytes");
    t = dense("a.weight", MLA_F32, 2, 0, 3, NULL); /* no rows: fine */
    ck_ok(mla_qmat_dense(&m, &t, &err));
    ck_ok(mla_qmat_rows_f32(&m, 0, 0, x, &err));
}
END_TEST

START_TEST(nonfinite_is_counted)
{
    mla_err err;
    mla_qmat m;
    size_t n, first;
    float x[6] = {1, 2, 3, 4, 5, 6};
    mla_tensor t = dense("a.weight", MLA_F32, 2, 3, 2, x);
    ck_ok(mla_qmat_dense(&m, &t, &err));
    ck_ok(mla_qmat_nonfinite(&m, &n, &first, &err));
    ck_assert(n == 0 && first == 3);
    x[3] = NAN;
    x[5] = -INFINITY;
    ck_ok(mla_qmat_nonfinite(&m, &n, &first, &err));
    ck_assert(n == 2 && first == 1);
    /* a block scale of infinity comes out as stored: 32 values, those with code 8 are inf * 0 = NaN */
    unsigned char b[18];
    memset(b, 0x88, sizeof b);
    b[0] = 0x00, b[1] = 0x7c, b[2] = 0x89;
    mla_gguf_tensor g = view("g", MLA_GT_Q4_0, 32, 1, b, sizeof b);
    ck_ok(mla_qmat_gguf(&m, &g, &err));
    ck_ok(mla_qmat_nonfinite(&m, &n, NULL, &err));
    ck_assert_uint_eq(n, 32);
    mla_alloc_fail_after(0);
    ck_refused(mla_qmat_nonfinite(&m, &n, NULL, &err), MLA_ENOMEM, "g");
}
END_TEST

typedef struct {
    const mla_tensor *t;
    size_t n;
} bag;

static const mla_tensor *find_in_bag(const void *ctx, const char *name)
{
    const bag *b = ctx;
    for (size_t i = 0; i < b->n; i++)
        if (!strcmp(b->t[i].name, name)) return &b->t[i];
    return NULL;
}

START_TEST(open_by_module)
{
    mla_err err;
    mla_qmat m;
    float x[6] = {1, 2, 3, 4, 5, 6}, dst[6];
    mla_tensor t[2] = {dense("l.q_proj.weight", MLA_F32, 2, 2, 3, x), dense("l.k_proj.weight", MLA_F8_E4M3, 2, 2, 3, x)};
    bag b = {t, 2};
    mla_qsource src = {find_in_bag, &b};
    ck_ok(mla_qmat_open(&m, &src, "l.q_proj", &err));
    ck_ok(mla_qmat_rows_f32(&m, 0, 2, dst, &err));
    ck_assert(memcmp(x, dst, sizeof x) == 0);
    ck_refused(mla_qmat_open(&m, &src, "l.k_proj", &err), MLA_EFORMAT, "l.k_proj");
    ck_refused(mla_qmat_open(&m, &src, "l.v_proj", &err), MLA_EFORMAT, "l.v_proj");
    char longname[2000];
    memset(longname, 'a', sizeof longname - 1);
    longname[sizeof longname - 1] = 0;
    ck_refused(mla_qmat_open(&m, &src, longname, &err), MLA_EFORMAT, "aaa");
    ck_assert_str_eq(mla_qformat_at(0)->family, "dense");
    size_t n = 0;
    while (mla_qformat_at(n)) n++;
    ck_assert_uint_ge(n, 2);
}
END_TEST

Suite *suite_ggml(void)
{
    Suite *s = suite_create("quant");
    TCase *c = tcase_create("quant");
    tcase_add_loop_test(c, golden_rows, 0, N_GOLDEN);
    tcase_add_test(c, tiny_file);
    tcase_add_test(c, gguf_refusals);
    tcase_add_test(c, mxfp4_edges);
    tcase_add_test(c, dense_types);
    tcase_add_test(c, dense_refusals);
    tcase_add_test(c, nonfinite_is_counted);
    tcase_add_test(c, open_by_module);
    suite_add_tcase(s, c);
    return s;
}
