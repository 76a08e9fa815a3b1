/* Grafting at a smaller rank: one factors file serves every rank up to its own, per layer, by prefixes (nested.h).
 *
 * Exact, that is the bytes of a build that solved at that rank with the same statistics: nested files, and plain f32
 * files. Plain bf16 files: the encoder is the same, the decoder keeps the least-squares fit of the larger rank, which is
 * within bf16 rounding of its own; said in `note`. Refused: prefixes of full-rank identities (no order), and of factors
 * refined after solving (each direction was moved for the company of all others). */
#ifndef MLA_RETROFIT_PREFIX_H
#define MLA_RETROFIT_PREFIX_H
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"
#include "retrofit/solve/factorize.h"
#include "retrofit/solve/nested.h"
#include "retrofit/build/recipe.h"

typedef struct {
    const mla_recipe *recipe;   /* budget and allocation (uniform or spectrum); no budget: the file's own ranks */
    const size_t *rank;         /* n_rank ranks given one by one, values over all groups, in depth order; NULL: by the recipe */
    size_t n_rank;
} mla_prefix_opts;

/* Factors of the asked ranks, with predicted losses where the file holds the spectra. note (may stay empty) gets what a
 * person should know. */
MLA_CHECKED mla_status mla_prefix(mla_factorization *out, const mla_factor_source *src, const mla_config *c, const mla_prefix_opts *o,
                                  mla_str *note, mla_err *err);
#endif
