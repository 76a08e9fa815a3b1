/* Recording a reference with the built-in runtime: the model's own answers, to be held against its retrofits later. */
#ifndef MLA_VERIFY_RECORD_H
#define MLA_VERIFY_RECORD_H
#include "base/log.h"
#include "runtime/runtime.h"
#include "verify/prompts.h"
#include "verify/reference.h"

typedef struct {
    size_t max_tokens;  /* of a greedy answer */
    size_t chunk;       /* prefill chunk; 0: chosen */
    double min_margin;  /* nats */
    mla_log *log;
} mla_record_opts;

/* Answers or scores every prompt. The caller fills model, engine, digests and dtype afterwards (mla_strdup).
 * Greedy answers end with an end-of-text id of the configuration, or after max_tokens. */
MLA_CHECKED mla_status mla_record(mla_reference *out, mla_rt *rt, const mla_prompts *p, const mla_record_opts *o, mla_err *err);
#endif
