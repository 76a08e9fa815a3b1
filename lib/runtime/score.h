/* Turning logits into what verification compares: argmax, margins, log-probabilities, KL divergence.
 * Everything in fp64 over one row of V logits; ties go to the lowest id; non-finite logits are an error. */
#ifndef MLA_RUNTIME_SCORE_H
#define MLA_RUNTIME_SCORE_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct {
    int32_t top1, top2;
    double logprob, margin;   /* of top1, nats; top1 minus top2 log-probability */
    double target_logprob;    /* of `target`, or 0 when target < 0 */
    double lse;
} mla_score;
MLA_CHECKED mla_status mla_score_row(mla_score *out, const float *logits, size_t V, int32_t target, mla_err *err);
/* KL(p || q) in nats, p and q softmax of the two rows. */
MLA_CHECKED mla_status mla_kld_row(double *out, const float *p_logits, const float *q_logits, size_t V, mla_err *err);
/* The same bits for a p that many q are compared with: zp = log sum exp of p from mla_lse_row. */
MLA_CHECKED mla_status mla_lse_row(double *zp, const float *logits, size_t V, mla_err *err);
MLA_CHECKED mla_status mla_kld_row_of(double *out, const float *p_logits, double zp, const float *q_logits, size_t V, mla_err *err);
#endif
