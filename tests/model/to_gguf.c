/* Folders as llama.cpp's converter stores them: names, orders and keys spelled out here, not taken from the code under test. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "build.h"

/* Whether `name` is `what`, or starts with it and a dot; what follows it is *rest. */
static bool part(const char *name, const char *what, const char **rest)
{
    size_t n = strlen(what);
    *rest = name + n;
    return !strncmp(name, what, n) && (name[n] == 0 || name[n] == '.');
}

/* GGUF name of a tensor of the folder. The MTP head is the block behind the last layer. */
static void gguf_name(char *out, size_t cap, const char *hf, const mla_config *c)
{
    static const char *const MAP[][2] = {
        {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_output"},
        {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"}, {"input_layernorm", "attn_norm"},
        {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"},
        {"linear_attn.in_proj_qkv", "attn_qkv"}, {"linear_attn.in_proj_z", "attn_gate"}, {"linear_attn.in_proj_b", "ssm_beta"},
        {"linear_attn.in_proj_a", "ssm_alpha"}, {"linear_attn.conv1d", "ssm_conv1d"}, {"linear_attn.A_log", "ssm_a"},
        {"linear_attn.dt_bias", "ssm_dt.bias"}, {"linear_attn.norm", "ssm_norm"}, {"linear_attn.out_proj", "ssm_out"},
    };
    static const char *const ONCE[][2] = {{"embed_tokens", "token_embd"}, {"norm", "output_norm"}, {"lm_head", "output"}};
    static const char *const MTP[][2] = {
        {"fc", "eh_proj"}, {"pre_fc_norm_embedding", "enorm"}, {"pre_fc_norm_hidden", "hnorm"}, {"norm", "shared_head_norm"}};
    const char *at = hf, *rest;
    unsigned layer = (unsigned)c->layers;
    int n = 0;
    bool mtp = mla_starts_with(at, "mtp.");
    at += mtp ? strlen("mtp.") : mla_starts_with(at, "model.language_model.") ? strlen("model.language_model.") : mla_starts_with(at, "model.") ? strlen("model.") : 0;
    for (size_t i = 0; !mtp && i < sizeof ONCE / sizeof *ONCE; i++)
        if (part(at, ONCE[i][0], &rest)) {
            snprintf(out, cap, "%s%s", ONCE[i][1], rest);
            return;
        }
    for (size_t i = 0; mtp && i < sizeof MTP / sizeof *MTP; i++)
        if (part(at, MTP[i][0], &rest)) {
            snprintf(out, cap, "blk.%u.nextn.%s%s", layer, MTP[i][1], rest);
            return;
        }
    if (mtp) at += strlen("layers.0.");
    else if (sscanf(at, "layers.%u.%n", &layer, &n) == 1) at += n;
    if (part(at, "post_attention_layernorm", &rest)) {
        snprintf(out, cap, "blk.%u.%s%s", layer, c->norm_plus_one ? "post_attention_norm" : "ffn_norm", rest);
        return;
    }
    for (size_t i = 0; i < sizeof MAP / sizeof *MAP; i++)
        if (part(at, MAP[i][0], &rest)) {
            snprintf(out, cap, "blk.%u.%s%s", layer, MAP[i][1], rest);
            return;
        }
    bt_need(false, "no GGUF name for %s", hf);
}

/* new[perm(i)] = old[i] over units of `unit` rows of `width` values, `base` rows left in front. */
static void reorder(bt *t, size_t base, size_t count, size_t unit, size_t width, size_t (*perm)(size_t, const mla_config *), const mla_config *c)
{
    float *old = malloc(t->count * sizeof *old);
    memcpy(old, t->v, t->count * sizeof *old);
    for (size_t i = 0; i < count; i++)
        memcpy(t->v + (base + perm(i, c) * unit) * width, old + (base + i * unit) * width, unit * width * sizeof *old);
    free(old);
}

/* Head h, half s, index j -> head h, index j, half s: reshape (2, hd/2), swap. */
static size_t rope_order(size_t i, const mla_config *c)
{
    size_t hd = c->head_dim, h = i / hd, s = i % hd / (hd / 2), j = i % (hd / 2);
    return h * hd + 2 * j + s;
}

/* [nk][r] -> [r][nk] */
static size_t tile(size_t i, const mla_config *c)
{
    size_t r = c->lin_v_heads / c->lin_k_heads;
    return i % r * c->lin_k_heads + i / r;
}

static void tile_columns(bt *t, const mla_config *c)
{
    for (size_t row = 0; row < t->shape[0]; row++) {
        bt one = {.count = t->shape[1], .v = t->v + row * t->shape[1]};
        reorder(&one, 0, c->lin_v_heads, c->lin_v_dim, 1, tile, c);
    }
}

static bool is(const bt *t, const char *what) { return strstr(t->name, what) != NULL; }

void gguf_tensor(bt *t, const mla_config *c, bool llama)
{
    size_t key2 = 2 * c->lin_k_heads * c->lin_k_dim, width = t->nd == 1 ? 1 : t->count / t->shape[0];
    if (llama && (is(t, "q_proj") || is(t, "k_proj"))) reorder(t, 0, t->shape[0], 1, width, rope_order, c);
    if (c->norm_plus_one && is(t, "norm") && !is(t, "linear_attn.norm"))
        for (size_t i = 0; i < t->count; i++) t->v[i] += 1;
    if (is(t, "in_proj_qkv") || is(t, "conv1d")) reorder(t, key2, c->lin_v_heads, c->lin_v_dim, width, tile, c);
    if (is(t, "in_proj_z")) reorder(t, 0, c->lin_v_heads, c->lin_v_dim, width, tile, c);
    if (is(t, "in_proj_a") || is(t, "in_proj_b") || is(t, "A_log") || is(t, "dt_bias")) reorder(t, 0, c->lin_v_heads, 1, width, tile, c);
    if (is(t, "out_proj")) tile_columns(t, c);
    if (is(t, "A_log"))
        for (size_t i = 0; i < t->count; i++) t->v[i] = (float)-exp((double)t->v[i]);
    if (is(t, "conv1d")) t->nd = 2, t->shape[1] = t->shape[2];
    char name[160];
    gguf_name(name, sizeof name, t->name, c);
    strcpy(t->name, name);
}

static void common_keys(gb *g, const mla_config *c, const char *arch)
{
    char k[96];
    const struct {
        const char *key;
        size_t v;
    } U[] = {{"block_count", c->layers + c->mtp_layers}, {"context_length", c->max_pos}, {"embedding_length", c->hidden},
             {"feed_forward_length", c->intermediate}, {"attention.head_count", c->heads}, {"attention.head_count_kv", c->kv_heads},
             {"attention.key_length", c->head_dim}, {"attention.value_length", c->head_dim}, {"rope.dimension_count", c->rope.rot}};
    gb_str(g, "general.architecture", arch);
    for (size_t i = 0; i < sizeof U / sizeof *U; i++) {
        snprintf(k, sizeof k, "%s.%s", arch, U[i].key);
        gb_u32(g, k, (unsigned)U[i].v);
    }
    snprintf(k, sizeof k, "%s.attention.layer_norm_rms_epsilon", arch);
    gb_f32(g, k, (float)c->rms_eps);
    snprintf(k, sizeof k, "%s.rope.freq_base", arch);
    gb_f32(g, k, (float)c->rope.theta);
}

static void hybrid_keys(gb *g, const mla_config *c)
{
    unsigned interval = 1;
    while (interval < c->layers && c->layer_kind[interval - 1] != MLA_LAYER_FULL) interval++;
    gb_u32(g, "qwen35.ssm.conv_kernel", (unsigned)c->lin_conv);
    gb_u32(g, "qwen35.ssm.state_size", (unsigned)c->lin_k_dim);
    gb_u32(g, "qwen35.ssm.group_count", (unsigned)c->lin_k_heads);
    gb_u32(g, "qwen35.ssm.time_step_rank", (unsigned)c->lin_v_heads);
    gb_u32(g, "qwen35.ssm.inner_size", (unsigned)(c->lin_v_heads * c->lin_v_dim));
    gb_u32(g, "qwen35.full_attention_interval", interval);
    gb_u32(g, "qwen35.nextn_predict_layers", (unsigned)c->mtp_layers);
    const size_t *s = c->rope.mrope_section;
    gb_u32s(g, "qwen35.rope.dimension_sections", (unsigned[]){(unsigned)s[0], (unsigned)s[1], (unsigned)s[2], 0}, 4);
}

void gguf_keys(gb *g, const mla_config *c, const char *arch)
{
    common_keys(g, c, arch);
    if (!strcmp(arch, "qwen35")) hybrid_keys(g, c);
}

void gguf_llama(gb *g, const mla_config *c, bset *folder)
{
    bset_model(folder, c, "model.");
    bset_model(&g->t, c, "model.");
    gguf_keys(g, c, "llama");
    for (size_t i = 0; i < g->t.n; i++) gguf_tensor(&g->t.t[i], c, true);
}

void gguf_qwen35(gb *g, const mla_config *c, bset *folder)
{
    bset_model(folder, c, "model.");
    bset_mtp(folder, c);
    bset_model(&g->t, c, "model.");
    bset_mtp(&g->t, c);
    gguf_keys(g, c, "qwen35");
    for (size_t i = 0; i < g->t.n; i++) gguf_tensor(&g->t.t[i], c, false);
}
