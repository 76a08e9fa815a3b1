/* Layout absorbed-rope on a device: keys [K_h c | z] and queries [q | Rq q], forwards and backwards (refine_slots.c). */
#include "retrofit/refine/device_work.h"

#include "base/alloc.h"

/* q (R, H, Q, d + w) from the rotated queries qr. */
static mla_status queries(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t H = p->H, w = p->d, Q = mla_dev_queries(d, s), kw = d->kw, half = p->rot / 2, M = H / p->G * Q;
    mla_mem *const to[2] = {d->tc, d->ts}, *const from[2] = {d->ucos, d->usin};
    mla_status st = mla_dev_queries_of(d, s, d->qr, err);
    if (st == MLA_OK) st = mla_dev_spread(d, mla_dev_parts(d->qr, 1, 0), d->q, MLA_DIMS(1, s->n * H * Q, w), 0, MLA_DIMS(0, kw), MLA_DIMS(0, w), err);
    for (size_t k = 0; st == MLA_OK && k < 2; k++) { /* the angles of the queries that count */
        mla_spread_args a = mla_dev_recorded(d, s, 0, 0, true);
        a.bf16 = false;
        for (size_t i = 0; i < s->n; i++) a.x[i] = mla_cat(from[k], mla_dev_phase(s, i) * half);
        st = mla_dev_spread(d, a, to[k], MLA_DIMS(1, Q, half), Q * half, MLA_DIMS(0, half), MLA_DIMS(0, s->stride * half), err);
    }
    for (size_t i = 0; st == MLA_OK && i < s->n; i++) {
        mla_rope_args a = {.x = mla_at(d->q, i * H * Q * kw), .ldx = kw, .T = Q, .heads = H, .head_stride = Q * kw, .rot = p->rot,
                           .cos = mla_at(d->tc, i * Q * half), .sin = mla_at(d->ts, i * Q * half)};
        st = d->be->ops->rope(d->be, &a, err);
    }
    for (size_t g = 0; st == MLA_OK && g < p->G; g++)
        st = mla_dev_product(d, (mla_product_args){.tb = true, .M = M, .N = d->w, .K = w, .count = s->n, .alpha = 1, .a = mla_cat(d->qr, g * M * w), .lda = w, .sa = H * Q * w,
                                                   .b = mla_cat(d->x[4], g * d->w * w), .ldb = w, .c = mla_at(d->q, g * M * kw + w), .ldc = kw, .sc = H * Q * kw}, err);
    return st;
}

/* kr, z. */
static mla_status rotary_keys(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, w = p->d, G = p->G, RT = s->n * T;
    mla_status st = mla_dev_spread(d, mla_dev_recorded(d, s, d->s.q, 0, false), d->kr, MLA_DIMS(G, T, w), T * w, MLA_DIMS(RT * w, w), MLA_DIMS(w, p->n), err);
    mla_rope_args turn = {.x = d->kr, .ldx = w, .T = T, .heads = G * s->n, .head_stride = T * w, .rot = p->rot, .cos = d->cos, .sin = d->sin};
    if (st == MLA_OK) st = d->be->ops->rope(d->be, &turn, err);
    for (size_t g = 0; st == MLA_OK && g < G; g++)
        st = mla_dev_product(d, (mla_product_args){.tb = true, .M = RT, .N = d->w, .K = w, .alpha = 1, .beta = g ? 1 : 0, .a = mla_cat(d->kr, g * RT * w), .lda = w,
                                                   .b = mla_cat(d->x[3], g * w), .ldb = G * w, .c = d->z, .ldc = d->w}, err);
    return st;
}

mla_status mla_dev_slots_inputs(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, w = p->d, H = p->H, G = p->G, kw = d->kw, R = s->n, nd = d->nd;
    mla_status st = queries(d, s, err);
    if (st == MLA_OK) st = rotary_keys(d, s, err);
    if (st == MLA_OK) st = mla_dev_spread(d, mla_dev_parts(d->Yh, R, T * nd), d->K, MLA_DIMS(H, T, w), H * T * kw, MLA_DIMS(T * kw, kw), MLA_DIMS(w, nd), err);
    if (st == MLA_OK)
        st = mla_dev_spread(d, mla_dev_parts(d->z, R, T * d->w), mla_at(d->K, w), MLA_DIMS(H, T, d->w), H * T * kw, MLA_DIMS(T * kw, kw), MLA_DIMS(0, d->w), err);
    if (st != MLA_OK) return st;
    return mla_dev_spread(d, mla_dev_parts(mla_cat(d->Yh, H * w), R, T * nd), d->V, MLA_DIMS(G, T, w), G * T * w, MLA_DIMS(T * w, w), MLA_DIMS(w, nd), err);
}

/* Gradient of Er from the z part of dK, summed over heads. */
static mla_status encoder_back(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, w = p->d, H = p->H, G = p->G, kw = d->kw, R = s->n, z = T * d->w;
    mla_status st = mla_dev_spread(d, mla_dev_parts(mla_cat(d->dK, w), R, H * T * kw), d->zh, MLA_DIMS(H, T, d->w), H * z, MLA_DIMS(z, d->w), MLA_DIMS(T * kw, kw), err);
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.M = 1, .N = z, .K = H, .count = R, .alpha = 1, .a = d->ones, .lda = H, .b = d->zh, .ldb = z, .sb = H * z,
                                                                 .c = d->dz, .ldc = z, .sc = z}, err);
    if (st != MLA_OK) return st;
    return mla_dev_product(d, (mla_product_args){.ta = true, .M = d->w, .N = w, .K = R * T, .count = G, .alpha = 1, .a = d->dz, .lda = d->w, .b = d->kr, .ldb = w,
                                                 .sb = R * T * w, .c = d->g[3], .ldc = G * w, .sc = w}, err);
}

/* Gradient of Rq: dq = scale S z, then against the rotated queries. */
static mla_status query_back(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, w = p->d, H = p->H, Q = mla_dev_queries(d, s), M = H / p->G * Q;
    mla_status st = mla_dev_product(d, (mla_product_args){.M = Q, .N = d->w, .K = T, .count = s->n * H, .alpha = p->scale, .a = d->S, .lda = T, .sa = Q * T,
                                                          .b = mla_cat(d->K, w), .ldb = d->kw, .sb = T * d->kw, .c = d->dq, .ldc = d->w, .sc = Q * d->w}, err);
    for (size_t i = 0; st == MLA_OK && i < s->n; i++)
        st = mla_dev_product(d, (mla_product_args){.ta = true, .M = d->w, .N = w, .K = M, .count = p->G, .alpha = 1, .beta = i ? 1 : 0, .a = mla_cat(d->dq, i * H * Q * d->w),
                                                   .lda = d->w, .sa = M * d->w, .b = mla_cat(d->qr, i * H * Q * w), .ldb = w, .sb = M * w, .c = d->g[4], .ldc = w,
                                                   .sc = d->w * w}, err);
    return st;
}

mla_status mla_dev_slots_back(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, w = p->d, H = p->H, G = p->G, kw = d->kw, R = s->n, nd = d->nd;
    mla_status st = mla_dev_spread(d, mla_dev_parts(d->dK, R, H * T * kw), d->dY, MLA_DIMS(H, T, w), T * nd, MLA_DIMS(w, nd), MLA_DIMS(T * kw, kw), err);
    if (st == MLA_OK) st = mla_dev_spread(d, mla_dev_parts(d->dV, R, G * T * w), mla_at(d->dY, H * w), MLA_DIMS(G, T, w), T * nd, MLA_DIMS(w, nd), MLA_DIMS(T * w, w), err);
    if (st == MLA_OK) st = encoder_back(d, s, err);
    if (st == MLA_OK) st = query_back(d, s, err);
    mla_commute_args er = {.g = d->g[3], .x = d->x[3], .count = 1, .w = d->w, .cols = G * w, .d = w, .rot = p->rot};
    mla_commute_args rq = {.g = d->g[4], .x = d->x[4], .count = G, .w = d->w, .cols = w, .d = w, .rot = p->rot};
    if (st == MLA_OK) st = d->op->commute(d->be, &er, err);
    return st == MLA_OK ? d->op->commute(d->be, &rq, err) : st;
}
