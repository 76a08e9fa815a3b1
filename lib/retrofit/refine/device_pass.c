/* Forward and backward through encoder, decoder, rotation and attention of several rows side by side: refine_local.c line by line,
 * with heads before queries, so that the heads of a KV head are one matrix. */
#include "retrofit/refine/device_work.h"

#include "base/alloc.h"

mla_status mla_dev_product(mla_dev_local *d, mla_product_args a, mla_err *err)
{
    if (a.count == 0) a.count = 1;
    return d->op->product(d->be, &a, err);
}

mla_status mla_dev_spread(mla_dev_local *d, mla_spread_args a, mla_mem *y, const size_t n[3], size_t yp, const size_t ys[2], const size_t xs[2], mla_err *err)
{
    a.y = y, a.yp = yp;
    for (size_t i = 0; i < 3; i++) a.n[i] = n[i], a.ys[i] = i < 2 ? ys[i] : 1, a.xs[i] = i < 2 ? xs[i] : 1;
    return d->op->spread(d->be, &a, err);
}
mla_spread_args mla_dev_recorded(const mla_dev_local *d, const mla_dev_rows *s, size_t at, size_t token, bool per_query)
{
    mla_spread_args a = {.parts = s->n, .bf16 = true};
    for (size_t i = 0; i < s->n; i++) {
        size_t phase = per_query ? mla_dev_phase(s, i) : 0;
        a.x[i] = mla_at_bytes(d->bits, (s->row[i] * d->s.all + at + phase * token) * sizeof(uint16_t));
        a.rows[i] = per_query ? (d->s.T - phase + s->stride - 1) / s->stride : SIZE_MAX;
    }
    return a;
}

mla_spread_args mla_dev_parts(const mla_mem *x, size_t parts, size_t each)
{
    mla_spread_args a = {.parts = parts};
    for (size_t i = 0; i < parts; i++) a.x[i] = mla_cat(x, i * each), a.rows[i] = SIZE_MAX;
    return a;
}

static mla_status rotate(mla_dev_local *d, mla_mem *k, size_t heads, mla_mem *sin, mla_err *err)
{
    mla_rope_args a = {.x = k, .ldx = d->p.d, .T = d->s.T, .heads = heads, .head_stride = d->s.T * d->p.d, .rot = d->p.rot, .cos = d->cos, .sin = sin};
    return d->be->ops->rope(d->be, &a, err);
}

/* Where group a's keys begin in the features, and its values. */
typedef struct {
    size_t key, value, dk, per;
} place;

static place place_of(const mla_dev_local *d, size_t a, size_t width)
{
    size_t per = d->p.G / d->p.groups, dk = mla_dev_beside(d) ? d->p.d - d->p.rot : d->p.d;
    return (place){a * width, a * width + per * dk, dk, per};
}

/* The source of a spread, `elems` of its elements further. */
static mla_spread_args further(mla_spread_args a, size_t elems)
{
    for (size_t i = 0; i < a.parts; i++) a.x[i] = (const mla_mem *)((const char *)a.x[i] + elems * (a.bf16 ? 2 : 4));
    return a;
}

/* K (R, G, T, d) and V from features `from`, (T, groups, n) of each row. */
static mla_status keys_values(mla_dev_local *d, const mla_dev_rows *s, mla_spread_args from, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, w = p->d, ld = p->groups * p->n, G = p->G, R = s->n, rot = p->rot;
    mla_status st = MLA_OK;
    for (size_t a = 0; st == MLA_OK && a < p->groups; a++) {
        place at = place_of(d, a, p->n);
        mla_mem *k = mla_at(d->K, a * at.per * T * w + w - at.dk), *v = mla_at(d->V, a * at.per * T * w);
        st = mla_dev_spread(d, further(from, at.key), k, MLA_DIMS(at.per, T, at.dk), G * T * w, MLA_DIMS(T * w, w), MLA_DIMS(at.dk, ld), err);
        if (st == MLA_OK) st = mla_dev_spread(d, further(from, at.value), v, MLA_DIMS(at.per, T, w), G * T * w, MLA_DIMS(T * w, w), MLA_DIMS(w, ld), err);
    }
    if (st != MLA_OK) return st;
    if (!mla_dev_beside(d)) return rotate(d, d->K, R * G, d->sin, err);
    size_t k = d->s.q + d->s.y, rms = k + d->s.k;
    st = mla_dev_spread(d, mla_dev_recorded(d, s, k, 0, false), d->K, MLA_DIMS(G, T, rot), G * T * w, MLA_DIMS(T * w, w), MLA_DIMS(rot, G * rot), err);
    if (st != MLA_OK || p->layout != MLA_LAYOUT_P) return st;
    mla_spread_args inv = mla_dev_recorded(d, s, rms, 0, false);
    inv.y = d->inv, inv.yp = G * T;
    inv.n[0] = 1, inv.n[1] = G, inv.n[2] = T;
    inv.ys[1] = T, inv.ys[2] = 1, inv.xs[1] = 1, inv.xs[2] = G;
    st = d->op->spread(d->be, &inv, err);
    return st == MLA_OK ? d->op->scale(d->be, mla_at(d->K, rot), w, R * G * T, w - rot, d->inv, d->gain, err) : st;
}

mla_status mla_dev_queries_of(mla_dev_local *d, const mla_dev_rows *s, mla_mem *q, mla_err *err)
{
    size_t H = d->p.H, w = d->p.d, Q = mla_dev_queries(d, s);
    return mla_dev_spread(d, mla_dev_recorded(d, s, 0, H * w, true), q, MLA_DIMS(H, Q, w), H * Q * w, MLA_DIMS(Q * w, w), MLA_DIMS(w, s->stride * H * w), err);
}

/* P, and oh = P V - oh, or P V alone. */
static mla_status attend(mla_dev_local *d, const mla_dev_rows *s, float minus, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, Q = mla_dev_queries(d, s), M = p->H / d->kh * Q, Mv = p->H / p->G * Q;
    mla_status st = mla_dev_product(d, (mla_product_args){.tb = true, .M = M, .N = T, .K = d->kw, .count = s->n * d->kh, .alpha = p->scale, .a = d->q, .lda = d->kw,
                                                  .sa = M * d->kw, .b = d->K, .ldb = d->kw, .sb = T * d->kw, .c = d->P, .ldc = T, .sc = M * T}, err);
    mla_softmax_args soft = {.x = d->P, .parts = s->n, .heads = p->H, .Q = Q, .T = T, .stride = s->stride};
    for (size_t i = 0; i < s->n; i++) soft.first[i] = mla_dev_phase(s, i);
    if (st == MLA_OK) st = d->op->softmax(d->be, &soft, err);
    if (st != MLA_OK) return st;
    return mla_dev_product(d, (mla_product_args){.M = Mv, .N = p->d, .K = T, .count = s->n * p->G, .alpha = 1, .beta = -minus, .a = d->P, .lda = T, .sa = Mv * T,
                                         .b = d->V, .ldb = p->d, .sb = T * p->d, .c = d->oh, .ldc = p->d, .sc = Mv * p->d}, err);
}

mla_status mla_dev_local_targets(mla_dev_local *d, const float *W, size_t out, mla_err *err)
{
    const mla_backend_ops *op = d->be->ops;
    size_t T = d->s.T, H = d->p.H, w = d->p.d, Hd = H * w;
    mla_mem *up = NULL;
    mla_status st = op->alloc(d->be, &up, out * Hd * 4, err);
    if (st == MLA_OK) st = op->upload(d->be, up, W, out * Hd * 4, err);
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.ta = true, .M = Hd, .N = Hd, .K = out, .alpha = 1, .a = up, .lda = Hd, .b = up, .ldb = Hd, .c = d->WW, .ldc = Hd}, err);
    if (st == MLA_OK) st = mla_dev_local_shape(d, 0, 0, err);
    for (size_t i = 0; st == MLA_OK && i < d->n_rows; i += d->slots) {
        size_t row[MLA_FIT_PARTS];
        mla_dev_rows s = {.row = row, .n = d->n_rows - i < d->slots ? d->n_rows - i : d->slots, .stride = 1};
        for (size_t k = 0; k < s.n; k++) row[k] = i + k;
        st = mla_dev_queries_of(d, &s, d->q, err);
        if (st == MLA_OK) st = keys_values(d, &s, mla_dev_recorded(d, &s, d->s.q, 0, false), err);
        if (st == MLA_OK) st = attend(d, &s, 0, err);
        if (st == MLA_OK) st = mla_dev_spread(d, mla_dev_parts(d->oh, s.n, T * Hd), mla_at(d->o, i * d->s.q), MLA_DIMS(H, T, w), d->s.q, MLA_DIMS(w, Hd), MLA_DIMS(T * w, w), err);
    }
    if (up) op->free(d->be, up);
    return st;
}

/* oh (R, H, Q, d) = the targets of the queries. */
static mla_status targets_of(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    size_t H = d->p.H, w = d->p.d, Q = mla_dev_queries(d, s), Hd = H * w;
    mla_spread_args a = mla_dev_recorded(d, s, 0, 0, true);
    a.bf16 = false;
    for (size_t i = 0; i < s->n; i++) a.x[i] = mla_cat(d->o, s->row[i] * d->s.q + mla_dev_phase(s, i) * Hd);
    return mla_dev_spread(d, a, d->oh, MLA_DIMS(H, Q, w), H * Q * w, MLA_DIMS(Q * w, w), MLA_DIMS(w, s->stride * Hd), err);
}

/* A = gamma o oh, B = A WW, and the sums of A o B. */
static mla_status output_loss(mla_dev_local *d, const mla_dev_rows *s, double *loss, mla_err *err)
{
    size_t H = d->p.H, w = d->p.d, Q = mla_dev_queries(d, s), Hd = H * w, R = s->n;
    mla_status st = mla_dev_spread(d, mla_dev_parts(d->oh, R, Q * Hd), d->A, MLA_DIMS(H, Q, w), Q * Hd, MLA_DIMS(w, Hd), MLA_DIMS(Q * w, w), err);
    if (st == MLA_OK && d->s.gate)
        st = mla_dev_spread(d, mla_dev_recorded(d, s, d->s.all - d->s.gate, Hd, true), d->gate, MLA_DIMS(1, Q, Hd), Q * Hd, MLA_DIMS(0, Hd), MLA_DIMS(0, s->stride * Hd), err);
    if (st == MLA_OK && d->s.gate) st = d->be->ops->sigmoid_mul(d->be, d->A, d->gate, R * Q, Hd, Hd, err);
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.M = R * Q, .N = Hd, .K = Hd, .alpha = 1, .a = d->A, .lda = Hd, .b = d->WW, .ldb = Hd, .c = d->B, .ldc = Hd}, err);
    if (st != MLA_OK || !loss) return st;
    st = d->op->dots(d->be, d->sums, d->A, d->B, R, Q * Hd, err);
    return st == MLA_OK ? d->be->ops->download(d->be, loss, d->sums, R * sizeof *loss, err) : st;
}

mla_status mla_dev_local_energy(mla_dev_local *d, const mla_dev_rows *s, double *energy, mla_err *err)
{
    mla_status st = targets_of(d, s, err);
    return st == MLA_OK ? output_loss(d, s, energy, err) : st;
}

/* Yc = y - mu, c = Yc E^T, Yh = c D^T + mu where features are decoded. */
static mla_status code(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, R = s->n, n = p->n, nd = d->nd, r = d->r, gn = p->groups * n, gd = p->groups * nd, gr = p->groups * r;
    size_t free = d->w ? p->H * p->d : 0, shift = d->w ? p->G * p->d : 0; /* decoded rows without a mean; where the others' means begin */
    mla_spread_args mean = mla_dev_parts(mla_cat(d->x[2], shift), 1, 0), none = mla_dev_parts(d->x[2], 1, 0);
    none.rows[0] = 0;
    mla_status st = mla_dev_spread(d, mla_dev_recorded(d, s, d->s.q, 0, false), d->Yc, MLA_DIMS(1, T, gn), T * gn, MLA_DIMS(0, gn), MLA_DIMS(0, gn), err);
    if (st == MLA_OK) st = d->be->ops->add_rows(d->be, d->Yc, gn, R * T, gn, d->x[2], -1, err);
    if (st == MLA_OK && free) st = mla_dev_spread(d, none, d->Yh, MLA_DIMS(1, R * T, free), 0, MLA_DIMS(0, gd), MLA_DIMS(0, 0), err);
    if (st == MLA_OK) st = mla_dev_spread(d, mean, mla_at(d->Yh, free), MLA_DIMS(1, R * T, gn - shift), 0, MLA_DIMS(0, gd), MLA_DIMS(0, 0), err);
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.tb = true, .M = R * T, .N = r, .K = n, .count = p->groups, .alpha = 1, .a = d->Yc, .lda = gn, .sa = n,
                                                         .b = d->x[0], .ldb = n, .sb = r * n, .c = d->c, .ldc = gr, .sc = r}, err);
    if (st != MLA_OK) return st;
    return mla_dev_product(d, (mla_product_args){.tb = true, .M = R * T, .N = nd, .K = r, .count = p->groups, .alpha = 1, .beta = 1, .a = d->c, .lda = gr, .sa = r,
                                         .b = d->x[1], .ldb = r, .sb = nd * r, .c = d->Yh, .ldc = gd, .sc = nd}, err);
}

/* S = dL/dlogits / scale, dV, dK, from half of dL/do^ in oh. */
static mla_status attend_back(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, Q = mla_dev_queries(d, s), M = p->H / d->kh * Q, Mv = p->H / p->G * Q, w = p->d;
    mla_status st = mla_dev_product(d, (mla_product_args){.tb = true, .M = Mv, .N = T, .K = w, .count = s->n * p->G, .alpha = 2, .a = d->oh, .lda = w, .sa = Mv * w,
                                                  .b = d->V, .ldb = w, .sb = T * w, .c = d->S, .ldc = T, .sc = Mv * T}, err);
    if (st == MLA_OK) st = d->op->softmax_back(d->be, d->S, d->P, s->n * p->H * Q, T, err);
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.ta = true, .M = T, .N = w, .K = Mv, .count = s->n * p->G, .alpha = 2, .a = d->P, .lda = T, .sa = Mv * T,
                                                         .b = d->oh, .ldb = w, .sb = Mv * w, .c = d->dV, .ldc = w, .sc = T * w}, err);
    if (st != MLA_OK) return st;
    return mla_dev_product(d, (mla_product_args){.ta = true, .M = T, .N = d->kw, .K = M, .count = s->n * d->kh, .alpha = p->scale, .a = d->S, .lda = T, .sa = M * T,
                                         .b = d->q, .ldb = d->kw, .sb = M * d->kw, .c = d->dK, .ldc = d->kw, .sc = T * d->kw}, err);
}

/* dY from dK and dV. */
static mla_status features_back(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t T = d->s.T, w = p->d, ld = p->groups * p->n, G = p->G, R = s->n;
    mla_status st = MLA_OK;
    if (!mla_dev_beside(d)) st = rotate(d, d->dK, R * G, d->back, err);
    else if (p->layout == MLA_LAYOUT_P) st = d->op->scale(d->be, mla_at(d->dK, p->rot), w, R * G * T, w - p->rot, d->inv, d->gain, err);
    for (size_t a = 0; st == MLA_OK && a < p->groups; a++) {
        place at = place_of(d, a, p->n);
        size_t from = a * at.per * T * w;
        st = mla_dev_spread(d, mla_dev_parts(mla_cat(d->dK, from + w - at.dk), R, G * T * w), mla_at(d->dY, at.key), MLA_DIMS(at.per, T, at.dk), T * ld, MLA_DIMS(at.dk, ld), MLA_DIMS(T * w, w), err);
        if (st == MLA_OK) st = mla_dev_spread(d, mla_dev_parts(mla_cat(d->dV, from), R, G * T * w), mla_at(d->dY, at.value), MLA_DIMS(at.per, T, w), T * ld, MLA_DIMS(w, ld), MLA_DIMS(T * w, w), err);
    }
    return st;
}

/* Gradients of E, D, mu from dY, and c and y - mu as code() left them. mu: once as offset of what is decoded, once subtracted
 * before E. */
static mla_status code_back(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    const mla_local *p = &d->p;
    size_t RT = s->n * d->s.T, n = p->n, nd = d->nd, r = d->r, gs = p->groups, gn = gs * n, gd = gs * nd, gr = gs * r;
    size_t shift = d->w ? p->G * p->d : 0, free = nd - (n - shift);
    mla_status st = mla_dev_product(d, (mla_product_args){.ta = true, .M = nd, .N = r, .K = RT, .count = gs, .alpha = 1, .a = d->dY, .lda = gd, .sa = nd,
                                                  .b = d->c, .ldb = gr, .sb = r, .c = d->g[1], .ldc = r, .sc = nd * r}, err);
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.M = RT, .N = r, .K = nd, .count = gs, .alpha = 1, .a = d->dY, .lda = gd, .sa = nd,
                                                         .b = d->x[1], .ldb = r, .sb = nd * r, .c = d->dc, .ldc = gr, .sc = r}, err);
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.ta = true, .M = r, .N = n, .K = RT, .count = gs, .alpha = 1, .a = d->dc, .lda = gr, .sa = r,
                                                         .b = d->Yc, .ldb = gn, .sb = n, .c = d->g[0], .ldc = n, .sc = r * n}, err);
    if (st == MLA_OK) st = d->be->ops->zero(d->be, d->g[2], gn * 4, err);
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.M = 1, .N = n - shift, .K = RT, .count = gs, .alpha = 1, .a = d->ones, .lda = RT, .b = mla_cat(d->dY, free), .ldb = gd,
                                                         .sb = nd, .c = mla_at(d->g[2], shift), .ldc = n, .sc = n}, err);
    /* dY has served: its first numbers take the sums of dc */
    if (st == MLA_OK) st = mla_dev_product(d, (mla_product_args){.M = 1, .N = gr, .K = RT, .alpha = 1, .a = d->ones, .lda = RT, .b = d->dc, .ldb = gr, .c = d->dY, .ldc = gr}, err);
    if (st != MLA_OK) return st;
    return mla_dev_product(d, (mla_product_args){.M = 1, .N = n, .K = r, .count = gs, .alpha = -1, .beta = 1, .a = d->dY, .lda = r, .sa = r, .b = d->x[0], .ldb = n,
                                         .sb = r * n, .c = d->g[2], .ldc = n, .sc = n}, err);
}

static mla_status backward(mla_dev_local *d, const mla_dev_rows *s, mla_err *err)
{
    size_t H = d->p.H, w = d->p.d, Q = mla_dev_queries(d, s), Hd = H * w;
    mla_status st = d->s.gate ? d->be->ops->sigmoid_mul(d->be, d->B, d->gate, s->n * Q, Hd, Hd, err) : MLA_OK;
    if (st == MLA_OK) st = mla_dev_spread(d, mla_dev_parts(d->B, s->n, Q * Hd), d->oh, MLA_DIMS(H, Q, w), Q * Hd, MLA_DIMS(Q * w, w), MLA_DIMS(w, Hd), err);
    if (st == MLA_OK) st = attend_back(d, s, err);
    if (st == MLA_OK) st = d->w ? mla_dev_slots_back(d, s, err) : features_back(d, s, err);
    return st == MLA_OK ? code_back(d, s, err) : st;
}

mla_status mla_dev_local_loss(mla_dev_local *d, const mla_dev_rows *s, double *loss, bool grad, mla_err *err)
{
    mla_status st = code(d, s, err);
    if (st == MLA_OK) st = d->w ? mla_dev_slots_inputs(d, s, err) : mla_dev_queries_of(d, s, d->q, err);
    if (st == MLA_OK && !d->w) st = keys_values(d, s, mla_dev_parts(d->Yh, s->n, d->s.T * d->p.groups * d->nd), err);
    if (st == MLA_OK) st = targets_of(d, s, err);
    if (st == MLA_OK) st = attend(d, s, 1, err);
    if (st == MLA_OK) st = output_loss(d, s, loss, err);
    return st == MLA_OK && grad ? backward(d, s, err) : st;
}
