/* Statistics of a corpus in parts: every part covers a fixed number of rows, is written as a file of its own and
 * skipped when it is already there and reads back valid. The sum always runs over the parts in order, so an
 * interrupted collection ends with the same bits. */
#ifndef MLA_RETROFIT_GATHER_H
#define MLA_RETROFIT_GATHER_H
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "model/model.h"
#include "retrofit/build/recipe.h"
#include "retrofit/stats/stats.h"

typedef struct {
    const mla_model *model;
    const mla_recipe *recipe;   /* resolved */
    mla_backend *be;
    mla_pool *pool;
    mla_precision precision;
    bool stream_layers;
    const char *dir;            /* where parts are kept; NULL: in memory only, one part */
    const char *name;           /* file name prefix of the parts */
    const unsigned char *base_digest, *corpus_digest;
    mla_log *log;
} mla_gather_opts;

/* Collects over ids[0..n). *out is newly made; free with mla_stats_free. */
MLA_CHECKED mla_status mla_gather(mla_stats *out, const mla_gather_opts *o, const int32_t *ids, size_t n, mla_err *err);
#endif
