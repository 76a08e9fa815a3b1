/* Geometry, semantics and tensor shapes of shared-rotary factor files (formats of the plugin sabi-mla-vllm 0.2.0). */
#include "model/shared_meta.h"

#include <stdio.h>

bool mla_shared_geometry(mla_jv *o, const mla_config *c, size_t r)
{
    return mla_jv_set_size(o, "hidden_size", c->hidden) && mla_jv_set_size(o, "query_heads", c->heads) && mla_jv_set_size(o, "kv_heads", c->kv_heads) &&
           mla_jv_set_size(o, "head_dim", c->head_dim) && mla_jv_set_size(o, "rotary_dim", c->rope.rot) && mla_jv_set_size(o, "rank", r);
}

bool mla_shared_semantics(mla_jv *o, const mla_config *c, size_t r, size_t R)
{
    char order[96];
    size_t rest = c->head_dim - c->rope.rot, w = R * c->rope.rot;
    (void)snprintf(order, sizeof order, "original_group_nope_%zu,global_rotary_residual_%zu", rest, rest);
    return mla_jv_set_str(o, "latent_encoder", "direct") && mla_jv_set_str(o, "rotary_encoder", "direct_pre_rope") &&
           mla_jv_set_str(o, "content_order", order) && mla_jv_set_size(o, "rotary_width", w) && mla_jv_set_size(o, "cache_width", r + w) &&
           mla_jv_set_str(o, "query_normalization", "original_q_rmsnorm") && mla_jv_set_str(o, "key_mean", "omitted_softmax_invariant") &&
           mla_jv_set_str(o, "value_mean", "before_original_sigmoid_gate_and_WO") && mla_jv_set_size(o, "query_heads", c->heads) &&
           mla_jv_set_size(o, "original_kv_groups", c->kv_heads) && mla_jv_set_size(o, "head_dim", c->head_dim) &&
           mla_jv_set_str(o, "attention_scale", "original_head_dim_inverse_sqrt");
}

const char *const mla_shared_tensor[MLA_SHARED_TENSORS] = {"hidden_down_weight", "hidden_rotary_weight", "rotary_query",
                                                           "residual_query", "kv_b_weight", "mean_v"};

void mla_shared_shape(const mla_config *c, size_t r, size_t R, size_t k, size_t shape[3], size_t *ndim)
{
    size_t H = c->heads, d = c->head_dim, rot = c->rope.rot, D = c->hidden;
    const size_t s[MLA_SHARED_TENSORS][4] = {{2, r, D, 0}, {2, R * rot, D, 0}, {3, H, rot, R * rot}, {3, H, rot, d - rot},
                                             {2, H * (2 * (d - rot) + d), r, 0}, {1, H * d, 0, 0}};
    *ndim = s[k][0];
    for (size_t i = 0; i < 3; i++) shape[i] = s[k][i + 1];
}

uint64_t mla_shared_file_bytes(const mla_config *c, size_t r, size_t R)
{
    uint64_t sum = 0;
    for (size_t k = 0; k < MLA_SHARED_TENSORS; k++) {
        size_t shape[3], nd;
        uint64_t n = 4;
        mla_shared_shape(c, r, R, k, shape, &nd);
        for (size_t i = 0; i < nd; i++) n *= shape[i];
        sum += n;
    }
    return sum * mla_config_full_layers(c);
}
