/* Sequential calibration: a layer's factors fitted to what it really gets, the features y' behind compressed earlier layers,
 * while the features y of the original model stay the target (algorithms 7.7).
 *
 * On the refiner's rows, tokens weighted by w_s = sum_{h,t} p_ts^2, both about the original mean:
 *   P = C + E[y y'^T - y y^T], C' = C + E[y' y'^T - y y^T], S = diag C, rho the ridge toward "no correction"
 * (C: the covariance of the statistics, which saw more text; the rows say only what the prefix changed):
 *   B = (P + rho S)(C' + rho S)^-1,  the layer's problem solved for the covariance B (C' + rho S) B^T:  D = D_r, E = E_r B
 * rho is the one of four that loses least on held-out rows; the layer's own output error on features y' there decides whether the
 * result is kept at all. With y' = y, and for rho without end, B = I: the symmetric solution. */
#ifndef MLA_RETROFIT_SEQUENTIAL_H
#define MLA_RETROFIT_SEQUENTIAL_H
#include "retrofit/refine/refine.h"
#include "retrofit/solve/solve.h"

typedef struct {
    double before, after; /* held-out output error of the symmetric solution, of the best; both on features y' */
    bool kept;
} mla_sequential_result;

/* r follows the prefix of s->layer (mla_refiner_follow). f: the symmetric factors, f32; replaced where another is better. */
MLA_CHECKED mla_status mla_sequential(mla_refiner *r, const mla_solution *s, const mla_eigen *eigen, mla_factors *f, mla_sequential_result *out, mla_pool *pool,
                                      mla_err *err);

/* The moments alone, per group: y y^T, y y2^T and y2 y2^T (n, n) of rows y, y2 (T, groups, n) with weights w (T), about mu; added to. */
typedef struct {
    size_t groups, n;
    double *yy, *yz, *zz, wsum;
} mla_cross_moments;
MLA_CHECKED mla_status mla_cross_moments_new(mla_cross_moments *m, size_t groups, size_t n, mla_err *err);
void mla_cross_moments_free(mla_cross_moments *m); /* zeroed struct is fine */
MLA_CHECKED mla_status mla_cross_moments_add(mla_cross_moments *m, const float *y, const float *y2, const double *w, size_t T, const double *mu, mla_pool *pool, mla_err *err);
/* Factors of rank r per group from m and the metric of s, with ridge rho. */
MLA_CHECKED mla_status mla_sequential_factors(mla_factors *out, const mla_cross_moments *m, const mla_solution *s, size_t r, double rho,
                                              const mla_eigen *eigen, mla_pool *pool, mla_err *err);
#endif
