/* Choosing ranks: from what the user asks (a fraction, a rank, bytes) to latent values per layer under one budget. */
#ifndef MLA_RETROFIT_RANKS_H
#define MLA_RETROFIT_RANKS_H
#include <stddef.h>

#include "base/err.h"
#include "model/config.h"
#include "retrofit/solve/solve.h"

#define MLA_RANK_SET_MAX 16

typedef struct {         /* exactly one of the three is set */
    double keep;         /* cached values per token and layer / the base's, rotary keys counted; 0 = unset */
    size_t rank;         /* latent values per token and layer, over all groups */
    size_t kv_bytes;     /* bytes per token over all layers, cached in bf16 */
    size_t rotary;       /* beside those: rotary values per token and layer where the layout leaves that open, else 0 */
} mla_budget;

/* Rotary values that a layout caches beside the latent, per token and layer; `chosen` where the layout leaves it open. */
size_t mla_rotary_values(const mla_config *c, mla_layout layout, size_t chosen);

/* Latent values per token and layer that the budget allows beside the rotary ones, before any rounding or limit. */
MLA_CHECKED mla_status mla_latent_budget(double *values, const mla_config *c, mla_layout layout, mla_budget b, mla_err *err);

/* Latent values per token (over all groups) of every full-attention layer at a uniform rank (layout deepseek: without the
 * constant coordinate, which takes one value of the budget): the largest multiple of
 * `groups` within the budget. Refused with the numbers when nothing fits or the rank exceeds the features. keep == 1 is the
 * lossless rank, also where the layout keeps more beside it than the base caches (divisors of layout P). */
MLA_CHECKED mla_status mla_rank_uniform(size_t *out, const mla_config *c, mla_layout layout, size_t groups, mla_budget b, mla_err *err);

/* The ranks that layers may have, when not every one is allowed: ascending, values over all groups. */
typedef struct {
    size_t rank[MLA_RANK_SET_MAX], n; /* n == 0: any multiple of the groups */
} mla_rank_set;

/* Layout P's own: 256, 768 and 1792 of 1792 lossless values, scaled to this model's. */
MLA_CHECKED mla_status mla_rank_set_default(mla_rank_set *out, const mla_config *c, mla_layout layout, size_t groups, mla_err *err);
/* Ascending, multiples of groups, at most the lossless rank: MLA_EINVAL otherwise. */
MLA_CHECKED mla_status mla_rank_set_check(const mla_rank_set *set, const mla_config *c, mla_layout layout, size_t groups, mla_err *err);
/* The largest member up to rank (set empty: rank itself); refused when all are larger. */
MLA_CHECKED mla_status mla_rank_in_set(size_t *out, const mla_rank_set *set, size_t rank, mla_err *err);
/* The members that lose least, sum over layers of eta_l tail_l(rank), with `budget` values over all layers: exact. */
MLA_CHECKED mla_status mla_rank_allocate_set(size_t *rank, const mla_solution *s, size_t layers, const double *eta, size_t budget,
                                             const mla_rank_set *set, mla_err *err);
/* mla_rank_uniform for layout shared-rotary with R shared rotary keys; at most as many latent values as keys and values have. */
MLA_CHECKED mla_status mla_shared_rank(size_t *out, const mla_config *c, size_t R, mla_budget b, mla_err *err);

/* Least rank of a layer when `uniform` on average is spread unevenly. */
size_t mla_rank_min(size_t uniform, size_t groups);

/* Ranks per group and layer under `budget` latent values over all layers: the largest steps of eta_l sigma_l first (one
 * value in every group of a layer at a time), ties by (layer, index); exact for equal costs (algorithms 7.6).
 * eta == NULL: 1 everywhere. rank[i] receives values per token over all groups of layer i; at least `min` each. */
MLA_CHECKED mla_status mla_rank_allocate(size_t *rank, const mla_solution *s, size_t layers, const double *eta, size_t budget, size_t min,
                                         mla_err *err);
#endif
