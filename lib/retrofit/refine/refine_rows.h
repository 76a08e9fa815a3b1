/* What the original model's attention layers see and do on some rows of text, recorded once through the runtime's taps and
 * read back layer by layer: rotated queries, features, exact rotary keys (layouts N and P), divisors (P) and gates.
 *
 * Kept in bf16, on a device that refines and has the room (row_store.h), else in one file per layer: 2 T (H d [+ H d gate] +
 * G (dk + d) [+ G rot in N; + G (rot + 1) in P]) bytes a row of T tokens. The target output is computed from the rounded values, so that
 * exact factors have no loss. 69,632 tokens of SmolLM2-135M (30 layers) take 4.0 GB, of the tiny hybrid (4 layers) 0.6 GB, of a
 * Qwen3.5-27B shape (16 layers) 33 GB. Memory: one layer's rows, where they are refined; its target in f32 (4 T H d bytes a row). */
#ifndef MLA_RETROFIT_REFINE_ROWS_H
#define MLA_RETROFIT_REFINE_ROWS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "model/model.h"
#include "retrofit/refine/refine_local.h"

typedef struct mla_row_store mla_row_store; /* rows that stay on a device (row_store.h) */

typedef struct {
    const mla_model *model;
    mla_backend *be;
    mla_pool *pool;
    mla_precision precision;
    bool stream_layers;
    mla_layout layout;
    size_t groups, row_tokens;
    const char *dir;           /* where the files go */
    const mla_row_store *store;/* to read: NULL, or where rows are instead (with a prefix: not) */
    const mla_factors *prefix; /* (n_prefix) factors of layers prefix_layer: the model that is recorded has them; n_prefix 0: none, */
    const size_t *prefix_layer;/* the original model. Then only the layer `only` is recorded, into a file of its own */
    size_t n_prefix, only;
    mla_log *log;
} mla_rows_opts;

/* Records rows of row_tokens ids each (n_rows of them) of every full-attention layer; files that are there whole are kept. store NULL:
 * into files; else *store is where the device keeps them, or NULL: files. The same bits either way. */
MLA_CHECKED mla_status mla_rows_record(const mla_rows_opts *o, const int32_t *ids, size_t n_rows, mla_row_store **store, mla_err *err);
/* Bytes on disk of one row of one layer. */
size_t mla_rows_bytes(const mla_config *c, mla_layout layout, size_t row_tokens);
/* Removes a layer's file (with a prefix: the one recorded behind it). */
MLA_CHECKED mla_status mla_rows_drop(const mla_rows_opts *o, size_t layer, mla_err *err);

typedef struct { /* values of a row of T tokens, one part after the other; 0: the part is not there */
    size_t T, q, y, k, rms, gate, all; /* (T, H, d), (T, groups, n), (T, G, rot), (T, G), (T, H, d) before the sigmoid; their sum */
} mla_row_shape;

/* One layer's rows, opened: its local problem, and rows as f32 on demand; W_O^T W_O and targets (WW, o) are NULL. */
typedef struct mla_rows mla_rows;
MLA_CHECKED mla_status mla_rows_open(mla_rows **out, const mla_rows_opts *o, size_t layer, size_t n_rows, mla_err *err);
void mla_rows_close(mla_rows *r); /* NULL is fine */
/* Computes those two, of the original model, whatever is followed; they are there from now on. */
MLA_CHECKED mla_status mla_rows_targets(mla_rows *r, const mla_rows_opts *o, size_t layer, mla_err *err);
const mla_local *mla_rows_problem(const mla_rows *r);
/* Floats of scratch that mla_rows_get needs. */
size_t mla_rows_scratch(const mla_rows *r);
/* From here on the features of rows are those recorded behind a prefix (o: with one); all else stays the original model's. */
MLA_CHECKED mla_status mla_rows_follow(mla_rows *r, const mla_rows_opts *o, size_t layer, mla_err *err);
/* y (T, groups, n) of row i in the original model, whatever is followed. */
void mla_rows_features(const mla_rows *r, size_t i, float *y);
/* The same as stored: bf16 of row i, and of the features followed (NULL: the row's own). */
const mla_row_shape *mla_rows_shape(const mla_rows *r);
size_t mla_rows_count(const mla_rows *r);
const uint16_t *mla_rows_bits(const mla_rows *r, size_t i);
const uint16_t *mla_rows_behind(const mla_rows *r, size_t i);
/* All rows on the device that keeps them, or NULL. Then the host has them (mla_rows_bits, mla_rows_get) from mla_rows_fetch on. */
mla_mem *mla_rows_there(const mla_rows *r);
MLA_CHECKED mla_status mla_rows_fetch(mla_rows *r, mla_err *err);
/* W_O of a layer as f32 (out, H d); the caller frees it. */
MLA_CHECKED mla_status mla_rows_projection(float **W, size_t *out, const mla_rows_opts *o, size_t layer, mla_err *err);
/* Row i; arrays live in buf (mla_rows_scratch floats) and in r. */
void mla_rows_get(const mla_rows *r, size_t i, float *buf, mla_local_row *out);
#endif
