/* One-layer llama folders whose linears are stored quantized: golden matrices under a model's names. */
#ifndef MLA_TESTS_MODEL_QFOLDER_H
#define MLA_TESTS_MODEL_QFOLDER_H
#include <stdbool.h>
#include <stddef.h>

#include "io/json.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"

#define QF_TENSORS 96
#define QF_LAYER "model.layers.0."

typedef struct {
    char *dir;
    mla_st *golden;
    mla_tensor t[QF_TENSORS];
    char name[QF_TENSORS][96];
    size_t n, out, in; /* q, k, v, gate and up are [out, in]; o and down, plain, [in, out]; vocabulary out, hidden in */
    bool tied;
} qfolder;

/* Tensors "MODULE.*" of fixture golden-quant/FILE.safetensors as q, k, v, gate and up of a model of these sizes; free
 * with qf_free. Nothing is written yet. */
void qf_make(qfolder *f, const char *file, const char *module, size_t out, size_t in);
void qf_free(qfolder *f);
void qf_quantized(qfolder *f, const char *module, const char *as); /* adds the golden module once more */
mla_tensor *qf_find(qfolder *f, const char *name);                 /* fails the test when absent */
void qf_drop(qfolder *f, const char *name);
void qf_plain(qfolder *f, const char *name, size_t a, size_t b);   /* BF16 [a, b], or [a] */
/* model.safetensors and config.json; quant: the value of quantization_config with ' for ", NULL: none. */
void qf_write(qfolder *f, const char *quant);
/* quantization_config of golden-quant/FILE.json with `list` (JSON, ' for ") set under `key`; key may be NULL. Static ring of 4. */
const char *qf_config(const char *file, const char *key, const char *list);
#endif
