/* Spellings of FP8 KV-cache scales in checkpoints (docs/format-kv-scales.md): one table for whoever reads, writes, folds or judges them. */
#ifndef MLA_MODEL_KV_NAMES_H
#define MLA_MODEL_KV_NAMES_H
#include <stdbool.h>
#include <stddef.h>

#include "tensor/tensor.h"

typedef enum { MLA_KV_K, MLA_KV_V, MLA_KV_BOTH, MLA_KV_Q, MLA_KV_P, MLA_KV_LATENT, MLA_KV_ROPE } mla_kv_part;

typedef struct {
    const char *suffix;    /* after "layers.N." */
    mla_kv_part part;
    const char *producer;  /* who writes it; a row of keys is followed by the one of its values */
    bool read;             /* by mla_model_kv_scale; false: stored for others, or an engine's own name */
} mla_kv_spelling;

extern const mla_kv_spelling MLA_KV_SPELLING[];
extern const size_t MLA_KV_SPELLINGS;

/* "k", "v", "kv", "q", "p", "latent", "rope" */
const char *mla_kv_part_name(mla_kv_part p);
/* What is cached is scaled by it: not q, not p. */
static inline bool mla_kv_part_cached(mla_kv_part p) { return p != MLA_KV_Q && p != MLA_KV_P; }

/* The spelling of a tensor name, NULL when it is no KV scale; *layer gets N of the last "layers.N." */
const mla_kv_spelling *mla_kv_spelling_of(const char *name, size_t *layer);

/* The value of a one-element scale tensor; false for more elements or a type that holds no scale. */
bool mla_kv_scale_value(const mla_tensor *t, float *value);
/* "ok", "zero", "negative", "non-finite", "not one value". */
const char *mla_kv_scale_state(const mla_tensor *t);
#endif
