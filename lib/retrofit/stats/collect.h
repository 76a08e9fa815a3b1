/* Collecting statistics: forward passes over rows of a corpus with taps on every full-attention layer.
 *
 * The corpus is cut into rows of row_tokens, every row its own sequence from position 0; a shorter last row is used when
 * it has at least 32 tokens. Gated models take a short first pass over the first rows to settle the value metric. */
#ifndef MLA_RETROFIT_COLLECT_H
#define MLA_RETROFIT_COLLECT_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "retrofit/stats/stats.h"
#include "runtime/runtime.h"

typedef struct {
    mla_rt *rt;
    const mla_model *model;
    mla_backend *be;
    mla_pool *pool;
    mla_layout layout;
    bool split;             /* covariances of split bf16 numbers where the device has them (backend.h): for fast runs */
    bool plain;             /* token weights 1, no attention moments (stats.h): a plain forward pass and a Gram */
    size_t row_tokens;      /* 512 */
    size_t rows_per_run;    /* sequences advanced together: 1 with resident weights on a CPU, more when streaming or on a device that queues */
} mla_collect_opts;

typedef struct mla_collector mla_collector;
/* first_ids (n tokens): the rows of the gate pass; at most 8 rows are used. */
MLA_CHECKED mla_status mla_collector_new(mla_collector **out, const mla_collect_opts *o, const int32_t *first_ids, size_t n, mla_err *err);
void mla_collector_free(mla_collector *c); /* NULL is fine */

/* Adds statistics of ids (n tokens) to *out (from mla_stats_new). */
MLA_CHECKED mla_status mla_collect(mla_collector *c, mla_stats *out, const int32_t *ids, size_t n, mla_progress *prog, mla_err *err);
#endif
