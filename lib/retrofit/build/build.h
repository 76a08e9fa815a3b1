/* mla-retrofit build: base + corpus + recipe -> a complete checkpoint folder, or nothing.
 *
 * Steps, each proven before the next: inputs digested; statistics in parts; factors; graft (base shards linked, factors
 * added, config and index rewritten); receipt; rename. Deterministic for given inputs and ISA. */
#ifndef MLA_RETROFIT_BUILD_H
#define MLA_RETROFIT_BUILD_H
#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "retrofit/solve/factorize.h"
#include "retrofit/build/inputs.h"
#include "retrofit/build/recipe.h"
#include "retrofit/shared_rotary/shared_fit.h"

typedef struct {
    mla_input_opts in;
    mla_recipe recipe;
    const char *out;
    const char *stats;          /* statistics file to use instead of collecting; NULL */
    const char *held_stats;     /* statistics of other text, for the held-out losses of build and solve; NULL: collected with
                                   the held-out text where build collects, otherwise not measured */
    mla_backend *be;
    mla_pool *pool;
    mla_precision precision;    /* of the calibration pass */
    bool stream_layers;
    bool nested;                /* solve: keep what every smaller rank needs (nested.h) */
    const size_t *rank;         /* graft: n_rank ranks, one per full-attention layer; NULL: by the recipe's budget, if any */
    size_t n_rank;
    mla_log *log;
} mla_build_opts;

typedef struct {
    mla_factorization f;
    mla_shared_fit shared;      /* layout shared-rotary, instead of f: layers > 0 */
    mla_recipe recipe;          /* resolved */
    unsigned char root[32];
} mla_build_result;

MLA_CHECKED mla_status mla_build(mla_build_result *out, const mla_build_opts *o, mla_err *err);
void mla_build_result_free(mla_build_result *r);

/* The steps apart. stats: collects and writes OUT.stats (mergeable). */
MLA_CHECKED mla_status mla_build_stats(const mla_build_opts *o, const char *stats_out, mla_err *err);
/* solve: statistics -> one factors file (.safetensors) that graft accepts for any base of the same shape. */
MLA_CHECKED mla_status mla_build_solve(mla_build_result *out, const mla_build_opts *o, const char *const *stats, size_t n_stats,
                                       const char *factors_out, mla_err *err);
/* graft: factors file + base -> checkpoint folder with receipt; smaller ranks by prefix (prefix.h). */
MLA_CHECKED mla_status mla_build_graft(mla_build_result *out, const mla_build_opts *o, const char *factors, mla_err *err);
#endif
