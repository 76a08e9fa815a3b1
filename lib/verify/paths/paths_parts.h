/* What the files of the paths share. Private to verify/paths/paths*.c. */
#ifndef MLA_VERIFY_PATHS_PARTS_H
#define MLA_VERIFY_PATHS_PARTS_H
#include "verify/paths/paths.h"

typedef struct { /* of one row, from the run in one call */
    int32_t top1;
    double margin, logprob;
} mla_path_row;

typedef struct {
    const mla_paths_opts *o;
    size_t V, page;
    mla_path_row **want;     /* (n_text), (n) each */
    mla_jv *gates, *list;    /* of the document */
    mla_verdict worst;
} mla_paths;

typedef struct { /* one way of taking a path */
    const char *path;
    char way[48];
    size_t positions, differ, near_ties;
    double logprob_change, first_change; /* over all rows; of the token that answers first */
    char where[160];                     /* first difference beyond a near-tie, or the row of logprob_change */
    bool parted;                         /* beyond a near-tie */
} mla_path_way;

/* Runs tokens [at, at + T) of text k and compares their rows; the last row of a text is its first answered token. */
mla_status mla_path_feed(mla_paths *p, mla_path_way *w, mla_rt *rt, mla_seq *seq, size_t k, size_t at, size_t T, mla_err *err);
/* The row of text k, token at, against the run in one call. */
mla_status mla_path_row_compare(const mla_paths *p, mla_path_way *w, size_t k, size_t at, const float *logits, mla_err *err);
/* Adds the way to the list and to its path's total. */
void mla_path_way_add(mla_paths *p, mla_path_way *total, const mla_path_way *w);
/* The gate of a path from its total over `ways`. */
void mla_path_gate(mla_paths *p, const mla_path_way *total, size_t ways);

mla_status mla_path_prefix(mla_paths *p, mla_err *err);
mla_status mla_path_batch(mla_paths *p, mla_err *err);
mla_status mla_path_fp8(mla_paths *p, mla_err *err);
mla_status mla_path_split(mla_paths *p, mla_err *err);
#endif
