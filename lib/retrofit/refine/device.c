/* Memory of the local problem on a device, rows and factors there and back, steps. */
#include "retrofit/refine/device.h"

#include <string.h>

#include "base/alloc.h"
#include "retrofit/refine/adam.h"
#include "retrofit/refine/device_work.h"

static mla_status put(mla_dev_local *d, mla_mem **to, const float *x, size_t n, float by, mla_err *err)
{
    const mla_backend_ops *op = d->be->ops;
    float *f = mla_alloc_raw(n + 1, 1, sizeof *f);
    if (!f) return mla_fail(err, MLA_ENOMEM, "local problem: %zu numbers", n);
    for (size_t i = 0; i < n; i++) f[i] = x ? by * x[i] : by;
    mla_status st = op->alloc(d->be, to, n * 4, err);
    if (st == MLA_OK) st = op->upload(d->be, *to, f, n * 4, err);
    mla_free(f);
    return st;
}

/* Rotation tables; those of layout absorbed-rope take the attention factor, which the queries carry, out again. */
static mla_status tables(mla_dev_local *d, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t n = p->max_T * (p->rot / 2), ones = d->slots * d->s.T > p->H ? d->slots * d->s.T : p->H;
    float twice = n ? p->cos[0] * p->cos[0] : 1; /* angle 0 */
    mla_status st = put(d, &d->cos, p->cos, n, 1, err);
    if (st == MLA_OK) st = put(d, &d->sin, p->sin, n, 1, err);
    if (st == MLA_OK) st = put(d, &d->back, p->sin, n, -1, err);
    if (st == MLA_OK) st = put(d, &d->ucos, p->cos, n, 1 / twice, err);
    if (st == MLA_OK) st = put(d, &d->usin, p->sin, n, -1 / twice, err);
    if (st == MLA_OK && p->gain) st = put(d, &d->gain, p->gain, p->d - p->rot, 1, err);
    return st == MLA_OK ? put(d, &d->ones, NULL, ones, 1, err) : st;
}

mla_status mla_dev_local_new(mla_dev_local **out, mla_backend *be, const mla_local *p, const mla_row_shape *s, size_t n_rows, size_t slots, mla_mem *rows,
                             mla_err *err)
{
    const mla_backend_ops *op = be->ops;
    mla_dev_local *d = mla_alloc(1, 1, sizeof *d);
    if (!d) return mla_fail(err, MLA_ENOMEM, "local problem");
    *d = (mla_dev_local){.be = be, .op = op->fit, .p = *p, .s = *s, .n_rows = n_rows, .slots = slots};
    size_t Hd = p->H * p->d;
    mla_status st = slots && slots <= MLA_FIT_PARTS ? MLA_OK : mla_fail(err, MLA_EINVAL, "%zu rows at a time", slots);
    if (st == MLA_OK) st = tables(d, err);
    d->bits = rows;
    if (st == MLA_OK && !rows) st = op->alloc(be, &d->own, n_rows * s->all * sizeof(uint16_t), err), d->bits = d->own;
    if (st == MLA_OK) st = op->alloc(be, &d->o, n_rows * s->q * 4, err);
    if (st == MLA_OK) st = op->alloc(be, &d->WW, Hd * Hd * 4, err);
    if (st == MLA_OK) st = op->alloc(be, &d->sums, slots * 8, err);
    d->p.cos = d->p.sin = d->p.WW = NULL;
    d->p.gain = NULL;
    if (st == MLA_OK) *out = d;
    else mla_dev_local_free(d);
    return st;
}

static void drop(mla_dev_local *d, mla_mem **p)
{
    if (*p) d->be->ops->free(d->be, *p);
    *p = NULL;
}

void mla_dev_local_free(mla_dev_local *d)
{
    if (!d) return;
    mla_mem **all[] = {&d->own, &d->o, &d->WW, &d->cos, &d->sin, &d->back, &d->ucos, &d->usin, &d->gain, &d->ones, &d->sums, &d->params, &d->room};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(d, all[i]);
    mla_free(d);
}

mla_status mla_dev_local_shape(mla_dev_local *d, size_t r, size_t w, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t R = d->slots, T = d->s.T, Hd = p->H * p->d, gd = p->G * p->d, gs = p->groups, n = 0;
    if (d->room && d->r == r && d->w == w) return MLA_OK;
    drop(d, &d->params);
    drop(d, &d->room);
    d->r = r, d->w = w;
    d->nd = w ? Hd + gd : p->n, d->kw = p->d + w, d->kh = w ? p->H : p->G;
    const size_t count[MLA_DEV_PARTS] = {gs * r * p->n, gs * r * d->nd, gs * p->n, w * gd, w * gd};
    memcpy(d->count, count, sizeof count);
    mla_mem **const set[] = {d->x, d->g, d->m, d->v};
    for (size_t k = 0; k < MLA_DEV_PARTS; k++) n += count[k];
    mla_status st = d->be->ops->alloc(d->be, &d->params, 4 * n * 4, err);
    for (size_t i = 0, at = 0; st == MLA_OK && i < 4; i++)
        for (size_t k = 0; k < MLA_DEV_PARTS; at += count[k++]) set[i][k] = mla_at(d->params, at);
    size_t slot = w ? p->H * d->kw : 0, half = w ? p->rot / 2 : 0;
    const struct { mla_mem **to; size_t each; } part[] = { /* elements per token of a row */
        {&d->q, p->H * d->kw}, {&d->P, p->H * T}, {&d->S, p->H * T}, {&d->oh, Hd}, {&d->A, Hd}, {&d->B, Hd}, {&d->gate, d->s.gate ? Hd : 0},
        {&d->Yc, gs * p->n}, {&d->Yh, gs * d->nd}, {&d->dY, gs * d->nd}, {&d->c, gs * r}, {&d->dc, gs * r}, {&d->K, d->kh * d->kw},
        {&d->dK, d->kh * d->kw}, {&d->V, gd}, {&d->dV, gd}, {&d->inv, d->s.rms ? p->G : 0},
        {&d->qr, slot ? Hd : 0}, {&d->tc, half}, {&d->ts, half}, {&d->kr, slot ? gd : 0}, {&d->z, w}, {&d->dz, w}, {&d->zh, p->H * w}, {&d->dq, p->H * w},
    };
    enum { PARTS = sizeof part / sizeof *part };
    size_t at[PARTS + 1] = {0}; /* each on 256 bytes */
    for (size_t i = 0; i < PARTS; i++) at[i + 1] = at[i] + (R * T * part[i].each + 63) / 64 * 64;
    if (st == MLA_OK) st = d->be->ops->alloc(d->be, &d->room, at[PARTS] * 4, err);
    for (size_t i = 0; st == MLA_OK && i < PARTS; i++) *part[i].to = mla_at(d->room, at[i]);
    return st;
}

static mla_mem *row_at(const mla_dev_local *d, size_t i) { return mla_at_bytes(d->bits, i * d->s.all * sizeof(uint16_t)); }

mla_status mla_dev_local_row(mla_dev_local *d, size_t i, const uint16_t *bits, mla_err *err)
{
    return d->be->ops->upload(d->be, row_at(d, i), bits, d->s.all * sizeof *bits, err);
}

mla_status mla_dev_local_features(mla_dev_local *d, size_t i, const uint16_t *y, mla_err *err)
{
    return d->be->ops->upload(d->be, mla_at_bytes(row_at(d, i), d->s.q * sizeof *y), y, d->s.y * sizeof *y, err);
}

static float *const *arrays(float *to[MLA_DEV_PARTS], const mla_factors *f)
{
    to[0] = f->E, to[1] = f->D, to[2] = f->mu, to[3] = f->Er, to[4] = f->Rq;
    return to;
}

mla_status mla_dev_local_put(mla_dev_local *d, const mla_factors *f, mla_err *err)
{
    float *from[MLA_DEV_PARTS];
    mla_status st = mla_dev_local_shape(d, f->r, f->w, err);
    arrays(from, f);
    for (size_t k = 0; st == MLA_OK && k < MLA_DEV_PARTS; k++) {
        if (!d->count[k]) continue;
        st = d->be->ops->upload(d->be, d->x[k], from[k], d->count[k] * 4, err);
        if (st == MLA_OK) st = d->be->ops->zero(d->be, d->m[k], d->count[k] * 4, err);
        if (st == MLA_OK) st = d->be->ops->zero(d->be, d->v[k], d->count[k] * 4, err);
    }
    return st;
}

static mla_status fetch(mla_dev_local *d, mla_factors *f, mla_mem *const *from, mla_err *err)
{
    float *to[MLA_DEV_PARTS];
    mla_status st = MLA_OK;
    arrays(to, f);
    for (size_t k = 0; st == MLA_OK && k < MLA_DEV_PARTS; k++)
        if (d->count[k]) st = d->be->ops->download(d->be, to[k], from[k], d->count[k] * 4, err);
    return st;
}

mla_status mla_dev_local_take(mla_dev_local *d, mla_factors *f, mla_err *err) { return fetch(d, f, d->x, err); }
mla_status mla_dev_local_gradient(mla_dev_local *d, mla_factors *grad, mla_err *err) { return fetch(d, grad, d->g, err); }

mla_status mla_dev_local_move(mla_dev_local *d, const double rate[MLA_DEV_PARTS], size_t step, size_t steps, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t k = 0; st == MLA_OK && k < MLA_DEV_PARTS; k++) {
        mla_adam_pace at = mla_adam_pace_at(rate[k], step, steps);
        mla_adam_args a = {.x = d->x[k], .m = d->m[k], .v = d->v[k], .g = d->g[k], .n = d->count[k], .rate = at.rate, .fix1 = at.fix1, .fix2 = at.fix2};
        st = d->op->adam(d->be, &a, err);
    }
    return st;
}
