/* Wilson intervals, the prompt-clustered bootstrap, quantiles, and the agreement gate. */
#include "verify/parity/stats.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rng.h"

mla_interval mla_wilson(size_t agree, size_t n, double z)
{
    if (n == 0) return (mla_interval){0, 1};
    double m = (double)n, p = (double)agree / m, z2 = z * z;
    double centre = (p + z2 / (2 * m)) / (1 + z2 / m);
    double half = z / (1 + z2 / m) * sqrt(p * (1 - p) / m + z2 / (4 * m * m));
    double low = centre - half, high = centre + half;
    /* the ends are exact by algebra, not by rounding */
    if (agree == 0 || low < 0) low = 0;
    if (agree == n || high > 1) high = 1;
    return (mla_interval){low, high};
}

size_t mla_wilson_needed(double target, double z)
{
    assert(target > 0 && target < 1);
    /* with p = 1 the lower bound is n / (n + z^2) */
    double n = ceil(target / (1 - target) * z * z);
    size_t k = n < 1 ? 1 : (size_t)n;
    while (k > 1 && mla_wilson(k - 1, k - 1, z).low >= target) k--;
    while (mla_wilson(k, k, z).low < target) k++;
    return k;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void mla_sort_f64(double *x, size_t n)
{
    if (n > 1) qsort(x, n, sizeof *x, by_value);
}

double mla_quantile(const double *sorted, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n) return sorted[n - 1];
    double f = at - (double)i;
    return f > 0 ? sorted[i] + f * (sorted[i + 1] - sorted[i]) : sorted[i];
}

mla_status mla_cluster_bootstrap(mla_interval *out, const double *num, const double *den, size_t clusters,
                                 const mla_bootstrap_opts *o, mla_err *err)
{
    *out = (mla_interval){0, 1};
    if (o->resamples < 2 || !(o->level > 0 && o->level < 1))
        return mla_fail(err, MLA_EINVAL, "bootstrap: %zu resamples at level %g", o->resamples, o->level);
    if (clusters == 0) return MLA_OK;
    double *ratio = mla_alloc(o->resamples, 1, sizeof *ratio);
    if (!ratio) return mla_fail(err, MLA_ENOMEM, "bootstrap: %zu resamples", o->resamples);
    for (size_t r = 0; r < o->resamples; r++) {
        double a = 0, b = 0;
        for (size_t j = 0; j < clusters; j++) {
            size_t k = (size_t)mla_rng_below(o->seed, (uint64_t)r * clusters + j, clusters);
            a += num[k];
            b += den[k];
        }
        ratio[r] = b != 0 ? a / b : 1;
    }
    mla_sort_f64(ratio, o->resamples);
    out->low = mla_quantile(ratio, o->resamples, (1 - o->level) / 2);
    out->high = mla_quantile(ratio, o->resamples, (1 + o->level) / 2);
    mla_free(ratio);
    return MLA_OK;
}

mla_summary mla_summarise(double *x, size_t n)
{
    mla_summary s = {0};
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            s.nonfinite++;
            continue;
        }
        sum += x[i];
        x[s.n++] = x[i];
    }
    if (s.n == 0) return s;
    mla_sort_f64(x, s.n);
    s.mean = sum / (double)s.n;
    s.p50 = mla_quantile(x, s.n, 0.5);
    s.p90 = mla_quantile(x, s.n, 0.9);
    s.p99 = mla_quantile(x, s.n, 0.99);
    s.p999 = mla_quantile(x, s.n, 0.999);
    s.max = x[s.n - 1];
    return s;
}

const char *mla_verdict_name(mla_verdict v)
{
    return v == MLA_PASS ? "pass" : v == MLA_FAIL ? "fail" : "not enough evidence";
}

mla_verdict mla_gate_agreement(size_t agree, size_t n, double min)
{
    mla_interval w = mla_wilson(agree, n, MLA_Z95);
    if (n > 0 && w.low >= min) return MLA_PASS;
    bool shown_worse = n > 0 && w.high < min;
    bool too_small = min >= 1 || n < mla_wilson_needed(min > 0 ? min : 0.5, MLA_Z95);
    return too_small && !shown_worse ? MLA_NO_EVIDENCE : MLA_FAIL;
}
