/* The receipt of a build: tool, recipe, inputs by digest, losses per layer, every file by digest (docs/format-receipt.md). */
#ifndef MLA_RETROFIT_RECEIPT_H
#define MLA_RETROFIT_RECEIPT_H
#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "retrofit/solve/factorize.h"
#include "retrofit/build/inputs.h"
#include "retrofit/shared_rotary/shared_fit.h"

typedef struct {
    const mla_inputs *in;
    const mla_recipe *recipe;
    const mla_factorization *f;
    const mla_shared_fit *shared;        /* layout shared-rotary, instead of f */
    double tokens;                       /* statistics were summed over */
    const unsigned char *stats_digest;   /* corpus digest recorded in the statistics */
    const unsigned char *stats_base;     /* root digest of the base they were collected on, where it is another one; else NULL */
    const mla_factor_source *source;     /* of a graft: what the factors were taken from; else NULL */
    const char *computed_with;           /* backend and BLAS, one line */
} mla_receipt_content;

/* Scans dir, writes dir/mla_receipt.json; root gets the OMS root digest over all files but the receipt. */
MLA_CHECKED mla_status mla_receipt_write(const char *dir, const mla_receipt_content *c, mla_pool *pool, mla_log *log, unsigned char root[32],
                                         mla_err *err);
#endif
