/* What the attention moments of every layer stand on, settled before rows run. Inside the statistics only. */
#ifndef MLA_RETROFIT_STATS_SETTLE_H
#define MLA_RETROFIT_STATS_SETTLE_H
#include "base/par.h"
#include "model/model.h"
#include "retrofit/stats/stats.h"

/* R (layers), each (H, d, d), allocated: roots of the value metric from the output projections and, when gated, the gate
 * moments in s. The caller frees what is there, after an error, too. */
MLA_CHECKED mla_status mla_settle_roots(double **R, const mla_model *m, const mla_stats *s, mla_pool *pool, mla_err *err);
/* gain (layers), each (d), allocated: the keys' norms, which layout P needs besides. */
MLA_CHECKED mla_status mla_settle_gains(float **gain, const mla_model *m, const mla_stats *s, mla_err *err);
#endif
