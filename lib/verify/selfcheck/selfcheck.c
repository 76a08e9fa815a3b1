/* One attention case: fill a paged cache, run the backend, compare with fp64. */
#include "verify/selfcheck/selfcheck.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "base/rng.h"
#include "tensor/bound.h"
#include "tensor/fp.h"
#include "tensor/kv_row.h"

#define BLOCKS 4
#define TAIL 7 /* tokens of the last block: not full */
#define SEED 20260101

/* A row of the cache: parts side by side. GQA keeps keys and values in two pools with the same table. */
typedef struct {
    size_t S, T, H, row;            /* cached tokens, queries, heads, values per row */
    size_t width[2];                /* of the two parts; two pools: of a row in each */
    mla_kv_row store;               /* of pool 0 */
    size_t dk, dk2, dv;             /* per head */
    size_t kh, k2h, vh;
    size_t k_stride, k2_stride, v_stride;
    bool two_pools;
    float kv_scale;
} dims;

typedef struct {
    mla_backend *be;
    mla_mem *pool[2], *q, *q2, *o, *rows;
    int32_t pages[BLOCKS];
    float *x[2];                    /* (S, row) what is written, then what must read back */
    float *hq, *hq2, *ho;           /* (T, H, dk | dk2 | dv) host */
    double *p, *mag;                /* (S) probabilities; (S) sum |q k| of a logit */
} work;

static dims dims_of(const mla_selfcheck_shape *s, const mla_selfcheck_case *c)
{
    dims d = {.S = (BLOCKS - 1) * c->page + TAIL, .T = c->queries, .H = s->heads, .kv_scale = 1};
    if (c->dtype == MLA_F8_E4M3) d.kv_scale = 5.0f / 448;
    if (s->dim) {
        d.two_pools = true;
        d.row = s->kv_heads * s->dim;
        d.width[0] = d.width[1] = d.row;
        d.dk = d.dv = d.k_stride = d.v_stride = s->dim;
        d.kh = d.vh = s->kv_heads;
        return d;
    }
    d.row = s->rank + s->kv_heads * s->rot;
    d.dk = d.dv = s->rank / s->groups;
    d.kh = d.vh = s->groups;
    d.k_stride = d.v_stride = s->groups > 1 ? d.dk : 0;
    d.dk2 = s->rot;
    d.k2h = s->rot ? s->kv_heads : 1;
    d.k2_stride = s->kv_heads > 1 ? s->rot : 0;
    d.width[0] = s->rank;
    d.width[1] = s->kv_heads * s->rot;
    d.store = mla_kv_row_of((mla_kv_type){c->dtype, c->keys16}, (const size_t[MLA_KV_PARTS]){d.width[0], d.width[1], 0}, true);
    return d;
}

/* What a value must read back as after storing: this file's own rounding. */
static float stored(float x, mla_dtype t, float scale)
{
    switch (t) {
    case MLA_BF16: return mla_bf16_f32(mla_f32_bf16(x));
    case MLA_F8_E4M3: return mla_e4m3_f32(mla_f32_e4m3(x / scale)) * scale;
    default: return x;
    }
}

static void draw(float *x, size_t n, uint64_t stream)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)mla_rng_normal(SEED + stream, i);
}

/* Part 0 or 1 of the cache: in two pools, or side by side in one. */
static mla_kv_view view(const work *w, const dims *d, const mla_selfcheck_case *c, size_t part, size_t stride)
{
    mla_dtype t = d->two_pools ? (c->keys16 && !part ? MLA_BF16 : c->dtype) : d->store.dtype[part];
    size_t e = mla_dtype_bits(t) / 8;
    return (mla_kv_view){.data = w->pool[d->two_pools ? part : 0], .pages = w->pages, .page_tokens = c->page,
                         .row_elems = d->two_pools ? d->row : d->store.bytes / e, .col = d->two_pools ? 0 : d->store.at[part] / e,
                         .head_stride = stride, .dtype = t, .scale = t == MLA_F8_E4M3 ? d->kv_scale : 1};
}

/* Blocks: the first, a middle one, the last, the second. far: the last block begins beyond 2^31 / row. Memory is touched where tokens lie. */
static mla_status place(work *w, const dims *d, const mla_selfcheck_case *c, mla_selfcheck_result *r, mla_err *err)
{
    size_t slots = 64 * c->page, bytes, limit = ((size_t)1 << 31) / d->row;
    if (c->far) slots = (limit / c->page + 3) * c->page;
    if (c->slots) slots = (c->slots / c->page + (c->slots % c->page > 0)) * c->page;
    size_t blocks = slots / c->page;
    if (blocks < BLOCKS || blocks > INT32_MAX)
        return mla_fail(err, MLA_EINVAL, "a cache of %zu slots: expected %d to %d blocks of %zu, found %zu", c->slots, BLOCKS, INT32_MAX, c->page, blocks);
    w->pages[0] = 0;
    w->pages[1] = (int32_t)(blocks / 2);
    w->pages[2] = (int32_t)(blocks - 1);
    w->pages[3] = 1;
    r->row_values = d->row;
    r->pool_slots = slots;
    r->farthest_slot = slots - 1;
    for (size_t i = 0; i < (d->two_pools ? 2u : 1u); i++) {
        mla_kv_view v = view(w, d, c, i, 0);
        if (!mla_mul(&bytes, slots, v.row_elems) || !mla_mul(&bytes, bytes, mla_dtype_bits(v.dtype) / 8))
            return mla_fail(err, MLA_ENOMEM, "pool of %zu slots", slots);
        mla_status st = w->be->ops->alloc(w->be, &w->pool[i], bytes, err);
        if (st != MLA_OK) return st;
    }
    return MLA_OK;
}

static mla_status make_host(work *w, const dims *d, mla_err *err)
{
    size_t qn = d->T * d->H;
    w->x[0] = mla_alloc(d->S, d->row, sizeof(float));
    w->x[1] = d->two_pools ? mla_alloc(d->S, d->row, sizeof(float)) : NULL;
    w->hq = mla_alloc(qn, d->dk, sizeof(float));
    w->hq2 = mla_alloc(qn, d->dk2, sizeof(float));
    w->ho = mla_alloc(qn, d->dv, sizeof(float));
    w->p = mla_alloc(d->S, 1, sizeof(double));
    w->mag = mla_alloc(d->S, 1, sizeof(double));
    bool ok = w->x[0] && (!d->two_pools || w->x[1]) && w->hq && w->hq2 && w->ho && w->p && w->mag;
    if (!ok) return mla_fail(err, MLA_ENOMEM, "%zu cached tokens", d->S);
    draw(w->x[0], d->S * d->row, 1);
    if (d->two_pools) draw(w->x[1], d->S * d->row, 2);
    draw(w->hq, qn * d->dk, 3);
    draw(w->hq2, qn * d->dk2, 4);
    return MLA_OK;
}

static mla_status make_device(work *w, const dims *d, mla_err *err)
{
    const mla_backend_ops *op = w->be->ops;
    size_t qn = d->T * d->H;
    mla_status st = op->alloc(w->be, &w->q, qn * d->dk * 4, err);
    if (st == MLA_OK && d->dk2) st = op->alloc(w->be, &w->q2, qn * d->dk2 * 4, err);
    if (st == MLA_OK) st = op->alloc(w->be, &w->o, qn * d->dv * 4, err);
    if (st == MLA_OK) st = op->alloc(w->be, &w->rows, d->S * d->row * 4, err);
    if (st == MLA_OK) st = op->upload(w->be, w->q, w->hq, qn * d->dk * 4, err);
    if (st == MLA_OK && d->dk2) st = op->upload(w->be, w->q2, w->hq2, qn * d->dk2 * 4, err);
    return st;
}

/* Writes a part, replaces it by what must read back, and counts what reads back otherwise. x: its first value, d->row apart. */
static mla_status fill_part(work *w, const dims *d, const mla_selfcheck_case *c, size_t part, float *x, float *back, mla_selfcheck_result *r, mla_err *err)
{
    const mla_backend_ops *op = w->be->ops;
    mla_kv_view v = view(w, d, c, part, 0);
    size_t width = d->width[part], n = (d->S - 1) * d->row + width;
    if (!width) return MLA_OK;
    mla_status st = op->upload(w->be, w->rows, x, n * 4, err);
    if (st == MLA_OK) st = op->kv_write(w->be, &(mla_kv_write_args){.to = v, .x = w->rows, .ldx = d->row, .T = d->S, .width = width}, err);
    if (st == MLA_OK) st = op->zero(w->be, w->rows, n * 4, err);
    if (st == MLA_OK) st = op->kv_read(w->be, &(mla_kv_read_args){.from = v, .y = w->rows, .ldy = d->row, .n = d->S, .width = width}, err);
    if (st == MLA_OK) st = op->download(w->be, back, w->rows, n * 4, err);
    for (size_t s = 0; s < d->S && st == MLA_OK; s++)
        for (size_t k = s * d->row; k < s * d->row + width; k++) {
            x[k] = stored(x[k], v.dtype, v.scale);
            r->stored_wrong += !(fabsf(back[k] - x[k]) <= 0x1p-22f * fabsf(x[k]));
        }
    return st;
}

static mla_status fill(work *w, const dims *d, const mla_selfcheck_case *c, mla_selfcheck_result *r, mla_err *err)
{
    float *back = mla_alloc(d->S, d->row, sizeof(float));
    mla_status st = back ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu cached tokens", d->S);
    for (size_t i = 0; i < 2 && st == MLA_OK; i++)
        st = fill_part(w, d, c, i, d->two_pools ? w->x[i] : w->x[0] + i * d->width[0], back, r, err);
    mla_free(back);
    return st;
}

static mla_status attend(work *w, const dims *d, const mla_selfcheck_case *c, float scale, mla_err *err)
{
    mla_attn_args a = {
        .o = w->o, .ldo = d->H * d->dv, .q = w->q, .ldq = d->H * d->dk, .qh_stride = d->dk,
        .k = view(w, d, c, 0, d->k_stride), .v = view(w, d, c, d->two_pools ? 1 : 0, d->v_stride),
        .kh = d->kh, .vh = d->vh, .k2h = d->k2h ? d->k2h : 1, .T = d->T, .H = d->H, .dk = d->dk, .dk2 = d->dk2, .dv = d->dv,
        .pos0 = d->S - d->T, .scale = scale,
    };
    if (d->dk2) {
        a.q2 = w->q2;
        a.ldq2 = d->H * d->dk2;
        a.q2h_stride = d->dk2;
        a.k2 = view(w, d, c, 1, d->k2_stride);
    }
    mla_status st = w->be->ops->attention(w->be, &a, err);
    return st == MLA_OK ? w->be->ops->download(w->be, w->ho, w->o, d->T * d->H * d->dv * 4, err) : st;
}

/* Head h of query t in fp64; every output against its bound. */
static void judge(const work *w, const dims *d, size_t t, size_t h, double scale, mla_selfcheck_result *r)
{
    const float *q = w->hq + (t * d->H + h) * d->dk, *q2 = w->hq2 + (t * d->H + h) * d->dk2, *o = w->ho + (t * d->H + h) * d->dv;
    const float *v0 = d->two_pools ? w->x[1] : w->x[0];
    size_t n = d->S - d->T + t + 1, kh = h * d->kh / d->H, vh = h * d->vh / d->H, k2h = d->dk2 ? h * d->k2h / d->H : 0;
    double top = -INFINITY, sum = 0, logit_error = 0, g = mla_gamma_prob(MLA_F32, d->dk + d->dk2 + 4), u = mla_dtype_eps(MLA_F32);
    for (size_t s = 0; s < n; s++) {
        const float *k = w->x[0] + s * d->row + kh * d->k_stride, *k2 = w->x[0] + s * d->row + d->width[0] + k2h * d->k2_stride;
        double l = 0, m = 0;
        for (size_t i = 0; i < d->dk; i++) l += (double)q[i] * k[i], m += fabs((double)q[i] * k[i]);
        for (size_t i = 0; i < d->dk2; i++) l += (double)q2[i] * k2[i], m += fabs((double)q2[i] * k2[i]);
        w->p[s] = l * scale;
        w->mag[s] = m * scale;
        if (w->p[s] > top) top = w->p[s];
    }
    for (size_t s = 0; s < n; s++) {
        double e = g * w->mag[s] + 4 * u * (fabs(w->p[s]) + fabs(top));
        if (e > logit_error) logit_error = e;
        w->p[s] = exp(w->p[s] - top);
        sum += w->p[s];
    }
    double relative = 2 * logit_error + mla_gamma_prob(MLA_F32, 2 * n + 16) + 8 * u; /* of a probability and of the sums */
    for (size_t i = 0; i < d->dv; i++) {
        double want = 0, mag = 0;
        for (size_t s = 0; s < n; s++) {
            double x = w->p[s] / sum * v0[s * d->row + vh * d->v_stride + i];
            want += x;
            mag += fabs(x);
        }
        double error = fabs((double)o[i] - want), bound = relative * mag + 1e-37;
        if (!isfinite(o[i])) {
            r->nonfinite++;
            continue;
        }
        if (error > r->max_error) r->max_error = error;
        if (error / bound > r->worst) r->worst = error / bound;
    }
}

bool mla_selfcheck_ok(const mla_selfcheck_result *r) { return r->nonfinite == 0 && r->stored_wrong == 0 && r->worst <= 1; }

mla_status mla_selfcheck_run(mla_selfcheck_result *out, mla_backend *be, const mla_selfcheck_shape *s, const mla_selfcheck_case *c, mla_err *err)
{
    dims d = dims_of(s, c);
    work w = {.be = be};
    mla_selfcheck_result r = {0};
    float scale = (float)(1 / sqrt((double)(s->dim ? s->dim : d.dk + d.dk2)));
    mla_status st = place(&w, &d, c, &r, err);
    if (st == MLA_OK) st = make_host(&w, &d, err);
    if (st == MLA_OK) st = make_device(&w, &d, err);
    if (st == MLA_OK) st = fill(&w, &d, c, &r, err);
    if (st == MLA_OK) st = attend(&w, &d, c, scale, err);
    for (size_t t = 0; t < d.T && st == MLA_OK; t++)
        for (size_t h = 0; h < d.H; h++) judge(&w, &d, t, h, (double)scale, &r);
    mla_mem *const mem[] = {w.pool[0], w.pool[1], w.q, w.q2, w.o, w.rows};
    for (size_t i = 0; i < sizeof mem / sizeof *mem; i++)
        if (mem[i]) be->ops->free(be, mem[i]);
    void *const host[] = {w.x[0], w.x[1], w.hq, w.hq2, w.ho, w.p, w.mag};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) mla_free(host[i]);
    *out = r;
    return st;
}
