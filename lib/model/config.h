/* A model's shape and conventions, from config.json or GGUF metadata, validated across fields.
 *
 * Both spellings of RoPE settings and the nested text_config are read; an architecture that is not in the table is
 * refused by name. Everything is resolved here: whoever reads an mla_config never asks which family it is. */
#ifndef MLA_MODEL_CONFIG_H
#define MLA_MODEL_CONFIG_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "io/gguf.h"
#include "io/json.h"
#include "tensor/dtype.h"

typedef enum { MLA_LAYER_FULL, MLA_LAYER_LINEAR } mla_layer_kind;
typedef enum {
    MLA_FAM_LLAMA,      /* llama, mistral, qwen2, qwen3: one body, switches below */
    MLA_FAM_QWEN3_5,    /* hybrid: gated attention + gated delta net (qwen3_5, qwen3_5_text, qwen3_8, ...) */
    MLA_FAM_QWEN3_NEXT, /* the same with fused GDN projections and MoE */
    MLA_FAM_DEEPSEEK    /* deepseek_v2/v3, dense MLP: stored MLA */
} mla_family;
typedef enum { MLA_ROPE_DEFAULT, MLA_ROPE_LINEAR, MLA_ROPE_DYNAMIC, MLA_ROPE_LLAMA3, MLA_ROPE_YARN, MLA_ROPE_LONGROPE } mla_rope_kind;

typedef struct {
    mla_rope_kind kind;
    double theta, factor, low_freq, high_freq, beta_fast, beta_slow;
    double attention_factor;      /* multiplies cos and sin; resolved, 1 unless yarn/longrope */
    double mscale_all_dim;        /* deepseek yarn: softmax scale correction; 0 = none */
    size_t original_max;          /* original_max_position_embeddings, resolved */
    bool truncate;                /* yarn */
    bool custom;                  /* inv_freq comes from a file and follows no kind (GGUF rope_freqs.weight) */
    size_t rot;                   /* rotated dims per head (even) */
    double *inv_freq;             /* (rot/2), resolved for kinds that do not depend on the length */
    double *long_inv_freq;        /* longrope beyond original_max; NULL otherwise */
    size_t mrope_section[3];      /* T,H,W frequency counts; all 0: plain RoPE */
    bool mrope_interleaved;
    bool interleaved_pairs;       /* deepseek rope_interleave: pairs (2i, 2i+1) in the stored rows */
} mla_rope_config;

/* MLA_LAYOUTS: how many there are. DEEPSEEK is what a build writes as a stock model: it never stands in an "mla" block. */
typedef enum { MLA_LAYOUT_NONE, MLA_LAYOUT_N, MLA_LAYOUT_REBUILD, MLA_LAYOUT_P, MLA_LAYOUT_SHARED, MLA_LAYOUT_ABSORBED, MLA_LAYOUT_DEEPSEEK, MLA_LAYOUTS } mla_layout;
const char *mla_layout_name(mla_layout l);                /* as files and options spell it: "none", "n", "rebuild", ... */
bool mla_layout_parse(const char *s, mla_layout *out);    /* the layouts of a retrofit; not "none" */
/* Every layout of a retrofit, for messages. */
#define MLA_LAYOUT_LIST "n, rebuild, p, shared-rotary, absorbed-rope"

typedef struct { /* config.json "mla": how the attention of a retrofit is cached; docs/format-factors.md */
    mla_layout layout;
    size_t groups;                /* 1 = MLA, g = GLA-g */
    size_t *rank;                 /* (layers): latent values per token over all groups; 0 for other layers */
    size_t rotary_width;          /* rotary key values cached per token: kv_heads * rot (N, P), 0 (rebuild), R * rot (shared), even (absorbed-rope: the largest of all layers) */
    size_t *width;                /* (layers) absorbed-rope: rotary values of each layer; NULL: rotary_width in all */
    size_t freq_fold;             /* absorbed-rope: so many neighbouring frequencies turn as their first one; 0 or 1: none */
    mla_dtype dtype;              /* of encoder and decoder: MLA_BF16 or MLA_F32 */
    char *factors_file;           /* relative path */
    unsigned char factors_sha256[32];
    bool old_names;               /* architecture and keys in the older spelling: Qwen3_5MVLAAbsorbed..., mvla_* */
} mla_retrofit_config;

typedef struct {
    mla_family family;
    char *architecture, *model_type;      /* as read; GGUF: general.architecture in both */
    mla_dtype dtype;                      /* declared by dtype or torch_dtype; MLA_BF16 when absent */
    size_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, max_pos;
    double rms_eps;
    bool tied, norm_plus_one, attn_gate, qk_norm;
    bool q_bias, kv_bias, o_bias, mlp_bias;
    mla_layer_kind *layer_kind;           /* (layers) */
    mla_rope_config rope;
    size_t sliding_window;                /* 0 = none; a value that the runtime cannot honour is refused at bind */
    /* gated delta net */
    size_t lin_k_heads, lin_v_heads, lin_k_dim, lin_v_dim, lin_conv;
    size_t mtp_layers;                    /* after mla_model_open: those whose tensors are stored */
    bool mtp_own_embeddings, has_vision;
    size_t experts;                       /* > 0: MoE (config is read, running is refused by name) */
    size_t experts_per_tok, expert_intermediate;
    /* deepseek */
    size_t q_lora_rank, kv_lora_rank, qk_nope_dim, qk_rope_dim, v_head_dim;
    mla_retrofit_config mla;
    char *quant_method;                   /* quantization_config.quant_method, NULL when absent */
    bool weights_quantized;               /* false for a quantization_config that only describes the KV cache */
    bool kv_keys16;                       /* mla_kv_scales.cache is fp8-keys16: what the scales were judged with */
    bool kv_scheme;                       /* a kv_cache_scheme is declared: every full-attention layer has scales */
    int eos[8];
    size_t n_eos;
    int bos;                              /* -1: none */
} mla_config;

/* root: the whole config.json document. Messages name the key ("text_config.hidden_size: ..."), not the file.
 * MLA_EUNSUPPORTED for an unknown architecture or rope kind, MLA_EFORMAT for what contradicts itself. On failure
 * *out is zeroed. mla_config_free releases a filled one; a zeroed struct is fine. */
MLA_CHECKED mla_status mla_config_from_json(mla_config *out, const mla_jv *root, mla_err *err);
/* general.architecture llama, qwen2, qwen3 or qwen35; rope_freqs.weight is taken into inv_freq. */
MLA_CHECKED mla_status mla_config_from_gguf(mla_config *out, const mla_gguf *g, mla_err *err);
void mla_config_free(mla_config *c);
/* Values cached per token and layer beside the latent: rotary keys of all KV heads; divisors, one per KV head (layout P). */
size_t mla_layout_key_dims(const mla_config *c, mla_layout l); /* key dims per head in the latent */
size_t mla_layout_rotary(const mla_config *c, mla_layout l);
size_t mla_layout_divisors(const mla_config *c, mla_layout l);
/* Rotary values that a retrofit caches in full-attention layer `layer`. */
size_t mla_config_rotary_values(const mla_config *c, size_t layer);
/* MLA_EINVAL with the reason when a model of this shape cannot be cached so. */
MLA_CHECKED mla_status mla_layout_fits(const mla_config *c, mla_layout l, mla_err *err);
size_t mla_config_full_layers(const mla_config *c);   /* number of full-attention layers (trunk) */
/* Softmax scale of full attention: head_dim^-1/2 (deepseek: (dn+dr)^-1/2 times the yarn correction). */
double mla_config_attn_scale(const mla_config *c);
/* inv_freq (rot/2) that holds for a sequence of `len` tokens (dynamic and longrope depend on it). */
void mla_rope_inv_freq(const mla_config *c, size_t len, double *inv_freq);
/* cos and sin (T, half) of positions 0 .. T - 1 times inv_freq (half), times gain: in fp64, rounded once. */
void mla_rope_table(const double *inv_freq, size_t half, size_t T, double gain, float *cos_out, float *sin_out);
#endif
