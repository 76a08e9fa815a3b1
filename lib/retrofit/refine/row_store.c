/* Packing is a strided copy per part of a row (backend/fit.h); a layer's rows are one block of memory. */
#include "retrofit/refine/row_store.h"

#include <stdlib.h>

#include "backend/fit.h"
#include "base/alloc.h"
#include "retrofit/refine/record.h"
#include "retrofit/stats/tap_host.h"

struct mla_row_store {
    mla_backend *be;
    mla_row_shape s;
    size_t n_rows, layers;
    mla_mem **layer; /* (layers); NULL: no full attention */
};

mla_status mla_row_store_new(mla_row_store **out, mla_backend *be, const mla_config *c, const mla_row_shape *s, size_t n_rows, mla_err *err)
{
    mla_row_store *r = mla_alloc(1, 1, sizeof *r);
    mla_mem *rest = NULL;
    size_t rows = n_rows * s->all * sizeof(uint16_t), all = 0; /* bytes: of a layer, of all */
    if (!r) return mla_fail(err, MLA_ENOMEM, "recorded rows");
    *r = (mla_row_store){.be = be, .s = *s, .n_rows = n_rows, .layers = c->layers, .layer = mla_alloc(c->layers, 1, sizeof *r->layer)};
    mla_status st = r->layer ? MLA_OK : mla_fail(err, MLA_ENOMEM, "recorded rows");
    for (size_t i = 0; st == MLA_OK && i < c->layers; i++)
        if (c->layer_kind[i] == MLA_LAYER_FULL) st = be->ops->alloc(be, &r->layer[i], rows, err), all += rows;
    if (st == MLA_OK) st = be->ops->alloc(be, &rest, 4 * all < MLA_ROW_STORE_REST ? 4 * all : MLA_ROW_STORE_REST, err);
    if (rest) be->ops->free(be, rest);
    if (st == MLA_OK) *out = r;
    else mla_row_store_free(r);
    return st;
}

void mla_row_store_free(mla_row_store *s)
{
    if (!s) return;
    for (size_t i = 0; s->layer && i < s->layers; i++)
        if (s->layer[i]) s->be->ops->free(s->be, s->layer[i]);
    mla_free(s->layer);
    mla_free(s);
}

mla_mem *mla_row_store_layer(const mla_row_store *s, size_t layer) { return s->layer[layer]; }

/* y = x of n[0] n[1] n[2] numbers; strides of the first two. */
static mla_status put(mla_backend *be, mla_mem *y, bool to16, const mla_mem *x, bool bf16, const size_t n[3], const size_t ys[2], const size_t xs[2], mla_err *err)
{
    mla_spread_args a = {.y = y, .x = {x}, .rows = {SIZE_MAX}, .parts = 1, .n = {n[0], n[1], n[2]}, .ys = {ys[0], ys[1], 1}, .xs = {xs[0], xs[1], 1}, .bf16 = bf16, .to16 = to16};
    return be->ops->fit->spread(be, &a, err);
}
#define DIMS(...) (const size_t[]){__VA_ARGS__}

mla_status mla_row_store_check(const mla_row_store *s, mla_err *err)
{
    mla_backend *be = s->be;
    size_t all = s->s.all, T = s->s.T;
    mla_mem *f = NULL;
    mla_range range;
    mla_status st = be->ops->alloc(be, &f, all * 4, err);
    for (size_t l = 0; st == MLA_OK && l < s->layers; l++)
        for (size_t i = 0; st == MLA_OK && s->layer[l] && i < s->n_rows; i++) {
            st = put(be, f, false, mla_at_bytes(s->layer[l], i * all * sizeof(uint16_t)), true, DIMS(1, T, all / T), DIMS(0, all / T), DIMS(0, all / T), err);
            if (st == MLA_OK) st = be->ops->range(be, f, T, all / T, all / T, &range, err);
            if (st == MLA_OK && range.nonfinite) st = mla_fail(err, MLA_EFORMAT, MLA_ROW_ODD, l);
        }
    if (f) be->ops->free(be, f);
    return st;
}

static const mla_mem *past(const mla_mem *p, size_t elems) { return (const mla_mem *)((const char *)p + elems * 4); }

mla_status mla_row_pack(const mla_rows_opts *o, const mla_row_shape *s, mla_mem *to, const mla_tap_attn *a, mla_mem *rms, mla_err *err)
{
    mla_backend *be = o->be;
    const mla_config *c = mla_model_config(o->model);
    size_t T = s->T, H = c->heads, G = c->kv_heads, d = c->head_dim, rot = c->rope.rot, per = G / o->groups, hk = T * G * d;
    size_t dk = mla_layout_key_dims(c, o->layout), n = per * (dk + d), ld = o->groups * n, at = s->q;
    const mla_mem *k = s->rms ? a->k_pre : a->k;
    mla_status st = put(be, to, true, a->q_rot, false, DIMS(1, T, H * d), DIMS(0, H * d), DIMS(0, H * d), err);
    for (size_t g = 0; st == MLA_OK && g < o->groups; g++) { /* a group's keys, then its values */
        st = put(be, mla_at_bytes(to, 2 * (at + g * n)), true, past(k, g * per * d + d - dk), false, DIMS(T, per, dk), DIMS(ld, dk), DIMS(G * d, d), err);
        if (st == MLA_OK) st = put(be, mla_at_bytes(to, 2 * (at + g * n + per * dk)), true, past(a->v, g * per * d), false, DIMS(T, per, d), DIMS(ld, d), DIMS(G * d, d), err);
    }
    at += s->y;
    if (st == MLA_OK && s->k) st = put(be, mla_at_bytes(to, 2 * at), true, a->k_rot, false, DIMS(T, G, rot), DIMS(G * rot, rot), DIMS(G * d, d), err);
    at += s->k;
    if (st == MLA_OK && s->rms) {
        float *f = mla_alloc_raw(hk + T * G, 1, sizeof *f);
        if (!f) return mla_fail(err, MLA_ENOMEM, "keys of %zu tokens", T);
        st = mla_tap_fetch(be, f, k, hk, err);
        if (st == MLA_OK) mla_inverse_rms(f + hk, f, T * G, d, c->rms_eps);
        if (st == MLA_OK) st = be->ops->upload(be, rms, f + hk, T * G * 4, err);
        mla_free(f);
        if (st == MLA_OK) st = put(be, mla_at_bytes(to, 2 * at), true, rms, false, DIMS(1, T, G), DIMS(0, G), DIMS(0, G), err);
    }
    at += s->rms;
    if (st != MLA_OK || !s->gate) return st;
    return put(be, mla_at_bytes(to, 2 * at), true, a->gate, false, DIMS(T, H, d), DIMS(H * d, d), DIMS(a->gate_ld, a->gate_h), err);
}
