/* The table of KV-scale spellings. */
#include "verify/kv_names.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

static const mla_kv_spelling SPELLING[] = {
    {"self_attn.mla.latent_scale", "latent", "mla-toolkit"},
    {"self_attn.mla.rope_scale", "rope", "mla-toolkit"},
    {"self_attn.k_scale", "k", "compressed-tensors"},
    {"self_attn.v_scale", "v", "compressed-tensors"},
    {"self_attn.q_scale", "q", "compressed-tensors"},
    {"self_attn.k_proj.k_scale", "k", "ModelOpt"},
    {"self_attn.v_proj.v_scale", "v", "ModelOpt"},
    {"self_attn.k_proj.output_scale", "k", "Quark / older compressed-tensors"},
    {"self_attn.v_proj.output_scale", "v", "Quark / older compressed-tensors"},
    {"self_attn.q_proj.output_scale", "q", "Quark / older compressed-tensors"},
    {"self_attn.prob_output_scale", "p", "Quark / older compressed-tensors"},
    {"self_attn.qkv_proj.k_scale", "k", "fused"},
    {"self_attn.qkv_proj.v_scale", "v", "fused"},
    {"self_attn.kv_scale", "kv", "deprecated"},
    {"self_attn.k_cache.scale", "k", "cache module"},
    {"self_attn.v_cache.scale", "v", "cache module"},
    {"self_attn.attn.k_scale", "k", "engine-internal"},
    {"self_attn.attn.v_scale", "v", "engine-internal"},
    {"self_attn.mla_attn.mla_attn.k_scale", "k", "engine-internal"},
    {"self_attn.mla_attn.mla_attn.v_scale", "v", "engine-internal"},
};

const mla_kv_spelling *mla_kv_spelling_of(const char *name, size_t *layer)
{
    const char *at = NULL;
    for (const char *p = strstr(name, "layers."); p; p = strstr(p + 1, "layers.")) at = p;
    if (!at) return NULL;
    char *end;
    unsigned long long n = strtoull(at + 7, &end, 10);
    if (end == at + 7 || *end != '.') return NULL;
    for (size_t i = 0; i < sizeof SPELLING / sizeof *SPELLING; i++)
        if (!strcmp(end + 1, SPELLING[i].suffix)) {
            *layer = (size_t)n;
            return &SPELLING[i];
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
