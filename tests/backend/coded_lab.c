/* Golden matrices and products for the suites of packed weights. */
#include "coded_lab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/json.h"
#include "tensor/bound.h"

const char *const CODED_GOLDEN[] = {
    "ct_int4_sym_g128", "ct_int4_sym_g32", "ct_int4_asym_g128", "ct_int4_asym_g64_odd", "ct_int4_channel", "ct_int8_pack_g128",
    "ct_int4_actorder", "ct_int8_channel", "ct_fp8_tensor", "ct_fp8_channel", "ct_fp8_block128", "fp8_hf_block128",
    "fp8_hf_block128_ue8m0", "ct_nvfp4", "ct_mxfp4", "awq_gemm_g128", "awq_gemm_g64", "gptq_v1_sym_g128", "gptq_v1_asym_g128",
    "gptq_v1_sym_g128_descact", "gptq_v2_asym_g128", "gptq_v1_asym_g128_zero0", "gptq_v2_asym_g128_zero0",
};

const coded_gguf CODED_GGUF[] = {
    {"bf16", MLA_GT_BF16, true},     {"f16", MLA_GT_F16, true},       {"q4_0", MLA_GT_Q4_0, true}, {"q4_1", MLA_GT_Q4_1, true},
    {"q5_0", MLA_GT_Q5_0, true},     {"q5_1", MLA_GT_Q5_1, true},     {"q8_0", MLA_GT_Q8_0, true}, {"q2_k", MLA_GT_Q2_K, true},
    {"q3_k", MLA_GT_Q3_K, true},     {"q4_k", MLA_GT_Q4_K, true},     {"q5_k", MLA_GT_Q5_K, true}, {"q6_k", MLA_GT_Q6_K, true},
    {"iq4_nl", MLA_GT_IQ4_NL, true}, {"iq4_xs", MLA_GT_IQ4_XS, true}, {"tq1_0", MLA_GT_TQ1_0, false},
    {"tq2_0", MLA_GT_TQ2_0, true},   {"mxfp4", MLA_GT_MXFP4, true},
};

const char *const CODED_EXL3[] = {"k1_mul1", "k2_mul1", "k2p5_mul1", "k3_mcg", "k3_3inst", "k3p5_mul1",
                                  "k4_mul1", "k4_mcg", "k5_mul1", "k5_3inst", "k6_mul1", "k8_mul1"};
_Static_assert(sizeof CODED_GOLDEN / sizeof *CODED_GOLDEN == N_CODED_GOLDEN && sizeof CODED_GGUF / sizeof *CODED_GGUF == N_CODED_GGUF &&
                   sizeof CODED_EXL3 / sizeof *CODED_EXL3 == N_CODED_EXL3, "counts");

static const mla_tensor *find_in_st(const void *ctx, const char *name) { return mla_st_find(ctx, name); }

mla_status qmat_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err) { return mla_qmat_rows_f32(ctx, row0, n, dst, err); }

static void matrix_take(matrix *m, const char *name)
{
    mla_err err = {0};
    m->name = name;
    ck_ok(mla_qmat_coded(&m->c, &m->fits, &m->q, &err));
    m->w = mla_alloc(m->q.out, m->q.in, sizeof *m->w);
    ck_ok(mla_qmat_rows_f32(&m->q, 0, m->q.out, m->w, &err));
}

void matrix_golden(matrix *m, size_t i)
{
    mla_err err = {0};
    mla_json *j;
    char path[128];
    *m = (matrix){0};
    snprintf(path, sizeof path, "golden-quant/%s.safetensors", CODED_GOLDEN[i]);
    ck_ok(mla_st_open(&m->st, mla_fixture(path), &err));
    snprintf(path, sizeof path, "golden-quant/%s.json", CODED_GOLDEN[i]);
    ck_ok(mla_json_read(&j, mla_fixture(path), 1 << 20, &err));
    ck_ok(mla_qconfig_read(&m->cfg, mla_jv_get(mla_json_root(j), "quantization_config"), &err));
    ck_ok(mla_qmat_open_with(&m->q, &(mla_qsource){find_in_st, m->st}, "m", m->cfg, &err));
    mla_json_free(j);
    matrix_take(m, CODED_GOLDEN[i]);
}

void matrix_gguf(matrix *m, size_t i)
{
    mla_err err = {0};
    const coded_gguf *g = &CODED_GGUF[i];
    char path[128];
    *m = (matrix){0};
    snprintf(path, sizeof path, "golden-gguf/gguf_%s.safetensors", g->file);
    ck_ok(mla_st_open(&m->st, mla_fixture(path), &err));
    const mla_tensor *b = mla_st_find(m->st, "m.blocks"), *want = mla_st_find(m->st, "m.dequantized");
    mla_gguf_tensor t = {.name = g->file, .type = g->type, .ndim = 2, .ne = {want->shape[1], want->shape[0], 1, 1}, .data = b->data, .nbytes = b->nbytes};
    ck_ok(mla_qmat_gguf(&m->q, &t, &err));
    matrix_take(m, g->file);
}

void matrix_exl3(matrix *m, size_t i)
{
    mla_err err = {0};
    *m = (matrix){0};
    ck_ok(mla_st_open(&m->st, mla_fixture("golden-quant/exl3.safetensors"), &err));
    ck_ok(mla_qmat_open(&m->q, &(mla_qsource){find_in_st, m->st}, CODED_EXL3[i], &err));
    matrix_take(m, CODED_EXL3[i]);
}

void matrix_drop(matrix *m)
{
    mla_coded_free(&m->c);
    mla_free(m->w);
    mla_qconfig_free(m->cfg);
    mla_st_close(m->st);
}

float *product(mla_backend *be, const mla_weight *w, const float *x, size_t in, size_t out, size_t T)
{
    mla_err err = {0};
    float *y = lab_poisoned(T * (out + 3));
    ck_ok(be->ops->linear(be, w, &(mla_linear_args){.y = dev(y), .ldy = out + 3, .x = dev(x), .ldx = in, .T = T}, &err));
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; i < 3; i++) ck_assert_msg(isnan(y[t * (out + 3) + out + i]), "wrote past the row");
        memmove(y + t * out, y + t * (out + 3), out * sizeof *y);
    }
    return y;
}

void near_fp64(const matrix *m, const float *x, const float *y, size_t T)
{
    size_t in = m->q.in, out = m->q.out;
    for (size_t t = 0; t < T; t++)
        for (size_t o = 0; o < out; o++) {
            double want = 0, mag = 0;
            for (size_t i = 0; i < in; i++) {
                double p = (double)x[t * in + i] * m->w[o * in + i];
                want += p, mag += fabs(p);
            }
            double e = fabs(y[t * out + o] - want), tol = mla_gamma(MLA_F32, in + 2) * mag;
            ck_assert_msg(e <= tol, "%s (%zu, %zu): error %g > %g", m->name, t, o, e, tol);
        }
}
