/* Factor blocks: sizes, allocation, the exact full-rank ones. */
#include "model/factors.h"

#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"

mla_status mla_factors_dims(const mla_config *c, mla_layout layout, size_t groups, size_t *n, mla_err *err)
{
    if (c->family == MLA_FAM_DEEPSEEK) return mla_fail(err, MLA_EINVAL, "%s is MLA already: nothing to factor", c->architecture);
    if (layout == MLA_LAYOUT_NONE || layout >= MLA_LAYOUTS) return mla_fail(err, MLA_EINVAL, "layout %d has no factors", (int)layout);
    if (layout == MLA_LAYOUT_SHARED) return mla_fail(err, MLA_EINVAL, "layout shared-rotary: its factors stand in a file of their own (text_config.shared_mla)");
    if (groups == 0 || c->kv_heads % groups) return mla_fail(err, MLA_EINVAL, "groups: %zu does not divide %zu KV heads", groups, c->kv_heads);
    size_t d_key = layout == MLA_LAYOUT_REBUILD ? c->head_dim : c->head_dim - c->rope.rot;
    *n = c->kv_heads / groups * (d_key + c->head_dim);
    return MLA_OK;
}

mla_status mla_factors_new(mla_factors *out, mla_layout layout, size_t groups, size_t n, size_t r, mla_err *err)
{
    size_t rows;
    *out = (mla_factors){.layout = layout, .groups = groups, .n = n, .r = r};
    if (groups == 0 || r == 0 || r > n) {
        *out = (mla_factors){0};
        return mla_fail(err, MLA_EINVAL, "factors: rank %zu outside 1..%zu in each of %zu groups", r, n, groups);
    }
    if (mla_mul(&rows, groups, r)) {
        out->E = mla_alloc(rows, n, sizeof *out->E);
        out->D = mla_alloc(rows, n, sizeof *out->D);
        out->mu = mla_alloc(groups, n, sizeof *out->mu);
    }
    if (out->E && out->D && out->mu) return MLA_OK;
    mla_factors_free(out);
    return mla_fail(err, MLA_ENOMEM, "factors of %zu groups, %zu x %zu", groups, r, n);
}

void mla_factors_free(mla_factors *f)
{
    mla_free(f->E);
    mla_free(f->D);
    mla_free(f->mu);
    mla_free(f->center);
    *f = (mla_factors){0};
}

mla_status mla_factors_centers(mla_factors *f, size_t heads, mla_err *err)
{
    float *c = mla_alloc(heads, 1, sizeof *c);
    if (!c) return mla_fail(err, MLA_ENOMEM, "divisors of %zu heads", heads);
    for (size_t g = 0; g < heads; g++) c[g] = 1;
    mla_free(f->center);
    f->center = c;
    f->heads = heads;
    return MLA_OK;
}

mla_status mla_factors_copy(mla_factors *out, const mla_factors *f, mla_err *err)
{
    mla_status st = mla_factors_new(out, f->layout, f->groups, f->n, f->r, err);
    if (st == MLA_OK && f->center) st = mla_factors_centers(out, f->heads, err);
    if (st != MLA_OK) {
        mla_factors_free(out);
        return st;
    }
    memcpy(out->E, f->E, f->groups * f->r * f->n * sizeof *f->E);
    memcpy(out->D, f->D, f->groups * f->r * f->n * sizeof *f->D);
    memcpy(out->mu, f->mu, f->groups * f->n * sizeof *f->mu);
    if (f->center) memcpy(out->center, f->center, f->heads * sizeof *f->center);
    return MLA_OK;
}

void mla_factors_identity(mla_factors *f)
{
    size_t n = f->n, r = f->r;
    for (size_t a = 0; a < f->groups; a++) {
        for (size_t j = 0; j < r; j++)
            for (size_t i = 0; i < n; i++) f->E[(a * r + j) * n + i] = f->D[(a * n + i) * r + j] = i == j;
        for (size_t i = 0; i < n; i++) f->mu[a * n + i] = 0;
    }
}

size_t mla_factors_cached(const mla_config *c, const mla_factors *f)
{
    return f->groups * f->r + mla_layout_rotary(c, f->layout) + mla_layout_divisors(c, f->layout);
}
