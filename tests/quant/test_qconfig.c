/* quantization_config: patterns as Python reads them, strict reading, and config against tensors for one module. */
#include <stdio.h>
#include <string.h>

#include "bag.h"
#include "base/str.h"
#include "harness.h"
#include "quant/qpattern.h"
#include "suites.h"

/* Expected answers are those of Python's re.match. */
static const struct { const char *pattern, *name; bool match; } MATCH[] = {
    {"lm_head", "lm_head", true}, {"lm", "lm_head", true}, {"head", "lm_head", false}, {".*head", "lm_head", true},
    {"^mtp.*", "mtp.fc", true}, {"^mtp.*", "model.mtp", false}, {"mtp$", "mtp.fc", false},
    {"model\\.layers\\.\\d+\\.mlp", "model.layers.12.mlp.up_proj", true}, {"model\\.layers\\.\\d+\\.mlp", "modelxlayers.1.mlp", false},
    {".*\\.(q|k|v)_proj$", "l.0.k_proj", true}, {".*\\.(?:q|k|v)_proj$", "l.0.o_proj", false}, {".*\\.[qkv]_proj", "l.q_proj.x", true},
    {"a|b", "bx", true}, {"a|b", "xb", false}, {"(a|b)c", "bc", true}, {"a{2}b", "aab", true}, {"a{2}b", "ab", false},
    {"a{,2}b", "aab", true}, {"a{1,}b", "aaaab", true}, {"a{2,3}?b", "aaab", true}, {"a+?b", "aab", true}, {"x.*?y", "xzzy", true},
    {"a??b", "b", true}, {"[^.]+\\.up", "model.up", true}, {"[^.]+\\.up", "a.b.up", false}, {"[\\w]+$", "q_proj1", true},
    {"\\w+$", "q.proj", false}, {"\\D\\d\\S\\W", "a1b.", true}, {"[]a]x", "]x", true}, {"[^]a]x", "bx", true}, {"[a\\.]+$", "a.a", true},
    {"a}", "a}", true}, {"a\\{", "a{", true}, {"a\\-b", "a-b", true}, {"layers.(0|1).$", "layers.1x", true}, {"(ab)*c", "ababc", true},
    {"()a", "a", true}, {"(^mtp|^vis).*", "visual", true},
};

START_TEST(patterns_match)
{
    mla_err err;
    mla_qpattern p;
    ck_ok(mla_qpattern_make(&p, MLA_QP_RE, MATCH[_i].pattern, &err));
    ck_assert_msg(mla_qpattern_matches(&p, MATCH[_i].name) == MATCH[_i].match, "%s on %s", MATCH[_i].pattern, MATCH[_i].name);
    mla_qpattern_drop(&p);
}
END_TEST

static const struct { const char *pattern; mla_status status; const char *says; } BROKEN[] = {
    {"", MLA_EFORMAT, "empty"}, {"*.lm_head", MLA_EFORMAT, "nothing to repeat"}, {"a|*b", MLA_EFORMAT, "nothing to repeat"},
    {"a**", MLA_EFORMAT, "nothing to repeat"}, {"(a", MLA_EFORMAT, "without its )"}, {"a)", MLA_EFORMAT, "without its ("},
    {"[a", MLA_EFORMAT, "without its ]"}, {"a\\", MLA_EFORMAT, "backslash"}, {"a{3,2}", MLA_EFORMAT, "reversed"},
    {"[z-a]", MLA_EFORMAT, "[z-a]"}, {"(?!x)a", MLA_EUNSUPPORTED, "(?...)"}, {"(?<=x)a", MLA_EUNSUPPORTED, "(?...)"},
    {"(?P<n>a)", MLA_EUNSUPPORTED, "(?...)"}, {"(?i)a", MLA_EUNSUPPORTED, "(?...)"}, {"a\\b", MLA_EUNSUPPORTED, "backslash"},
    {"(a)\\1", MLA_EUNSUPPORTED, "backslash"}, {"a\\Z", MLA_EUNSUPPORTED, "backslash"}, {"[[:alpha:]]", MLA_EUNSUPPORTED, "[ inside"},
    {"[\\D]", MLA_EUNSUPPORTED, "escape inside"}, {"a*+", MLA_EUNSUPPORTED, "possessive"}, {"a{x}", MLA_EUNSUPPORTED, "repetition"},
    {"a{,}", MLA_EUNSUPPORTED, "repetition"}, {"a{1001}", MLA_EUNSUPPORTED, "1000"}, {"((a{40}){40})", MLA_EUNSUPPORTED, "1000"},
    {"caf\xc3\xa9", MLA_EUNSUPPORTED, "ASCII"}, {"a\tb", MLA_EUNSUPPORTED, "ASCII"}, {"a{99999999999999999999}", MLA_EUNSUPPORTED, "1000"},
};

START_TEST(patterns_refused)
{
    mla_err err;
    mla_qpattern p;
    ck_refused(mla_qpattern_make(&p, MLA_QP_RE, BROKEN[_i].pattern, &err), BROKEN[_i].status, BROKEN[_i].says);
}
END_TEST

START_TEST(long_pattern)
{
    mla_err err;
    mla_qpattern p;
    char s[402];
    memset(s, 'a', sizeof s);
    s[401] = 0;
    ck_refused(mla_qpattern_make(&p, MLA_QP_RE, s, &err), MLA_EUNSUPPORTED, "401 bytes, at most 400");
    s[400] = 0;
    ck_ok(mla_qpattern_make(&p, MLA_QP_RE, s, &err));
    mla_qpattern_drop(&p);
}
END_TEST

START_TEST(other_patterns)
{
    static const struct { mla_qpattern_kind kind; const char *pattern, *name; bool match; } CASE[] = {
        {MLA_QP_EXACT, "a.b", "a.b", true}, {MLA_QP_EXACT, "a.b", "a.b.c", false}, {MLA_QP_PART, "mlp.gate", "l.0.mlp.gate", true},
        {MLA_QP_PART, "mlp.gate", "l.0.mlp.gate_proj", false}, {MLA_QP_PART, "model.visual", "model.visual.blocks.0", true},
        {MLA_QP_PART, "gate", "shared_gate", false}, {MLA_QP_PART, "gate", "gate_gate.gate", true}, {MLA_QP_SUBSTR, "vis", "model.visual.x", true},
        {MLA_QP_GLOB, "*lm_head*", "lm_head", true}, {MLA_QP_GLOB, "model.layers.0.*", "model.layers.0.a.b", true},
        {MLA_QP_GLOB, "model.layers.0.*", "model.layers.01.a", false}, {MLA_QP_GLOB, "m?del", "model", true}};
    mla_err err;
    mla_qpattern p;
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        ck_ok(mla_qpattern_make(&p, CASE[i].kind, CASE[i].pattern, &err));
        ck_assert_msg(mla_qpattern_matches(&p, CASE[i].name) == CASE[i].match, "%s on %s", CASE[i].pattern, CASE[i].name);
        mla_qpattern_drop(&p);
    }
    ck_refused(mla_qpattern_make(&p, MLA_QP_EXACT, "", &err), MLA_EFORMAT, "empty");
}
END_TEST

#define CT(format, weights) "{'quant_method':'compressed-tensors','format':'" format "','config_groups':{'g':{'targets':['Linear'],'weights':{" weights "}}}}"
#define PACK "'num_bits':4,'type':'int','strategy':'group','group_size':128"

static const struct { const char *text; mla_status status; const char *says; } BAD[] = {
    {"3", MLA_EFORMAT, "quantization_config: expected an object, found number"},
    {"{}", MLA_EFORMAT, "no quant_method"},
    {"{'quant_method':7}", MLA_EFORMAT, "quant_method: expected a string"},
    {"{'quant_method':'bitsandbytes'}", MLA_EUNSUPPORTED, "\"bitsandbytes\""},
    {CT("pack-quantized", PACK ",'rotation':1"), MLA_EUNSUPPORTED, "config_groups.g: weights: unknown key \"rotation\""},
    {CT("pack-quantized", "'num_bits':4,'type':'fixed'"), MLA_EUNSUPPORTED, "type \"fixed\""},
    {CT("pack-quantized", "'num_bits':'4'"), MLA_EFORMAT, "num_bits: expected a number of bits, found string"},
    {CT("pack-quantized", "'num_bits':0"), MLA_EFORMAT, "num_bits"},
    {CT("pack-quantized", "'num_bits':4,'strategy':'group'"), MLA_EFORMAT, "without a group_size"},
    {CT("pack-quantized", "'num_bits':4,'strategy':'channel','group_size':64"), MLA_EFORMAT, "group_size 64, but strategy \"channel\""},
    {CT("pack-quantized", "'num_bits':4,'strategy':'token'"), MLA_EUNSUPPORTED, "strategy \"token\""},
    {CT("pack-quantized", PACK ",'dynamic':true"), MLA_EFORMAT, "dynamic weights"},
    {CT("pack-quantized", PACK ",'actorder':'sideways'"), MLA_EUNSUPPORTED, "actorder"},
    {CT("pack-quantized", "'num_bits':4,'type':'float','strategy':'group','group_size':16"), MLA_EFORMAT, "does not go with these weights"},
    {CT("int-quantized", PACK), MLA_EFORMAT, "does not go with these weights (int, 4 bits)"},
    {CT("nvfp4-pack-quantized", "'num_bits':4,'type':'float','strategy':'tensor_group','group_size':32"), MLA_EFORMAT, "does not go"},
    {CT("mxfp8-quantized", "'num_bits':8,'type':'float','strategy':'group','group_size':32"), MLA_EUNSUPPORTED, "format \"mxfp8-quantized\""},
    {CT("float-quantized", "'num_bits':8,'type':'float','strategy':'block'"), MLA_EFORMAT, "without a block_structure"},
    {CT("float-quantized", "'num_bits':8,'type':'float','strategy':'block','block_structure':[128]"), MLA_EFORMAT, "block_structure: expected [rows, columns]"},
    {"{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{'g':{'format':'float-quantized','targets':['Linear'],"
     "'weights':{" PACK "}}}}", MLA_EFORMAT, "format \"float-quantized\", but the config's own is \"pack-quantized\""},
    {"{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{'g':{'targets':[],'weights':{" PACK "}}}}", MLA_EFORMAT,
     "targets: expected an array of names"},
    {"{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{'g':{'targets':['re:(?!x)y'],'weights':{" PACK "}}}}",
     MLA_EUNSUPPORTED, "pattern \"(?!x)y\""},
    {"{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{'g':{'targets':['Linear'],'wights':{}}}}",
     MLA_EUNSUPPORTED, "unknown key \"wights\""},
    {"{'quant_method':'compressed-tensors','format':'mixed-precision','config_groups':{'g':{'targets':['Linear'],'weights':{" PACK "}}}}",
     MLA_EFORMAT, "no format"},
    {"{'quant_method':'compressed-tensors','ignore':'lm_head'}", MLA_EFORMAT, "ignore: expected an array, found string"},
    {"{'quant_method':'compressed-tensors','ignore':['re:*.x']}", MLA_EFORMAT, "ignore: pattern \"*.x\": a quantifier"},
    {"{'quant_method':'compressed-tensors','transform_config':{'a':1}}", MLA_EUNSUPPORTED, "transform_config"},
    {"{'quant_method':'compressed-tensors','sparsity_config':{'format':'sparse-24-bitmask'}}", MLA_EUNSUPPORTED, "sparsity_config"},
    {"{'quant_method':'compressed-tensors','quantization_status':'calibration'}", MLA_EUNSUPPORTED, "quantization_status"},
    {"{'quant_method':'fp8','fmt':'e5m2'}", MLA_EUNSUPPORTED, "fmt \"e5m2\""},
    {"{'quant_method':'fp8','weight_block_size':[0,128]}", MLA_EFORMAT, "weight_block_size: expected [rows, columns]"},
    {"{'quant_method':'fp8','scale_fmt':'ue4m3'}", MLA_EUNSUPPORTED, "scale_fmt"},
    {"{'quant_method':'fp8','modules_to_convert':['x']}", MLA_EUNSUPPORTED, "modules_to_convert"},
    {"{'quant_method':'fp8','modules_to_not_convert':[1]}", MLA_EFORMAT, "modules_to_not_convert"},
    {"{'quant_method':'modelopt','quant_algo':'W4A8_AWQ'}", MLA_EUNSUPPORTED, "quant_algo \"W4A8_AWQ\""},
    {"{'quant_method':'modelopt','quant_algo':'NVFP4','group_size':32}", MLA_EUNSUPPORTED, "group_size 32"},
    {"{'quant_method':'modelopt','quant_algo':'MIXED_PRECISION'}", MLA_EFORMAT, "quantized_layers: expected an object, found absent"},
    {"{'quant_method':'awq','bits':4,'group_size':128,'zero_point':true,'version':'gemv'}", MLA_EUNSUPPORTED, "version \"gemv\""},
    {"{'quant_method':'awq','bits':8,'group_size':128,'zero_point':true,'version':'gemm'}", MLA_EUNSUPPORTED, "bits 8"},
    {"{'quant_method':'awq','bits':4,'group_size':128,'zero_point':false,'version':'gemm'}", MLA_EUNSUPPORTED, "zero_point"},
    {"{'quant_method':'awq','bits':4,'zero_point':true,'version':'gemm'}", MLA_EFORMAT, "no group_size"},
    {"{'quant_method':'gptq','bits':3,'group_size':128}", MLA_EUNSUPPORTED, "bits 3"},
    {"{'quant_method':'gptq','bits':4,'group_size':0}", MLA_EFORMAT, "group_size: expected a group size or -1"},
    {"{'quant_method':'gptq','bits':4,'group_size':128,'checkpoint_format':'marlin'}", MLA_EUNSUPPORTED, "\"marlin\""},
    {"{'quant_method':'gptq','bits':4,'group_size':128,'checkpoint_format':'gptq','format':'gptq_v2'}", MLA_EFORMAT, "but format \"gptq_v2\""},
    {"{'quant_method':'gptq','bits':4,'group_size':128,'pack_dtype':'int64'}", MLA_EUNSUPPORTED, "pack_dtype"},
    {"{'quant_method':'gptq','bits':4,'group_size':128,'dynamic':{'-:(?=a)':{}}}", MLA_EUNSUPPORTED, "dynamic: pattern"},
    {"{'quant_method':'gptq','bits':4,'group_size':128,'sym':'yes'}", MLA_EFORMAT, "sym: expected true or false"},
    {"{'quant_method':'auto-round','bits':4,'group_size':128,'packing_format':'auto_round'}", MLA_EUNSUPPORTED, "packing_format"},
    {"{'quant_method':'auto-round','bits':4,'group_size':128,'packing_format':'auto_round:auto_gptq','data_type':'mx_fp'}", MLA_EUNSUPPORTED, "mx_fp"},
    {"{'quant_method':'auto-round','bits':4,'group_size':128,'packing_format':'auto_round:auto_gptq','extra_config':{'.*x':{'bits':16}}}",
     MLA_EUNSUPPORTED, "\".*x\" is no module name"},
    {"{'quant_method':'exl3','codebook':'qtip'}", MLA_EUNSUPPORTED, "codebook \"qtip\""},
    {"{'quant_method':'exl3','bits':'four'}", MLA_EFORMAT, "bits"},
};

START_TEST(config_refused)
{
    mla_err err;
    mla_qconfig *c = NULL;
    ck_refused(read_config(&c, BAD[_i].text, &err), BAD[_i].status, BAD[_i].says);
    ck_assert_ptr_null(c);
}
END_TEST

START_TEST(no_config)
{
    mla_err err;
    mla_qconfig *c;
    mla_qscheme s;
    ck_ok(mla_qconfig_read(&c, NULL, &err));
    ck_assert_int_eq(mla_qconfig_method(c), MLA_QM_NONE);
    ck_assert_str_eq(mla_qconfig_method_name(c), "none");
    ck_ok(mla_qconfig_scheme(c, "m", "Linear", &s, &err));
    ck_assert_int_eq(s.expect, MLA_QX_PLAIN);
    bag b;
    mla_qmat m;
    bag_open(&b, "awq_gemm_g64");
    ck_refused(mla_qmat_open_with(&m, &b.src, "m", c, &err), MLA_EFORMAT, "stored as AWQ gemm, but config.json without quantization_config");
    bag_free(&b);
    mla_qconfig_free(c);
}
END_TEST

/* Who is quantized: rules of each method. '=' quantized, '-' plain, '?' either. */
static const struct { const char *config, *name, *cls; char expect; } WHO[] = {
    {CT("pack-quantized", PACK), "a.q_proj", "Linear", '='}, {CT("pack-quantized", PACK), "a.embed_tokens", "Embedding", '-'},
    {CT("pack-quantized", PACK), "a.norm", "other", '-'}, {CT("pack-quantized", PACK), "lm_head", "Linear", '='},
    {"{'quant_method':'fp8','modules_to_not_convert':['model.visual','mlp.gate']}", "model.visual.blocks.0.proj", "Linear", '-'},
    {"{'quant_method':'fp8','modules_to_not_convert':['model.visual','mlp.gate']}", "l.mlp.gate", "Linear", '-'},
    {"{'quant_method':'fp8','modules_to_not_convert':['model.visual','mlp.gate']}", "l.mlp.gate_proj", "Linear", '='},
    {"{'quant_method':'fp8'}", "lm_head", "Linear", '?'}, {"{'quant_method':'fp8'}", "model.embed_tokens", "Embedding", '-'},
    {"{'quant_method':'modelopt','quant_algo':'FP8','exclude_modules':['*mlp*','lm_head']}", "l.0.mlp.up", "Linear", '-'},
    {"{'quant_method':'modelopt','quant_algo':'FP8','exclude_modules':['*mlp*','lm_head']}", "l.0.q", "Linear", '='},
    {"{'quant_method':'modelopt','kv_cache_quant_algo':'FP8'}", "l.0.q", "Linear", '-'},
    {"{'quant_method':'awq','bits':4,'group_size':64,'zero_point':true,'version':'gemm','modules_to_not_convert':['mlp']}", "model.layers.3.mlp.up", "Linear", '-'},
    {"{'quant_method':'awq','bits':4,'group_size':64,'zero_point':true,'version':'gemm'}", "model.layers.3.mlp.up", "Linear", '='},
    {"{'quant_method':'awq','bits':4,'group_size':64,'zero_point':true,'version':'gemm'}", "mtp.layers.0.mlp.up", "Linear", '?'},
    {"{'quant_method':'awq','bits':4,'group_size':64,'zero_point':true,'version':'gemm'}", "model.visual.blocks.0.proj", "Linear", '?'},
    {"{'quant_method':'gptq','bits':4,'group_size':64,'lm_head':false}", "lm_head", "Linear", '-'},
    {"{'quant_method':'gptq','bits':4,'group_size':64,'lm_head':true}", "lm_head", "Linear", '='},
    {"{'quant_method':'gptq','bits':4,'group_size':64}", "model.layers.0.q", "Linear", '?'},
    {"{'quant_method':'gptq','bits':4,'group_size':64,'dynamic':{'-:.*\\\\.mlp\\\\.':{},'+:.*':{'bits':8}}}", "l.mlp.up", "Linear", '-'},
    {"{'quant_method':'gptq','bits':4,'group_size':64,'dynamic':{'-:.*\\\\.mlp\\\\.':{},'+:.*':{'bits':8}}}", "l.attn.q", "Linear", '='},
    {"{'quant_method':'gptq','bits':4,'group_size':64,'modules_in_block_to_quantize':[['self_attn.q_proj'],['mlp.up']]}", "l.0.mlp.up", "Linear", '='},
    {"{'quant_method':'gptq','bits':4,'group_size':64,'modules_in_block_to_quantize':[['self_attn.q_proj'],['mlp.up']]}", "l.0.mlp.down", "Linear", '-'},
    {"{'quant_method':'auto-round','bits':4,'group_size':64,'packing_format':'auto_round:auto_gptq','block_name_to_quantize':'model.layers',"
     "'extra_config':{'model.layers.0.a':{'bits':16,'data_type':'float'}}}", "model.layers.0.a", "Linear", '-'},
    {"{'quant_method':'auto-round','bits':4,'group_size':64,'packing_format':'auto_round:auto_gptq','block_name_to_quantize':'x,model.layers'}",
     "model.layers.0.a", "Linear", '='},
    {"{'quant_method':'auto-round','bits':4,'group_size':64,'packing_format':'auto_round:auto_gptq','block_name_to_quantize':'model.layers'}",
     "visual.a", "Linear", '?'},
    {"{'quant_method':'exl3','bits':4.0}", "model.layers.0.q", "Linear", '?'},
};

START_TEST(who)
{
    mla_err err;
    mla_qscheme s;
    mla_qconfig *c = config_of(WHO[_i].config);
    ck_ok(mla_qconfig_scheme(c, WHO[_i].name, WHO[_i].cls, &s, &err));
    ck_assert_msg("?=-"[s.expect] == WHO[_i].expect, "%s %s: %c, expected %c (%s)", WHO[_i].config, WHO[_i].name, "?=-"[s.expect],
                  WHO[_i].expect, s.why);
    mla_qconfig_free(c);
}
END_TEST

/* An exact name beats a pattern beats a class; two groups of equal rank are refused. */
START_TEST(ranks)
{
    mla_err err;
    mla_qscheme s;
    mla_qconfig *c = config_of(
        "{'quant_method':'compressed-tensors','format':'mixed-precision','ignore':['re:.*ignored'],'config_groups':{"
        "'a':{'targets':['Linear','re:.*both'],'format':'pack-quantized','weights':{'num_bits':4,'group_size':32,'strategy':'group'}},"
        "'b':{'targets':['re:.*q_proj','re:.*both'],'format':'float-quantized','weights':{'num_bits':8,'type':'float'}},"
        "'c':{'targets':['l.0.q_proj'],'format':'int-quantized','weights':{'num_bits':8,'strategy':'channel'}},"
        "'d':{'targets':['l.0.act'],'weights':null}}}");
    ck_ok(mla_qconfig_scheme(c, "l.0.k_proj", "Linear", &s, &err));
    ck_assert(s.layout == MLA_QL_CT_PACK && s.bits == 4 && s.group == 32);
    ck_ok(mla_qconfig_scheme(c, "l.1.q_proj", "Linear", &s, &err));
    ck_assert(s.layout == MLA_QL_FP8 && s.strategy == MLA_QS_TENSOR);
    ck_assert_str_eq(s.why, "target \"re:.*q_proj\" of b");
    ck_ok(mla_qconfig_scheme(c, "l.0.q_proj", "Linear", &s, &err));
    ck_assert_int_eq(s.layout, MLA_QL_INT8);
    ck_ok(mla_qconfig_scheme(c, "l.0.act", "Linear", &s, &err));
    ck_assert_int_eq(s.expect, MLA_QX_PLAIN);
    ck_ok(mla_qconfig_scheme(c, "l.0.q_proj.ignored", "Linear", &s, &err));
    ck_assert_int_eq(s.expect, MLA_QX_PLAIN);
    ck_ok(mla_qconfig_scheme(c, "l.0.q_norm.q_proj", "other", &s, &err)); /* a pattern does not quantize a norm */
    ck_assert_int_eq(s.expect, MLA_QX_PLAIN);
    ck_refused(mla_qconfig_scheme(c, "l.both", "Linear", &s, &err), MLA_EFORMAT, "l.both: claimed by");
    mla_qconfig_free(c);
}
END_TEST

/* One file, a config that contradicts it. */
static const struct { const char *file, *config, *says; } DISAGREE[] = {
    {"ct_int4_sym_g128", CT("pack-quantized", "'num_bits':8,'strategy':'group','group_size':128"), "do not hold 256 codes of 8 bits"},
    {"ct_int4_sym_g128", CT("pack-quantized", "'num_bits':4,'strategy':'group','group_size':64"), "in groups of the given size"},
    {"ct_int4_sym_g128", CT("pack-quantized", "'num_bits':4,'strategy':'channel'"), "holds no scales per channel"},
    {"ct_int4_sym_g128", CT("pack-quantized", PACK ",'symmetric':false"), "says asymmetric"},
    {"ct_int4_asym_g128", CT("pack-quantized", PACK), "m.weight_zero_point: zero points, but target \"Linear\" of g says symmetric"},
    {"ct_int4_actorder", CT("pack-quantized", PACK), "says no activation order by group"},
    {"ct_int4_sym_g128", CT("pack-quantized", PACK ",'actorder':'group'"), "no weight_g_idx"},
    {"ct_int4_sym_g128", CT("float-quantized", "'num_bits':8,'type':'float','strategy':'channel'"), "says FP8"},
    {"ct_int4_sym_g128", "{'quant_method':'gptq','bits':4,'group_size':128}", "stored as compressed-tensors pack-quantized, but the gptq config says GPTQ"},
    {"ct_int4_sym_g128", "{'quant_method':'compressed-tensors','format':'pack-quantized','ignore':['m'],'config_groups':{'g':{'targets':['Linear'],"
                         "'weights':{" PACK "}}}}", "the exclusion \"m\" keeps it plain"},
    {"ct_int4_sym_g128", "{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{'g':{'targets':['re:x'],"
                         "'weights':{" PACK "}}}}", "no target keeps it plain"},
    {"ct_fp8_channel", CT("float-quantized", "'num_bits':8,'type':'float','strategy':'tensor'"), "holds no scales per tensor"},
    {"ct_fp8_block128", CT("float-quantized", "'num_bits':8,'type':'float','strategy':'block','block_structure':[64,128]"), "holds no scales per block"},
    {"fp8_hf_block128", "{'quant_method':'fp8'}", "holds no scales per tensor"},
    {"fp8_hf_block128", "{'quant_method':'fp8','weight_block_size':[128,64]}", "holds no scales per block"},
    {"fp8_hf_block128_ue8m0", "{'quant_method':'fp8','weight_block_size':[128,128],'scale_fmt':'float'}", "E8M0 scales, but"},
    {"fp8_hf_block128", "{'quant_method':'fp8','weight_block_size':[128,128],'modules_to_not_convert':['m']}", "the exclusion \"m\" keeps it plain"},
    {"ct_nvfp4", "{'quant_method':'modelopt','quant_algo':'NVFP4'}", "says ModelOpt NVFP4"},
    {"awq_gemm_g128", "{'quant_method':'awq','bits':4,'group_size':64,'zero_point':true,'version':'gemm'}", "as the group size of the awq config"},
    {"awq_gemm_g128", "{'quant_method':'gptq','bits':4,'group_size':128}", "stored as AWQ gemm, but the gptq config says GPTQ"},
    {"gptq_v1_sym_g128", "{'quant_method':'awq','bits':4,'group_size':128,'zero_point':true,'version':'gemm'}", "stored as GPTQ, but the awq config says AWQ"},
    {"gptq_v1_sym_g128", "{'quant_method':'gptq','bits':4,'group_size':128,'checkpoint_format':'gptq_v2'}", "zero point 7 of output 0 in group 0, but"},
    {"gptq_v1_asym_g128", "{'quant_method':'gptq','bits':4,'group_size':128,'sym':true}", "says symmetric (8)"},
    {"gptq_v1_sym_g128", "{'quant_method':'gptq','bits':8,'group_size':128}", "zero points of 4 bits, but"},
    {"gptq_v1_sym_g128", "{'quant_method':'gptq','bits':4,'group_size':32}", "2 groups do not divide 256 inputs as the group size"},
    {"gptq_v1_sym_g128_descact", "{'quant_method':'gptq','bits':4,'group_size':128,'desc_act':false}", "columns in another order than by group"},
};

START_TEST(disagreements)
{
    mla_err err;
    mla_qmat m;
    bag b;
    bag_open(&b, DISAGREE[_i].file);
    mla_qconfig *c = config_of(DISAGREE[_i].config);
    ck_refused(mla_qmat_open_with(&m, &b.src, "m", c, &err), MLA_EFORMAT, DISAGREE[_i].says);
    mla_qconfig_free(c);
    bag_free(&b);
}
END_TEST

Suite *suite_qconfig(void)
{
    Suite *s = suite_create("qconfig");
    TCase *c = tcase_create("qconfig");
    tcase_add_loop_test(c, patterns_match, 0, sizeof MATCH / sizeof *MATCH);
    tcase_add_loop_test(c, patterns_refused, 0, sizeof BROKEN / sizeof *BROKEN);
    tcase_add_test(c, long_pattern);
    tcase_add_test(c, other_patterns);
    tcase_add_loop_test(c, config_refused, 0, sizeof BAD / sizeof *BAD);
    tcase_add_test(c, no_config);
    tcase_add_loop_test(c, who, 0, sizeof WHO / sizeof *WHO);
    tcase_add_test(c, ranks);
    tcase_add_loop_test(c, disagreements, 0, sizeof DISAGREE / sizeof *DISAGREE);
    suite_add_tcase(s, c);
    return s;
}
