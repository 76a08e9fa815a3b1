/* Parallel loops with a static split: which worker runs which piece never changes what is computed.
 * Work that must not depend on the thread count is cut into pieces of fixed size by the caller (grain). */
#ifndef MLA_BASE_PAR_H
#define MLA_BASE_PAR_H
#include <stddef.h>

#include "base/err.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct mla_pool mla_pool;

/* threads == 0: one per online CPU. A pool of one runs in the caller. Not reentrant: one loop at a time. */
MLA_CHECKED mla_status mla_pool_new(mla_pool **out, size_t threads, mla_err *err);
void mla_pool_free(mla_pool *p); /* NULL is fine */
size_t mla_pool_threads(const mla_pool *p); /* 1 for NULL */

/* Runs fn(ctx, begin, end, worker) over [0, n) in pieces of `grain` items (the last may be shorter);
 * worker < mla_pool_threads. Returns when all is done. p == NULL runs serially, piece by piece. */
typedef void (*mla_par_fn)(void *ctx, size_t begin, size_t end, size_t worker);
void mla_par_for(mla_pool *p, size_t n, size_t grain, mla_par_fn fn, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
