/* The table of KV-scale spellings. */
#include "model/kv_names.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

const mla_kv_spelling MLA_KV_SPELLING[] = {
    {"self_attn.mla.latent_scale", MLA_KV_LATENT, "mla-toolkit", true},
    {"self_attn.mla.rope_scale", MLA_KV_ROPE, "mla-toolkit", true},
    {"self_attn.k_scale", MLA_KV_K, "compressed-tensors", true},
    {"self_attn.v_scale", MLA_KV_V, "compressed-tensors", true},
    {"self_attn.q_scale", MLA_KV_Q, "compressed-tensors", false},
    {"self_attn.k_proj.k_scale", MLA_KV_K, "ModelOpt", true},
    {"self_attn.v_proj.v_scale", MLA_KV_V, "ModelOpt", true},
    {"self_attn.q_proj.q_scale", MLA_KV_Q, "ModelOpt", false},
    {"self_attn.k_proj.output_scale", MLA_KV_K, "Quark / older compressed-tensors", true},
    {"self_attn.v_proj.output_scale", MLA_KV_V, "Quark / older compressed-tensors", true},
    {"self_attn.q_proj.output_scale", MLA_KV_Q, "Quark / older compressed-tensors", false},
    {"self_attn.prob_output_scale", MLA_KV_P, "Quark / older compressed-tensors", false},
    {"self_attn.qkv_proj.k_scale", MLA_KV_K, "fused", true},
    {"self_attn.qkv_proj.v_scale", MLA_KV_V, "fused", true},
    {"self_attn.k_cache.scale", MLA_KV_K, "cache module", true},
    {"self_attn.v_cache.scale", MLA_KV_V, "cache module", true},
    {"self_attn.attn.k_scale", MLA_KV_K, "engine-internal", true},
    {"self_attn.attn.v_scale", MLA_KV_V, "engine-internal", true},
    {"self_attn.attn.q_scale", MLA_KV_Q, "engine-internal", false},
    {"self_attn.kv_scale", MLA_KV_BOTH, "deprecated", true},
    {"self_attn.mla_attn.mla_attn.k_scale", MLA_KV_K, "engine-internal", false},
    {"self_attn.mla_attn.mla_attn.v_scale", MLA_KV_V, "engine-internal", false},
};
const size_t MLA_KV_SPELLINGS = sizeof MLA_KV_SPELLING / sizeof *MLA_KV_SPELLING;

const char *mla_kv_part_name(mla_kv_part p)
{
    static const char *const NAME[] = {"k", "v", "kv", "q", "p", "latent", "rope"};
    return NAME[p];
}

const mla_kv_spelling *mla_kv_spelling_of(const char *name, size_t *layer)
{
    const char *at = NULL;
    for (const char *p = strstr(name, "layers."); p; p = strstr(p + 1, "layers.")) at = p;
    if (!at) return NULL;
    char *end;
    unsigned long long n = strtoull(at + 7, &end, 10);
    if (end == at + 7 || *end != '.') return NULL;
    for (size_t i = 0; i < MLA_KV_SPELLINGS; i++)
        if (!strcmp(end + 1, MLA_KV_SPELLING[i].suffix)) {
            *layer = (size_t)n;
            return &MLA_KV_SPELLING[i];
        }
    return NULL;
}

bool mla_kv_scale_value(const mla_tensor *t, float *value)
{
    return mla_tensor_numel(t) == 1 && t->data && mla_to_f32(value, t->data, t->dtype, 1);
}

const char *mla_kv_scale_state(const mla_tensor *t)
{
    float v;
    if (!mla_kv_scale_value(t, &v)) return "not one value";
    return !isfinite(v) ? "non-finite" : v < 0 ? "negative" : v == 0 ? "zero" : "ok";
}
