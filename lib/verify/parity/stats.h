/* Intervals and summaries of agreement counts: what a sample can show, and what it cannot.
 *
 * Positions within a prompt are correlated, so two intervals are given: Wilson's over positions (Wilson 1927), and a
 * bootstrap that draws whole prompts (Efron and Tibshirani 1993, chapter 8). All in fp64; deterministic. */
#ifndef MLA_VERIFY_STATS_H
#define MLA_VERIFY_STATS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define MLA_Z95 1.959963984540054 /* two-sided 95 % of the standard normal */

typedef struct {
    double low, high;
} mla_interval;

/* Wilson score interval of agree out of n at normal quantile z; [0, 1] when n == 0. agree <= n. */
mla_interval mla_wilson(size_t agree, size_t n, double z);

/* Smallest n for which n agreements out of n give a Wilson lower bound >= target (0 < target < 1): below it no
 * sample can show the target. 381 for 0.99, 765 for 0.995, 3838 for 0.999 at z = MLA_Z95. */
size_t mla_wilson_needed(double target, double z);

typedef struct {
    size_t resamples;  /* e.g. 2000 */
    uint64_t seed;     /* recorded beside the result */
    double level;      /* 0.95 */
} mla_bootstrap_opts;

/* Percentile interval of sum(num) / sum(den) when `clusters` prompts are drawn with replacement.
 * num, den (clusters); a draw whose den sums to 0 counts as ratio 1. clusters == 0 gives [0, 1]. */
MLA_CHECKED mla_status mla_cluster_bootstrap(mla_interval *out, const double *num, const double *den, size_t clusters,
                                             const mla_bootstrap_opts *o, mla_err *err);

/* Sorts x (n) ascending in place. NaN is not allowed. */
void mla_sort_f64(double *x, size_t n);
/* Quantile q in [0, 1] of sorted x (n > 0), linear between order statistics (Hyndman and Fan 1996, type 7). */
double mla_quantile(const double *sorted, size_t n, double q);

typedef struct {
    size_t n, nonfinite; /* nonfinite values are counted and left out of the rest */
    double mean, p50, p90, p99, p999, max;
} mla_summary;
/* Summary of x (n), which is sorted in place. All 0 when n == 0. The mean is summed before sorting, in order. */
mla_summary mla_summarise(double *x, size_t n);

typedef enum { MLA_PASS, MLA_FAIL, MLA_NO_EVIDENCE } mla_verdict;
const char *mla_verdict_name(mla_verdict v); /* "pass", "fail", "not enough evidence" */

/* The gate: pass when the Wilson lower bound reaches `min`. When the sample is so small that not even full agreement
 * would, it is "not enough evidence", unless the upper bound already lies below `min`, which is a failure. */
mla_verdict mla_gate_agreement(size_t agree, size_t n, double min);
#endif
