/* Planted defects: every one refused by name, the unchanged module accepted; damaged scales reported. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bag.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "suites.h"
#include "tensor/fp.h"

typedef enum {
    DROP,      /* the tensor is gone */
    DIM0, DIM1, /* that dimension is one larger, the bytes as they were stored for it */
    SHORT,     /* its last byte is missing */
    RETYPE,    /* to `arg` */
    NDIM,      /* another number of dimensions: arg */
    WORD,      /* word arg of it is 99 */
    NEGATIVE   /* word arg of it is -1 */
} defect;

static const struct {
    const char *file;
    defect what;
    const char *part;
    long arg;
    const char *says;
} CASE[] = {
    {"ct_int4_sym_g128", DROP, "m.weight_scale", 0, "m.weight_scale: absent"},
    {"ct_int4_sym_g128", DROP, "m.weight_shape", 0, "m.weight_shape: absent"},
    {"ct_int4_sym_g128", DROP, "m.weight_packed", 0, "m: no known weight format"},
    {"ct_int4_sym_g128", DIM0, "m.weight_packed", 0, "expected 192 rows as weight_shape says"},
    {"ct_int4_sym_g128", DIM1, "m.weight_packed", 0, "do not hold 256 codes of 4 bits"},
    {"ct_int4_sym_g128", DIM1, "m.weight_scale", 0, "m.weight_scale"},
    {"ct_int4_sym_g128", DIM0, "m.weight_scale", 0, "m.weight_scale"},
    {"ct_int4_sym_g128", SHORT, "m.weight_packed", 0, "m.weight_packed: I32 [192, 32] does not span"},
    {"ct_int4_sym_g128", SHORT, "m.weight_scale", 0, "does not span"},
    {"ct_int4_sym_g128", RETYPE, "m.weight_scale", MLA_I16, "m.weight_scale: expected scales of F32, F16 or BF16, found I16"},
    {"ct_int4_sym_g128", WORD, "m.weight_shape", 2, "do not hold 99 codes of 4 bits"},
    {"ct_int4_sym_g128", NEGATIVE, "m.weight_shape", 1, "is no shape of a matrix"},
    {"ct_int4_sym_g128", RETYPE, "m.weight_shape", MLA_I32, "m.weight_shape: expected I64 [2]"},
    {"ct_int4_asym_g128", DROP, "m.weight_zero_point", 0, "no weight_zero_point, but target \"Linear\" of group_0 says asymmetric"},
    {"ct_int4_asym_g64_odd", DIM0, "m.weight_zero_point", 0, "m.weight_zero_point: expected I32 [5, 4], found I32 [6, 4]"},
    {"ct_int4_asym_g128", SHORT, "m.weight_zero_point", 0, "does not span"},
    {"ct_int4_actorder", DROP, "m.weight_g_idx", 0, "no weight_g_idx, but"},
    {"ct_int4_actorder", WORD, "m.weight_g_idx", 77, "m.weight_g_idx: entry 77 is 99, expected 0 to 1"},
    {"ct_int4_actorder", NEGATIVE, "m.weight_g_idx", 255, "entry 255 is -1"},
    {"ct_int4_actorder", DIM0, "m.weight_g_idx", 0, "expected I32 [256], found I32 [257]"},
    {"ct_int8_channel", DROP, "m.weight_scale", 0, "m.weight_scale: absent"},
    {"ct_int8_channel", DIM0, "m.weight_scale", 0, "holds no scales per channel of a [48, 256] matrix"},
    {"ct_int8_channel", SHORT, "m.weight", 0, "does not span"},
    {"ct_int8_channel", NDIM, "m.weight", 1, "its class \"other\" keeps it plain"},
    {"ct_fp8_tensor", DROP, "m.weight_scale", 0, "absent beside FP8 codes"},
    {"ct_fp8_tensor", DIM0, "m.weight_scale", 0, "holds no scales per tensor"},
    {"ct_fp8_tensor", RETYPE, "m.weight", MLA_F8_E5M2, "m: no known weight format"},
    {"ct_fp8_block128", DIM0, "m.weight_scale", 0, "holds no scales per block"},
    {"ct_fp8_block128", DIM1, "m.weight_scale", 0, "holds no scales per block"},
    {"ct_fp8_block128", SHORT, "m.weight", 0, "does not span"},
    {"fp8_hf_block128", DIM0, "m.weight_scale_inv", 0, "holds no scales per block"},
    {"fp8_hf_block128", RETYPE, "m.weight_scale_inv", MLA_I32, "expected scales of F32, F16 or BF16"},
    {"fp8_hf_block128_ue8m0", RETYPE, "m.weight_scale_inv", MLA_I8, "I8 scales, but the fp8 config says ue8m0"},
    {"ct_nvfp4", DROP, "m.weight_global_scale", 0, "stored as compressed-tensors mxfp4-pack-quantized, but target"},
    {"ct_nvfp4", DROP, "m.weight_scale", 0, "m.weight_scale: absent"},
    {"ct_nvfp4", DIM1, "m.weight_scale", 0, "m.weight_scale: expected F8_E4M3 [48, 16], found F8_E4M3 [48, 17]"},
    {"ct_nvfp4", DIM0, "m.weight_global_scale", 0, "expected one F32"},
    {"ct_nvfp4", DIM1, "m.weight_packed", 0, "with whole blocks of 16"},
    {"ct_nvfp4", SHORT, "m.weight_packed", 0, "does not span"},
    {"ct_nvfp4", RETYPE, "m.weight_scale", MLA_U8, "expected F8_E4M3"},
    {"ct_mxfp4", DIM1, "m.weight_scale", 0, "m.weight_scale: expected F8_E8M0 [48, 8]"},
    {"ct_mxfp4", DROP, "m.weight_scale", 0, "m.weight_scale: absent"},
    {"ct_mxfp4", RETYPE, "m.weight_scale", MLA_F8_E4M3, "expected F8_E8M0"},
    {"awq_gemm_g128", DROP, "m.qzeros", 0, "m.qzeros: absent"},
    {"awq_gemm_g128", DROP, "m.scales", 0, "m: no known weight format"},
    {"awq_gemm_g128", DIM0, "m.qzeros", 0, "m.qzeros: expected I32 [2, 24], found I32 [3, 24]"},
    {"awq_gemm_g128", DIM0, "m.scales", 0, "m.qzeros: expected I32 [3, 24]"},
    {"awq_gemm_g128", DIM0, "m.qweight", 0, "2 groups do not divide 257 inputs"},
    {"awq_gemm_g128", SHORT, "m.scales", 0, "does not span"},
    {"awq_gemm_g128", RETYPE, "m.scales", MLA_I16, "m.scales"},
    {"gptq_v1_sym_g128", DROP, "m.qzeros", 0, "m.qzeros: absent"},
    {"gptq_v1_sym_g128", DIM1, "m.qzeros", 0, "holds no zero points of 2, 4 or 8 bits for 192 outputs"},
    {"gptq_v1_sym_g128", DIM0, "m.qzeros", 0, "m.qzeros: expected I32 [2, 24]"},
    {"gptq_v1_sym_g128", DIM0, "m.qweight", 0, "do not divide 264 inputs"},
    {"gptq_v1_sym_g128", SHORT, "m.qweight", 0, "does not span"},
    {"gptq_v1_sym_g128", WORD, "m.qzeros", 3, "zero point"},
    {"gptq_v1_sym_g128", WORD, "m.g_idx", 0, "m.g_idx: entry 0 is 99, expected 0 to 1 (the matrix has 2 groups)"},
    {"gptq_v1_sym_g128_descact", NEGATIVE, "m.g_idx", 100, "entry 100 is -1"},
    {"gptq_v1_sym_g128_descact", DROP, "m.g_idx", 0, "no g_idx, but the gptq config says activation order"},
    {"gptq_v1_sym_g128_descact", DIM0, "m.g_idx", 0, "expected I32 [256]"},
};
enum { N_CASE = sizeof CASE / sizeof *CASE };

/* Room for one more row or column than stored. */
static void grow(bag *b, const char *part, size_t dim)
{
    mla_tensor *t = bag_find(b, part);
    t->shape[dim]++;
    size_t n = mla_tensor_numel(t) * mla_dtype_bits(t->dtype) / 8;
    unsigned char *more = mla_alloc(n, 1, 1);
    memcpy(more, t->data, t->nbytes);
    mla_free((void *)(uintptr_t)t->data);
    t->data = more;
    t->nbytes = n;
}

static void plant(bag *b, int i)
{
    int32_t word = CASE[i].what == WORD ? 99 : -1;
    switch (CASE[i].what) {
    case DROP: bag_drop(b, CASE[i].part); break;
    case DIM0: grow(b, CASE[i].part, 0); break;
    case DIM1: grow(b, CASE[i].part, 1); break;
    case SHORT: bag_find(b, CASE[i].part)->nbytes--; break;
    case RETYPE: bag_find(b, CASE[i].part)->dtype = (mla_dtype)CASE[i].arg; break;
    case NDIM: bag_find(b, CASE[i].part)->ndim = (size_t)CASE[i].arg; break;
    case WORD: case NEGATIVE: memcpy((char *)bag_data(b, CASE[i].part) + 4 * CASE[i].arg, &word, 4); break;
    }
}

START_TEST(defects)
{
    mla_err err;
    bag b;
    mla_qmat m;
    bag_open(&b, CASE[_i].file);
    mla_qconfig *c = bag_config(&b);
    ck_ok(mla_qmat_open_with(&m, &b.src, "m", c, &err));
    plant(&b, _i);
    ck_refused(mla_qmat_open_with(&m, &b.src, "m", c, &err), MLA_EFORMAT, CASE[_i].says);
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

static const struct {
    const char *file, *part;
    size_t at;
    int bytes;
    uint32_t zero, nan; /* stored bits */
    size_t nan_values;  /* values that one NaN scale spoils */
} SCALE[] = {
    {"ct_int4_sym_g128", "m.weight_scale", 5, 2, 0, 0x7fc0, 128}, {"ct_int8_channel", "m.weight_scale", 7, 2, 0, 0x7fc0, 256},
    {"ct_fp8_tensor", "m.weight_scale", 0, 2, 0, 0x7fc0, 48 * 256}, {"fp8_hf_block128", "m.weight_scale_inv", 3, 4, 0, 0x7fc00000, 128 * 128},
    {"ct_nvfp4", "m.weight_scale", 20, 1, 0, 0x7f, 16}, {"ct_nvfp4", "m.weight_global_scale", 0, 4, 0, 0x7fc00000, 48 * 256},
    {"awq_gemm_g64", "m.scales", 9, 2, 0, 0x7e00, 64}, {"gptq_v2_asym_g128", "m.scales", 64, 2, 0, 0x7e00, 128},
};

START_TEST(scales_reported)
{
    mla_err err;
    bag b;
    mla_qmat m;
    mla_qscales s;
    size_t bad, first;
    bag_open(&b, SCALE[_i].file);
    mla_qconfig *c = bag_config(&b);
    unsigned char *at = (unsigned char *)bag_data(&b, SCALE[_i].part) + SCALE[_i].at * (size_t)SCALE[_i].bytes;
    memcpy(at, &SCALE[_i].zero, (size_t)SCALE[_i].bytes);
    ck_ok(mla_qmat_open_with(&m, &b.src, "m", c, &err));
    ck_ok(mla_qmat_scales(&m, &s, &err));
    ck_assert(s.zero == 1 && s.nonfinite == 0 && s.first == SCALE[_i].at);
    ck_assert_str_eq(s.part, SCALE[_i].part);
    memcpy(at, &SCALE[_i].nan, (size_t)SCALE[_i].bytes);
    ck_ok(mla_qmat_scales(&m, &s, &err));
    ck_assert(s.zero == 0 && s.nonfinite == 1 && s.first == SCALE[_i].at);
    ck_ok(mla_qmat_nonfinite(&m, &bad, &first, &err));
    ck_assert_uint_eq(bad, SCALE[_i].nan_values); /* NaN comes out as stored */
    ck_assert_uint_lt(first, m.out);
    if (SCALE[_i].bytes == 2) { /* a negative scale is counted, but no defect */
        at[1] = 0xbc;
        ck_ok(mla_qmat_scales(&m, &s, &err));
        ck_assert(s.negative == 1 && s.zero == 0 && s.nonfinite == 0 && !s.part);
    }
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

START_TEST(e8m0_nan)
{
    mla_err err;
    bag b;
    mla_qmat m;
    mla_qscales s;
    bag_open(&b, "ct_mxfp4");
    ((unsigned char *)bag_data(&b, "m.weight_scale"))[33] = 0xff;
    ck_ok(mla_qmat_open(&m, &b.src, "m", &err));
    ck_ok(mla_qmat_scales(&m, &s, &err));
    ck_assert(s.n == 48 * 8 && s.nonfinite == 1 && s.first == 33);
    bag_free(&b);
}
END_TEST

/* Tensors of two formats under one name, and parts that belong to neither. */
START_TEST(mixtures)
{
    mla_err err;
    mla_qmat m;
    float one = 1;
    bag b;
    bag_open(&b, "ct_fp8_tensor");
    bag_add(&b, "m.weight_scale_inv", MLA_F32, 0, 0, 0, &one);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m.weight_scale_inv: beside m.weight_scale");
    bag_free(&b);
    bag_open(&b, "ct_int4_sym_g128");
    bag_add(&b, "m.weight", MLA_F32, 2, 1, 1, &one);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m: has tensors of two formats, dense and compressed-tensors pack-quantized");
    bag_free(&b);
    bag_empty(&b);
    bag_add(&b, "m.weight", MLA_F32, 2, 1, 1, &one);
    ck_ok(mla_qmat_open(&m, &b.src, "m", &err));
    bag_add(&b, "m.weight_scale", MLA_F32, 1, 1, 0, &one);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m.weight_scale: beside plain F32 values in m.weight");
    bag_free(&b);
    bag_open(&b, "awq_gemm_g64");
    bag_add(&b, "m.g_idx", MLA_I32, 1, 1, 0, &one);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m.g_idx: beside codes packed the AWQ way");
    bag_free(&b);
    /* activation scaling folded into neighbours is another format */
    bag_open(&b, "ct_fp8_tensor");
    bag_add(&b, "m.pre_quant_scale", MLA_F32, 1, 1, 0, &one);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EUNSUPPORTED, "m.pre_quant_scale");
    bag_free(&b);
}
END_TEST

/* A matrix without rows or columns is no quantized matrix. */
START_TEST(empty)
{
    mla_err err;
    mla_qmat m;
    float one = 1;
    bag b;
    bag_empty(&b);
    bag_add(&b, "m.weight", MLA_F8_E4M3, 2, 0, 16, &one);
    bag_add(&b, "m.weight_scale", MLA_F32, 0, 0, 0, &one);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "[0, 16]");
    bag_find(&b, "m.weight")->shape[0] = 16, bag_find(&b, "m.weight")->shape[1] = 0;
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "[16, 0]");
    bag_free(&b);
}
END_TEST

/* What a hostile EXL3 module may say. */
START_TEST(exl3)
{
    static const struct { size_t shape[3]; const char *says; } SHAPE[] = {
        {{8, 8, 63}, "expected I16"}, {{8, 8, 144}, "expected I16"}, {{8, 8, 72}, "expected I16"}, {{8, 8, 0}, "expected I16"},
        {{7, 8, 64}, "expected I16"}, {{8, 12, 64}, "expected I16"}, {{SIZE_MAX / 8, 8, 64}, "expected I16"}, {{8, 16, 64}, "does not span"}};
    mla_err err;
    mla_qmat m;
    bag b;
    static const uint16_t data[8 * 8 * 64];
    uint16_t ones[128];
    int32_t mark = (int32_t)0x83dcd12du, wrong = 12345;
    for (int i = 0; i < 128; i++) ones[i] = 0x3c00;
    bag_empty(&b);
    bag_add(&b, "m.trellis", MLA_I16, 2, 64, 64, data);
    mla_tensor *t = bag_find(&b, "m.trellis");
    t->ndim = 3;
    t->shape[0] = t->shape[1] = 8, t->shape[2] = 64;
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m.suh and .su: absent");
    bag_add(&b, "m.suh", MLA_F16, 1, 128, 0, ones);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m.svh and .sv: absent");
    bag_add(&b, "m.svh", MLA_F16, 1, 128, 0, ones);
    ck_ok(mla_qmat_open(&m, &b.src, "m", &err));
    ck_assert_str_eq(m.format, "EXL3 4-bit");
    for (size_t i = 0; i < sizeof SHAPE / sizeof *SHAPE; i++) {
        t = bag_find(&b, "m.trellis");
        memcpy(t->shape, SHAPE[i].shape, sizeof SHAPE[i].shape);
        ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, SHAPE[i].says);
    }
    memcpy(bag_find(&b, "m.trellis")->shape, (size_t[3]){8, 8, 40}, 3 * sizeof(size_t));
    bag_find(&b, "m.trellis")->nbytes = 8 * 8 * 40 * 2;
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "half-integer bits belong to the codebook mul1");
    bag_add(&b, "m.mul1", MLA_I32, 0, 0, 0, &mark);
    ck_ok(mla_qmat_open(&m, &b.src, "m", &err));
    ck_assert_str_eq(m.format, "EXL3 2.5-bit");
    bag_add(&b, "m.mcg", MLA_I32, 0, 0, 0, &mark);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m.mul1: beside m.mcg");
    bag_drop(&b, "m.mcg");
    memcpy(bag_data(&b, "m.mul1"), &wrong, 4);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EUNSUPPORTED, "m.mul1: multiplier 0x00003039");
    memcpy(bag_data(&b, "m.mul1"), &mark, 4);
    bag_add(&b, "m.su", MLA_I16, 1, 8, 0, data);
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m.su: beside m.suh");
    bag_drop(&b, "m.su");
    bag_find(&b, "m.svh")->shape[0] = 127;
    ck_refused(mla_qmat_open(&m, &b.src, "m", &err), MLA_EFORMAT, "m.svh: expected F16 [128]");
    bag_find(&b, "m.svh")->shape[0] = 128;
    mla_qconfig *c = config_of("{'quant_method':'exl3','bits':2.5,'codebook':'mcg'}");
    ck_refused(mla_qmat_open_with(&m, &b.src, "m", c, &err), MLA_EFORMAT, "tensors of codebook mul1, but the exl3 config says mcg");
    mla_qconfig_free(c);
    float row[128];
    ck_ok(mla_qmat_open(&m, &b.src, "m", &err));
    mla_alloc_fail_after(0);
    ck_refused(mla_qmat_rows_f32(&m, 0, 1, row, &err), MLA_ENOMEM, "m.trellis");
    bag_free(&b);
}
END_TEST

static const char *const MUTATED[] = {"ct_int4_asym_g64_odd", "ct_int4_actorder", "ct_int8_channel", "ct_fp8_block128", "ct_nvfp4",
                                      "ct_mxfp4", "awq_gemm_g64", "gptq_v1_asym_g128_zero0", "gptq_v1_sym_g128_descact"};

/* Another shape, rank or type for one tensor, with exactly the bytes it spans: reading past them is an error that the
 * sanitizers see. */
static void mutate(bag *b, uint64_t seed)
{
    static const mla_dtype TYPE[] = {MLA_U8, MLA_I8, MLA_I32, MLA_I64, MLA_F16, MLA_BF16, MLA_F32, MLA_F8_E4M3, MLA_F8_E8M0};
    mla_tensor *t = &b->t[mla_rng_below(seed, 0, b->n)];
    size_t d = mla_rng_below(seed, 1, t->ndim ? t->ndim : 1), *dim = &t->shape[d];
    switch (mla_rng_below(seed, 2, 8)) {
    case 0: (*dim)++; break;
    case 1: *dim -= *dim > 0; break;
    case 2: *dim *= 2; break;
    case 3: *dim /= 2; break;
    case 4: *dim = 0; break;
    case 5: t->ndim = mla_rng_below(seed, 3, 4); break;
    case 6: t->dtype = TYPE[mla_rng_below(seed, 3, sizeof TYPE / sizeof *TYPE)]; break;
    case 7: { size_t s = t->shape[0]; t->shape[0] = t->shape[1]; t->shape[1] = s; break; }
    }
    for (size_t i = t->ndim; i < MLA_MAX_DIMS; i++) t->shape[i] = 1; /* a grown rank adds dimensions of 1 */
    size_t n = mla_tensor_numel(t) * mla_dtype_bits(t->dtype) / 8;
    unsigned char *data = malloc(n ? n : 1); /* exact, unlike mla_alloc's whole cache lines */
    ck_assert_ptr_nonnull(data);
    for (size_t i = 0; i < n; i++) data[i] = i < t->nbytes ? ((const unsigned char *)t->data)[i] : (unsigned char)mla_rng_u64(seed, i);
    mla_free((void *)(uintptr_t)t->data);
    t->data = data;
    t->nbytes = n;
}

START_TEST(mutations)
{
    mla_err err;
    mla_qmat m;
    size_t opened = 0, refused = 0;
    for (uint64_t k = 0; k < 250; k++) {
        bag b;
        bag_open(&b, MUTATED[_i]);
        mla_qconfig *c = bag_config(&b);
        for (uint64_t j = 0; j <= k % 3; j++) mutate(&b, 1000 * (uint64_t)_i + 3 * k + j);
        if (mla_qmat_open_with(&m, &b.src, "m", k % 2 ? c : NULL, &err) == MLA_OK) {
            float *row = mla_alloc(m.in, 3, sizeof *row);
            for (size_t r = 0; r < m.out; r += 3) {
                mla_status st = mla_qmat_rows_f32(&m, r, m.out - r < 3 ? m.out - r : 3, row, &err);
                ck_assert(st == MLA_OK || st == MLA_EUNSUPPORTED);
            }
            mla_free(row);
            opened++;
        } else {
            ck_assert_uint_gt(strlen(err.msg), 5);
            refused++;
        }
        mla_qconfig_free(c);
        bag_free(&b);
    }
    ck_assert_uint_gt(refused, 100);
    (void)opened;
}
END_TEST

Suite *suite_refuse(void)
{
    Suite *s = suite_create("refuse");
    TCase *c = tcase_create("refuse");
    tcase_add_loop_test(c, defects, 0, N_CASE);
    tcase_add_loop_test(c, scales_reported, 0, sizeof SCALE / sizeof *SCALE);
    tcase_add_test(c, e8m0_nan);
    tcase_add_test(c, mixtures);
    tcase_add_test(c, empty);
    tcase_add_test(c, exl3);
    tcase_add_loop_test(c, mutations, 0, sizeof MUTATED / sizeof *MUTATED);
    suite_add_tcase(s, c);
    return s;
}
