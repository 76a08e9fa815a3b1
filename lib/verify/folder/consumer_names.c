/* Engines and what their loaders do with the name of a KV scale. */
#include "verify/folder/consumer_names.h"

#define K "self_attn.attn.k_scale"
#define V "self_attn.attn.v_scale"
#define MK "self_attn.mla_attn.mla_attn.k_scale"
#define MV "self_attn.mla_attn.mla_attn.v_scale"

/* vLLM 0.33: one list for every name, safe to apply twice */
static const mla_rename LIST_033[] = {
    {"self_attn.kv_scale", K}, {"self_attn.k_scale", K}, {"self_attn.v_scale", V},
    {"self_attn.k_proj.k_scale", K}, {"self_attn.v_proj.v_scale", V},
    {"self_attn.qkv_proj.k_scale", K}, {"self_attn.qkv_proj.v_scale", V},
    {"self_attn.k_cache.scale", K}, {"self_attn.v_cache.scale", V},
    {MK, "self_attn.mla_attn.attn.k_scale"}, {MV, "self_attn.mla_attn.attn.v_scale"}, {NULL, NULL}};
/* the mapper that quantization configs hand to the automatic loader */
static const mla_rename MAPPER[] = {
    {"self_attn.kv_scale", K}, {"self_attn.k_scale", K}, {"self_attn.v_scale", V},
    {"self_attn.k_proj.k_scale", K}, {"self_attn.v_proj.v_scale", V},
    {"self_attn.qkv_proj.k_scale", K}, {"self_attn.qkv_proj.v_scale", V},
    {"self_attn.k_proj.output_scale", K}, {"self_attn.v_proj.output_scale", V}, {NULL, NULL}};
/* the function that hand-written loaders call; an internal name is taken for a plain one and renamed once more */
static const mla_rename FUNCTION[] = {
    {"self_attn.kv_scale", K}, {"self_attn.k_scale", K}, {"self_attn.v_scale", V},
    {"self_attn.k_proj.k_scale", K}, {"self_attn.v_proj.v_scale", V},
    {"self_attn.qkv_proj.k_scale", K}, {"self_attn.qkv_proj.v_scale", V},
    {"self_attn.k_proj.output_scale", K}, {"self_attn.v_proj.output_scale", V},
    {K, "self_attn.attn.attn.k_scale"}, {V, "self_attn.attn.attn.v_scale"}, {NULL, NULL}};
/* the same for MLA models: only ModelOpt's spelling has a row that leads to the latent's scale */
static const mla_rename FUNCTION_MLA[] = {
    {"self_attn.kv_scale", K}, {"self_attn.k_scale", K}, {"self_attn.v_scale", V},
    {"self_attn.k_proj.k_scale", MK}, {"self_attn.v_proj.v_scale", MV},
    {"self_attn.qkv_proj.k_scale", K}, {"self_attn.qkv_proj.v_scale", V},
    {K, "self_attn.attn.attn.k_scale"}, {V, "self_attn.attn.attn.v_scale"},
    {MK, "self_attn.mla_attn.mla_attn.attn.k_scale"}, {MV, "self_attn.mla_attn.mla_attn.attn.v_scale"}, {NULL, NULL}};

const mla_consumer MLA_CONSUMER[] = {
    {.name = "mla-toolkit", .about = "this toolkit's runtime", .own = true},
    {.name = "vllm-0.33", .about = "vLLM 0.33: one renaming list; no stored scale reaches an MLA layer",
     .pass = {LIST_033, NULL}, .pass_mla = {LIST_033, NULL}, .param = {K, V}, .param_mla = {MK, MV}, .needs = MLA_NEEDS_KV_METHOD},
    {.name = "vllm-auto", .about = "vLLM before 0.33, models loaded by the automatic loader alone",
     .pass = {MAPPER, NULL}, .pass_mla = {MAPPER, NULL}, .param = {K, V}, .param_mla = {MK, MV}, .needs = MLA_NEEDS_KV_METHOD, .loses_hybrid = true},
    {.name = "vllm-remap", .about = "vLLM before 0.33, models with a load_weights of their own",
     .pass = {FUNCTION, NULL}, .pass_mla = {FUNCTION_MLA, NULL}, .param = {K, V}, .param_mla = {MK, MV}, .needs = MLA_NEEDS_KV_METHOD, .loses_hybrid = true},
    {.name = "vllm-twice", .about = "vLLM before 0.33, models where both renamings run",
     .pass = {MAPPER, FUNCTION}, .pass_mla = {MAPPER, FUNCTION_MLA}, .param = {K, V}, .param_mla = {MK, MV}, .needs = MLA_NEEDS_KV_METHOD},
    {.name = "sglang", .about = "SGLang: stored names by its own renaming, or --quantization-param-path kv_cache_scales.json",
     .pass = {FUNCTION, NULL}, .pass_mla = {FUNCTION, NULL}, .param = {K, V}, .param_mla = {NULL, NULL}, .needs = MLA_NEEDS_KV_METHOD,
     .side_file = "kv_cache_scales.json"},
    {.name = "tensorrt-llm", .about = "TensorRT-LLM: ModelOpt's names in F32, announced by hf_quant_config.json",
     .param = {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"}, .needs = MLA_NEEDS_HF_QUANT, .f32_scalar = true},
};
const size_t MLA_CONSUMERS = sizeof MLA_CONSUMER / sizeof *MLA_CONSUMER;
