/* Layout P's share of statistics: root mean squares of keys before their norm, one per token and KV head, what they weigh
 * in the query metric, and the centres that divisors are stored relative to. */
#ifndef MLA_RETROFIT_DIVISOR_H
#define MLA_RETROFIT_DIVISOR_H
#include <stddef.h>

#include "base/err.h"
#include "model/model.h"
#include "retrofit/stats/stats.h"

/* inv2 (T, G) = 1 / rms^2 of keys k (T, G, d) before their norm; adds log2 rms of every head to l->divisor. */
void mla_divisor_add(mla_layer_stats *l, float *inv2, const float *k, size_t T, double eps);

/* center (G): 2^(mean of log2 rms), the geometric mean over the tokens seen. */
void mla_divisor_centers(const mla_layer_stats *l, float *center);

/* Without statistics (full rank needs none): rms of W_K x for an x whose dims are independent and as large as the input
 * norm's gain, |W_K,g diag(gain)|_F / sqrt d. */
MLA_CHECKED mla_status mla_divisor_guess(const mla_model *m, size_t layer, float *center, mla_err *err);
#endif
