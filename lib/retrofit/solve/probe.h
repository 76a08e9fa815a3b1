/* Sensitivity of the final distribution to each layer's loss: eta_l = KLD_l / T_l, where KLD_l is the mean KL divergence on
 * held-out text when only layer l is compressed, at its current rank, and T_l its predicted loss there (algorithms 7.6).
 * Forward passes only: one over the base, one per full-attention layer. */
#ifndef MLA_RETROFIT_PROBE_H
#define MLA_RETROFIT_PROBE_H
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "model/model.h"
#include "retrofit/solve/solve.h"

typedef struct mla_probe mla_probe;
/* ids: text to probe on, cut into rows of row_tokens; as many rows as MLA_PROBE_BYTES of base logits allow, at least
 * one. Runs the base once and keeps its logits. */
#define MLA_PROBE_BYTES ((size_t)400 << 20)
typedef struct {
    const mla_model *model;
    mla_backend *be;
    mla_pool *pool;       /* NULL: one thread */
    mla_precision precision;
    size_t row_tokens;
    mla_log *log;
} mla_probe_opts;
MLA_CHECKED mla_status mla_probe_new(mla_probe **out, const mla_probe_opts *o, const int32_t *ids, size_t n, mla_err *err);
void mla_probe_free(mla_probe *p); /* NULL is fine */

/* Mean KL divergence (nats) from the base with factors f[i] in layers layer[i], i < n. */
MLA_CHECKED mla_status mla_probe_kld(mla_probe *p, double *out, const mla_factors *f, const size_t *layer, size_t n, mla_err *err);

/* eta[i] of every solution at rank[i] (values over all groups). A layer at full rank gets the largest eta of the others. */
MLA_CHECKED mla_status mla_probe_eta(mla_probe *p, double *eta, const mla_solution *s, const size_t *rank, size_t layers, mla_err *err);
#endif
