/* Private to the consumers: the table of engines and their renamings. */
#ifndef MLA_VERIFY_CONSUMER_NAMES_H
#define MLA_VERIFY_CONSUMER_NAMES_H
#include "verify/folder/consumers.h"

typedef struct { /* texts after "layers.N."; a name that no row of a pass has goes on unchanged */
    const char *from, *to;
} mla_rename;

typedef enum {
    MLA_NEEDS_NOTHING,
    MLA_NEEDS_KV_METHOD,      /* a quantization_config that gives attention layers a KV-cache method */
    MLA_NEEDS_HF_QUANT        /* hf_quant_config.json with kv_cache_quant_algo FP8 */
} mla_kv_needs;

struct mla_consumer {
    const char *name, *about;
    const mla_rename *pass[2], *pass_mla[2]; /* renamings in turn, for GQA layers and for latent ones; end with a row of NULLs */
    const char *param[2], *param_mla[2];     /* what the engine calls the scales of keys and values; NULL: it has no such layer */
    mla_kv_needs needs;
    bool own;                                /* this toolkit: whatever mla_model_open binds */
    bool f32_scalar;                         /* takes F32 alone */
    bool loses_hybrid;                       /* self_attn.{k,v}_scale never reach a Qwen3.5-family model */
    const char *side_file;                   /* JSON beside the weights that it reads instead; NULL: none */
};
extern const mla_consumer MLA_CONSUMER[];
extern const size_t MLA_CONSUMERS;
#endif
