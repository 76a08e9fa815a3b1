/* The closed-form solution of one layer: min over rank-r (D, E) of E |Lambda^1/2 (y - mu - D E (y - mu))|^2.
 *
 * With Lambda = F^T F and S = F C F^T = U diag(sigma) U^T (sigma descending):
 *   E = U_r^T F,  D = F^-1 U_r,  minimum = sum_{i > r} sigma_i        (algorithms 7.3)
 * C is never inverted. A solution holds all n directions, so every smaller rank is a prefix of it. */
#ifndef MLA_RETROFIT_SOLVE_H
#define MLA_RETROFIT_SOLVE_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/par.h"
#include "model/factors.h"
#include "retrofit/solve/eigen.h"
#include "retrofit/solve/objective.h"
#include "retrofit/stats/stats.h"

typedef struct {
    double balance;       /* b of Lambda; 1 = first-order theory */
    size_t groups;        /* 1 = MLA, g = GLA-g; divides the KV heads */
    mla_objective objective;
    const mla_projections *proj; /* for objectives of the weights (objective.h), otherwise NULL */
    mla_eigen eigen;
} mla_solve_opts;

typedef struct {          /* per group a: */
    mla_layout layout;
    size_t layer, groups, n, kv_heads;
    size_t keys;          /* features [0, keys) of a group are keys, the rest values */
    bool separate;        /* keys and values apart: directions alternate between them, largest first on each side */
    double *sigma;        /* (groups, n) descending (separate: in that order), in squared output units per unit of token weight */
    double *E;            /* (groups, n, n): row i = direction i, scaled so that its coordinate has unit variance */
    double *D;            /* (groups, n, n): column-by-direction, row-major (feature, direction) */
    double *mu;           /* (groups, n) */
    double *C;            /* (groups, n, n) covariance in group order */
    double *Lambda;       /* (groups, n, n) */
    size_t heads;         /* layout P: KV heads; 0 otherwise */
    float *center;        /* layout P: (heads) of the divisors; NULL otherwise */
    size_t floored;       /* (a metric of zeros: all; sigma is then 0) eigenvalues of Lambda raised to the floor 1e-6 * max */
    struct mla_absorbed *absorbed; /* layout absorbed-rope (absorbed.h): owned; C, E, D are then of the remaining keys */
} mla_solution;

/* wo: o_proj of the layer, f32 (D, H d); objective ours only, otherwise NULL. */
MLA_CHECKED mla_status mla_solve_layer(mla_solution *out, const mla_layer_stats *l, mla_layout layout, const float *wo, size_t D,
                                       const mla_solve_opts *o, mla_err *err);
void mla_solution_free(mla_solution *s);
/* The same problem (metric, means, layout) for another covariance C (groups, n, n). */
MLA_CHECKED mla_status mla_solution_of(mla_solution *out, const mla_solution *s, const double *C, const mla_eigen *eigen, mla_pool *pool, mla_err *err);

/* Factors of `r` latent values per group. bf16: E is rounded to bf16, D refitted to the rounded E by least squares
 * (D = C E^T (E C E^T)^-1, which no weighting can beat for a given E) and rounded. r == n gives the exact identity. pool
 * NULL: one thread, the same bits. */
MLA_CHECKED mla_status mla_solution_factors(mla_factors *out, const mla_solution *s, size_t r, bool bf16, mla_pool *pool, mla_err *err);

/* Predicted loss of r values per group (sum over groups of the tails), and the total. */
double mla_solution_tail(const mla_solution *s, size_t r);

/* Loss of given factors on other statistics (held-out): tr(Lambda (I - D E) C' (I - D E)^T) plus the mean's part. */
MLA_CHECKED mla_status mla_solution_loss(double *out, const mla_solution *s, const mla_factors *f, const mla_layer_stats *held, mla_err *err);

/* Share of the latent's energy that serves keys at rank r: sum_{i<=r} |U_i^(K)|^2 / r. */
double mla_solution_k_share(const mla_solution *s, size_t r);

/* Index of feature j of group a within the layer's features (all KV heads). */
size_t mla_group_feature(const mla_layer_stats *l, size_t groups, size_t a, size_t j);
#endif
