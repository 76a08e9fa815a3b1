/* Packed weights on a GPU: every golden matrix of every format and every kind of code in odd sizes, read back number by
 * number with unit tokens, in f32 and with bf16 products of few and of many tokens; products in f32 with the bits of the
 * decoded matrix on the CPU; rows out of a packed table; bytes held; EXL3's products within a derived bound. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "quant/coded.h"
#include "quant/qconfig.h"
#include "tensor/bound.h"
#include "tensor/compare.h"
#include "tensor/fp.h"
#include "packed.h"

/* Columns [i0, i0 + T) of w, one after the other (T, out), as products of tokens that are 1 in one place; caller frees. */
static float *columns(mla_backend *be, const mla_weight *w, size_t out, size_t in, size_t i0, size_t T)
{
    float *x = mla_alloc(T, in, sizeof *x);
    for (size_t t = 0; t < T; t++) x[t * in + i0 + t] = 1;
    float *y = product(be, w, x, T, in, out);
    mla_free(x);
    return y;
}

/* Every number of w (under a checker those of the first two and the last calls) by tokens that are 1 in one place, `at_once` of them a
 * call; rounded: to bf16. */
static bool reads_back(const mla_weight *w, const float *want, size_t out, size_t in, size_t at_once, bool rounded)
{
    bool same = true;
    for (size_t i0 = 0; i0 < in; i0 += at_once) {
        size_t T = in - i0 < at_once ? in - i0 : at_once;
        if (cut_small() && i0 >= 2 * at_once && i0 + at_once < in) continue;
        float *y = columns(gpu, w, out, in, i0, T);
        for (size_t t = 0; t < T; t++)
            for (size_t o = 0; o < out; o++) {
                float v = want[o * in + i0 + t];
                same &= y[t * out + o] == (rounded ? mla_bf16_f32(mla_f32_bf16(v)) : v);
            }
        mla_free(y);
    }
    return same;
}

static mla_status dense_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *e)
{
    const struct { const float *w; size_t in; } *d = ctx;
    (void)e;
    memcpy(dst, d->w + row0 * d->in, n * d->in * 4);
    return MLA_OK;
}

/* w (out, in): what c decodes to; stored: bytes, 0: not looked at. */
static void check_codes(const char *name, const mla_coded *c, const float *w, double stored)
{
    size_t out = c->out, in = c->in;
    struct { const float *w; size_t in; } dense = {w, in};
    mla_weight_desc d = {.out = out, .in = in, .rows = no_rows, .coded = c};
    mla_weight *f = weight(gpu, &d);
    d.precision = MLA_PREC_BF16;
    mla_weight *b = weight(gpu, &d);
    d = (mla_weight_desc){.out = out, .in = in, .rows = dense_rows, .ctx = &dense};
    mla_weight *ref = weight(cpu, &d);
    check(reads_back(f, w, out, in, in, false), name, "numbers in f32");
    if (!mla_code_bare(c->code) || c->code == MLA_CODE_F16) {
        check(reads_back(b, w, out, in, 8, false), name, "numbers that few tokens meet");
        check(reads_back(b, w, out, in, 3, false), name, "numbers that three tokens meet");
    }
    check(reads_back(b, w, out, in, in < 9 ? 9 : in, in >= 9), name, "numbers that many tokens meet");
    float *x = normals(20 * in, 5);
    for (size_t T = 1; T <= 20; T += 19) {
        float *want = product(cpu, ref, x, T, in, out), *got = product(gpu, f, x, T, in, out);
        check(!memcmp(want, got, T * out * 4), name, "products in f32");
        mla_free(want), mla_free(got);
    }
    if (!mla_code_bare(c->code)) few_products(name, b, w, x, out, in);
    int32_t ids[3] = {(int32_t)out - 1, 0, (int32_t)out / 2};
    float *y = mla_alloc(3, in, sizeof *y);
    mla_mem *Y = mem(gpu, y, 3 * in * 4);
    must(gpu->ops->embed(gpu, f, Y, ids, 3, &err), "embed");
    must(gpu->ops->download(gpu, y, Y, 3 * in * 4, &err), "download");
    bool same = true;
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < in; i++) same &= y[t * in + i] == w[(size_t)ids[t] * in + i]; /* -0 is 0: products do not tell them apart */
    check(same, name, "rows as embeddings");
    /* the parts of a row stand on 16 bytes: at most 15 for each of six */
    if (stored > 0) check((double)gpu->ops->weight_bytes(b) <= 1.15 * stored + 90.0 * (double)out + 4.0 * (double)in + 1024, name, "bytes held");
    gpu->ops->free(gpu, Y);
    gpu->ops->weight_free(gpu, f), gpu->ops->weight_free(gpu, b), cpu->ops->weight_free(cpu, ref);
    mla_free(x), mla_free(y);
}

/* How far w is, of its norm, from the (out, in) numbers that the tokens give which are 1 in one place, `at_once` of them a call. */
static double apart(const mla_weight *w, const float *want, size_t out, size_t in, size_t at_once)
{
    double d = 0, all = 0;
    for (size_t i0 = 0; i0 < in; i0 += at_once) {
        size_t T = in - i0 < at_once ? in - i0 : at_once;
        if (cut_small() && i0 >= 2 * at_once && i0 + at_once < in) continue;
        float *y = columns(gpu, w, out, in, i0, T);
        for (size_t t = 0; t < T; t++)
            for (size_t o = 0; o < out; o++) d += pow((double)y[t * out + o] - (double)want[o * in + i0 + t], 2), all += pow(want[o * in + i0 + t], 2);
        mla_free(y);
    }
    return sqrt(d / all);
}

/* As in tests/backend/test_coded.c: |error of y_o| <= g |sv_o| |V|_F |su x|, V of the 128 outputs around o. */
static void check_exl3(const char *name, const mla_coded *c, const float *w)
{
    size_t out = c->out, in = c->in, T = 20;
    mla_weight_desc d = {.out = out, .in = in, .rows = no_rows, .coded = c};
    mla_weight *f = weight(gpu, &d);
    d.precision = MLA_PREC_BF16;
    mla_weight *b = weight(gpu, &d);
    float *x = normals(T * in, 21), *su = mla_alloc(c->trellis.in128, 1, sizeof *su), *sv = mla_alloc(c->trellis.out128, 1, sizeof *sv);
    c->sides(c, su, sv);
    static const size_t COUNT[] = {1, 8, 20};
    for (size_t k = 0; k < sizeof COUNT / sizeof *COUNT; k++) {
        const size_t n = COUNT[k];
        float *y = product(gpu, f, x, n, in, out), *z = product(gpu, b, x, n, in, out);
        bool near = true, rough = true;
        for (size_t o = 0; o < out; o += 37)
            for (size_t t = 0; t < n; t += 7) {
                double v = 0, s = 0, want = 0, g = mla_gamma_prob(MLA_F32, in + 20) + mla_gamma_prob(MLA_F32, 20);
                for (size_t r = o / 128 * 128; r < o / 128 * 128 + 128 && r < out; r++)
                    for (size_t i = 0; i < in; i++) v += pow((double)w[r * in + i] / ((double)su[i] * sv[r]), 2);
                for (size_t i = 0; i < in; i++) s += pow((double)su[i] * x[t * in + i], 2), want += (double)x[t * in + i] * w[o * in + i];
                double tol = fabs((double)sv[o]) * sqrt(v) * sqrt(s);
                near &= fabs(y[t * out + o] - want) <= g * tol;
                /* activations are two f16 numbers each, 2^-23; from 9 tokens on activations and values are rounded to bf16, 2^-9 each */
                rough &= fabs(z[t * out + o] - want) <= (2 * g + (n > 8 ? 0x1p-8 : 0x1p-23)) * tol;
            }
        check(near, name, n == 1 ? "one product in f32" : "products in f32");
        check(rough, name, n == 1 ? "one product in bf16" : "products in bf16");
        mla_free(y), mla_free(z);
    }
    /* Number by number, of its norm. A token that is 1 in one place meets 128 of the codebook's numbers times +-su, products that fp32
     * holds: sums of them are off by u (128 / 2)^1/2 here and where w comes from, twice that where tensor cores cut, and by 8 u in the
     * transforms: 40 u. A last bit of the codebook's f16 numbers is 2^-12 of them. From 9 tokens on numbers and su are rounded to bf16. */
    check(apart(f, w, out, in, in) <= 40 * 0x1p-24, name, "numbers in f32");
    check(apart(b, w, out, in, 8) <= 40 * 0x1p-24, name, "numbers that few tokens meet");
    check(apart(b, w, out, in, in) <= (1 + 1 / sqrt(3)) * 0x1p-9, name, "numbers that many tokens meet");
    check((double)gpu->ops->weight_bytes(b) <= (double)in * (double)out * c->trellis.twice_k / 16 + 8.0 * (double)(in + out) + 1024, name, "bytes held");
    gpu->ops->weight_free(gpu, f), gpu->ops->weight_free(gpu, b);
    mla_free(x), mla_free(su), mla_free(sv);
}

static const mla_tensor *find_in_st(const void *ctx, const char *name) { return mla_st_find(ctx, name); }

/* Whether the next matrix is looked at: a checker leaves most of them out. */
static bool next_matrix(void)
{
    static int number;
    return cut_kept(number++);
}

static void check_matrix(const char *name, const mla_qmat *q)
{
    mla_coded c;
    bool fits;
    if (!next_matrix()) return;
    must(mla_qmat_coded(&c, &fits, q, &err), name);
    if (!fits) return;
    float *w = mla_alloc(q->out, q->in, sizeof *w);
    must(mla_qmat_rows_f32(q, 0, q->out, w, &err), name);
    if (c.code == MLA_CODE_TRELLIS) check_exl3(name, &c, w);
    else check_codes(name, &c, w, (double)mla_qmat_bytes(q));
    mla_free(w);
    mla_coded_free(&c);
}

static const char *path_of(const char *folder, const char *name, const char *ext)
{
    static char path[4096];
    const char *root = getenv("MLA_ROOT");
    snprintf(path, sizeof path, "%s/tests/fixtures/%s/%s.%s", root && *root ? root : ".", folder, name, ext);
    return path;
}

static void golden(void)
{
    static const char *const CASE[] = {
        "ct_int4_sym_g128", "ct_int4_sym_g32", "ct_int4_asym_g128", "ct_int4_asym_g64_odd", "ct_int4_channel", "ct_int8_pack_g128", "ct_int4_actorder", "ct_int8_channel",
        "ct_fp8_tensor", "ct_fp8_channel", "ct_fp8_block128", "fp8_hf_block128", "fp8_hf_block128_ue8m0", "ct_nvfp4", "ct_mxfp4", "awq_gemm_g128", "awq_gemm_g64",
        "gptq_v1_sym_g128", "gptq_v1_asym_g128", "gptq_v1_sym_g128_descact", "gptq_v2_asym_g128", "gptq_v1_asym_g128_zero0", "gptq_v2_asym_g128_zero0",
    };
    static const struct { const char *name; uint32_t type; } GGUF[] = {
        {"bf16", MLA_GT_BF16}, {"f16", MLA_GT_F16},   {"q4_0", MLA_GT_Q4_0}, {"q4_1", MLA_GT_Q4_1}, {"q5_0", MLA_GT_Q5_0}, {"q5_1", MLA_GT_Q5_1},     {"q8_0", MLA_GT_Q8_0},     {"q2_k", MLA_GT_Q2_K},
        {"q3_k", MLA_GT_Q3_K}, {"q4_k", MLA_GT_Q4_K}, {"q5_k", MLA_GT_Q5_K}, {"q6_k", MLA_GT_Q6_K}, {"iq4_nl", MLA_GT_IQ4_NL}, {"iq4_xs", MLA_GT_IQ4_XS}, {"tq2_0", MLA_GT_TQ2_0}, {"mxfp4", MLA_GT_MXFP4},
    };
    static const char *const EXL3[] = {"k1_mul1", "k2_mul1", "k2p5_mul1", "k3_mcg", "k3_3inst", "k3p5_mul1", "k4_mul1", "k4_mcg", "k5_mul1", "k5_3inst", "k6_mul1", "k8_mul1"};
    mla_st *s;
    mla_qmat q;
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        mla_json *j;
        mla_qconfig *cfg;
        must(mla_st_open(&s, path_of("golden-quant", CASE[i], "safetensors"), &err), CASE[i]);
        must(mla_json_read(&j, path_of("golden-quant", CASE[i], "json"), 1 << 20, &err), CASE[i]);
        must(mla_qconfig_read(&cfg, mla_jv_get(mla_json_root(j), "quantization_config"), &err), CASE[i]);
        must(mla_qmat_open_with(&q, &(mla_qsource){find_in_st, s}, "m", cfg, &err), CASE[i]);
        check_matrix(CASE[i], &q);
        mla_qconfig_free(cfg);
        mla_json_free(j);
        mla_st_close(s);
    }
    for (size_t i = 0; i < sizeof GGUF / sizeof *GGUF; i++) {
        char name[32];
        snprintf(name, sizeof name, "gguf_%s", GGUF[i].name);
        must(mla_st_open(&s, path_of("golden-gguf", name, "safetensors"), &err), name);
        const mla_tensor *b = mla_st_find(s, "m.blocks"), *want = mla_st_find(s, "m.dequantized");
        mla_gguf_tensor t = {.name = name, .type = GGUF[i].type, .ndim = 2, .ne = {want->shape[1], want->shape[0], 1, 1}, .data = b->data, .nbytes = b->nbytes};
        must(mla_qmat_gguf(&q, &t, &err), name);
        check_matrix(name, &q);
        mla_st_close(s);
    }
    must(mla_st_open(&s, path_of("golden-quant", "exl3", "safetensors"), &err), "exl3");
    for (size_t i = 0; i < sizeof EXL3 / sizeof *EXL3; i++) {
        must(mla_qmat_open(&q, &(mla_qsource){find_in_st, s}, EXL3[i], &err), EXL3[i]);
        check_matrix(EXL3[i], &q);
    }
    mla_st_close(s);
}

static void every_code(void)
{
    static const drawn DRAWN[] = {
        {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 37, 300, 40, 0, false, false},
        {MLA_CODE_NIBBLE, 4, MLA_SCALE_TABLE, MLA_OFFSET_NONE, 1, 8, 8, 0, false, false},
        {MLA_CODE_NIBBLE, 4, MLA_SCALE_BF16, MLA_OFFSET_ZERO, 65, 1, 64, 0, false, false},
        {MLA_CODE_NIBBLE, 4, MLA_SCALE_F32, MLA_OFFSET_NONE, 96, 531, 1000, 0, true, false},
        {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F16, MLA_OFFSET_NONE, 33, 263, 24, 0, false, false},
        {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 31, 777, 16, 256, false, false},
        {MLA_CODE_CRUMB, 2, MLA_SCALE_SUPER_U4, MLA_OFFSET_SUPER_U4, 34, 530, 16, 256, false, false},
        {MLA_CODE_CRUMB_BIT, 3, MLA_SCALE_SUPER_I8, MLA_OFFSET_SUPER_U8, 64, 270, 32, 128, false, false},
        {MLA_CODE_INT8, 8, MLA_SCALE_F16, MLA_OFFSET_ZERO, 35, 259, 48, 0, true, false},
        {MLA_CODE_E4M3, 8, MLA_SCALE_F32, MLA_OFFSET_NONE, 70, 300, 104, 0, false, false},
        {MLA_CODE_F16, 16, MLA_SCALE_ONE, MLA_OFFSET_NONE, 39, 521, 521, 0, true, false},
    };
    for (size_t i = 0; i < sizeof DRAWN / sizeof *DRAWN; i++) {
        const drawn *d = &DRAWN[i];
        if (!next_matrix()) continue;
        char name[48];
        mla_coded c = drawn_codes(d);
        uint32_t *perm = mla_alloc(d->in, 1, sizeof *perm);
        snprintf(name, sizeof name, "drawn codes %zu", i);
        for (size_t k = 0; k < d->in; k++) perm[k] = (uint32_t)(d->in - 1 - k);
        if (d->moved) c.perm = perm;
        mla_weight_desc desc = {.out = d->out, .in = d->in, .rows = no_rows, .coded = &c};
        mla_weight *w = weight(cpu, &desc);
        float *rows = mla_alloc(d->out, d->in, sizeof *rows), *y = columns(cpu, w, d->out, d->in, 0, d->in);
        for (size_t k = 0; k < d->in; k++)
            for (size_t o = 0; o < d->out; o++) rows[o * d->in + k] = y[k * d->out + o];
        check_codes(name, &c, rows, 0);
        cpu->ops->weight_free(cpu, w);
        mla_free(y), mla_free(rows), mla_free(perm);
    }
    drawn bad = DRAWN[9];
    bad.bad = true;
    mla_coded c = {.out = bad.out, .in = bad.in, .code = bad.code, .group = bad.group, .scale = bad.scale, .fill = draw_row, .ctx = &bad};
    mla_weight *w = NULL;
    check(gpu->ops->weight_new(gpu, &w, &(mla_weight_desc){.out = bad.out, .in = bad.in, .rows = no_rows, .coded = &c}, &err) == MLA_EFORMAT && !w, "E4M3", "a code that is no number");
}

int main(void)
{
    if (mla_backend_open(&gpu, &(mla_backend_opts){.device = "cuda:0"}, &err) != MLA_OK) {
        printf("SKIP packed weights on a GPU: %s (649)\n", err.msg);
        printf("cuda_codes: 0 passed, 0 failed, 649 skipped\n");
        return 0;
    }
    must(mla_backend_open(&cpu, &(mla_backend_opts){.threads = 4}, &err), "cpu");
    golden();
    every_code();
    mla_backend_close(gpu);
    mla_backend_close(cpu);
    printf("cuda_codes: %d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
