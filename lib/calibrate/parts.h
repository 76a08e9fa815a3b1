/* What the files of calibrate/ share. */
#ifndef MLA_CALIBRATE_PARTS_H
#define MLA_CALIBRATE_PARTS_H
#include "calibrate/calibrate.h"

/* Histogram of |x| by exponent and the upper 5 bits of the mantissa: 1/32 octave. */
#define CAL_BIN_SHIFT 18
#define CAL_BINS ((size_t)1 << 13)

typedef struct { /* what a tap is given: rows of one pass, or one row of several at once */
    mla_cal *c;
    mla_rt *rt;
    size_t row0;   /* corpus row of sequence 0 */
    float *host;   /* observed values, downloaded */
    size_t cap;
    mla_backend *be;      /* of what follows: device memory */
    mla_mem *o2, *sums;   /* a trial's attention output, of o2_cap values; what all trials of a layer changed */
    mla_mem *inv;         /* f64, as many: what trials share of their gate, on backends that gain from it */
    size_t o2_cap;
} cal_pass;

mla_cal_layer *cal_layer(mla_cal *c, size_t layer); /* NULL: does not cache */
/* The part a tap observes; NULL: none. */
mla_cal_part *cal_part(mla_cal *c, const mla_tap *t);
MLA_CHECKED mla_status cal_fetch(cal_pass *p, const mla_tap *t, const float **out, mla_err *err);
#define CAL_TRIES 8
/* rows.c: rows [from, rows) of a corpus through trunk and MTP head, in passes of opts.run_tokens, with opts.pool several at
 * once. tap gets a cal_pass and adds to the parts of its c; sums of f64 are one term a row, so that they do not depend on
 * how rows were shared out. done, unless NULL, is called after every pass with the rows measured. */
typedef struct {
    mla_cal *c;
    mla_rt *rt;
    const int32_t *ids;
    size_t n;
    mla_tap_fn tap;
    const char *what;
    mla_status (*done)(mla_cal *c, size_t rows, mla_err *err);
} cal_rows;
MLA_CHECKED mla_status cal_run_rows(const cal_rows *x, size_t from, size_t rows, mla_err *err);
/* scale.c: limits of all parts from what was measured; scales at the lowest alignment. */
MLA_CHECKED mla_status cal_limits(mla_cal *c, const mla_config *cfg, mla_cal_spelling s, mla_err *err);
/* The part's scale at alignment j, as it would be stored. */
float cal_aligned(const mla_cal *c, const mla_cal_part *p, size_t j);
/* align.c: a tap that tries all alignments; then the best of each part is taken. */
mla_status cal_try(void *ctx, const mla_tap *t, mla_err *err);
MLA_CHECKED mla_status cal_align(mla_cal *c, mla_err *err);
/* keep.c: ranges of rows [0, row) to and from opts.keep; loading without a file: row 0. */
MLA_CHECKED mla_status cal_keep_save(mla_cal *c, size_t row, mla_err *err);
MLA_CHECKED mla_status cal_keep_load(mla_cal *c, size_t *row, mla_err *err);

typedef struct {
    mla_rt **rt;           /* (n) the reference first; may be one and the same when there is a codec */
    size_t n;
    const int32_t *ids;    /* (tokens), rows of row_tokens, each a sequence */
    size_t tokens, row_tokens;
    mla_tap_fn tap;        /* of the others, or NULL */
    void *ctx;
    mla_kv_codec_fn codec; /* of the others, codec_ctx (n - 1), or NULL */
    void *const *codec_ctx;
    mla_log *log;
} cal_comparison;
/* compare.c: every other cache against the reference: v (n - 1). */
MLA_CHECKED mla_status cal_compare(const cal_comparison *x, mla_cal_verdict *v, mla_err *err);
#endif
