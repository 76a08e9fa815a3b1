/* Running token sequences through the runtime the way verification needs it: teacher-forced in chunks, and greedy.
 * Private to verify. */
#ifndef MLA_VERIFY_FORWARD_H
#define MLA_VERIFY_FORWARD_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "runtime/runtime.h"
#include "runtime/score.h"
#include "verify/reference/embeddings.h"

/* Row `at` (0-based token of the sequence) has logits (V), which predict token at + 1. */
typedef mla_status (*mla_row_fn)(void *ctx, size_t at, const float *logits, mla_err *err);

typedef struct {
    const int32_t *ids; /* (n) tokens fed, in order */
    const mla_embedded *image; /* the first image->n tokens as embeddings instead (their ids are ignored); NULL: none */
    size_t n;
    size_t from;        /* rows from..n-1 are delivered */
    size_t chunk;       /* tokens per run, >= 1 */
    mla_progress *prog; /* counts tokens; may be NULL */
} mla_forced;

/* Resets seq and feeds the tokens. */
MLA_CHECKED mla_status mla_forward_forced(mla_rt *rt, mla_seq *seq, const mla_forced *f, mla_row_fn fn, void *ctx, mla_err *err);

/* The same tokens through two models: fn sees base's and model's row side by side (V each, equal vocabularies).
 * Holds chunk * V floats. */
typedef mla_status (*mla_pair_fn)(void *ctx, size_t at, const float *base, const float *model, mla_err *err);
typedef struct {
    mla_rt *base, *model;
    mla_seq *base_seq, *model_seq;
} mla_pair;
MLA_CHECKED mla_status mla_forward_pair(const mla_pair *p, const mla_forced *f, mla_pair_fn fn, void *ctx, mla_err *err);

/* Greedy decoding after a prompt: fn is asked about each step's score; it returns the token to feed next, or -1 to
 * stop. steps at most; step k predicts the (k+1)-th token after the prompt. */
typedef mla_status (*mla_step_fn)(void *ctx, size_t step, const mla_score *s, int32_t *next, mla_err *err);
typedef struct {
    const int32_t *prompt;     /* ignored with an image, which is the whole prompt then */
    const mla_embedded *image;
    size_t n_prompt, chunk, steps;
    mla_progress *prog;
} mla_greedy;
MLA_CHECKED mla_status mla_forward_greedy(mla_rt *rt, mla_seq *seq, const mla_greedy *g, mla_step_fn fn, void *ctx, mla_err *err);

/* A prefill chunk that keeps chunk * V logits within 128 MiB: what to use when the user named none. */
size_t mla_forward_chunk(size_t vocab);
#endif
