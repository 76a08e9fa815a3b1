/* The tables of known architectures and model types. */
#include "model/arch.h"

#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

enum { QWEN = MLA_AF_PLUS_ONE | MLA_AF_GATE | MLA_AF_QK_NORM | MLA_AF_ATTN_BIAS | MLA_AF_HYBRID };

/* name, family, flags; head_dim, kv_heads, max_pos, partial, experts; GGUF name, text-only HF architecture */
static const mla_arch_group QWEN3_5 = {
    "qwen3_5", MLA_FAM_QWEN3_5, QWEN | MLA_AF_NESTED, 256, 4, 32768, 0.25, 0, "qwen35", "Qwen3_5ForCausalLM"};
static const mla_arch_group QWEN3_5_MOE = {
    "qwen3_5_moe", MLA_FAM_QWEN3_5, QWEN | MLA_AF_NESTED | MLA_AF_MOE, 256, 4, 32768, 0.25, 256, NULL, "Qwen3_5MoeForCausalLM"};
static const mla_arch_group QWEN3_NEXT = {
    "qwen3_next", MLA_FAM_QWEN3_NEXT, QWEN | MLA_AF_MOE, 256, 2, 32768, 0.25, 512, NULL, "Qwen3NextForCausalLM"};
static const mla_arch_group LLAMA = {
    "llama", MLA_FAM_LLAMA, MLA_AF_ATTN_BIAS | MLA_AF_MLP_BIAS, 0, 0, 2048, 1, 0, "llama", "LlamaForCausalLM"};
static const mla_arch_group MISTRAL = {
    "mistral", MLA_FAM_LLAMA, MLA_AF_SLIDING, 0, 8, 131072, 1, 0, NULL, "MistralForCausalLM"};
static const mla_arch_group QWEN2 = {
    "qwen2", MLA_FAM_LLAMA, MLA_AF_QKV_BIAS | MLA_AF_USE_SLIDING, 0, 0, 32768, 1, 0, "qwen2", "Qwen2ForCausalLM"};
static const mla_arch_group QWEN3 = {
    "qwen3", MLA_FAM_LLAMA, MLA_AF_QK_NORM | MLA_AF_ATTN_BIAS | MLA_AF_USE_SLIDING, 128, 0, 32768, 1, 0, "qwen3", "Qwen3ForCausalLM"};
static const mla_arch_group DEEPSEEK_V2 = {
    "deepseek_v2", MLA_FAM_DEEPSEEK, MLA_AF_MOE, 0, 0, 2048, 1, 64, NULL, "DeepseekV2ForCausalLM"};
static const mla_arch_group DEEPSEEK_V3 = {
    "deepseek_v3", MLA_FAM_DEEPSEEK, MLA_AF_MOE, 0, 0, 4096, 1, 256, NULL, "DeepseekV3ForCausalLM"};

#define OLD_QWEN "Qwen3_5MVLAAbsorbedForCausalLM"

static const struct {
    const char *arch;
    const mla_arch_group *group;
    const char *mla; /* the retrofit's architecture; NULL: no retrofit of this one */
    const char *old; /* its older name, still met in files; NULL: none */
} ARCH[] = {
    {"Qwen3_5ForConditionalGeneration", &QWEN3_5, "Qwen3_5MLAForConditionalGeneration", OLD_QWEN},
    {"Qwen3_5ForCausalLM", &QWEN3_5, "Qwen3_5MLAForCausalLM", OLD_QWEN},
    {"Qwen3_8ForConditionalGeneration", &QWEN3_5, "Qwen3_5MLAForConditionalGeneration", OLD_QWEN},
    {"Qwen3_8ForCausalLM", &QWEN3_5, "Qwen3_5MLAForCausalLM", OLD_QWEN},
    {"Qwen3_5MoeForConditionalGeneration", &QWEN3_5_MOE, "Qwen3_5MoeMLAForConditionalGeneration", NULL},
    {"Qwen3_5MoeForCausalLM", &QWEN3_5_MOE, "Qwen3_5MoeMLAForCausalLM", NULL},
    {"Qwen3NextForCausalLM", &QWEN3_NEXT, "Qwen3NextMLAForCausalLM", NULL},
    {"LlamaForCausalLM", &LLAMA, "LlamaMLAForCausalLM", NULL},
    {"MistralForCausalLM", &MISTRAL, "MistralMLAForCausalLM", NULL},
    {"Qwen2ForCausalLM", &QWEN2, "Qwen2MLAForCausalLM", NULL},
    {"Qwen3ForCausalLM", &QWEN3, "Qwen3MLAForCausalLM", NULL},
    {"DeepseekV2ForCausalLM", &DEEPSEEK_V2, NULL, NULL},
    {"DeepseekV3ForCausalLM", &DEEPSEEK_V3, NULL, NULL},
};

static const struct {
    const char *type;
    const mla_arch_group *group;
} TYPE[] = {
    {MLA_TYPE_SABI, &QWEN3_5}, {"qwen3_5", &QWEN3_5}, {"qwen3_5_text", &QWEN3_5}, {"qwen3_8", &QWEN3_5}, {"qwen3_8_text", &QWEN3_5},
    {"qwen3_5_moe", &QWEN3_5_MOE}, {"qwen3_5_moe_text", &QWEN3_5_MOE}, {"qwen3_next", &QWEN3_NEXT},
    {"llama", &LLAMA}, {"mistral", &MISTRAL}, {"qwen2", &QWEN2}, {"qwen3", &QWEN3},
    {"deepseek_v2", &DEEPSEEK_V2}, {"deepseek_v3", &DEEPSEEK_V3},
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

const mla_arch_group *mla_arch_find(const char *arch, bool *mla)
{
    for (size_t i = 0; i < COUNT(ARCH); i++) {
        bool base = !strcmp(arch, ARCH[i].arch), retro = (ARCH[i].mla && !strcmp(arch, ARCH[i].mla)) || (ARCH[i].old && !strcmp(arch, ARCH[i].old));
        retro = retro || (ARCH[i].group == &QWEN3_5 && !strcmp(arch, MLA_ARCH_SABI));
        if (!base && !retro) continue;
        if (mla) *mla = retro;
        return ARCH[i].group;
    }
    return NULL;
}

const mla_arch_group *mla_arch_of_model_type(const char *model_type)
{
    for (size_t i = 0; i < COUNT(TYPE); i++)
        if (!strcmp(model_type, TYPE[i].type)) return TYPE[i].group;
    return NULL;
}

const mla_arch_group *mla_arch_of_gguf(const char *name, size_t n)
{
    for (size_t i = 0; i < COUNT(ARCH); i++) {
        const char *g = ARCH[i].group->gguf;
        if (g && strlen(g) == n && !memcmp(g, name, n)) return ARCH[i].group;
    }
    return NULL;
}

char *mla_arch_retrofit_name(const char *arch, bool old)
{
    for (size_t i = 0; i < COUNT(ARCH); i++) {
        const char *name = old ? ARCH[i].old : ARCH[i].mla;
        if (!strcmp(arch, ARCH[i].arch) && name) return mla_strdup(name);
    }
    return NULL;
}
