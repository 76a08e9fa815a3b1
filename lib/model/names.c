/* The table of tensor kinds. A new family adds rows (or its bit to rows); nothing else in this layer names tensors. */
#include "model/names.h"

enum {
    LL = 1 << MLA_FAM_LLAMA,
    Q5 = 1 << MLA_FAM_QWEN3_5,
    QN = 1 << MLA_FAM_QWEN3_NEXT,
    DS = 1 << MLA_FAM_DEEPSEEK,
    HY = Q5 | QN,      /* hybrids */
    GQ = LL | Q5 | QN, /* ordinary grouped-query attention */
    ALL = LL | Q5 | QN | DS
};

#define ROW(k, p, h, g, o, i) .kind = MLA_W_##k, .place = MLA_AT_##p, .hf = h, .gguf = g, .out = MLA_D_##o, .in = MLA_D_##i

static const mla_wrow ROWS[] = {
    {ROW(EMBED, MODEL, "embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN), .families = ALL},
    {ROW(FINAL_NORM, MODEL, "norm.weight", "output_norm.weight", ONE, HIDDEN), .families = ALL, .norm = true},
    {ROW(LM_HEAD, MODEL, "/lm_head.weight", "output.weight", VOCAB, HIDDEN), .families = ALL, .when = MLA_IF_UNTIED},

    {ROW(INPUT_NORM, LAYER, "input_layernorm.weight", "attn_norm.weight", ONE, HIDDEN), .families = ALL, .norm = true},
    {ROW(POST_NORM, LAYER, "post_attention_layernorm.weight", "ffn_norm.weight", ONE, HIDDEN), .families = LL | QN | DS, .norm = true},
    {ROW(POST_NORM, LAYER, "post_attention_layernorm.weight", "post_attention_norm.weight", ONE, HIDDEN), .families = Q5, .norm = true},
    {ROW(GATE, LAYER, "mlp.gate_proj.weight", "ffn_gate.weight", INTER, HIDDEN), .families = ALL},
    {ROW(UP, LAYER, "mlp.up_proj.weight", "ffn_up.weight", INTER, HIDDEN), .families = ALL},
    {ROW(DOWN, LAYER, "mlp.down_proj.weight", "ffn_down.weight", HIDDEN, INTER), .families = ALL},
    {ROW(GATE_BIAS, LAYER, "mlp.gate_proj.bias", "ffn_gate.bias", ONE, INTER), .families = LL, .when = MLA_IF_MLP_BIAS},
    {ROW(UP_BIAS, LAYER, "mlp.up_proj.bias", "ffn_up.bias", ONE, INTER), .families = LL, .when = MLA_IF_MLP_BIAS},
    {ROW(DOWN_BIAS, LAYER, "mlp.down_proj.bias", "ffn_down.bias", ONE, HIDDEN), .families = LL, .when = MLA_IF_MLP_BIAS},

    {ROW(Q, FULL, "self_attn.q_proj.weight", "attn_q.weight", Q, HIDDEN), .families = GQ, .gguf_view = MLA_V_ROPE},
    {ROW(K, FULL, "self_attn.k_proj.weight", "attn_k.weight", KV, HIDDEN), .families = GQ, .gguf_view = MLA_V_ROPE},
    {ROW(V, FULL, "self_attn.v_proj.weight", "attn_v.weight", KV, HIDDEN), .families = GQ},
    {ROW(O, FULL, "self_attn.o_proj.weight", "attn_output.weight", HIDDEN, ATTN), .families = GQ},
    {ROW(Q_BIAS, FULL, "self_attn.q_proj.bias", "attn_q.bias", ONE, Q), .families = GQ, .when = MLA_IF_Q_BIAS, .gguf_view = MLA_V_ROPE},
    {ROW(K_BIAS, FULL, "self_attn.k_proj.bias", "attn_k.bias", ONE, KV), .families = GQ, .when = MLA_IF_KV_BIAS, .gguf_view = MLA_V_ROPE},
    {ROW(V_BIAS, FULL, "self_attn.v_proj.bias", "attn_v.bias", ONE, KV), .families = GQ, .when = MLA_IF_KV_BIAS},
    {ROW(O_BIAS, FULL, "self_attn.o_proj.bias", "attn_output.bias", ONE, HIDDEN), .families = GQ, .when = MLA_IF_O_BIAS},
    {ROW(Q_NORM, FULL, "self_attn.q_norm.weight", "attn_q_norm.weight", ONE, HEAD), .families = GQ, .when = MLA_IF_QK_NORM, .norm = true},
    {ROW(K_NORM, FULL, "self_attn.k_norm.weight", "attn_k_norm.weight", ONE, HEAD), .families = GQ, .when = MLA_IF_QK_NORM, .norm = true},

    {ROW(GDN_QKV, LINEAR, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", GDN_QKV, HIDDEN), .families = Q5, .gguf_view = MLA_V_TILED_QKV},
    {ROW(GDN_Z, LINEAR, "linear_attn.in_proj_z.weight", "attn_gate.weight", GDN_V, HIDDEN), .families = Q5, .gguf_view = MLA_V_TILED_ROWS},
    {ROW(GDN_B, LINEAR, "linear_attn.in_proj_b.weight", "ssm_beta.weight", GDN_NV, HIDDEN), .families = Q5, .gguf_view = MLA_V_TILED_HEADS},
    {ROW(GDN_A, LINEAR, "linear_attn.in_proj_a.weight", "ssm_alpha.weight", GDN_NV, HIDDEN), .families = Q5, .gguf_view = MLA_V_TILED_HEADS},
    {ROW(GDN_QKV, LINEAR, "linear_attn.in_proj_qkvz.weight", NULL, GDN_QKV, HIDDEN), .families = QN, .stored_out = MLA_D_GDN_QKVZ, .hf_view = MLA_V_QKVZ_QKV},
    {ROW(GDN_Z, LINEAR, "linear_attn.in_proj_qkvz.weight", NULL, GDN_V, HIDDEN), .families = QN, .stored_out = MLA_D_GDN_QKVZ, .hf_view = MLA_V_QKVZ_Z},
    {ROW(GDN_B, LINEAR, "linear_attn.in_proj_ba.weight", NULL, GDN_NV, HIDDEN), .families = QN, .stored_out = MLA_D_GDN_BA, .hf_view = MLA_V_BA_B},
    {ROW(GDN_A, LINEAR, "linear_attn.in_proj_ba.weight", NULL, GDN_NV, HIDDEN), .families = QN, .stored_out = MLA_D_GDN_BA, .hf_view = MLA_V_BA_A},
    {ROW(GDN_CONV, LINEAR, "linear_attn.conv1d.weight", "ssm_conv1d.weight", GDN_QKV, GDN_CONV), .families = HY, .conv = true, .gguf_view = MLA_V_TILED_QKV},
    {ROW(GDN_A_LOG, LINEAR, "linear_attn.A_log", "ssm_a", ONE, GDN_NV), .families = HY, .gguf_view = MLA_V_TILED_HEADS, .gguf_xform = MLA_X_LOG_NEG},
    {ROW(GDN_DT_BIAS, LINEAR, "linear_attn.dt_bias", "ssm_dt.bias", ONE, GDN_NV), .families = HY, .gguf_view = MLA_V_TILED_HEADS},
    {ROW(GDN_NORM, LINEAR, "linear_attn.norm.weight", "ssm_norm.weight", ONE, GDN_DV), .families = HY}, /* plain gain */
    {ROW(GDN_OUT, LINEAR, "linear_attn.out_proj.weight", "ssm_out.weight", HIDDEN, GDN_V), .families = HY, .gguf_view = MLA_V_TILED_COLS},

    {ROW(Q, FULL, "self_attn.q_proj.weight", NULL, DS_Q, HIDDEN), .families = DS, .when = MLA_IF_NO_Q_LORA},
    {ROW(DS_Q_A, FULL, "self_attn.q_a_proj.weight", NULL, Q_LORA, HIDDEN), .families = DS, .when = MLA_IF_Q_LORA},
    {ROW(DS_Q_A_BIAS, FULL, "self_attn.q_a_proj.bias", NULL, ONE, Q_LORA), .families = DS, .when = MLA_IF_Q_LORA_BIAS},
    {ROW(DS_Q_A_NORM, FULL, "self_attn.q_a_layernorm.weight", NULL, ONE, Q_LORA), .families = DS, .when = MLA_IF_Q_LORA},
    {ROW(DS_Q_B, FULL, "self_attn.q_b_proj.weight", NULL, DS_Q, Q_LORA), .families = DS, .when = MLA_IF_Q_LORA},
    {ROW(DS_KV_A, FULL, "self_attn.kv_a_proj_with_mqa.weight", NULL, DS_KV_A, HIDDEN), .families = DS},
    {ROW(DS_KV_A_BIAS, FULL, "self_attn.kv_a_proj_with_mqa.bias", NULL, ONE, DS_KV_A), .families = DS, .when = MLA_IF_KV_BIAS},
    {ROW(DS_KV_A_NORM, FULL, "self_attn.kv_a_layernorm.weight", NULL, ONE, KV_LORA), .families = DS},
    {ROW(DS_KV_B, FULL, "self_attn.kv_b_proj.weight", NULL, DS_KV_B, KV_LORA), .families = DS},
    {ROW(O, FULL, "self_attn.o_proj.weight", NULL, HIDDEN, DS_V), .families = DS},
    {ROW(O_BIAS, FULL, "self_attn.o_proj.bias", NULL, ONE, HIDDEN), .families = DS, .when = MLA_IF_O_BIAS},

    {ROW(MTP_FC, MTP, "fc.weight", "nextn.eh_proj.weight", HIDDEN, HIDDEN2), .families = Q5},
    {ROW(MTP_EMBED_NORM, MTP, "pre_fc_norm_embedding.weight", "nextn.enorm.weight", ONE, HIDDEN), .families = Q5, .norm = true},
    {ROW(MTP_HIDDEN_NORM, MTP, "pre_fc_norm_hidden.weight", "nextn.hnorm.weight", ONE, HIDDEN), .families = Q5, .norm = true},
    {ROW(MTP_NORM, MTP, "norm.weight", "nextn.shared_head_norm.weight", ONE, HIDDEN), .families = Q5, .norm = true},
};

const mla_wrow *mla_wrow_at(size_t i) { return i < sizeof ROWS / sizeof *ROWS ? &ROWS[i] : NULL; }

size_t mla_dim_size(const mla_config *c, mla_dim d)
{
    size_t key = c->lin_k_heads * c->lin_k_dim, value = c->lin_v_heads * c->lin_v_dim;
    switch (d) {
    case MLA_D_ONE: return 1;
    case MLA_D_VOCAB: return c->vocab;
    case MLA_D_HIDDEN: return c->hidden;
    case MLA_D_HIDDEN2: return 2 * c->hidden;
    case MLA_D_INTER: return c->intermediate;
    case MLA_D_Q: return c->heads * c->head_dim * (c->attn_gate ? 2 : 1);
    case MLA_D_KV: return c->kv_heads * c->head_dim;
    case MLA_D_ATTN: return c->heads * c->head_dim;
    case MLA_D_HEAD: return c->head_dim;
    case MLA_D_GDN_QKV: return 2 * key + value;
    case MLA_D_GDN_V: return value;
    case MLA_D_GDN_NV: return c->lin_v_heads;
    case MLA_D_GDN_CONV: return c->lin_conv;
    case MLA_D_GDN_DV: return c->lin_v_dim;
    case MLA_D_GDN_QKVZ: return 2 * key + 2 * value;
    case MLA_D_GDN_BA: return 2 * c->lin_v_heads;
    case MLA_D_Q_LORA: return c->q_lora_rank;
    case MLA_D_DS_Q: return c->heads * (c->qk_nope_dim + c->qk_rope_dim);
    case MLA_D_DS_KV_A: return c->kv_lora_rank + c->qk_rope_dim;
    case MLA_D_KV_LORA: return c->kv_lora_rank;
    case MLA_D_DS_KV_B: return c->heads * (c->qk_nope_dim + c->v_head_dim);
    case MLA_D_DS_V: return c->heads * c->v_head_dim;
    }
    return 0;
}

static bool holds(mla_cond when, const mla_config *c)
{
    switch (when) {
    case MLA_IF_ALWAYS: return true;
    case MLA_IF_UNTIED: return !c->tied;
    case MLA_IF_Q_BIAS: return c->q_bias;
    case MLA_IF_KV_BIAS: return c->kv_bias;
    case MLA_IF_O_BIAS: return c->o_bias;
    case MLA_IF_MLP_BIAS: return c->mlp_bias;
    case MLA_IF_QK_NORM: return c->qk_norm;
    case MLA_IF_Q_LORA: return c->q_lora_rank > 0;
    case MLA_IF_Q_LORA_BIAS: return c->q_lora_rank > 0 && c->q_bias;
    case MLA_IF_NO_Q_LORA: return c->q_lora_rank == 0;
    }
    return false;
}

bool mla_wrow_applies(const mla_wrow *row, const mla_config *c, size_t layer)
{
    bool mtp = layer >= MLA_MTP(0);
    if (!(row->families >> c->family & 1) || !holds(row->when, c)) return false;
    switch (row->place) {
    case MLA_AT_MODEL: return true;
    case MLA_AT_MTP: return c->mtp_layers > 0;
    case MLA_AT_LAYER: return mtp ? layer - MLA_MTP(0) < c->mtp_layers : layer < c->layers;
    case MLA_AT_FULL: return mtp ? layer - MLA_MTP(0) < c->mtp_layers : layer < c->layers && c->layer_kind[layer] == MLA_LAYER_FULL;
    case MLA_AT_LINEAR: return !mtp && layer < c->layers && c->layer_kind[layer] == MLA_LAYER_LINEAR;
    }
    return false;
}

void mla_name_hf(mla_str *out, const mla_wrow *row, const char *prefix, size_t layer)
{
    mla_str_clear(out);
    if (row->hf[0] == '/') mla_str_put(out, row->hf + 1);
    else if (row->place == MLA_AT_MODEL) mla_str_printf(out, "%s%s", prefix, row->hf);
    else if (row->place == MLA_AT_MTP) mla_str_printf(out, "mtp.%s", row->hf);
    else if (layer >= MLA_MTP(0)) mla_str_printf(out, "mtp.layers.%zu.%s", layer - MLA_MTP(0), row->hf);
    else mla_str_printf(out, "%slayers.%zu.%s", prefix, layer, row->hf);
}

void mla_name_gguf(mla_str *out, const mla_wrow *row, const mla_config *c, size_t layer)
{
    mla_str_clear(out);
    if (row->place == MLA_AT_MODEL) mla_str_put(out, row->gguf);
    else if (row->place == MLA_AT_MTP) mla_str_printf(out, "blk.%zu.%s", c->layers, row->gguf);
    else mla_str_printf(out, "blk.%zu.%s", layer >= MLA_MTP(0) ? c->layers + (layer - MLA_MTP(0)) : layer, row->gguf);
}
