/* What an open model consists of. Private to the model layer. */
#ifndef MLA_MODEL_IMPL_H
#define MLA_MODEL_IMPL_H
#include "base/map.h"
#include "model/model.h"
#include "model/names.h"
#include "model/row_cache.h"
#include "quant/qconfig.h"

typedef struct { /* one logical weight: where it is stored and how it is read */
    const mla_wrow *row;
    mla_qmat q;
    size_t out, in; /* logical */
    mla_view view;
    mla_xform xform;
} mla_binding;

struct mla_model {
    char *path;
    mla_config cfg;
    mla_ckpt *ckpt;
    mla_gguf *gguf;
    mla_st *shared;        /* factor file of the shared-rotary layout, else NULL */
    mla_json *json;
    mla_json *hf_quant;    /* hf_quant_config.json where config.json has no quantization_config; else NULL */
    mla_qconfig *qcfg;     /* folders: what the config says of each module */
    mla_row_cache *rows;   /* decoded blocks of formats that decode in blocks */
    const char *prefix;    /* HF: "model." or "model.language_model." */
    mla_binding *bind;
    size_t nbind;
    size_t *slot;          /* (1 + layers + mtp_layers, MLA_W_N): index + 1 into bind, 0 = absent; row 0: once per model */
    mla_map *claimed;      /* HF: tensor names that some rule knows */
    mla_kv_scale *scale;   /* (layers + mtp_layers) */
    char **note;
    size_t nnote;
};

/* Row of m->slot for a layer; false when the layer does not exist. */
bool mla_slot_row(const mla_model *m, mla_wkind k, size_t layer, size_t *row);
const mla_binding *mla_binding_of(const mla_model *m, mla_wkind k, size_t layer); /* NULL when absent */
mla_status mla_bind_add(mla_model *m, const mla_binding *b, size_t layer, mla_err *err);
mla_status mla_model_note(mla_model *m, mla_err *err, const char *fmt, ...) MLA_PRINTF(3, 4);
mla_status mla_claim(mla_model *m, const char *name, mla_err *err);

mla_status mla_bind_hf(mla_model *m, mla_err *err);       /* bind_hf.c */
mla_status mla_bind_gguf(mla_model *m, mla_err *err);     /* bind_gguf.c */
mla_status mla_bind_factors(mla_model *m, mla_err *err);  /* factors_read.c: checks shapes, claims names */
mla_status mla_bind_shared(mla_model *m, mla_err *err);   /* shared_read.c: opens and checks the factor file, settles ranks */
mla_status mla_bind_kv_scales(mla_model *m, mla_err *err);/* kv_scale.c: reads values, claims names */
/* quantization_config of a config document, at the root or in text_config; NULL: none. */
const mla_jv *mla_quant_object(const mla_jv *root);
mla_status mla_bind_read_quant(mla_model *m, mla_err *err);          /* bind_quant.c: fills qcfg and hf_quant */
mla_status mla_bind_check_quant(const mla_model *m, mla_err *err);   /* every module against qcfg */
/* True when codes of some format are stored in place of tensor name `weight` ("M.weight"). */
bool mla_stored_quantized(const mla_model *m, const char *weight);
/* The module of tensor name `weight` ("M.weight"), stored in any format, as W [out, in]; all its tensors claimed. */
mla_status mla_bind_quantized(mla_model *m, const char *weight, size_t out, size_t in, mla_qmat *q, mla_err *err);
/* File name of the shard that holds t, for messages. */
const char *mla_shard_of(const mla_model *m, const mla_tensor *t);
#endif
