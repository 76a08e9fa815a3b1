/* Receipts: non-finite scales and values of stored matrices, many at a time. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "quant/qconfig.h"
#include "quant/quant.h"
#include "verify/folder/receipts.h"

typedef struct {
    mla_qmat m;
    mla_status st;
    mla_qscales scales;
    size_t bad, first_row; /* values that are not finite */
    char why[160];         /* with st */
} matrix;

typedef struct {
    matrix *v;
    bool values;
} work;

static const mla_tensor *find_in_ckpt(const void *ctx, const char *name) { return mla_ckpt_find(ctx, name); }

static void look(void *ctx, size_t begin, size_t end, size_t worker)
{
    work *w = ctx;
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        matrix *x = &w->v[i];
        mla_err err = {0};
        x->st = mla_qmat_scales(&x->m, &x->scales, &err);
        if (x->st == MLA_OK && w->values) x->st = mla_qmat_nonfinite(&x->m, &x->bad, &x->first_row, &err);
        if (x->st != MLA_OK) (void)snprintf(x->why, sizeof x->why, "%.150s", err.msg);
    }
}

/* Every module whose tensors a weight format recognises; *n of them in name order. */
static mla_status list(matrix **out, size_t *n, const mla_ckpt *ck, const mla_qconfig *cfg, mla_err *err)
{
    mla_qsource src = {find_in_ckpt, ck};
    mla_map *seen = NULL;
    mla_status st = mla_map_new(&seen, err);
    *n = 0;
    *out = mla_alloc(mla_ckpt_count(ck), 1, sizeof **out);
    if (st == MLA_OK && !*out) st = mla_fail(err, MLA_ENOMEM, "%zu tensors", mla_ckpt_count(ck));
    for (size_t i = 0; i < mla_ckpt_count(ck) && st == MLA_OK; i++) {
        const char *name = mla_ckpt_at(ck, i)->name, *dot = strrchr(name, '.');
        bool existed = false;
        if (!dot) continue;
        st = mla_map_add(seen, name, (size_t)(dot - name), i, &existed, err);
        if (st != MLA_OK || existed) continue;
        char *module = mla_strndup(name, (size_t)(dot - name));
        mla_err none = {0};
        if (!module) st = mla_fail(err, MLA_ENOMEM, "module name");
        if (module && mla_qmat_open_with(&(*out)[*n].m, &src, module, cfg, &none) == MLA_OK) ++*n;
        mla_free(module);
    }
    mla_map_free(seen);
    return st;
}

/* The first disagreement between quantization_config and the tensors; *cfg is for opening them. */
static void check_scheme(mla_findings *f, mla_qconfig **cfg, const mla_ckpt *ck, const mla_jv *config)
{
    mla_qsummary sum;
    mla_err why = {0};
    const mla_jv *q = mla_jv_get(config, "quantization_config");
    if (!q || mla_jv_is_null(q)) q = mla_jv_get(mla_jv_get(config, "text_config"), "quantization_config");
    if (mla_qconfig_read(cfg, q, &why) != MLA_OK)
        mla_findings_add(f, "config.json: quantization_config: %s", why.msg);
    else if (mla_qconfig_check(*cfg, ck, &sum, &why) != MLA_OK)
        mla_findings_add(f, "%s", why.msg);
}

mla_status mla_receipts_weights(mla_findings *f, const mla_ckpt *ck, const mla_jv *config, const mla_receipts_opts *o, mla_err *err)
{
    work w = {.values = o->values};
    mla_qconfig *cfg = NULL;
    size_t n = 0;
    check_scheme(f, &cfg, ck, config);
    mla_status st = list(&w.v, &n, ck, cfg, err);
    if (st == MLA_OK) mla_par_for(o->pool, n, 1, look, &w);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        const matrix *x = &w.v[i];
        if (x->st != MLA_OK) mla_findings_add(f, "%s: %s", x->m.name, x->why);
        if (x->scales.nonfinite)
            mla_findings_add(f, "%s: %zu of %zu scales are not finite", x->scales.part ? x->scales.part : x->m.name, x->scales.nonfinite, x->scales.n);
        if (x->bad) mla_findings_add(f, "%s: %zu values are not finite, the first in row %zu", x->m.name, x->bad, x->first_row);
    }
    mla_qconfig_free(cfg);
    mla_free(w.v);
    return st;
}
