/* Every golden matrix of every weight format, bit for bit, with its config and without; and controls that must show. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bag.h"
#include "base/alloc.h"
#include "harness.h"
#include "suites.h"

static const struct {
    const char *name, *format, *codes; /* codes: the tensor to flip a bit of */
    size_t group_out, group_in;
} CASE[] = {
    {"ct_int4_sym_g128", "CT INT4 packed", "m.weight_packed", 1, 128},
    {"ct_int4_sym_g32", "CT INT4 packed", "m.weight_packed", 1, 32},
    {"ct_int4_asym_g128", "CT INT4 packed", "m.weight_zero_point", 1, 128},
    {"ct_int4_asym_g64_odd", "CT INT4 packed", "m.weight_zero_point", 1, 64},
    {"ct_int4_channel", "CT INT4 packed", "m.weight_packed", 1, 256},
    {"ct_int8_pack_g128", "CT INT8 packed", "m.weight_packed", 1, 128},
    {"ct_int4_actorder", "CT INT4 packed", "m.weight_packed", 1, 128},
    {"ct_int8_channel", "CT INT8", "m.weight", 1, 256},
    {"ct_fp8_tensor", "FP8 E4M3 per tensor", "m.weight", 48, 256},
    {"ct_fp8_channel", "FP8 E4M3 per channel", "m.weight", 1, 256},
    {"ct_fp8_block128", "FP8 E4M3 per block", "m.weight", 128, 128},
    {"fp8_hf_block128", "FP8 E4M3 per block", "m.weight", 128, 128},
    {"fp8_hf_block128_ue8m0", "FP8 E4M3 per block", "m.weight", 128, 128},
    {"ct_nvfp4", "NVFP4 (CT)", "m.weight_packed", 1, 16},
    {"ct_mxfp4", "MXFP4", "m.weight_packed", 1, 32},
    {"awq_gemm_g128", "AWQ INT4", "m.qweight", 1, 128},
    {"awq_gemm_g64", "AWQ INT4", "m.qzeros", 1, 64},
    {"gptq_v1_sym_g128", "GPTQ INT4", "m.qweight", 1, 128},
    {"gptq_v1_asym_g128", "GPTQ INT4", "m.qzeros", 1, 128},
    {"gptq_v1_sym_g128_descact", "GPTQ INT4", "m.qweight", 1, 128},
    {"gptq_v2_asym_g128", "GPTQ INT4", "m.qzeros", 1, 128},
    {"gptq_v1_asym_g128_zero0", "GPTQ INT4", "m.qweight", 1, 128},
    {"gptq_v2_asym_g128_zero0", "GPTQ INT4", "m.qzeros", 1, 128},
};
enum { N_CASE = sizeof CASE / sizeof *CASE };

static bool is_gptq(int i) { return !strncmp(CASE[i].name, "gptq", 4); }

START_TEST(bits)
{
    bag b;
    bag_open(&b, CASE[_i].name);
    mla_qconfig *c = bag_config(&b);
    bag_decodes_to(&b, c, b.want);
    if (!is_gptq(_i)) bag_decodes_to(&b, NULL, b.want); /* the tensors alone are enough */
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

START_TEST(described)
{
    mla_err err;
    bag b;
    mla_qmat m;
    size_t bytes = 0, bad;
    mla_qscales s;
    bag_open(&b, CASE[_i].name);
    mla_qconfig *c = bag_config(&b);
    ck_ok(mla_qmat_open_with(&m, &b.src, "m", c, &err));
    ck_assert_str_eq(m.format, CASE[_i].format);
    ck_assert_uint_eq(m.group_out, CASE[_i].group_out);
    ck_assert_uint_eq(m.group_in, CASE[_i].group_in);
    for (size_t i = 0; i < b.n; i++)
        if (!strstr(b.t[i].name, "input_")) bytes += b.t[i].nbytes;
    ck_assert_uint_eq(mla_qmat_bytes(&m), bytes); /* every stored part counts, activation scales do not */
    ck_ok(mla_qmat_nonfinite(&m, &bad, NULL, &err));
    ck_assert_uint_eq(bad, 0);
    ck_ok(mla_qmat_scales(&m, &s, &err));
    ck_assert(s.n > 0 && s.zero == 0 && s.nonfinite == 0 && s.negative == 0 && !s.part);
    ck_ok(mla_qmat_expect(&m, b.out, b.in, &err));
    ck_refused(mla_qmat_expect(&m, b.out + 1, b.in, &err), MLA_EFORMAT, "expected");
    ck_refused(mla_qmat_expect(&m, b.out, b.in - 1, &err), MLA_EFORMAT, "expected");
    ck_refused(mla_qmat_rows_f32(&m, 1, b.out, b.want, &err), MLA_EINVAL, "rows");
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

/* One flipped bit of the codes must change the matrix, and only where that word is. */
START_TEST(control)
{
    mla_err err;
    bag b;
    mla_qmat m;
    bag_open(&b, CASE[_i].name);
    mla_qconfig *c = bag_config(&b);
    unsigned char *codes = bag_data(&b, CASE[_i].codes);
    codes[0] ^= 0x02;
    ck_ok(mla_qmat_open_with(&m, &b.src, "m", c, &err));
    float *got = mla_alloc(b.out, b.in, sizeof *got);
    ck_ok(mla_qmat_rows_f32(&m, 0, b.out, got, &err));
    size_t differ = 0;
    for (size_t i = 0; i < b.out * b.in; i++) differ += memcmp(got + i, b.want + i, sizeof *got) != 0;
    ck_assert_uint_gt(differ, 0);
    ck_assert_uint_le(differ, 256);
    mla_free(got);
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

/* A per-nibble +1 would read a borrowed zero point wrongly; and v1 and v2 differ. */
START_TEST(gptq_versions)
{
    mla_err err;
    bag v1, v2;
    mla_qmat m;
    bag_open(&v1, "gptq_v1_asym_g128_zero0");
    bag_open(&v2, "gptq_v2_asym_g128_zero0");
    ck_assert(memcmp(v1.want, v2.want, v1.out * v1.in * sizeof *v1.want) == 0);
    ck_assert(memcmp(bag_data(&v1, "m.qzeros"), bag_data(&v2, "m.qzeros"), bag_find(&v1, "m.qzeros")->nbytes) != 0);
    mla_qconfig *c1 = bag_config(&v1), *c2 = bag_config(&v2);
    bag_decodes_to(&v1, c1, v2.want);
    float *got = mla_alloc(v1.out, v1.in, sizeof *got);
    ck_ok(mla_qmat_open_with(&m, &v1.src, "m", c2, &err)); /* asymmetric: tensors cannot contradict the config */
    ck_ok(mla_qmat_rows_f32(&m, 0, m.out, got, &err));
    ck_assert(memcmp(got, v1.want, v1.out * v1.in * sizeof *got) != 0);
    /* without a config the version is not guessed */
    ck_ok(mla_qmat_open(&m, &v1.src, "m", &err));
    ck_assert_uint_eq(m.out, v1.out);
    ck_refused(mla_qmat_rows_f32(&m, 0, 1, got, &err), MLA_EUNSUPPORTED, "gptq_v2");
    mla_free(got);
    mla_qconfig_free(c1);
    mla_qconfig_free(c2);
    bag_free(&v1);
    bag_free(&v2);
}
END_TEST

Suite *suite_golden(void)
{
    Suite *s = suite_create("golden");
    TCase *c = tcase_create("golden");
    tcase_add_loop_test(c, bits, 0, N_CASE);
    tcase_add_loop_test(c, described, 0, N_CASE);
    tcase_add_loop_test(c, control, 0, N_CASE);
    tcase_add_test(c, gptq_versions);
    suite_add_tcase(s, c);
    return s;
}
