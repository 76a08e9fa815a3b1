/* Factor blocks: sizes, allocation, the exact full-rank ones. */
#include "model/factors.h"

#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"

mla_status mla_factors_dims(const mla_config *c, mla_layout layout, size_t groups, size_t *n, mla_err *err)
{
    if (c->family == MLA_FAM_DEEPSEEK) return mla_fail(err, MLA_EINVAL, "%s is MLA already: nothing to factor", c->architecture);
    if (layout <= MLA_LAYOUT_NONE || layout >= MLA_LAYOUTS) return mla_fail(err, MLA_EINVAL, "layout %d has no factors", (int)layout);
    if (layout == MLA_LAYOUT_SHARED) return mla_fail(err, MLA_EINVAL, "layout shared-rotary: its factors stand in a file of their own (text_config.shared_mla)");
    bool absorbed = layout == MLA_LAYOUT_ABSORBED || layout == MLA_LAYOUT_DEEPSEEK;
    if (absorbed && groups > 1) return mla_fail(err, MLA_EINVAL, "groups: %zu, but layout %s has one latent for all KV heads", groups, mla_layout_name(layout));
    if (layout == MLA_LAYOUT_DEEPSEEK && c->rope.rot != c->head_dim)
        return mla_fail(err, MLA_EINVAL, "layout %s is for models that rotate whole heads; this one rotates %zu of %zu dims: use layout n or absorbed-rope",
                        mla_layout_name(layout), c->rope.rot, c->head_dim);
    if (groups == 0 || c->kv_heads % groups) return mla_fail(err, MLA_EINVAL, "groups: %zu does not divide %zu KV heads", groups, c->kv_heads);
    size_t d_key = mla_layout_key_dims(c, layout);
    *n = c->kv_heads / groups * (d_key + c->head_dim);
    return MLA_OK;
}

static mla_status allocate(mla_factors *out, size_t groups, size_t n, size_t r, size_t nd, mla_err *err)
{
    size_t rows, drows;
    out->groups = groups, out->n = n, out->r = r, out->nd = nd;
    if (groups == 0 || r == 0 || r > n) {
        *out = (mla_factors){0};
        return mla_fail(err, MLA_EINVAL, "factors: rank %zu outside 1..%zu in each of %zu groups", r, n, groups);
    }
    if (mla_mul(&rows, groups, r) && mla_mul(&drows, groups, nd)) {
        out->E = mla_alloc(rows, n, sizeof *out->E);
        out->D = mla_alloc(drows, r, sizeof *out->D);
        out->mu = mla_alloc(groups, n, sizeof *out->mu);
    }
    if (out->E && out->D && out->mu) return MLA_OK;
    mla_factors_free(out);
    return mla_fail(err, MLA_ENOMEM, "factors of %zu groups, %zu x %zu", groups, r, n);
}

mla_status mla_factors_new(mla_factors *out, mla_layout layout, size_t groups, size_t n, size_t r, mla_err *err)
{
    *out = (mla_factors){.layout = layout};
    return allocate(out, groups, n, r, n, err);
}

mla_status mla_factors_new_absorbed(mla_factors *out, const mla_config *c, size_t w, size_t r, mla_err *err)
{
    size_t G = c->kv_heads, d = c->head_dim;
    *out = (mla_factors){.layout = MLA_LAYOUT_ABSORBED, .w = w, .d = d};
    if (w < 2 || w % 2 || w > G * d) {
        *out = (mla_factors){0};
        return mla_fail(err, MLA_EINVAL, "factors: %zu rotary values, expected an even number from 2 to %zu", w, G * d);
    }
    mla_status st = allocate(out, 1, 2 * G * d, r, (c->heads + G) * d, err);
    if (st != MLA_OK) return st;
    out->Er = mla_alloc(w, G * d, sizeof *out->Er);
    out->Rq = mla_alloc(w, G * d, sizeof *out->Rq);
    if (out->Er && out->Rq) return MLA_OK;
    mla_factors_free(out);
    return mla_fail(err, MLA_ENOMEM, "factors of %zu rotary values", w);
}

mla_status mla_factors_copy(mla_factors *out, const mla_factors *f, mla_err *err)
{
    size_t keys = f->n / 2;
    *out = (mla_factors){.layout = f->layout, .w = f->w, .d = f->d};
    mla_status st = allocate(out, f->groups, f->n, f->r, f->nd, err);
    if (st != MLA_OK) return st;
    memcpy(out->E, f->E, f->groups * f->r * f->n * sizeof *f->E);
    memcpy(out->D, f->D, f->groups * f->nd * f->r * sizeof *f->D);
    memcpy(out->mu, f->mu, f->groups * f->n * sizeof *f->mu);
    if (f->center && (st = mla_factors_centers(out, f->heads, err)) != MLA_OK) {
        mla_factors_free(out);
        return st;
    }
    if (f->center) memcpy(out->center, f->center, f->heads * sizeof *f->center);
    if (!f->w) return MLA_OK;
    out->Er = mla_alloc(f->w, keys, sizeof *out->Er);
    out->Rq = mla_alloc(f->w, keys, sizeof *out->Rq);
    if (!out->Er || !out->Rq) {
        mla_factors_free(out);
        return mla_fail(err, MLA_ENOMEM, "factors of %zu rotary values", f->w);
    }
    memcpy(out->Er, f->Er, f->w * keys * sizeof *f->Er);
    memcpy(out->Rq, f->Rq, f->w * keys * sizeof *f->Rq);
    return MLA_OK;
}

void mla_factors_free(mla_factors *f)
{
    mla_free(f->Er);
    mla_free(f->Rq);
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

/* Slot s = (KV head, frequency) takes rows s and s + w/2: real and imaginary part of that head's pair. The latent: each KV
 * head's dims beyond the rotated ones, then the values. */
static void identity_absorbed(mla_factors *f)
{
    size_t gd = f->n / 2, d = f->d, G = gd / d, H = f->nd / d - G, rot = f->w / G, half = rot / 2, rest = d - rot;
    for (size_t i = 0; i < f->n; i++) f->mu[i] = 0;
    for (size_t g = 0; g < G; g++)
        for (size_t i = 0; i < rest; i++) {
            size_t c = g * rest + i;
            f->E[c * f->n + g * d + rot + i] = 1;
            for (size_t h = g * (H / G); h < (g + 1) * (H / G); h++) f->D[(h * d + rot + i) * f->r + c] = 1;
        }
    for (size_t i = 0; i < gd; i++) f->E[(G * rest + i) * f->n + gd + i] = f->D[(f->nd - gd + i) * f->r + G * rest + i] = 1;
    for (size_t s = 0; s < f->w / 2; s++) {
        size_t g = s / half, j = s % half;
        f->Er[s * gd + g * d + j] = f->Er[(s + f->w / 2) * gd + g * d + half + j] = 1;
        f->Rq[(g * f->w + s) * d + j] = f->Rq[(g * f->w + s + f->w / 2) * d + half + j] = 1;
    }
}

void mla_factors_identity(mla_factors *f)
{
    size_t n = f->n, r = f->r;
    if (f->layout == MLA_LAYOUT_ABSORBED) {
        identity_absorbed(f);
        return;
    }
    for (size_t a = 0; a < f->groups; a++) {
        for (size_t j = 0; j < r; j++)
            for (size_t i = 0; i < n; i++) f->E[(a * r + j) * n + i] = f->D[(a * n + i) * r + j] = i == j;
        for (size_t i = 0; i < n; i++) f->mu[a * n + i] = 0;
    }
}

/* Frequencies that the pair s mixes: from *lo to *hi. A pair of zeros mixes none: lo = hi = 0. */
static mla_status span_of(size_t *lo, size_t *hi, const mla_factors *f, size_t half, size_t s, mla_err *err)
{
    size_t gd = f->n / 2, slots = f->w / 2;
    const float *re = f->Er + s * gd, *im = f->Er + (s + slots) * gd;
    bool any = false;
    *lo = *hi = 0;
    for (size_t x = 0; x < gd; x++) {
        size_t j = x % f->d;
        if (j >= 2 * half && (re[x] != 0 || im[x] != 0))
            return mla_fail(err, MLA_EFORMAT, "rotary encoder: values %zu and %zu take key dim %zu, which does not turn", s, s + slots, x);
        if (j >= half) continue;
        if (re[x] != im[x + half] || im[x] != -re[x + half])
            return mla_fail(err, MLA_EFORMAT, "rotary encoder: values %zu and %zu are no rotating pair at key dim %zu", s, s + slots, x);
        if (re[x] == 0 && im[x] == 0) continue;
        *lo = !any || j < *lo ? j : *lo;
        *hi = !any || j > *hi ? j : *hi;
        any = true;
    }
    return MLA_OK;
}

mla_status mla_factors_slots(size_t *freq, size_t *fold, const mla_factors *f, size_t rot, mla_err *err)
{
    size_t half = rot / 2, lo, hi;
    for (*fold = 1; *fold <= half; ++*fold) { /* the smallest folding that explains every pair */
        bool fits = half % *fold == 0;
        for (size_t s = 0; fits && s < f->w / 2; s++) {
            mla_status st = span_of(&lo, &hi, f, half, s, err);
            if (st != MLA_OK) return st;
            fits = lo / *fold == hi / *fold;
            freq[s] = lo / *fold * *fold;
        }
        if (fits) return MLA_OK;
    }
    return mla_fail(err, MLA_EFORMAT, "rotary encoder: no folding of %zu frequencies explains its pairs", half);
}

size_t mla_factors_cached(const mla_config *c, const mla_factors *f)
{
    return f->groups * f->r + f->w + mla_layout_rotary(c, f->layout) + mla_layout_divisors(c, f->layout);
}
