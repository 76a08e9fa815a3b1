/* Layout absorbed-rope: rotary slots shared by all heads (rotary.h) beside one latent of what is left of the keys, met
 * without rotation, and of the values. Decode is plain absorbed MLA with a decoupled rotary key.
 *
 * The latent solves the ordinary problem (solve.h) on the features P (y - mu), P = blockdiag(T, I), with the query metric
 * sum_h A_h Q_h A_h^T: E = E' P, head h decodes its key with A_h^T D'_g. The mean of the remaining keys meets every query
 * alike and leaves the softmax unchanged. Slots for all keys and a latent for all values are exact. */
#ifndef MLA_RETROFIT_ABSORBED_H
#define MLA_RETROFIT_ABSORBED_H
#include "retrofit/solve/rotary.h"
#include "retrofit/solve/solve.h"

typedef struct mla_absorbed { /* what a solution of this layout knows beyond the latent's own problem */
    mla_rotary *rot;
    double balance, lost;  /* lost: balance times the energy that dropped rotations lose */
    double energy;         /* of all keys and values, whatever the slots: the measure of shares */
    double *C, *mu;        /* (n, n), (n): raw features */
    double *Q;             /* (H, d, d) per token */
    double *L;             /* (G d, G d) value metric */
} mla_absorbed;

/* Of so, balance and eigen count. *out: layout MLA_LAYOUT_ABSORBED, one group; mla_solution_factors, _tail and _loss then speak of this layout. */
MLA_CHECKED mla_status mla_solve_absorbed(mla_solution *out, const mla_layer_stats *l, const float *wo, size_t D, const mla_solve_opts *so,
                                          const mla_rotary_opts *o, mla_err *err);
/* What solve.c calls for a solution that has one of these. */
void mla_absorbed_free(mla_absorbed *a);
MLA_CHECKED mla_status mla_absorbed_factors(mla_factors *out, const mla_solution *s, size_t r, bool bf16, mla_pool *pool, mla_err *err);
MLA_CHECKED mla_status mla_absorbed_loss(double *out, const mla_solution *s, const mla_factors *f, const mla_layer_stats *l, mla_err *err);
#endif
