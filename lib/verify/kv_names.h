/* Spellings of FP8 KV-cache scales in checkpoints, and what loaders do with each. */
#ifndef MLA_VERIFY_KV_NAMES_H
#define MLA_VERIFY_KV_NAMES_H
#include <stdbool.h>
#include <stddef.h>

#include "tensor/tensor.h"

typedef struct {
    const char *suffix;   /* after "layers.N." */
    const char *part;     /* "k", "v", "kv", "q", "p", "latent", "rope" */
    const char *producer; /* who writes it */
} mla_kv_spelling;

/* The spelling of a tensor name, NULL when it is no KV scale; *layer gets N of the last "layers.N." */
const mla_kv_spelling *mla_kv_spelling_of(const char *name, size_t *layer);

/* The value of a one-element scale tensor; false for more elements or a type that holds no scale. */
bool mla_kv_scale_value(const mla_tensor *t, float *value);
/* "ok", "zero", "negative", "non-finite", "not one value". */
const char *mla_kv_scale_state(const mla_tensor *t);
#endif
