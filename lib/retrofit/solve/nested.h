/* Nested factors: one solution kept so that every smaller rank can be taken from it later, bit for bit what solving at
 * that rank gives.
 *
 * Rows of E (directions) are sorted by eigenvalue, so a smaller rank is a prefix of E. D is not: stored in bf16 it is
 * refitted to the rounded E of its own rank, D = C E^T (E C E^T)^-1. What a refit at any r needs of the covariance C is
 * X = C E^T alone: its first r columns, and E_r X_r. So E and D are kept as the eigenproblem gave them (f32, also at full
 * rank, where factors are the identity instead), with X in fp64 beside them. Source: design notes, algorithms 7.3. */
#ifndef MLA_RETROFIT_NESTED_H
#define MLA_RETROFIT_NESTED_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/par.h"
#include "model/factors.h"
#include "model/model.h"
#include "retrofit/solve/solve.h"

typedef struct {
    mla_factors f;      /* unrounded: E, D, mu of rank f.r */
    double *cross;      /* (groups, n, f.r): X with E rounded to bf16; NULL: none */
    double *sigma;      /* (groups, n) descending; the spectrum of the layer */
    size_t layer, keys; /* layer's index; features [0, keys) of a group are keys */
} mla_nested;

/* The first r directions of a solution, 1 <= r <= n; cross: with X, which bf16 factors need. */
MLA_CHECKED mla_status mla_nested_of(mla_nested *out, const mla_solution *s, size_t r, bool cross, mla_pool *pool, mla_err *err);
void mla_nested_free(mla_nested *ne); /* zeroed struct is fine */

/* Factors of r <= ne->f.r values per group; r == n gives the exact identity. bf16 as in mla_solution_factors. */
MLA_CHECKED mla_status mla_nested_factors(mla_factors *out, const mla_nested *ne, size_t r, bool bf16, mla_pool *pool, mla_err *err);

/* Empty factors of rank r with the divisors' centres of ne. */
MLA_CHECKED mla_status mla_nested_new(mla_factors *out, const mla_nested *ne, size_t r, mla_err *err);
/* out (allocated, rank out->r <= ne->f.r) = the leading directions as they stand. */
void mla_nested_cut(mla_factors *out, const mla_nested *ne);

/* Predicted loss of r values per group, and the share of the latent that serves keys, as solve.h has them. */
double mla_nested_tail(const mla_nested *ne, size_t r);
double mla_nested_k_share(const mla_nested *ne, size_t r);

/* The file of a whole model (docs/format-factors.md, section 6). f32: the stored precision that the solve settled on. */
MLA_CHECKED mla_status mla_nested_write(const char *path, const mla_model *base, const mla_nested *ne, size_t layers, bool f32,
                                        unsigned char digest[32], mla_err *err);

/* A factors file as graft takes it: what solve wrote, nested or not, or the factors file of a checkpoint. */
typedef struct {
    size_t layers;
    mla_nested *layer;  /* in depth order; sigma and cross NULL where the file has none */
    bool nested;        /* made for prefixes */
    bool f32;           /* stored precision */
    bool deepseek;      /* solved for layout deepseek (mla_layout of the metadata) */
    char *refined;      /* how the factors were refined after solving (mla_refined of the metadata); NULL: they were not */
} mla_factor_source;
MLA_CHECKED mla_status mla_factor_source_read(mla_factor_source *out, const char *path, const mla_model *base, mla_err *err);
void mla_factor_source_free(mla_factor_source *s); /* zeroed struct is fine */
#endif
