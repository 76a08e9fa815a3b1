/* Recording a reference with the built-in runtime: the model's own answers, to be held against its retrofits later. */
#ifndef MLA_VERIFY_RECORD_H
#define MLA_VERIFY_RECORD_H
#include "base/log.h"
#include "runtime/runtime.h"
#include "verify/reference/prompts.h"
#include "verify/reference/reference.h"

typedef struct {
    size_t max_tokens;  /* of a greedy answer */
    size_t chunk;       /* prefill chunk; 0: chosen */
    double min_margin;  /* nats */
    mla_log *log;
} mla_record_opts;

/* Answers or scores every prompt. The caller fills model, engine, digests and dtype afterwards (mla_strdup).
 * Greedy answers end with an end-of-text id of the configuration, or after max_tokens. */
MLA_CHECKED mla_status mla_record(mla_reference *out, mla_rt *rt, const mla_prompts *p, const mla_record_opts *o, mla_err *err);

typedef struct { /* long prompts: text, repeated where it is too short, that ends at so many tokens together with its answer */
    const size_t *length; /* (n) */
    size_t n, answer_tokens, most; /* most: longer ones are left out; 0: none is */
    const mla_ids *text;
} mla_contexts;

/* rt answers the long prompts greedily; its answers become cases "context-N" of ref, *added of them. Lengths that do not lie between
 * answer_tokens and most go to left_out. */
MLA_CHECKED mla_status mla_record_contexts(mla_reference *ref, size_t *added, mla_jv *left_out, mla_rt *rt, const mla_contexts *c, const mla_record_opts *o,
                                           mla_err *err);
#endif
