/* A model opened for reading: configuration plus every weight by kind and layer, whatever the container
 * (safetensors folder or GGUF) and whatever the stored format. Opening reads headers only and binds all names:
 * a missing, misshapen or surplus tensor is an error here, with its name, not later.
 * Views borrow the mappings and die with mla_model_close. Safe to share between threads. */
#ifndef MLA_MODEL_MODEL_H
#define MLA_MODEL_MODEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "io/ckpt.h"
#include "io/gguf.h"
#include "model/config.h"
#include "model/factors.h"
#include "quant/coded.h"
#include "quant/quant.h"
#include "text/tokenizer.h"

typedef enum { /* matrices (out, in) and vectors (as one row), in logical (Hugging Face) row order and value */
    MLA_W_EMBED, MLA_W_FINAL_NORM, MLA_W_LM_HEAD,
    MLA_W_INPUT_NORM, MLA_W_POST_NORM,
    MLA_W_Q, MLA_W_K, MLA_W_V, MLA_W_O, MLA_W_Q_BIAS, MLA_W_K_BIAS, MLA_W_V_BIAS, MLA_W_O_BIAS,
    MLA_W_Q_NORM, MLA_W_K_NORM,
    MLA_W_GATE, MLA_W_UP, MLA_W_DOWN, MLA_W_GATE_BIAS, MLA_W_UP_BIAS, MLA_W_DOWN_BIAS,
    MLA_W_GDN_QKV, MLA_W_GDN_Z, MLA_W_GDN_B, MLA_W_GDN_A, MLA_W_GDN_CONV /* (C, K) */, MLA_W_GDN_A_LOG,
    MLA_W_GDN_DT_BIAS, MLA_W_GDN_NORM, MLA_W_GDN_OUT,
    MLA_W_DS_Q_A, MLA_W_DS_Q_A_BIAS, MLA_W_DS_Q_A_NORM, MLA_W_DS_Q_B, MLA_W_DS_KV_A, MLA_W_DS_KV_A_BIAS, MLA_W_DS_KV_A_NORM, MLA_W_DS_KV_B,
    MLA_W_MTP_FC, MLA_W_MTP_EMBED_NORM, MLA_W_MTP_HIDDEN_NORM, MLA_W_MTP_NORM,
    MLA_W_N
} mla_wkind;
/* Norm gains are returned as the full factor: 1 + w where the family stores w. */

/* layer index of the MTP head's decoder layer j: use MLA_MTP(j) as `layer`. */
#define MLA_MTP(j) (1000000 + (j))

typedef struct mla_model mla_model;
MLA_CHECKED mla_status mla_model_open(mla_model **out, const char *path, mla_err *err); /* folder or .gguf */
void mla_model_close(mla_model *m); /* NULL is fine */
const mla_config *mla_model_config(const mla_model *m);
const char *mla_model_path(const mla_model *m);
const mla_ckpt *mla_model_ckpt(const mla_model *m); /* NULL for GGUF */
const mla_gguf *mla_model_gguf(const mla_model *m); /* NULL for a folder */
/* The config.json document of a folder (borrowed); NULL for GGUF. */
const mla_json *mla_model_config_json(const mla_model *m);

typedef struct {
    const mla_model *model;
    mla_wkind kind;
    size_t layer, out, in;
    size_t stored_bytes;
} mla_mat;
/* `layer` counts from 0; kinds that stand once per model ignore it. MLA_W_LM_HEAD of a tied model is MLA_W_EMBED. */
bool mla_model_has(const mla_model *m, mla_wkind k, size_t layer);
MLA_CHECKED mla_status mla_model_mat(const mla_model *m, mla_wkind k, size_t layer, mla_mat *out, mla_err *err);
/* Rows [row0, row0+n) as f32 (n, in), decoded from whatever format is stored; any chunking is efficient (formats that
 * decode in blocks of rows keep the last few blocks). Non-finite values are refused with tensor name and index (logical row, column).
 * Safe from several threads at once. */
MLA_CHECKED mla_status mla_mat_rows(const mla_mat *w, size_t row0, size_t n, float *dst, mla_err *err);
/* The matrix as stored codes, in logical rows (quant/coded.h): *fits is false for what has no such form. Borrows *w and
 * the model while rows are filled; free with mla_coded_free. */
MLA_CHECKED mla_status mla_mat_coded(const mla_mat *w, mla_coded *out, bool *fits, mla_err *err);
/* The stored pages of a matrix are needed soon: the system may read them ahead. */
void mla_mat_want(const mla_mat *w);
/* The stored pages of a matrix stop counting as memory of this process until somebody reads them again. */
void mla_mat_release(const mla_mat *w);
/* A whole vector kind (1 row), length checked; caller frees with mla_free. */
MLA_CHECKED mla_status mla_model_vec(const mla_model *m, mla_wkind k, size_t layer, size_t len, float **out, mla_err *err);
/* Stored name of a kind ("model.layers.3.self_attn.k_proj.weight", GGUF: "blk.3.attn_k.weight"); of a quantized matrix,
 * the tensor with its codes ("...k_proj.qweight"). */
MLA_CHECKED mla_status mla_model_name(const mla_model *m, mla_wkind k, size_t layer, mla_str *out, mla_err *err);

/* Factors of full-attention layer `layer` of a retrofit (config().mla.layout != NONE). Caller frees. */
MLA_CHECKED mla_status mla_model_factors(const mla_model *m, size_t layer, mla_factors *out, mla_err *err);

/* Stored FP8 KV scales of a layer: both parts of what is cached (k and v; or latent and rotary key). */
typedef struct {
    bool present;
    float k, v;               /* GQA: keys, values. Retrofit: latent, rotary keys */
} mla_kv_scale;
MLA_CHECKED mla_status mla_model_kv_scale(const mla_model *m, size_t layer, mla_kv_scale *out, mla_err *err);
/* Appends the stored name of a scale of `layer` (MLA_MTP(i): of the MTP head), a suffix of kv_names.h. */
void mla_kv_scale_name(mla_str *out, const mla_model *m, size_t layer, const char *suffix);

/* The weight files are those that were opened: MLA_EIO names one that was replaced or changed since. */
MLA_CHECKED mla_status mla_model_unchanged(const mla_model *m, mla_err *err);

/* The model's tokenizer (tokenizer.json beside the weights, or the GGUF vocabulary). MLA_EUNSUPPORTED when none. */
MLA_CHECKED mla_status mla_model_tokenizer(const mla_model *m, mla_tok **out, mla_err *err);
/* The same for whoever can do without one: *out is NULL and why (may be NULL) says why when there is none, or none that is
 * known; what went wrong otherwise (memory, a read, a damaged file) stays an error. */
MLA_CHECKED mla_status mla_model_tokenizer_if_any(const mla_model *m, mla_tok **out, mla_err *why, mla_err *err);
/* Total bytes of stored weights (vision and MTP included), and parameters of the text trunk (MTP and a tied or unused
 * second copy of the embeddings left out). */
uint64_t mla_model_stored_bytes(const mla_model *m);
uint64_t mla_model_trunk_params(const mla_model *m);
/* What opening found and a person should know ("config.json announces an MTP head, but ..."), one line each. */
size_t mla_model_note_count(const mla_model *m);
const char *mla_model_note_at(const mla_model *m, size_t i);
/* "model." or "model.language_model.", as stored; "model." for GGUF. New tensors of a layer are named under it. */
const char *mla_model_prefix(const mla_model *m);
#endif
