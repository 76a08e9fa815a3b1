/* Spellings without a golden file of their own: golden tensors renamed and retyped, or codes packed by an encoder of the
 * test; expected values by formulas written here. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bag.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "suites.h"
#include "tensor/fp.h"

/* e4m3 by its definition. */
static float e4m3(unsigned b)
{
    unsigned e = b >> 3 & 15, m = b & 7;
    double v = e ? ldexp(1 + m / 8.0, (int)e - 7) : ldexp(m / 8.0, -6);
    return (float)(b & 128 ? -v : v);
}

#define HF "{'quant_method':'fp8','activation_scheme':'dynamic','weight_block_size':"

START_TEST(hf_fp8_scales)
{
    bag b;
    bag_open(&b, "fp8_hf_block128");
    mla_tensor *s = bag_find(&b, "m.weight_scale_inv");
    const unsigned char *codes = bag_data(&b, "m.weight");
    uint16_t half[4];
    float wide[4];
    ck_assert_uint_eq(s->nbytes, sizeof wide);
    memcpy(wide, s->data, sizeof wide);
    for (int i = 0; i < 4; i++) half[i] = mla_f32_bf16(wide[i]);
    bag_drop(&b, "m.weight_scale_inv");
    bag_add(&b, "m.weight_scale_inv", MLA_BF16, 2, 2, 2, half);
    for (size_t o = 0; o < 256; o++)
        for (size_t i = 0; i < 256; i++)
            b.want[o * 256 + i] = e4m3(codes[o * 256 + i]) * mla_bf16_f32(half[o / 128 * 2 + i / 128]);
    mla_qconfig *c = config_of(HF "[128,128]}");
    bag_decodes_to(&b, c, b.want);
    mla_qconfig_free(c);
    bag_free(&b);
    /* E8M0 bytes under the plain byte type */
    bag_open(&b, "fp8_hf_block128_ue8m0");
    bag_find(&b, "m.weight_scale_inv")->dtype = MLA_U8;
    c = config_of(HF "[128,128],'scale_fmt':'ue8m0'}");
    bag_decodes_to(&b, c, b.want);
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

/* Per tensor and per channel under the names and shapes of each producer. */
START_TEST(fp8_spellings)
{
    static const struct { const char *part; size_t ndim; const char *config; } CASE[] = {
        {"m.weight_scale", 0, HF "null}"}, {"m.weight_scale_inv", 0, HF "null}"}, {"m.weight_scale", 1, HF "null}"},
        {"m.weight_scale", 0, "{'quant_method':'modelopt','quant_algo':'FP8','ignore':['lm_head']}"},
        {"m.weight_scale", 0, "{'producer':{'name':'modelopt'},'quantization':{'quant_algo':'FP8','exclude_modules':[]}}"},
        {"m.weight_scale", 0, "{'quant_method':'modelopt','config_groups':{'group_0':{'targets':['Linear'],'weights':"
                              "{'num_bits':8,'type':'float','dynamic':false}}}}"},
    };
    for (size_t k = 0; k < sizeof CASE / sizeof *CASE; k++) {
        bag b;
        bag_open(&b, "ct_fp8_tensor");
        uint16_t half;
        memcpy(&half, bag_data(&b, "m.weight_scale"), 2);
        float wide = mla_bf16_f32(half);
        bag_drop(&b, "m.weight_scale");
        bag_add(&b, CASE[k].part, MLA_F32, CASE[k].ndim, 1, 0, &wide);
        mla_qconfig *c = config_of(CASE[k].config);
        bag_decodes_to(&b, c, b.want);
        bag_decodes_to(&b, NULL, b.want);
        mla_qconfig_free(c);
        bag_free(&b);
    }
    bag b;
    bag_open(&b, "ct_fp8_channel"); /* ModelOpt: [out] */
    bag_find(&b, "m.weight_scale")->ndim = 1;
    mla_qconfig *c = config_of("{'quant_method':'modelopt','quant_algo':'FP8_PER_CHANNEL_PER_TOKEN'}");
    bag_decodes_to(&b, c, b.want);
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

/* ModelOpt multiplies by its second scale, and its code 8 is plus zero. */
START_TEST(modelopt_nvfp4)
{
    static const float TABLE[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    static const char *const CONFIG[] = {
        "{'quant_method':'modelopt','quant_algo':'NVFP4','group_size':16}",
        "{'producer':{'name':'modelopt'},'quantization':{'quant_algo':'NVFP4','group_size':16,'kv_cache_quant_algo':'FP8'}}",
        "{'quant_method':'modelopt','quant_algo':'MIXED_PRECISION','quantized_layers':{'m':{'quant_algo':'NVFP4','group_size':16}}}",
        ("{'quant_method':'modelopt','config_groups':{'group_0':{'targets':['Linear'],'weights':{'num_bits':4,'type':'float',"
         "'group_size':16,'dynamic':false}}}}")};
    bag b;
    bag_open(&b, "ct_nvfp4");
    float global;
    memcpy(&global, bag_data(&b, "m.weight_global_scale"), 4);
    float second = 1 / global;
    bag_drop(&b, "m.weight_global_scale");
    bag_drop(&b, "m.input_global_scale");
    bag_rename(&b, "m.weight_packed", "m.weight");
    bag_add(&b, "m.weight_scale_2", MLA_F32, 0, 0, 0, &second);
    const unsigned char *codes = bag_data(&b, "m.weight"), *scale = bag_data(&b, "m.weight_scale");
    size_t zeros = 0;
    for (size_t o = 0; o < b.out; o++)
        for (size_t i = 0; i < b.in; i++) {
            unsigned q = codes[o * b.in / 2 + i / 2] >> (i % 2 * 4) & 15;
            zeros += q == 8;
            b.want[o * b.in + i] = TABLE[q] * (e4m3(scale[o * b.in / 16 + i / 16]) * second);
        }
    ck_assert_uint_gt(zeros, 0); /* the sign of zero is tested */
    for (size_t k = 0; k < sizeof CONFIG / sizeof *CONFIG; k++) {
        mla_qconfig *c = config_of(CONFIG[k]);
        bag_decodes_to(&b, c, b.want);
        mla_qconfig_free(c);
    }
    bag_decodes_to(&b, NULL, b.want);
    bag_free(&b);
}
END_TEST

/* auto-round's packings are other libraries' layouts under its own config. */
START_TEST(auto_round)
{
    static const struct { const char *name, *config; } CASE[] = {
        {"gptq_v1_sym_g128", "'sym':true,'group_size':128,'packing_format':'auto_round:auto_gptq'"},
        {"gptq_v1_asym_g128", "'sym':false,'group_size':128,'packing_format':'auto_round:auto_gptq'"},
        {"awq_gemm_g64", "'sym':false,'group_size':64,'packing_format':'auto_round:auto_awq'"},
        {"ct_int4_sym_g128", "'sym':true,'group_size':128,'packing_format':'auto_round:llm_compressor'"},
        {"ct_int4_asym_g128", "'sym':false,'group_size':128,'packing_format':'auto_round:llm_compressor'"},
        {"gptq_v1_asym_g128", "'sym':true,'group_size':64,'packing_format':'auto_round:auto_gptq','extra_config':{'m':"
                              "{'bits':4,'sym':false,'group_size':128,'data_type':'int'}}"}};
    for (size_t k = 0; k < sizeof CASE / sizeof *CASE; k++) {
        bag b;
        char text[512];
        bag_open(&b, CASE[k].name);
        snprintf(text, sizeof text, "{'quant_method':'auto-round','autoround_version':'0.16.1','bits':4,'data_type':'int',%s}",
                 CASE[k].config);
        mla_qconfig *c = config_of(text);
        bag_decodes_to(&b, c, b.want);
        mla_qconfig_free(c);
        bag_free(&b);
    }
}
END_TEST

/* Puts value v of `bits` at bit position p of a little-endian bit string: lowest bit first, across words. */
static void put_bits(unsigned char *base, size_t p, unsigned bits, unsigned v)
{
    for (unsigned k = 0; k < bits; k++)
        if (v >> k & 1) base[(p + k) / 8] |= (unsigned char)(1u << (p + k) % 8);
}

/* compressed-tensors packing of every width, odd sizes, asymmetric: zero points run down the outputs across words. */
START_TEST(pack_widths)
{
    enum { OUT = 21, GROUP = 11, GROUPS = 4, IN = GROUP * GROUPS };
    unsigned bits = (unsigned)_i;
    size_t words = (IN * bits + 31) / 32, zwords = (OUT * bits + 31) / 32;
    static const int64_t SHAPE[2] = {OUT, IN};
    float scale[OUT * GROUPS];
    unsigned q[OUT][IN], z[OUT][GROUPS];
    unsigned char *packed = mla_alloc(OUT, words, 4), *zeros = mla_alloc(zwords, GROUPS, 4), *down = mla_alloc(zwords, 4, 1);
    bag b;
    bag_empty(&b);
    b.out = OUT, b.in = IN;
    b.want = mla_alloc(OUT, IN, sizeof *b.want);
    for (size_t g = 0; g < GROUPS; g++) { /* one column of zero points is one bit string */
        memset(down, 0, zwords * 4);
        for (size_t o = 0; o < OUT; o++) {
            z[o][g] = (unsigned)mla_rng_below(2, o * GROUPS + g, 1u << bits);
            put_bits(down, o * bits, bits, z[o][g]);
            scale[o * GROUPS + g] = (float)mla_rng_normal(3, o * GROUPS + g);
        }
        for (size_t w = 0; w < zwords; w++) memcpy(zeros + (w * GROUPS + g) * 4, down + w * 4, 4);
    }
    for (size_t o = 0; o < OUT; o++)
        for (size_t i = 0; i < IN; i++) {
            q[o][i] = (unsigned)mla_rng_below(1, o * IN + i, 1u << bits);
            put_bits(packed + o * words * 4, i * bits, bits, q[o][i]);
            b.want[o * IN + i] = (float)((int)q[o][i] - (int)z[o][i / GROUP]) * scale[o * GROUPS + i / GROUP];
        }
    bag_add(&b, "m.weight_packed", MLA_I32, 2, OUT, words, packed);
    bag_add(&b, "m.weight_zero_point", MLA_I32, 2, zwords, GROUPS, zeros);
    bag_add(&b, "m.weight_scale", MLA_F32, 2, OUT, GROUPS, scale);
    bag_add(&b, "m.weight_shape", MLA_I64, 1, 2, 0, SHAPE);
    bag_decodes_to(&b, NULL, b.want);
    mla_free(packed);
    mla_free(zeros);
    mla_free(down);
    bag_free(&b);
}
END_TEST

START_TEST(int8_zero_points)
{
    enum { OUT = 5, IN = 12 };
    int8_t q[OUT * IN], z[OUT];
    float s[OUT];
    bag b;
    bag_empty(&b);
    b.out = OUT, b.in = IN;
    b.want = mla_alloc(OUT, IN, sizeof *b.want);
    for (size_t o = 0; o < OUT; o++) {
        z[o] = (int8_t)(mla_rng_below(5, o, 256) - 128);
        s[o] = (float)mla_rng_unit(6, o) + 0.01f;
        for (size_t i = 0; i < IN; i++) {
            q[o * IN + i] = (int8_t)(mla_rng_below(4, o * IN + i, 256) - 128);
            b.want[o * IN + i] = (float)(q[o * IN + i] - z[o]) * s[o];
        }
    }
    bag_add(&b, "m.weight", MLA_I8, 2, OUT, IN, q);
    bag_add(&b, "m.weight_scale", MLA_F32, 2, OUT, 1, s);
    bag_add(&b, "m.weight_zero_point", MLA_I8, 2, OUT, 1, z);
    mla_qconfig *c = config_of("{'quant_method':'compressed-tensors','format':'int-quantized','config_groups':{'group_0':"
                               "{'targets':['Linear'],'weights':{'num_bits':8,'type':'int','symmetric':false,'strategy':'channel'}}}}");
    bag_decodes_to(&b, c, b.want);
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

/* GPTQ of 2, 4 and 8 bits, v1 by whole-word subtraction with zero points of 0, and v2; without g_idx; one group. */
START_TEST(gptq_widths)
{
    static const unsigned BITS[] = {2, 4, 8};
    unsigned bits = BITS[_i / 2], per = 32 / bits;
    bool v1 = _i % 2 == 0;
    enum { OUT = 16, IN = 32 };
    uint32_t words[IN * OUT] = {0}, zeros[OUT] = {0}, ones = 0;
    uint16_t scale[OUT];
    unsigned z[OUT];
    bag b;
    bag_empty(&b);
    b.out = OUT, b.in = IN;
    b.want = mla_alloc(OUT, IN, sizeof *b.want);
    for (unsigned k = 0; k < 32; k += bits) ones |= 1u << k;
    for (size_t o = 0; o < OUT; o++) {
        z[o] = o % 3 ? (unsigned)mla_rng_below(7, o, 1u << bits) : 0;
        zeros[o / per] |= z[o] << o % per * bits;
        scale[o] = mla_f32_f16((float)mla_rng_unit(8, o) + 0.1f);
    }
    if (v1)
        for (size_t w = 0; w < OUT / per; w++) zeros[w] -= ones;
    for (size_t o = 0; o < OUT; o++)
        for (size_t i = 0; i < IN; i++) {
            unsigned q = (unsigned)mla_rng_below(9, o * IN + i, 1u << bits);
            words[i / per * OUT + o] |= q << i % per * bits;
            b.want[o * IN + i] = (float)((int)q - (int)z[o]) * mla_f16_f32(scale[o]);
        }
    bag_add(&b, "m.qweight", MLA_I32, 2, IN / per, OUT, words);
    bag_add(&b, "m.qzeros", MLA_I32, 2, 1, OUT / per, zeros);
    bag_add(&b, "m.scales", MLA_F16, 2, 1, OUT, scale);
    char text[256];
    snprintf(text, sizeof text, "{'quant_method':'gptq','bits':%u,'group_size':-1,'sym':false,'desc_act':false,"
             "'checkpoint_format':'%s'}", bits, v1 ? "gptq" : "gptq_v2");
    mla_qconfig *c = config_of(text);
    bag_decodes_to(&b, c, b.want);
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

Suite *suite_derived(void)
{
    Suite *s = suite_create("derived");
    TCase *c = tcase_create("derived");
    tcase_add_test(c, hf_fp8_scales);
    tcase_add_test(c, fp8_spellings);
    tcase_add_test(c, modelopt_nvfp4);
    tcase_add_test(c, auto_round);
    tcase_add_loop_test(c, pack_widths, 2, 9);
    tcase_add_test(c, int8_zero_points);
    tcase_add_loop_test(c, gptq_widths, 0, 6);
    suite_add_tcase(s, c);
    return s;
}
