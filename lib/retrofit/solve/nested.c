/* Prefixes of one solution. Whoever wants factors of some rank goes through here, at solving and at grafting alike: the
 * same operations of the same shapes on the same numbers, hence the same bits. */
#include "retrofit/solve/nested.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/chol.h"
#include "linalg/wide.h"
#include "tensor/fp.h"

static float rounded(float v) { return mla_bf16_f32(mla_f32_bf16(v)); }

void mla_nested_free(mla_nested *ne)
{
    mla_factors_free(&ne->f);
    mla_free(ne->cross);
    mla_free(ne->sigma);
    *ne = (mla_nested){0};
}

/* X (n, r) = the first r columns of C E^T, E (n, n) rounded to bf16: always the whole product, whose shape no rank decides. */
static mla_status cross_of(double *X, const mla_solution *s, size_t a, size_t r, mla_pool *pool, mla_err *err)
{
    size_t n = s->n;
    double *E = mla_alloc_raw(n, n, sizeof *E), *P = mla_alloc_raw(n, n, sizeof *P);
    mla_status st = E && P ? MLA_OK : mla_fail(err, MLA_ENOMEM, "layer %zu: decoder of %zu features", s->layer, n);
    for (size_t i = 0; st == MLA_OK && i < n * n; i++) E[i] = rounded((float)s->E[a * n * n + i]);
    if (st == MLA_OK) {
        mla_dgemm_wide(&(mla_dgemm_args){.tb = true, .M = n, .N = n, .K = n, .alpha = 1, .a = s->C + a * n * n, .lda = n, .b = E, .ldb = n, .c = P, .ldc = n}, pool);
        for (size_t i = 0; i < n; i++) memcpy(X + i * r, P + i * n, r * sizeof *X);
    }
    mla_free(E);
    mla_free(P);
    return st;
}

mla_status mla_nested_of(mla_nested *out, const mla_solution *s, size_t r, bool cross, mla_pool *pool, mla_err *err)
{
    size_t n = s->n, g = s->groups;
    *out = (mla_nested){.layer = s->layer, .keys = s->keys};
    mla_status st = mla_factors_new(&out->f, s->layout, g, n, r, err);
    if (st != MLA_OK) return st;
    if (s->center) {
        if ((st = mla_factors_centers(&out->f, s->heads, err)) != MLA_OK) {
            mla_nested_free(out);
            return st;
        }
        memcpy(out->f.center, s->center, s->heads * sizeof *s->center);
    }
    out->cross = cross ? mla_alloc_raw(g * n, r, sizeof *out->cross) : NULL;
    out->sigma = mla_alloc_raw(g, n, sizeof *out->sigma);
    if ((cross && !out->cross) || !out->sigma) st = mla_fail(err, MLA_ENOMEM, "layer %zu: factors of rank %zu", s->layer, r);
    for (size_t a = 0; st == MLA_OK && a < g; a++) {
        const double *E = s->E + a * n * n, *D = s->D + a * n * n;
        for (size_t i = 0; i < r * n; i++) out->f.E[a * r * n + i] = (float)E[i];
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < r; j++) out->f.D[(a * n + i) * r + j] = (float)D[i * n + j];
        for (size_t i = 0; i < n; i++) out->f.mu[a * n + i] = (float)s->mu[a * n + i];
        if (cross) st = cross_of(out->cross + a * n * r, s, a, r, pool, err);
    }
    if (st == MLA_OK) memcpy(out->sigma, s->sigma, g * n * sizeof *out->sigma);
    else mla_nested_free(out);
    return st;
}

/* D (n, r) = X (E X)^-1, which no weighting can beat for a given E. Directions without energy: D stays as it is. */
static mla_status refit(float *D, const float *E, const double *X, size_t ldx, size_t n, size_t r, mla_pool *pool, mla_err *err)
{
    double *Ed = mla_alloc_raw(r, n, sizeof *Ed), *Dd = mla_alloc_raw(n, r, sizeof *Dd), *A = mla_alloc_raw(r, r, sizeof *A);
    mla_err why = {0};
    mla_status st = Ed && Dd && A ? MLA_OK : mla_fail(err, MLA_ENOMEM, "decoder of rank %zu", r);
    if (st == MLA_OK) {
        for (size_t i = 0; i < r * n; i++) Ed[i] = E[i];
        for (size_t i = 0; i < n; i++) memcpy(Dd + i * r, X + i * ldx, r * sizeof *Dd);
        mla_dgemm_wide(&(mla_dgemm_args){.M = r, .N = r, .K = n, .alpha = 1, .a = Ed, .lda = n, .b = Dd, .ldb = r, .c = A, .ldc = r}, pool);
        bool ok = mla_chol(A, r, &why) == MLA_OK && mla_chol_solve_wide(A, r, Dd, n, pool, &why) == MLA_OK;
        for (size_t i = 0; ok && i < n * r; i++) D[i] = (float)Dd[i];
    }
    mla_free(Ed);
    mla_free(Dd);
    mla_free(A);
    return st;
}

mla_status mla_nested_new(mla_factors *out, const mla_nested *ne, size_t r, mla_err *err)
{
    const mla_factors *f = &ne->f;
    mla_status st = mla_factors_new(out, f->layout, f->groups, f->n, r, err);
    if (st == MLA_OK && f->center) st = mla_factors_centers(out, f->heads, err);
    if (st == MLA_OK && f->center) memcpy(out->center, f->center, f->heads * sizeof *f->center);
    if (st != MLA_OK) mla_factors_free(out);
    return st;
}

void mla_nested_cut(mla_factors *out, const mla_nested *ne)
{
    const mla_factors *f = &ne->f;
    size_t n = f->n, nd = f->nd, R = f->r, r = out->r;
    for (size_t a = 0; a < f->groups; a++) {
        memcpy(out->E + a * r * n, f->E + a * R * n, r * n * sizeof *f->E);
        for (size_t i = 0; i < nd; i++) memcpy(out->D + (a * nd + i) * r, f->D + (a * nd + i) * R, r * sizeof *f->D);
    }
    memcpy(out->mu, f->mu, f->groups * n * sizeof *f->mu);
    if (!f->w) return;
    memcpy(out->Er, f->Er, f->w * n / 2 * sizeof *f->Er);
    memcpy(out->Rq, f->Rq, f->w * n / 2 * sizeof *f->Rq);
}

mla_status mla_nested_factors(mla_factors *out, const mla_nested *ne, size_t r, bool bf16, mla_pool *pool, mla_err *err)
{
    const mla_factors *f = &ne->f;
    size_t n = f->n, R = f->r;
    *out = (mla_factors){0};
    if (bf16 && !ne->cross && r != n) return mla_fail(err, MLA_EINTERNAL, "layer %zu: no cross moments to refit the decoder with", ne->layer);
    if (r > R && r != n) return mla_fail(err, MLA_EINVAL, "layer %zu: rank %zu per group, the factors hold %zu", ne->layer, r, R);
    mla_status st = mla_nested_new(out, ne, r, err);
    if (st != MLA_OK) return st;
    if (r == n) { /* lossless: squared eigenvalues cannot give it, the identity does (algorithms 8, point 3) */
        mla_factors_identity(out);
        return MLA_OK;
    }
    mla_nested_cut(out, ne);
    for (size_t a = 0; st == MLA_OK && a < f->groups; a++) {
        float *E = out->E + a * r * n, *D = out->D + a * n * r;
        for (size_t i = 0; bf16 && i < r * n; i++) E[i] = rounded(E[i]);
        if (bf16) st = refit(D, E, ne->cross + a * n * R, R, n, r, pool, err);
        for (size_t i = 0; bf16 && i < n * r; i++) D[i] = rounded(D[i]);
    }
    if (st != MLA_OK) mla_factors_free(out);
    return st;
}

double mla_nested_tail(const mla_nested *ne, size_t r)
{
    double t = 0;
    for (size_t a = 0; a < ne->f.groups; a++)
        for (size_t i = ne->f.n; i-- > r;) t += ne->sigma[a * ne->f.n + i]; /* small terms first */
    return t;
}

double mla_nested_k_share(const mla_nested *ne, size_t r)
{
    size_t n = ne->f.n, R = ne->f.r;
    double k = 0;
    if (r == 0 || r > R) return 0;
    for (size_t a = 0; a < ne->f.groups; a++)
        for (size_t i = 0; i < r; i++)
            for (size_t j = 0; j < ne->keys; j++) k += (double)ne->f.E[(a * R + i) * n + j] * ne->f.D[(a * n + j) * R + i];
    return k / (double)(r * ne->f.groups);
}
