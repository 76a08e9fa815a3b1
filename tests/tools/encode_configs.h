/* The formats that encode_model writes, and the quantization_config of each: what quantizers leave in config.json. Layers of the hybrid
 * that hold a delta net (0, 2, 4, 6) keep its a and b plain. */
#ifndef MLA_TESTS_TOOLS_ENCODE_CONFIGS_H
#define MLA_TESTS_TOOLS_ENCODE_CONFIGS_H

#define CT(format, weights, act)                                                                                                             \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\",\"quantization_status\":\"compressed\",\"config_groups\":{\"group_0\":{" \
    "\"format\":\"" format "\",\"targets\":[\"Linear\"],\"weights\":" weights ",\"input_activations\":" act ",\"output_activations\":null}},"     \
    "\"ignore\":[\"lm_head\",\"re:mtp.*\",\"re:.*visual.*\",\"re:.*in_proj_[ab]$\"],\"kv_cache_scheme\":null,\"sparsity_config\":{},"          \
    "\"transform_config\":{},\"version\":\"0.20.1\"}"
#define INT(bits, strategy, group, sym) \
    "{\"num_bits\":" bits ",\"type\":\"int\",\"strategy\":\"" strategy "\",\"group_size\":" group ",\"symmetric\":" sym ",\"dynamic\":false}"
#define FLOAT(bits, strategy, group, dtype) \
    "{\"num_bits\":" bits ",\"type\":\"float\",\"strategy\":\"" strategy "\",\"group_size\":" group ",\"symmetric\":true,\"dynamic\":false" dtype "}"
#define TOKEN(type) "{\"num_bits\":8,\"type\":\"" type "\",\"strategy\":\"token\",\"symmetric\":true,\"dynamic\":true}"
#define LOCAL4 "{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16,\"symmetric\":true,\"dynamic\":\"local\"}"
#define GPTQ(format, act) \
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"desc_act\":" act ",\"sym\":false,\"lm_head\":false,\"checkpoint_format\":\"" format "\"}"

#define PLAIN(n) \
    "\"model.language_model.layers." n ".linear_attn.in_proj_a\":{\"bits\":16},\"model.language_model.layers." n ".linear_attn.in_proj_b\":{\"bits\":16}"
#define MODELOPT(algo, more) \
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"" algo "\"," more "\"producer\":{\"name\":\"modelopt\",\"version\":\"0.33.0\"}," \
    "\"ignore\":[\"lm_head\",\"mtp*\",\"model.visual*\",\"*in_proj_a\",\"*in_proj_b\"]}"

static const struct {
    const char *format, *config;
} FORMAT[] = {
    {"fp8", "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128],\"modules_to_not_convert\":[\"lm_head\",\"mtp\","
            "\"model.visual\",\"in_proj_a\",\"in_proj_b\"]}"},
    {"ct-fp8", CT("float-quantized", FLOAT("8", "channel", "null", ""), TOKEN("float"))},
    {"int8", CT("int-quantized", INT("8", "channel", "null", "true"), TOKEN("int"))},
    {"int4", CT("pack-quantized", INT("4", "group", "128", "true"), "null")},
    {"int4-asym", CT("pack-quantized", INT("4", "group", "128", "false"), "null")},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true,\"version\":\"gemm\",\"modules_to_not_convert\":[\"mtp\",\"model.visual\","
            "\"in_proj_a\",\"in_proj_b\"]}"},
    {"gptq", GPTQ("gptq", "false")},
    {"gptq-act", GPTQ("gptq", "true")},
    {"auto-round", "{\"quant_method\":\"auto-round\",\"autoround_version\":\"0.16.1\",\"bits\":4,\"group_size\":128,\"sym\":false,\"data_type\":\"int\","
                   "\"packing_format\":\"auto_round:auto_gptq\",\"block_name_to_quantize\":\"model.language_model.layers\",\"extra_config\":{"
                   PLAIN("0") "," PLAIN("2") "," PLAIN("4") "," PLAIN("6") "}}"},
    {"modelopt-fp8", MODELOPT("FP8", "")},
    {"modelopt-nvfp4", MODELOPT("NVFP4", "\"group_size\":16,")},
    {"gptq-v2", GPTQ("gptq_v2", "false")},
    {"odd", "{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"quantization_status\":\"compressed\",\"config_groups\":{"
            "\"group_0\":{\"format\":\"pack-quantized\",\"targets\":[\"re:model\\\\.language_model\\\\..*(_proj|in_proj_qkv|in_proj_z)$\"],\"weights\":" INT("4", "group", "128", "true")
            ",\"input_activations\":null,\"output_activations\":null},"
            "\"group_1\":{\"format\":\"float-quantized\",\"targets\":[\"re:mtp\\\\.layers\\\\..*_proj$\"],\"weights\":" FLOAT("8", "channel", "null", "")
            ",\"input_activations\":" TOKEN("float") ",\"output_activations\":null}},"
            "\"ignore\":[\"lm_head\",\"mtp.fc\",\"re:.*visual.*\",\"re:.*in_proj_[ab]$\"],\"kv_cache_scheme\":null,\"sparsity_config\":{},\"transform_config\":{},\"version\":\"0.20.1\"}"},
    {"nvfp4", CT("nvfp4-pack-quantized", FLOAT("4", "tensor_group", "16", ",\"scale_dtype\":\"torch.float8_e4m3fn\""), LOCAL4)},
    {"mxfp4", CT("mxfp4-pack-quantized", FLOAT("4", "group", "32", ",\"scale_dtype\":\"torch.uint8\""), "null")},
};

#endif
