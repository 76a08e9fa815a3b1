/* Scores of one row of logits. All sums are fp64 over the row's exact f32 values, relative to its maximum. */
#include "runtime/score.h"

#include <math.h>

static mla_status check_row(const float *x, size_t V, const char *what, mla_err *err)
{
    if (V < 2) return mla_fail(err, MLA_EINVAL, "%s: a row of %zu logits has no two candidates", what, V);
    for (size_t i = 0; i < V; i++)
        if (!isfinite(x[i])) return mla_fail(err, MLA_EFORMAT, "%s: logit %zu is %g, not finite", what, i, (double)x[i]);
    return MLA_OK;
}

/* log sum exp of a checked row */
static double lse(const float *x, size_t V)
{
    double m = x[0], s = 0;
    for (size_t i = 1; i < V; i++)
        if (x[i] > m) m = x[i];
    for (size_t i = 0; i < V; i++) s += exp(x[i] - m);
    return m + log(s); // cppcheck-suppress invalidFunctionArg ; V >= 1, and the row's largest adds exp(0) = 1
}

mla_status mla_score_row(mla_score *out, const float *x, size_t V, int32_t target, mla_err *err)
{
    mla_status st = check_row(x, V, "score", err);
    if (st != MLA_OK) return st;
    if (target >= 0 && (size_t)target >= V)
        return mla_fail(err, MLA_EINVAL, "score: target id %d, vocabulary %zu", (int)target, V);
    size_t a = 0, b = 1; /* best and second best; the lower id wins a tie */
    if (x[1] > x[0]) a = 1, b = 0;
    for (size_t i = 2; i < V; i++) {
        if (x[i] > x[a]) b = a, a = i;
        else if (x[i] > x[b]) b = i;
    }
    double z = lse(x, V);
    *out = (mla_score){
        .top1 = (int32_t)a,
        .top2 = (int32_t)b,
        .logprob = x[a] - z,
        .margin = (double)x[a] - (double)x[b],
        .target_logprob = target >= 0 ? x[target] - z : 0,
        .lse = z,
    };
    return MLA_OK;
}

mla_status mla_lse_row(double *zp, const float *p, size_t V, mla_err *err)
{
    mla_status st = check_row(p, V, "kld: first row", err);
    if (st == MLA_OK) *zp = lse(p, V);
    return st;
}

/* Each probability ratio is formed from log-probabilities, so equal rows give exactly 0. */
mla_status mla_kld_row_of(double *out, const float *p, double zp, const float *q, size_t V, mla_err *err)
{
    mla_status st = check_row(q, V, "kld: second row", err);
    if (st != MLA_OK) return st;
    double zq = lse(q, V), sum = 0;
    for (size_t i = 0; i < V; i++) {
        double lp = p[i] - zp, lq = q[i] - zq;
        sum += exp(lp) * (lp - lq);
    }
    *out = sum > 0 ? sum : 0; /* rounding may leave -1e-17 */
    return MLA_OK;
}

mla_status mla_kld_row(double *out, const float *p, const float *q, size_t V, mla_err *err)
{
    double zp;
    mla_status st = mla_lse_row(&zp, p, V, err);
    return st == MLA_OK ? mla_kld_row_of(out, p, zp, q, V, err) : st;
}
