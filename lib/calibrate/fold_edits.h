/* Private to folding: which stored tensors change, and by what. */
#ifndef MLA_CALIBRATE_FOLD_EDITS_H
#define MLA_CALIBRATE_FOLD_EDITS_H
#include "calibrate/fold.h"

typedef struct {
    char *name;       /* stored tensor */
    float factor;     /* a power of two */
    bool plus_one;    /* stored as w where the gain is 1 + w */
    size_t first;     /* values of it, from the first: 0 = all */
} mla_fold_edit;

typedef struct {
    mla_fold_edit *e;
    size_t n, cap, layers;
    int *k, *v;       /* exponents per caching layer, in the order of `layer` */
    size_t *layer;
} mla_fold_edits;

/* Every edit that the scales of m ask for. Free in every case. */
MLA_CHECKED mla_status mla_fold_plan(mla_fold_edits *x, const mla_model *m, mla_err *err);
void mla_fold_edits_free(mla_fold_edits *x);
const mla_fold_edit *mla_fold_find(const mla_fold_edits *x, const char *name);
/* t's values with the edit applied, in t's own dtype, into dst (t->nbytes). Counts rounding into sum. */
MLA_CHECKED mla_status mla_fold_apply(const mla_fold_edit *e, const mla_tensor *t, void *dst, mla_fold_sum *sum, mla_err *err);
#endif
