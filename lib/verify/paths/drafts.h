/* Greedy decoding with an MTP head that drafts: the same answers as without, and how many drafts are accepted.
 *
 * A round: the head proposes k tokens, each from its own output before; the trunk checks them in one run of k + 1 tokens;
 * the longest agreeing run is kept and the state goes back to it. Acceptance at step i is the share of rounds whose first
 * i drafts were all kept. */
#ifndef MLA_VERIFY_DRAFTS_H
#define MLA_VERIFY_DRAFTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "io/json.h"
#include "runtime/runtime.h"
#include "verify/paths/paths.h"
#include "verify/parity/stats.h"

#define MLA_DRAFTS_MAX 8

typedef struct {
    size_t k, rounds, accepted[MLA_DRAFTS_MAX]; /* [i]: rounds whose first i + 1 drafts were kept */
    size_t tokens, exact, answers;              /* tokens compared; answers equal to their end */
    size_t near_ties;                           /* answers that part at one */
    bool parted;                                /* beyond a near-tie */
    char where[160];
} mla_drafts;

typedef struct {
    const mla_path_text *prompt;
    size_t n_prompt, tokens; /* answered at most; an end-of-text id of the configuration ends one, too */
    size_t most;             /* drafts: k = 1..most */
    double near_tie;
    mla_log *log;
} mla_drafts_opts;

/* out (most): k = 1.. ; rt was opened with the MTP head. */
MLA_CHECKED mla_status mla_drafts_run(mla_drafts *out, mla_rt *rt, const mla_drafts_opts *o, mla_err *err);
/* Adds "gates" and "model", "base" (NULL: none) to doc: equal answers for every k, and with a base that acceptance at every step
 * (k = most) is lower by at most max_loss (NAN: not judged). Intervals: Newcombe's for a difference; one that is wider than
 * max_loss to either side is not enough evidence, a larger loss whose interval lies above 0 fails. */
void mla_drafts_report(mla_jv *doc, const mla_drafts *model, const mla_drafts *base, size_t most, double max_loss, mla_verdict *verdict);
/* 95 % interval of the difference of two shares a/n - b/m (Newcombe 1998, method 10). */
mla_interval mla_newcombe(size_t a, size_t n, size_t b, size_t m);
#endif
