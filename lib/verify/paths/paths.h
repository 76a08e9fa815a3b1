/* The paths that a server takes through a model, each held against the same text run whole in one call: prompts cut into
 * chunks, prefix caches, batches, another thread count, an FP8 cache, a split by latent groups.
 *
 * All compare the model with itself, so a difference is a fault of a path (or of a kernel), never of the retrofit. An
 * answer may part only at a near-tie, and log-probabilities move by rounding alone. */
#ifndef MLA_VERIFY_PATHS_H
#define MLA_VERIFY_PATHS_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "io/json.h"
#include "runtime/runtime.h"
#include "tensor/kv_row.h"
#include "verify/reference/reference.h"
#include "verify/parity/stats.h"

#define MLA_PATHS_SCHEMA "mla-paths/1"

typedef struct { /* borrowed */
    const char *name;
    const int32_t *ids; /* (n), n >= 8 */
    size_t n;
} mla_path_text;

typedef struct {
    mla_rt *rt;         /* opened without the MTP head, so that continued sequences share their full pages */
    mla_rt *other;      /* the same model on another thread count; NULL: "threads" is not judged */
    mla_backend *be;    /* of rt */
    mla_kv_type kv; /* of rt */
    size_t page;        /* tokens per page of rt's cache; 0: 64 */
    const mla_path_text *text;
    size_t n_text;
    double near_tie;    /* nats */
    double max_logprob; /* nats, of the first answered token; 0.06 */
    double max_change;  /* nats, of any position */
    double max_fp8_kld; /* mean, nats */
    double max_split_error; /* relative: 1e-4 covers f32 sums, 0.02 bf16 weights */
    mla_log *log;
} mla_paths_opts;

/* Judges the named paths ("chunked", "prefix", "batch", "threads", "fp8", "split"; others are ignored) and fills doc with
 * "gates" (one per path) and "paths" (one entry per way of taking it). */
MLA_CHECKED mla_status mla_paths_check(mla_jv *doc, const mla_paths_opts *o, const char *const *name, size_t n, mla_verdict *verdict, mla_err *err);

/* What rounding may move: 1e-3 nats on the reference path (measured: 5e-6), 0.06 with bf16 products. */
#define MLA_PATHS_CHANGE(fast) ((fast) ? 0.06 : 1e-3)

typedef struct {         /* where texts are from */
    const mla_reference *ref; /* evenly chosen cases; NULL or empty: pieces of the corpus */
    const int32_t *corpus;    /* (n_corpus) */
    size_t n_corpus, cases, tokens; /* texts at most, tokens of the longest */
} mla_path_source;
/* Lengths are mixed: text k of n gets (k+1)/n of `tokens`. ids of all are in *buffer (caller frees); out has room for
 * `cases`. No text at all is *n == 0. */
MLA_CHECKED mla_status mla_paths_texts(mla_path_text *out, size_t *n, int32_t **buffer, const mla_path_source *s, mla_err *err);
#endif
