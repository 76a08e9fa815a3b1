/* One block of f64 sums per layer on the device: [M | kappa | Q | turn | wsum | GG]. */
#include "retrofit/stats/device.h"

#include "base/alloc.h"
#include "model/config.h"

enum { PARTS = 6 };

struct mla_dev_moments {
    mla_backend *be;
    mla_layer_stats shape; /* sizes only */
    mla_moment_opts o;
    size_t layers, part[PARTS], all; /* numbers of each part and of a block */
    mla_mem **sums, **R;   /* (layers) blocks and roots; NULL: not there yet */
    mla_mem *cos, *sin, *gain, *inv2;
    double *host;          /* (all) */
};

static mla_status rotation(mla_dev_moments *m, size_t T, mla_err *err)
{
    const mla_backend_ops *op = m->be->ops;
    size_t half = m->o.rot / 2, n = T * half;
    float *c = mla_alloc_raw(n + 1, 2, sizeof *c);
    if (!c) return mla_fail(err, MLA_ENOMEM, "rotation of %zu tokens", T);
    mla_rope_table(m->o.inv_freq, half, T, 1, c, c + n);
    mla_status st = op->alloc(m->be, &m->cos, n * 4, err);
    if (st == MLA_OK) st = op->alloc(m->be, &m->sin, n * 4, err);
    if (st == MLA_OK) st = op->upload(m->be, m->cos, c, n * 4, err);
    if (st == MLA_OK) st = op->upload(m->be, m->sin, c + n, n * 4, err);
    mla_free(c);
    return st;
}

mla_status mla_dev_moments_new(mla_dev_moments **out, mla_backend *be, size_t layers, const mla_layer_stats *shape, size_t max_T,
                               const mla_moment_opts *o, mla_err *err)
{
    const mla_layer_stats *s = shape;
    mla_dev_moments *m = mla_alloc(1, 1, sizeof *m);
    if (!m) return mla_fail(err, MLA_ENOMEM, "moments");
    m->be = be;
    m->shape = *shape;
    m->o = *o;
    m->layers = layers;
    const size_t part[PARTS] = {s->G * s->dk * s->dk, s->H * s->H, s->half ? s->H * s->dk * s->dk : 0, s->H * s->half * 3, 1, s->gate_blocks * s->gate_dim * s->gate_dim};
    for (size_t i = 0; i < PARTS; i++) m->all += m->part[i] = part[i];
    m->sums = mla_alloc(layers, 1, sizeof(mla_mem *));
    m->R = mla_alloc(layers, 1, sizeof(mla_mem *));
    m->host = mla_alloc_raw(m->all, 1, sizeof *m->host);
    mla_status st = m->sums && m->R && m->host ? MLA_OK : mla_fail(err, MLA_ENOMEM, "moments of %zu layers", layers);
    if (st == MLA_OK) st = rotation(m, max_T, err);
    if (st == MLA_OK) st = be->ops->alloc(be, &m->gain, s->dk * 4 + 4, err);
    if (st == MLA_OK) st = be->ops->alloc(be, &m->inv2, max_T * s->G * 4, err);
    if (st == MLA_OK) *out = m;
    else mla_dev_moments_free(m);
    return st;
}

static void drop(mla_dev_moments *m, mla_mem **p)
{
    if (*p) m->be->ops->free(m->be, *p);
    *p = NULL;
}

void mla_dev_moments_free(mla_dev_moments *m)
{
    if (!m) return;
    for (size_t i = 0; m->sums && i < m->layers; i++) drop(m, &m->sums[i]);
    for (size_t i = 0; m->R && i < m->layers; i++) drop(m, &m->R[i]);
    mla_mem **one[] = {&m->cos, &m->sin, &m->gain, &m->inv2};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) drop(m, one[i]);
    mla_free(m->sums);
    mla_free(m->R);
    mla_free(m->host);
    mla_free(m);
}

/* Layer i's sums and roots, made with its first row. */
static mla_status ready(mla_dev_moments *m, size_t i, const double *R, mla_err *err)
{
    const mla_backend_ops *op = m->be->ops;
    size_t n = m->shape.H * m->shape.d * m->shape.d;
    mla_status st = MLA_OK;
    if (!m->sums[i]) {
        st = op->alloc(m->be, &m->sums[i], m->all * 8, err);
        if (st == MLA_OK) st = op->zero(m->be, m->sums[i], m->all * 8, err);
    }
    if (st != MLA_OK || !R || m->R[i]) return st;
    float *f = mla_alloc_raw(n, 1, sizeof *f);
    if (!f) return mla_fail(err, MLA_ENOMEM, "value metric");
    for (size_t k = 0; k < n; k++) f[k] = (float)R[k];
    st = op->alloc(m->be, &m->R[i], n * 4, err);
    if (st == MLA_OK) st = op->upload(m->be, m->R[i], f, n * 4, err);
    mla_free(f);
    return st;
}

mla_status mla_dev_moments_add(mla_dev_moments *m, size_t i, const mla_tap_attn *a, size_t T, const double *R, const float *gain,
                               const float *inv2, mla_mem *w, mla_err *err)
{
    const mla_layer_stats *s = &m->shape;
    const mla_backend_ops *op = m->be->ops;
    mla_status st = ready(m, i, R, err);
    if (st == MLA_OK && gain) st = op->upload(m->be, m->gain, gain, s->dk * 4, err);
    if (st == MLA_OK && inv2) st = op->upload(m->be, m->inv2, inv2, T * s->G * 4, err);
    if (st != MLA_OK) return st;
    mla_mem *at[PARTS];
    size_t n = 0;
    for (size_t k = 0; k < PARTS; n += m->part[k++]) at[k] = mla_at_bytes(m->sums[i], n * 8);
    mla_moments_args g = {.T = T, .H = s->H, .G = s->G, .d = s->d, .dk = s->dk, .rot = m->o.rot, .q = a->q, .q_rot = a->q_rot, .k_rot = a->k_rot, .v = a->v,
                          .o = a->o, .gate = s->gate_blocks ? a->gate : NULL, .gate_ld = a->gate_ld, .gate_h = a->gate_h, .inv2 = inv2 ? m->inv2 : NULL,
                          .gain = gain ? m->gain : NULL, .R = m->R[i], .cos = m->cos, .sin = m->sin, .attn_scale = (float)m->o.attn_scale,
                          .rope_gain = (float)m->o.rope_gain, .gate_only = !R, .M = at[0], .kappa = at[1], .GG = at[5], .gate_blocks = s->gate_blocks,
                          .gate_dim = s->gate_dim, .Q = s->half ? at[2] : NULL, .turn = s->half ? at[3] : NULL, .wsum = at[4], .w = w};
    return op->moments(m->be, &g, err);
}

mla_status mla_dev_features(mla_dev_moments *m, mla_mem *y, const mla_mem *k, const mla_mem *v, size_t T, mla_err *err)
{
    const mla_layer_stats *s = &m->shape;
    size_t w = s->G * s->d;
    mla_status st = MLA_OK;
    for (size_t g = 0; g < s->G && st == MLA_OK; g++)
        st = m->be->ops->copy_rows(m->be, mla_at(y, g * s->dk), s->n, (const mla_mem *)((const char *)k + (g * s->d + s->d - s->dk) * 4), w, T, s->dk, err);
    return st == MLA_OK ? m->be->ops->copy_rows(m->be, mla_at(y, s->G * s->dk), s->n, v, w, T, w, err) : st;
}

mla_status mla_dev_moments_take(mla_dev_moments *m, size_t i, mla_layer_stats *l, mla_err *err)
{
    double *to[PARTS] = {l->M, l->kappa, l->Q, l->turn, &l->wsum, l->GG};
    if (!m->sums[i]) return MLA_OK;
    mla_status st = MLA_OK;
    bool first = l->wsum == 0 && !(l->gate_blocks && l->GG[0] > 0); /* nothing has been added yet: sums go where they belong */
    for (size_t k = 0, at = 0; k < PARTS && st == MLA_OK; at += m->part[k++]) {
        if (!m->part[k]) continue;
        st = m->be->ops->download(m->be, first ? to[k] : m->host, mla_at_bytes(m->sums[i], at * 8), m->part[k] * 8, err);
        for (size_t j = 0; j < m->part[k] && !first; j++) to[k][j] += m->host[j];
    }
    drop(m, &m->sums[i]);
    return st;
}
