/* inspect: the resolved configuration of a model. */
#include "verify/inspect/inspect_parts.h"

static const char *const FAMILY[] = {
    [MLA_FAM_LLAMA] = "llama", [MLA_FAM_QWEN3_5] = "qwen3_5", [MLA_FAM_QWEN3_NEXT] = "qwen3_next", [MLA_FAM_DEEPSEEK] = "deepseek"};
static const char *const ROPE[] = {[MLA_ROPE_DEFAULT] = "default", [MLA_ROPE_LINEAR] = "linear", [MLA_ROPE_DYNAMIC] = "dynamic",
                                   [MLA_ROPE_LLAMA3] = "llama3", [MLA_ROPE_YARN] = "yarn", [MLA_ROPE_LONGROPE] = "longrope"};

static void put_retrofit(mla_jv *o, const mla_config *c)
{
    mla_jv *m = mla_jv_set_obj(o, "mla");
    mla_jv_set_str(m, "layout", mla_layout_name(c->mla.layout));
    mla_jv_set_size(m, "groups", c->mla.groups);
    mla_jv_set_size(m, "rotary_width", c->mla.rotary_width);
    if (mla_layout_divisors(c, c->mla.layout)) mla_jv_set_size(m, "divisors", mla_layout_divisors(c, c->mla.layout));
    if (c->mla.old_names) mla_jv_set_str(m, "names", "mvla");
    mla_jv_set_str(m, "dtype", mla_dtype_name(c->mla.dtype));
    mla_jv_set_str(m, "factors_file", c->mla.factors_file);
    mla_jv *r = mla_jv_set_arr(m, "rank");
    for (size_t i = 0; i < c->layers; i++)
        if (c->layer_kind[i] == MLA_LAYER_FULL) mla_jv_add_size(r, c->mla.rank[i]);
    mla_jv *w = c->mla.width ? mla_jv_set_arr(m, "rotary_widths") : NULL;
    for (size_t i = 0; w && i < c->layers; i++)
        if (c->layer_kind[i] == MLA_LAYER_FULL) mla_jv_add_size(w, c->mla.width[i]);
}

void mla_inspect_config(mla_jv *doc, const mla_config *c)
{
    mla_jv *o = mla_jv_set_obj(doc, "config");
    size_t full = mla_config_full_layers(c);
    mla_jv_set_str(o, "architecture", c->architecture);
    mla_jv_set_str(o, "model_type", c->model_type);
    mla_jv_set_str(o, "family", FAMILY[c->family]);
    mla_jv_set_str(o, "dtype", mla_dtype_name(c->dtype));
    mla_jv_set_size(o, "layers", c->layers);
    mla_jv_set_size(o, "full_attention_layers", full);
    mla_jv_set_size(o, "hidden", c->hidden);
    mla_jv_set_size(o, "intermediate", c->intermediate);
    mla_jv_set_size(o, "vocab", c->vocab);
    mla_jv_set_size(o, "heads", c->heads);
    mla_jv_set_size(o, "kv_heads", c->kv_heads);
    mla_jv_set_size(o, "head_dim", c->head_dim);
    mla_jv_set_size(o, "rotary_dims", c->rope.rot);
    mla_jv_set_str(o, "rope", ROPE[c->rope.kind]);
    mla_jv_set_f64(o, "rope_theta", c->rope.theta);
    mla_jv_set_size(o, "max_positions", c->max_pos);
    mla_jv_set_bool(o, "qk_norm", c->qk_norm);
    mla_jv_set_bool(o, "attention_gate", c->attn_gate);
    mla_jv_set_bool(o, "tied_embeddings", c->tied);
    mla_jv_set_size(o, "mtp_layers", c->mtp_layers);
    mla_jv_set_bool(o, "vision", c->has_vision);
    if (c->experts) mla_jv_set_size(o, "experts", c->experts);
    if (c->kv_lora_rank) mla_jv_set_size(o, "kv_lora_rank", c->kv_lora_rank);
    if (c->quant_method) mla_jv_set_str(o, "quant_method", c->quant_method);
    mla_jv_set_bool(o, "kv_scheme", c->kv_scheme);
    if (c->kv_keys16) mla_jv_set_str(o, "kv_cache", "fp8-keys16");
    if (c->mla.layout != MLA_LAYOUT_NONE) put_retrofit(o, c);
}
