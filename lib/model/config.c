/* config.json -> mla_config: finds the architecture, then reads each group of keys. */
#include "model/config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "model/arch.h"
#include "model/config_parts.h"
#include "model/read.h"

static void unknown(mla_rd *root, const char *arch, const char *type)
{
    char a[96], t[96];
    *root->st = mla_fail(root->err, MLA_EUNSUPPORTED, "architecture %s (model_type %s) is not supported",
                        arch ? mla_printable(arch, a, sizeof a) : "absent", type ? mla_printable(type, t, sizeof t) : "absent");
}

/* architectures[0] decides; a model_type must agree with it, or stands in for it when there is none. */
static const mla_arch_group *find_arch(mla_rd *root, mla_rd *text, mla_config *c, bool *retro)
{
    const char *type = mla_rd_str(root, "model_type", NULL), *text_type = NULL;
    const mla_jv *list = mla_rd_arr(root, "architectures");
    const char *arch = list ? mla_jv_str(mla_jv_first(list)) : NULL;
    if (text->obj != root->obj) text_type = mla_rd_str(text, "model_type", NULL);
    if (list && mla_jv_first(list) && !arch) mla_rd_fail(root, MLA_EFORMAT, "architectures", "expected a list of strings");
    if (*root->st != MLA_OK) return NULL;
    const mla_arch_group *by_type = type ? mla_arch_of_model_type(type) : NULL;
    const mla_arch_group *g = arch ? mla_arch_find(arch, retro) : by_type;
    if (!g && arch && by_type) {
        unknown(root, arch, type);
        return NULL;
    }
    if (!g) {
        if (!arch && !type) *root->st = mla_fail(root->err, MLA_EFORMAT, "neither architectures nor model_type: not a model's config.json");
        else unknown(root, arch, type);
        return NULL;
    }
    if (type && by_type != g) {
        char a[96], t[96];
        mla_rd_fail(root, MLA_EFORMAT, "model_type", "\"%s\" does not belong to architecture %s",
                    mla_printable(type, t, sizeof t), mla_printable(arch, a, sizeof a));
    }
    if (text_type && mla_arch_of_model_type(text_type) != g) {
        char a[96], t[96];
        mla_rd_fail(text, MLA_EFORMAT, "model_type", "\"%s\" does not belong to architecture %s",
                    mla_printable(text_type, t, sizeof t), arch ? mla_printable(arch, a, sizeof a) : g->hf);
    }
    if (text->obj != root->obj && !(g->flags & MLA_AF_NESTED))
        mla_rd_fail(root, MLA_EFORMAT, "text_config", "not expected in architecture %s", arch ? arch : g->hf);
    c->architecture = mla_rd_dup(root, arch ? arch : g->hf);
    c->model_type = mla_rd_dup(root, type ? type : g->name);
    return g;
}

static void read_dtype(mla_rd *r, mla_config *c)
{
    static const struct {
        const char *name;
        mla_dtype t;
    } D[] = {{"bfloat16", MLA_BF16}, {"float16", MLA_F16}, {"float32", MLA_F32}};
    const char *a = mla_rd_str(r, "dtype", NULL), *b = mla_rd_str(r, "torch_dtype", NULL), *s = a ? a : b;
    char q[96];
    if (!s) return;
    if (a && b && strcmp(a, b)) {
        char q2[96];
        mla_rd_fail(r, MLA_EFORMAT, "dtype", "\"%s\", but torch_dtype is \"%s\"", mla_printable(a, q, sizeof q),
                    mla_printable(b, q2, sizeof q2));
        return;
    }
    if (mla_starts_with(s, "torch.")) s += 6;
    for (size_t i = 0; i < sizeof D / sizeof *D; i++)
        if (!strcmp(s, D[i].name)) {
            c->dtype = D[i].t;
            return;
        }
    mla_rd_fail(r, MLA_EUNSUPPORTED, a ? "dtype" : "torch_dtype", "\"%s\" is not supported (bfloat16, float16, float32)",
                mla_printable(s, q, sizeof q));
}

static void read_sizes(mla_rd *t, mla_config *c, const mla_arch_group *g)
{
    c->vocab = mla_rd_size(t, "vocab_size", 1, MLA_MAX_VOCAB, MLA_REQUIRED);
    c->hidden = mla_rd_size(t, "hidden_size", 1, MLA_MAX_HIDDEN, MLA_REQUIRED);
    c->layers = mla_rd_size(t, "num_hidden_layers", 1, MLA_MAX_LAYERS, MLA_REQUIRED);
    c->heads = mla_rd_size(t, "num_attention_heads", 1, MLA_MAX_HEADS, MLA_REQUIRED);
    c->max_pos = mla_rd_size(t, "max_position_embeddings", 1, MLA_MAX_POS, g->max_pos);
    c->rms_eps = mla_rd_f64(t, "rms_norm_eps", 0, 0.1, 1e-6);
    bool listed = mla_jv_get(t->obj, "num_key_value_heads") != NULL; /* null means one per query head */
    c->kv_heads = mla_rd_size(t, "num_key_value_heads", 1, MLA_MAX_HEADS, listed || !g->kv_heads ? c->heads : g->kv_heads);
    if (c->family != MLA_FAM_DEEPSEEK) {
        size_t def = g->head_dim ? g->head_dim : 0;
        c->head_dim = mla_rd_size(t, "head_dim", 1, MLA_MAX_HEAD_DIM, def);
        if (c->head_dim == 0 && *t->st == MLA_OK) {
            if (c->hidden % c->heads)
                mla_rd_fail(t, MLA_EFORMAT, "hidden_size", "%zu is not a multiple of num_attention_heads %zu, and head_dim is absent",
                            c->hidden, c->heads);
            c->head_dim = c->hidden / c->heads;
        }
    }
    const char *act = mla_rd_str(t, "hidden_act", "silu");
    char q[96];
    if (strcmp(act, "silu") && strcmp(act, "swish"))
        mla_rd_fail(t, MLA_EUNSUPPORTED, "hidden_act", "\"%s\" is not supported (silu)", mla_printable(act, q, sizeof q));
}

/* decoder_sparse_step and mlp_only_layers can leave single layers dense; any sparse one makes the model MoE here. */
static void read_experts(mla_rd *t, mla_config *c, const mla_arch_group *g)
{
    if (g->flags & MLA_AF_MOE) {
        bool ds = c->family == MLA_FAM_DEEPSEEK;
        const char *key = ds ? "n_routed_experts" : "num_experts";
        c->experts = mla_rd_size(t, key, 0, 1 << 16, mla_jv_get(t->obj, key) ? 0 : g->experts); /* null: dense */
        size_t dense = ds ? mla_rd_size(t, "first_k_dense_replace", 0, MLA_MAX_LAYERS, 0) : 0;
        if (ds && dense >= c->layers) c->experts = 0;
        c->experts_per_tok = mla_rd_size(t, "num_experts_per_tok", 0, 1 << 16, 0);
        c->expert_intermediate = mla_rd_size(t, "moe_intermediate_size", 0, MLA_MAX_INTER, 0);
        if (c->experts && c->experts_per_tok > c->experts)
            mla_rd_fail(t, MLA_EFORMAT, "num_experts_per_tok", "%zu of %zu experts", c->experts_per_tok, c->experts);
    }
    c->intermediate = mla_rd_size(t, "intermediate_size", 1, MLA_MAX_INTER, c->experts ? 0 : MLA_REQUIRED);
}

static void read_layer_types(mla_rd *t, mla_config *c, const mla_arch_group *g)
{
    bool hybrid = g->flags & MLA_AF_HYBRID;
    c->layer_kind = *t->st == MLA_OK ? mla_alloc(c->layers, 1, sizeof *c->layer_kind) : NULL;
    if (!c->layer_kind) {
        if (*t->st == MLA_OK) *t->st = mla_fail(t->err, MLA_ENOMEM, "config: %zu layers", c->layers);
        return;
    }
    size_t interval = hybrid ? mla_rd_size(t, "full_attention_interval", 1, MLA_MAX_LAYERS, 4) : 1, i = 0;
    const mla_jv *list = mla_rd_arr(t, "layer_types");
    if (list && mla_jv_len(list) != c->layers) {
        mla_rd_fail(t, MLA_EFORMAT, "layer_types", "%zu entries for %zu layers", mla_jv_len(list), c->layers);
        return;
    }
    if (!list)
        for (; i < c->layers; i++) c->layer_kind[i] = (i + 1) % interval ? MLA_LAYER_LINEAR : MLA_LAYER_FULL;
    else
        for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v), i++) {
            const char *s = mla_jv_str(v);
            char q[96];
            if (s && !strcmp(s, "full_attention")) c->layer_kind[i] = MLA_LAYER_FULL;
            else if (s && hybrid && !strcmp(s, "linear_attention")) c->layer_kind[i] = MLA_LAYER_LINEAR;
            else if (s && (g->flags & MLA_AF_USE_SLIDING) && !strcmp(s, "sliding_attention")) c->layer_kind[i] = MLA_LAYER_FULL;
            else
                mla_rd_fail(t, MLA_EUNSUPPORTED, "layer_types", "entry %zu: \"%s\" is not supported here", i,
                            s ? mla_printable(s, q, sizeof q) : mla_jv_kind(v));
        }
}

static bool lists_sliding(mla_rd *t)
{
    for (const mla_jv *v = mla_jv_first(mla_rd_get(t, "layer_types")); v; v = mla_jv_next(v))
        if (mla_jv_is_str(v) && !strcmp(mla_jv_str(v), "sliding_attention")) return true;
    return false;
}

static void read_sliding(mla_rd *t, mla_config *c, const mla_arch_group *g)
{
    if (!(g->flags & (MLA_AF_SLIDING | MLA_AF_USE_SLIDING))) return;
    bool absent = !mla_jv_get(t->obj, "sliding_window");
    size_t w = mla_rd_size(t, "sliding_window", 0, MLA_MAX_POS, absent ? 4096 : 0);
    if (g->flags & MLA_AF_USE_SLIDING) {
        if (!mla_rd_bool(t, "use_sliding_window", false)) w = 0;
        /* which layers slide: those layer_types names, or without it those from max_window_layers on */
        if (mla_rd_get(t, "layer_types") ? !lists_sliding(t) : mla_rd_size(t, "max_window_layers", 0, MLA_MAX_POS, 28) >= c->layers) w = 0;
    }
    c->sliding_window = w >= c->max_pos ? 0 : w;
}

static void read_hybrid(mla_rd *t, mla_config *c)
{
    c->lin_conv = mla_rd_size(t, "linear_conv_kernel_dim", 2, 64, 4);
    c->lin_k_dim = mla_rd_size(t, "linear_key_head_dim", 1, MLA_MAX_HEAD_DIM, 128);
    c->lin_v_dim = mla_rd_size(t, "linear_value_head_dim", 1, MLA_MAX_HEAD_DIM, 128);
    c->lin_k_heads = mla_rd_size(t, "linear_num_key_heads", 1, MLA_MAX_HEADS, 16);
    c->lin_v_heads = mla_rd_size(t, "linear_num_value_heads", 1, MLA_MAX_HEADS, 32);
    c->mtp_layers = mla_rd_size(t, "mtp_num_hidden_layers", 0, 16, 0);
    c->mtp_own_embeddings = mla_rd_bool(t, "mtp_use_dedicated_embeddings", false);
    c->attn_gate = mla_rd_bool(t, "attn_output_gate", true);
    const char *z = mla_rd_str(t, "output_gate_type", "swish");
    char q[96];
    if (strcmp(z, "swish") && strcmp(z, "silu"))
        mla_rd_fail(t, MLA_EUNSUPPORTED, "output_gate_type", "\"%s\" is not supported (swish)", mla_printable(z, q, sizeof q));
}

static void read_deepseek(mla_rd *t, mla_config *c)
{
    c->q_lora_rank = mla_rd_size(t, "q_lora_rank", 0, MLA_MAX_HIDDEN, mla_jv_get(t->obj, "q_lora_rank") ? 0 : 1536);
    c->kv_lora_rank = mla_rd_size(t, "kv_lora_rank", 1, MLA_MAX_HIDDEN, 512);
    c->qk_nope_dim = mla_rd_size(t, "qk_nope_head_dim", 1, MLA_MAX_HEAD_DIM, 128);
    c->qk_rope_dim = mla_rd_size(t, "qk_rope_head_dim", 2, MLA_MAX_HEAD_DIM, 64);
    c->v_head_dim = mla_rd_size(t, "v_head_dim", 1, MLA_MAX_HEAD_DIM, 128);
    c->head_dim = c->qk_nope_dim + c->qk_rope_dim;
    c->kv_heads = c->heads;
    c->q_bias = c->kv_bias = c->o_bias = mla_rd_bool(t, "attention_bias", false); /* of q_a, kv_a and o; q_b, kv_b and q_proj have none */
}

static void read_tokens(mla_rd *root, mla_rd *t, mla_config *c)
{
    c->bos = -1;
    mla_rd *from = mla_rd_get(t, "eos_token_id") ? t : root;
    const mla_jv *e = mla_rd_get(from, "eos_token_id");
    if (mla_jv_is_arr(e)) {
        for (const mla_jv *v = mla_jv_first(e); v; v = mla_jv_next(v)) {
            size_t id;
            if (!mla_jv_size(v, &id) || id >= c->vocab || c->n_eos == 8) {
                mla_rd_fail(from, MLA_EFORMAT, "eos_token_id", "expected at most 8 ids below vocab_size %zu", c->vocab);
                return;
            }
            c->eos[c->n_eos++] = (int)id;
        }
    } else if (e) {
        c->eos[0] = (int)mla_rd_size(from, "eos_token_id", 0, c->vocab - 1, 0);
        c->n_eos = 1;
    }
    from = mla_rd_get(t, "bos_token_id") ? t : root;
    if (mla_rd_get(from, "bos_token_id")) c->bos = (int)mla_rd_size(from, "bos_token_id", 0, c->vocab - 1, 0);
}

static void read_flags(mla_rd *root, mla_rd *t, mla_config *c, const mla_arch_group *g)
{
    bool nested = root->obj != t->obj;
    c->tied = mla_rd_bool(t, "tie_word_embeddings", false);
    if (nested) c->tied = mla_rd_bool(root, "tie_word_embeddings", c->tied); /* the whole model's word counts */
    c->has_vision = nested && mla_rd_get(root, "vision_config");
    c->norm_plus_one = g->flags & MLA_AF_PLUS_ONE;
    c->qk_norm = g->flags & MLA_AF_QK_NORM;
    if (g->flags & MLA_AF_ATTN_BIAS) c->q_bias = c->kv_bias = c->o_bias = mla_rd_bool(t, "attention_bias", false);
    if (g->flags & MLA_AF_QKV_BIAS) c->q_bias = c->kv_bias = true;
    if (g->flags & MLA_AF_MLP_BIAS) c->mlp_bias = mla_rd_bool(t, "mlp_bias", false);
}

mla_status mla_config_from_json(mla_config *out, const mla_jv *root_obj, mla_err *err)
{
    mla_err scratch;
    if (!err) err = &scratch;
    *out = (mla_config){.dtype = MLA_BF16, .bos = -1};
    if (!mla_jv_is_obj(root_obj)) return mla_fail(err, MLA_EFORMAT, "expected an object, found %s", mla_jv_kind(root_obj));
    mla_status st = MLA_OK;
    mla_rd root = {.obj = root_obj, .where = "", .st = &st, .err = err};
    const mla_jv *text_obj = mla_rd_obj(&root, "text_config");
    mla_rd text = {.obj = text_obj ? text_obj : root_obj, .where = text_obj ? "text_config." : "", .st = &st, .err = err};
    bool retro = false;
    const mla_arch_group *g = find_arch(&root, &text, out, &retro);
    if (g && st == MLA_OK) {
        out->family = g->family;
        read_dtype(&root, out);
        if (text_obj) read_dtype(&text, out);
        read_sizes(&text, out, g);
        read_experts(&text, out, g);
        read_layer_types(&text, out, g);
        read_sliding(&text, out, g);
        read_flags(&root, &text, out, g);
        if (g->flags & MLA_AF_HYBRID) read_hybrid(&text, out);
        if (g->family == MLA_FAM_DEEPSEEK) read_deepseek(&text, out);
        if (st == MLA_OK) mla_config_read_rope(&text, out, g);
        if (st == MLA_OK) read_tokens(&root, &text, out);
        if (st == MLA_OK) mla_config_read_quant(&root, &text, out);
        if (st == MLA_OK) st = mla_config_check(out, text.where, err);
        if (st == MLA_OK) mla_config_read_mla(&root, &text, out, retro);
    }
    if (st != MLA_OK) mla_config_free(out);
    return st;
}

void mla_config_free(mla_config *c)
{
    mla_free(c->architecture);
    mla_free(c->model_type);
    mla_free(c->layer_kind);
    mla_free(c->rope.inv_freq);
    mla_free(c->rope.long_inv_freq);
    mla_free(c->mla.rank);
    mla_free(c->mla.width);
    mla_free(c->mla.factors_file);
    mla_free(c->quant_method);
    *c = (mla_config){.bos = -1};
}

size_t mla_config_full_layers(const mla_config *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->layers; i++) n += c->layer_kind[i] == MLA_LAYER_FULL;
    return n;
}

double mla_config_attn_scale(const mla_config *c)
{
    double s = 1 / sqrt((double)c->head_dim); /* deepseek: head_dim is dn + dr */
    if (c->family == MLA_FAM_DEEPSEEK && c->rope.kind == MLA_ROPE_YARN && c->rope.mscale_all_dim > 0) {
        double m = mla_yarn_mscale(c->rope.factor, c->rope.mscale_all_dim);
        s *= m * m;
    }
    return s;
}
