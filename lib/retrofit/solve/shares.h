/* Layout absorbed-rope with ranks by layer: every layer's cached values are shared between rotary slots and latent anew.
 *
 * Per layer and width w of a grid (2 and eighths of all rotated key values) the problem is solved once; lost(w) is what dropped
 * rotations lose, tail(w, r) what a latent of r values does. Their errors differ in kind: those of the latent are as good as
 * independent from token to token, those of a rotation follow the distance. So a probe measures each by itself,
 *   rho_l = KLD(all latent values) / lost,  eta_l = (KLD(r) - rho_l lost) / tail (at least a tenth of KLD(r) / tail),
 * in rounds like those of ranks (rounds.h), each at the shares of the one before; allocation spectrum: 1 and 1. Then
 *   T_l(v) = min over w of rho_l lost_l(w) + eta_l tail_l(w, v - w),  sum_l T_l(v_l) least under the budget
 * by dynamic programming, exact in steps of the budget's 8192nd part. */
#ifndef MLA_RETROFIT_SHARES_H
#define MLA_RETROFIT_SHARES_H
#include <stddef.h>

#include "base/err.h"
#include "retrofit/solve/probe.h"
#include "retrofit/solve/solve_all.h"

#define MLA_SHARES_WIDTHS 9

/* What a layer loses with width[k] rotary values, and tail[k n + r] with r latent ones; infinite where that cannot be. */
typedef struct {
    size_t widths, n;              /* n: ranks 0 to n - 1 */
    size_t width[MLA_SHARES_WIDTHS];
    double lost[MLA_SHARES_WIDTHS];
    double *tail;                  /* (widths, n), owned */
} mla_share_curve;

typedef struct {                   /* what a unit of loss costs at the end of the model */
    double rotary, latent;
} mla_share_cost;

/* The widths and ranks (layers) of least total cost with at most `budget` values over all layers, at least one latent value in
 * each. cost NULL: 1 and 1. */
MLA_CHECKED mla_status mla_share_out(size_t *width, size_t *rank, const mla_share_curve *curve, size_t layers, const mla_share_cost *cost, size_t budget,
                                     mla_err *err);

/* width, rank (layers) and the solutions at those widths. o->solve.recipe: allocation spectrum or probe, no rotary width. */
typedef struct {
    mla_solve_all_opts solve;
    double balance;
    mla_probe *probe;              /* for allocation by probe, otherwise NULL */
    const char *dir;               /* where what was measured is kept for a resumed build; NULL: nowhere */
} mla_shares_opts;
MLA_CHECKED mla_status mla_choose_shares(size_t *width, size_t *rank, mla_solution *sol, const mla_shares_opts *o, mla_err *err);
#endif
