/* The one table of tensor kinds: for each kind its name in Hugging Face folders and in GGUF files, its logical shape,
 * the condition under which a model has it, and how stored rows and values become logical ones (view.h).
 * Private to the model layer. */
#ifndef MLA_MODEL_NAMES_H
#define MLA_MODEL_NAMES_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"
#include "model/config.h"
#include "model/model.h"
#include "model/view.h"

typedef enum { MLA_AT_MODEL, MLA_AT_LAYER, MLA_AT_FULL, MLA_AT_LINEAR, MLA_AT_MTP } mla_place;

typedef enum { /* sizes that shapes are made of, as functions of the config */
    MLA_D_ONE, MLA_D_VOCAB, MLA_D_HIDDEN, MLA_D_HIDDEN2, MLA_D_INTER, MLA_D_Q, MLA_D_KV, MLA_D_ATTN, MLA_D_HEAD,
    MLA_D_GDN_QKV, MLA_D_GDN_V, MLA_D_GDN_NV, MLA_D_GDN_CONV, MLA_D_GDN_DV, MLA_D_GDN_QKVZ, MLA_D_GDN_BA,
    MLA_D_Q_LORA, MLA_D_DS_Q, MLA_D_DS_KV_A, MLA_D_KV_LORA, MLA_D_DS_KV_B, MLA_D_DS_V
} mla_dim;
size_t mla_dim_size(const mla_config *c, mla_dim d);

typedef enum { MLA_IF_ALWAYS, MLA_IF_UNTIED, MLA_IF_Q_BIAS, MLA_IF_KV_BIAS, MLA_IF_O_BIAS, MLA_IF_MLP_BIAS, MLA_IF_QK_NORM,
               MLA_IF_Q_LORA, MLA_IF_NO_Q_LORA, MLA_IF_Q_LORA_BIAS } mla_cond;

typedef struct {
    mla_wkind kind;
    mla_place place;
    const char *hf;        /* after the place's prefix; a leading '/' means the name stands alone */
    const char *gguf;      /* after "blk.N." (once-per-model kinds: the whole name); NULL: not in GGUF */
    mla_dim out, in;       /* logical shape; a vector has out == MLA_D_ONE */
    mla_dim stored_out;    /* rows as stored in HF folders where they differ (fused), else MLA_D_ONE */
    unsigned families;     /* bit 1 << mla_family */
    mla_cond when;
    bool norm;             /* the gain is 1 + w where the family stores w */
    bool conv;             /* stored [C, 1, K] in HF folders */
    mla_view hf_view, gguf_view;
    mla_xform gguf_xform;
} mla_wrow;

const mla_wrow *mla_wrow_at(size_t i); /* NULL past the end */
/* True when a model of this config has the row at position `layer` (a trunk layer, MLA_MTP(j), or any value for rows
 * that stand once). */
bool mla_wrow_applies(const mla_wrow *row, const mla_config *c, size_t layer);

/* Stored name: HF with prefix "model." or "model.language_model.", or GGUF. */
void mla_name_hf(mla_str *out, const mla_wrow *row, const char *prefix, size_t layer);
void mla_name_gguf(mla_str *out, const mla_wrow *row, const mla_config *c, size_t layer);
#endif
