/* Which architectures are known and what sets them apart. A new family is a row here, rows in names.c, and nothing
 * else in this layer. Private to the model layer. */
#ifndef MLA_MODEL_ARCH_H
#define MLA_MODEL_ARCH_H
#include <stdbool.h>
#include <stddef.h>

#include "model/config.h"

typedef enum {
    MLA_AF_PLUS_ONE = 1,    /* norms store w, the gain is 1 + w */
    MLA_AF_GATE = 2,        /* q_proj rows are [q | gate] per head */
    MLA_AF_QK_NORM = 4,
    MLA_AF_QKV_BIAS = 8,    /* q, k, v always have a bias (no config key) */
    MLA_AF_ATTN_BIAS = 16,  /* config key attention_bias gives q, k, v, o a bias */
    MLA_AF_MLP_BIAS = 32,   /* config key mlp_bias */
    MLA_AF_HYBRID = 64,     /* gated delta net layers */
    MLA_AF_NESTED = 128,    /* may nest the text model under text_config */
    MLA_AF_USE_SLIDING = 256, /* sliding_window counts only with use_sliding_window */
    MLA_AF_SLIDING = 512,   /* sliding_window counts; 4096 when the key is absent */
    MLA_AF_MOE = 1024       /* expert keys are read */
} mla_arch_flags;

typedef struct { /* one body of weights and conventions; several architectures and model types share it */
    const char *name;
    mla_family family;
    unsigned flags;
    size_t head_dim;        /* default of head_dim; 0: hidden_size / num_attention_heads */
    size_t kv_heads;        /* default of num_key_value_heads; 0: num_attention_heads */
    size_t max_pos;         /* default of max_position_embeddings */
    double partial;         /* default of partial_rotary_factor */
    size_t experts;         /* default of the expert count where MLA_AF_MOE */
    const char *gguf;       /* general.architecture, NULL: not read from GGUF */
    const char *hf;         /* architecture written for a text-only folder */
} mla_arch_group;

/* What a folder of the shared-rotary plugin calls itself: a retrofit of Qwen3_5ForConditionalGeneration. */
#define MLA_ARCH_SABI "SabiMlaForConditionalGeneration"
#define MLA_TYPE_SABI "sabi_mla"

/* The group of an architecture ("LlamaForCausalLM"); *mla (may be NULL) becomes true when the name is a retrofit's
 * ("LlamaMLAForCausalLM"). NULL when unknown. */
const mla_arch_group *mla_arch_find(const char *arch, bool *mla);
const mla_arch_group *mla_arch_of_model_type(const char *model_type);
const mla_arch_group *mla_arch_of_gguf(const char *name, size_t n);
/* Architecture of the retrofit of `arch`: "Qwen3_8ForCausalLM" -> "Qwen3_5MLAForCausalLM" (old: its older name,
 * "Qwen3_5MVLAAbsorbedForCausalLM"). Caller frees; NULL when out of memory or when arch has no such name. */
char *mla_arch_retrofit_name(const char *arch, bool old);
#endif
