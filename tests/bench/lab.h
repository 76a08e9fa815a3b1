/* What the benchmark programs share: stopping on errors, medians, and the read-only sweep that is the ceiling of
 * everything bound by memory. A program prints one "key value" line per figure; tests/bench/bench.sh collects them. */
#ifndef MLA_TESTS_BENCH_LAB_H
#define MLA_TESTS_BENCH_LAB_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/par.h"
#include "runtime/runtime.h"

#define LAB_MAX 32 /* repetitions of one figure at most */

/* Prints the error to stderr and exits with 3 unless st is MLA_OK. */
void lab_must(mla_status st, const mla_err *err);

/* Seconds: wall time, or with MLA_BENCH_CLOCK=cpu this process's CPU time, which on a machine that others use is the
 * steadier of the two (meaningful with one thread only: waiting threads of a pool count, too). */
double lab_now(void);

/* Figures of one kind, in the order taken. */
typedef struct {
    double v[LAB_MAX];
    size_t n;
} lab_series;
void lab_add(lab_series *s, double v);
double lab_median(const lab_series *s);
/* "key value" with the median. */
void lab_print(const char *key, const lab_series *s);
void lab_print_value(const char *key, double v);

/* Area of `bytes` filled with random bits (so that no page is the shared zero page). mla_free. */
char *lab_area(size_t bytes);
/* Seconds to read the area once with the pool's threads, and nothing but read it. */
double lab_sweep(mla_pool *pool, const char *area, size_t bytes);

/* CPU backend; MLA_BENCH_VARIANT names a variant of the kernels (mla_cpu_pick_named), which this CPU must have. */
mla_backend *lab_backend(size_t threads);

/* Positive whole number from an argument, def when argc is too small. */
size_t lab_arg(int argc, char **argv, int at, size_t def);

/* n token ids of the model's own kind of text: the bundled corpus encoded and repeated. Caller frees with mla_free. */
int32_t *lab_ids(const mla_model *m, const char *corpus, size_t n);
#endif
