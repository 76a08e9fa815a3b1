/* What the base's attention layers see and do on rows of text, recorded once for the shared-rotary layout: inputs, queries,
 * keys, values, gates and outputs before the gate.
 *
 * One file per layer, bf16: 2 (D + 2 H d [+ H d gated] + 2 G d) bytes a token; 0.6 GB for 131,072 tokens of the tiny hybrid's
 * 4 layers, 6.5 GB a layer for a 27B shape. A file that is there whole is kept. */
#ifndef MLA_RETROFIT_SHARED_ROWS_H
#define MLA_RETROFIT_SHARED_ROWS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "model/model.h"

typedef struct {
    const mla_model *model;
    mla_backend *be;
    mla_precision precision;
    bool stream_layers;
    size_t row_tokens;
    const char *dir;
    mla_log *log;
} mla_shared_rows_opts;

/* Records n_rows rows of row_tokens ids for every full-attention layer. */
MLA_CHECKED mla_status mla_shared_record(const mla_shared_rows_opts *o, const int32_t *ids, size_t n_rows, mla_err *err);

typedef struct {         /* one row, dense f32 */
    size_t T;
    float *x;            /* (T, D) */
    float *q;            /* (T, H, d) normed, not rotated */
    float *k, *v;        /* (T, G, d) likewise */
    float *gamma;        /* (T, H, d) sigmoid of the gate; NULL when ungated */
    float *o;            /* (T, H, d) attention output before the gate */
} mla_shared_row;

typedef struct mla_shared_rows mla_shared_rows;
MLA_CHECKED mla_status mla_shared_rows_open(mla_shared_rows **out, const mla_shared_rows_opts *o, size_t layer, size_t n_rows, mla_err *err);
void mla_shared_rows_close(mla_shared_rows *r); /* NULL is fine */
size_t mla_shared_row_floats(const mla_shared_rows *r); /* scratch of mla_shared_rows_get */
void mla_shared_rows_get(const mla_shared_rows *r, size_t i, float *buf, mla_shared_row *out);
/* Bytes of one layer's file per token. */
size_t mla_shared_row_bytes(const mla_config *c);
#endif
