/* Closed form of the shared-rotary layout for one layer (docs/retrofit.md): moments over recorded rows, then
 *   shared keys   per frequency j the pairs of the G KV heads are complex numbers z_g; with weights w_g = (sum_{h in g} E|q_hj|^2)^1/2
 *                 the R leading eigenvectors u of E[(w z)(w z)^H] give s = u^H (w z), z_g ~ a_g s with a_g = u_g / w_g
 *   KR            regression of s on x; Q2_h turns q by conj(a_g)
 *   features      y' = per KV head [phi (z - a s), dims that do not rotate], values; phi_j = E[e^{i (s-t) theta_j}] under the attention:
 *                 what of the rest a key without position can hold
 *   E, K, V       reduced-rank regression of F (y' - mean) on x - mean: C2 = F T Cov_yx Cov_xx^-1 Cov_xy T' F', its leading r
 *                 eigenvectors; offsets cost nothing: softmax does not see the keys', mu holds the values'
 * with F'F = Lambda, the metric of queries and of the gated W_O Gram (algorithms 7.2). Cov_xx and E[xx'] are inverted with a ridge of 1e-7 of
 * its mean diagonal. All sums fp64, in row order, cut into fixed tiles. */
#ifndef MLA_RETROFIT_SHARED_SOLVE_H
#define MLA_RETROFIT_SHARED_SOLVE_H
#include <stddef.h>

#include "base/err.h"
#include "base/par.h"
#include "model/shared.h"
#include "retrofit/shared_rotary/shared_local.h"
#include "retrofit/shared_rotary/shared_rows.h"

typedef struct {
    size_t H, G, d, rot, D, n;   /* n = 2 G d: keys of all KV heads, then values */
    double tokens;
    double *Z;                   /* (D + n, D + n) sum of [x | y][x | y]^T, lower triangle */
    double *mean;                /* (D + n) sums */
    double *q2;                  /* (H, d, d) sum of q q^T */
    double *gate;                /* (H, d, d) sum of gamma gamma^T; tokens when ungated */
    double *mass;                /* (H, max_T) attention mass by distance */
    size_t max_T;
} mla_shared_moments;

MLA_CHECKED mla_status mla_shared_moments_new(mla_shared_moments *m, const mla_config *c, size_t max_T, mla_err *err);
void mla_shared_moments_free(mla_shared_moments *m); /* zeroed struct is fine */
/* Adds one row; with_mass: its attention by distance, too (T^2 work per head). */
MLA_CHECKED mla_status mla_shared_moments_add(mla_shared_moments *m, const mla_shared_row *row, const mla_shared_problem *p, bool with_mass,
                                              mla_pool *pool, mla_err *err);

typedef struct {
    double balance;              /* on the keys' part of Lambda */
    const double *inv_freq;      /* (rot/2) */
    const float *wo_gram;        /* (H d, H d) = W_O^T W_O */
} mla_shared_solve_opts;

/* Fills s (made with its r and R). kept (G): share of the query-weighted rotary energy that 1..G shared keys hold. */
MLA_CHECKED mla_status mla_shared_solve(mla_shared *s, const mla_shared_moments *m, const mla_shared_solve_opts *o, double *kept, mla_err *err);
/* Every latent coordinate at unit variance (one FP8 scale fits all): E, K and V rescaled, their product unchanged. */
void mla_shared_gauge(mla_shared *s, const mla_shared_moments *m, double *scratch /* (D) */);
#endif
