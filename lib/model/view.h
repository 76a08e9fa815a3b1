/* From stored to logical order and value: which stored row (or element of a vector) holds logical row i, and what is
 * done to the numbers. Each view is one permutation of formats page 1.6 (fused projections) or 4d (GGUF).
 * Private to the model layer. */
#ifndef MLA_MODEL_VIEW_H
#define MLA_MODEL_VIEW_H
#include <stdbool.h>
#include <stddef.h>

#include "model/config.h"

typedef enum {
    MLA_V_PLAIN,
    MLA_V_ROPE,       /* rows: per head, pairs (i, i + hd/2) stored side by side (GGUF llama) */
    MLA_V_TILED_QKV,  /* rows q|k|v, the v heads tiled (GGUF qwen35) */
    MLA_V_TILED_ROWS, /* rows of value heads, dv each, tiled */
    MLA_V_TILED_HEADS,/* one row or element per value head, tiled */
    MLA_V_TILED_COLS, /* columns of value heads, dv each, tiled */
    MLA_V_QKVZ_QKV,   /* rows of the fused in_proj_qkvz, per key head [q | k | v | z] (qwen3_next) */
    MLA_V_QKVZ_Z,
    MLA_V_BA_B,       /* rows of the fused in_proj_ba, per key head [b | a] */
    MLA_V_BA_A
} mla_view;

typedef enum { MLA_X_NONE, MLA_X_PLUS_ONE /* w -> 1 + w */, MLA_X_LOG_NEG /* -exp(A_log) -> A_log */ } mla_xform;

/* The stored index of logical index i. Bijective onto what the view covers. */
size_t mla_view_src(const mla_config *c, mla_view v, size_t i);
/* True when the view permutes columns instead of rows. */
static inline bool mla_view_cols(mla_view v) { return v == MLA_V_TILED_COLS; }
#endif
