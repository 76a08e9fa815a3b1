/* The release gate: every rule of a policy on one model, in one verdict document (docs/gate.md).
 *
 * A stage that cannot be judged (an unreadable file, a base that is not there) becomes a rule whose verdict is "not
 * enough evidence": it never passes, and it hides nothing that another stage finds. A rule that has nothing to judge in
 * this model is "not applicable" and counts for nothing. */
#ifndef MLA_VERIFY_GATE_H
#define MLA_VERIFY_GATE_H
#include <stddef.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "io/json.h"
#include "verify/gate/policy.h"
#include "verify/parity/stats.h"

#define MLA_GATE_SCHEMA "mla-gate/1"

typedef struct { /* all borrowed */
    const char *dir, *against;         /* the model; its base, or NULL */
    const char *const *reference;      /* (n_reference) paths: mla-reference/1 or probe.json; judged as one sample */
    size_t n_reference;
    const char *const *corpus;         /* (n_corpus) text for comparisons with the base */
    size_t n_corpus;
    mla_backend *be;
    mla_backend *other;                /* the same device with another thread count; NULL: the path "threads" is not judged */
    const char *tested;                /* table of tested combinations for the selfcheck section; NULL: not asked */
    bool allow_untested;
    mla_pool *pool;
    mla_log *log;
} mla_gate_input;

/* Fills doc, which the caller began with schema, verdict and tool. An error means that no verdict could be written down. */
MLA_CHECKED mla_status mla_gate_run(mla_jv *doc, const mla_gate_input *in, const mla_policy *p, mla_verdict *verdict, mla_err *err);
/* The rules as lines for people. */
void mla_gate_text(mla_str *out, const mla_jv *doc);

/* Charts of a verdict: file names in a fixed order, NULL after the last; each is drawn when the document has its data. */
const char *mla_gate_chart_name(size_t i);
/* *drawn tells whether there was something to draw. */
MLA_CHECKED mla_status mla_gate_chart(mla_str *out, size_t i, const mla_jv *doc, bool *drawn, mla_err *err);
#endif
