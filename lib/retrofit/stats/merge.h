/* Statistics of several files as one, the same bytes whatever the order they are named in: sums of doubles depend on their
 * order, so files are added in the order of their digests. */
#ifndef MLA_RETROFIT_MERGE_H
#define MLA_RETROFIT_MERGE_H
#include <stddef.h>

#include "base/err.h"
#include "base/par.h"
#include "retrofit/stats/stats.h"

/* out: zeroed. One file twice (equal bytes) is refused: its text would count double. Errors name the file. */
MLA_CHECKED mla_status mla_stats_read_all(mla_stats *out, const char *const *path, size_t n, const mla_config *c, mla_layout layout,
                                          mla_pool *pool, mla_err *err);
#endif
