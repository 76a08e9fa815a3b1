/* Selfcheck: the attention kernels of a backend against fp64, over a paged cache whose tokens lie in the first, a middle
 * and the last block of the pool, and in a pool that ends beyond slot 2^31 / row, where 32-bit element offsets wrap.
 *
 * What was cached is rounded by this file's own codec, so a wrong store and a wrong load cannot hide each other. The
 * bound is derived (tensor/bound.h, the statistical form): rounding of the logits moves a probability by at most their error, the sums
 * over keys and values add theirs. */
#ifndef MLA_VERIFY_SELFCHECK_H
#define MLA_VERIFY_SELFCHECK_H
#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "io/json.h"
#include "model/config.h"
#include "verify/parity/stats.h"

#define MLA_SELFCHECK_SCHEMA "mla-selfcheck/1"

typedef struct { /* one attention shape */
    const char *name;       /* "gqa", "latent", ... static */
    size_t heads, kv_heads; /* kv_heads: of keys and values, or of the rotary keys of a latent row */
    size_t dim;             /* gqa: head dim; latent: 0 */
    size_t rank, groups;    /* latent: values per token over all groups */
    size_t rot;             /* latent: rotary values per kv head (0: none) */
} mla_selfcheck_shape;

typedef struct {
    mla_dtype dtype;
    bool keys16;            /* with FP8: rotary keys (gqa: keys) in bf16, a row of two element types */
    size_t page;            /* tokens per block */
    bool far;               /* the pool ends beyond slot 2^31 / row */
    size_t slots;           /* tokens that the pool holds, in whole blocks; 0: far's, else 64 blocks */
    size_t queries;         /* T: 1 is decode */
} mla_selfcheck_case;

typedef struct {
    double worst;           /* largest |error| / bound over all outputs; passes when <= 1 */
    double max_error;
    size_t nonfinite, stored_wrong; /* outputs that are not finite; cached values that read back differently */
    size_t row_values, pool_slots, farthest_slot;
} mla_selfcheck_result;

/* MLA_ENOMEM when the pool cannot be allocated (nothing was judged). */
MLA_CHECKED mla_status mla_selfcheck_run(mla_selfcheck_result *out, mla_backend *be, const mla_selfcheck_shape *s, const mla_selfcheck_case *c,
                                         mla_err *err);
bool mla_selfcheck_ok(const mla_selfcheck_result *r);

/* Shapes of a model (its own caches); cfg NULL: the common ones. Returns how many of `out` (>= 8) were filled. */
size_t mla_selfcheck_shapes(mla_selfcheck_shape *out, const mla_config *cfg);
/* What one of `ranks` tensor-parallel ranks computes: its heads with their keys and values, its groups of a latent or the whole of a
 * single one. MLA_EINVAL when heads or groups do not divide. */
MLA_CHECKED mla_status mla_selfcheck_rank(mla_selfcheck_shape *s, size_t ranks, mla_err *err);

typedef struct {
    const mla_config *cfg;  /* NULL: common shapes */
    bool far;
    size_t slots;           /* > 0: also in a pool of so many */
    size_t ranks;           /* tensor-parallel size; 0: 1 */
    const char *tested;     /* table of tested combinations (tested.h); NULL: not asked */
    bool allow_untested;    /* a combination that is not in it is told of, and passes */
    mla_log *log;
} mla_selfcheck_opts;
/* All shapes x cache types x decode and prefill; fills doc with gates (one per shape and placement) and cases. */
MLA_CHECKED mla_status mla_selfcheck(mla_jv *doc, mla_backend *be, const mla_selfcheck_opts *o, mla_verdict *verdict, mla_err *err);
void mla_selfcheck_text(mla_str *out, const mla_jv *doc);
#endif
