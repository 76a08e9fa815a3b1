/* Projections of a latent on the device: E and D of a retrofit, or kv_b of a stored DeepSeek layer, cut into the
 * pieces that absorbed and expanded attention need. */
#include <string.h>

#include "base/alloc.h"
#include "runtime/rt.h"

/* Rows of a host matrix as a weight sees them: element (i, j) = a[(i / blk) blk_ld + (i % blk) row_ld + j col_ld]. */
typedef struct {
    const float *a;
    size_t blk, blk_ld, row_ld, col_ld, in;
} part;

static mla_status part_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    const part *p = ctx;
    (void)err;
    for (size_t i = row0; i < row0 + n; i++) {
        const float *a = p->a + i / p->blk * p->blk_ld + i % p->blk * p->row_ld;
        if (p->col_ld == 1) memcpy(dst, a, p->in * sizeof *dst);
        else
            for (size_t j = 0; j < p->in; j++) dst[j] = a[j * p->col_ld];
        dst += p->in;
    }
    return MLA_OK;
}

static mla_status new_part(mla_rt *rt, rt_lin *l, size_t out, part p, mla_err *err)
{
    return rt_lin_new(rt, l, &(mla_weight_desc){.out = out, .in = p.in, .precision = rt->o.precision, .rows = part_rows, .ctx = &p}, err);
}

/* Where the rows of head i of a group stand in D (nd, r): keys at i kstep, values at v0 + i / share vstep, their means
 * at m0 + i / share vstep of mu. */
typedef struct {
    const float *D, *mu; /* (groups, nd, r), (groups, n) or NULL */
    size_t nd, n, kstep, v0, m0, vstep, share;
} up_rows;

/* Layout P: D_K,g transposed, and mu_K,g as one more row: q's product with it is what the mean adds to the logit. */
static mla_status load_key_p(mla_rt *rt, rt_lin *l, const float *D, const float *mu, const rt_dims *m, mla_err *err)
{
    size_t r = m->r, dn = m->dn;
    float *t = mla_alloc_raw(r + 1, dn, sizeof *t);
    if (!t) return mla_fail(err, MLA_ENOMEM, "latent of rank %zu", r);
    for (size_t i = 0; i < r; i++)
        for (size_t j = 0; j < dn; j++) t[i * dn + j] = D[j * r + i];
    memcpy(t + r * dn, mu, dn * sizeof *t);
    mla_status st = new_part(rt, l, r + 1, (part){t, r + 1, 0, dn, 1, dn}, err);
    mla_free(t);
    return st;
}

static mla_status load_up(mla_rt *rt, rt_layer *l, const up_rows *u, mla_err *err)
{
    const rt_dims *m = &l->dim;
    rt_latent *lat = &l->lat;
    size_t per = m->kh / m->groups, r = m->r;
    bool rebuild = l->kind == RT_LATENT_REBUILD;
    lat->key = mla_alloc(m->groups, sizeof *lat->key, 1);
    lat->val = mla_alloc(m->kh, sizeof *lat->val, 1);
    lat->key_t = rebuild ? NULL : mla_alloc(m->kh, sizeof *lat->key_t, 1);
    if (!lat->key || !lat->val || (!rebuild && !lat->key_t)) return mla_fail(err, MLA_ENOMEM, "latent of %zu heads", m->kh);
    for (size_t a = 0; a < m->groups; a++) {
        const float *D = u->D + a * u->nd * r;
        RT_TRY(new_part(rt, &lat->key[a], per * m->dn, (part){D, m->dn, u->kstep * r, r, 1, r}, err));
        if (rebuild || m->divs) RT_TRY(rt_upload(rt, &lat->key[a].bias, u->mu + a * u->n, per * m->dn, err));
        for (size_t i = 0; i < per; i++) {
            size_t g = a * per + i, v = u->v0 + i / u->share * u->vstep;
            if (m->divs) RT_TRY(load_key_p(rt, &lat->key_t[g], D + i * u->kstep * r, u->mu + a * u->n + i * u->kstep, m, err));
            else if (!rebuild) RT_TRY(new_part(rt, &lat->key_t[g], r, (part){D + i * u->kstep * r, r, 0, 1, r, m->dn}, err));
            RT_TRY(new_part(rt, &lat->val[g], m->dv, (part){D + v * r, m->dv, 0, r, 1, r}, err));
            if (u->mu) RT_TRY(rt_upload(rt, &lat->val[g].bias, u->mu + a * u->n + u->m0 + i / u->share * u->vstep, m->dv, err));
        }
    }
    return MLA_OK;
}

/* Layout P: the latent gives keys before their norm. Its gain and the divisors' centres go into the decoder's key rows:
 * logit = rotary part + (D' c + mu') . q / (rms / center), D' = gain D / center. */
static mla_status load_p(mla_rt *rt, rt_layer *l, mla_err *err)
{
    const mla_factors *f = &l->f;
    const rt_dims *m = &l->dim;
    size_t per = m->G / m->groups, n = f->n, r = f->r;
    float *gain = NULL, *D = mla_alloc_raw(f->groups * n, r, sizeof *D), *mu = mla_alloc_raw(f->groups, n, sizeof *mu);
    float *center = mla_alloc_raw(m->G, 1, sizeof *center);
    mla_status st = D && mu && center ? mla_model_vec(rt->model, MLA_W_K_NORM, l->index, m->d, &gain, err)
                                      : mla_fail(err, MLA_ENOMEM, "latent of %zu features", n);
    if (st == MLA_OK) {
        memcpy(D, f->D, f->groups * n * r * sizeof *D);
        memcpy(mu, f->mu, f->groups * n * sizeof *mu);
        for (size_t g = 0; g < m->G; g++) {
            center[g] = f->center ? f->center[g] : 1;
            for (size_t j = 0; j < m->dn; j++) {
                size_t row = g / per * n + g % per * m->dn + j;
                float s = gain[m->q_nope + j] / center[g];
                for (size_t k = 0; k < r; k++) D[row * r + k] *= s;
                mu[row] *= s;
            }
        }
        st = rt_upload(rt, &l->lat.center, center, m->G, err);
    }
    if (st == MLA_OK) st = load_up(rt, l, &(up_rows){D, mu, n, n, m->dn, per * m->dn, per * m->dn, m->dv, 1}, err);
    mla_free(gain);
    mla_free(D);
    mla_free(mu);
    mla_free(center);
    return st;
}

mla_status rt_latent_load(mla_rt *rt, rt_layer *l, mla_err *err)
{
    const mla_factors *f = &l->f;
    const rt_dims *m = &l->dim;
    rt_latent *lat = &l->lat;
    size_t per = m->G / m->groups;
    lat->enc = mla_alloc(f->groups, sizeof *lat->enc, 1);
    if (!lat->enc) return mla_fail(err, MLA_ENOMEM, "latent of %zu groups", f->groups);
    for (size_t a = 0; a < f->groups; a++)
        RT_TRY(new_part(rt, &lat->enc[a], f->r, (part){f->E + a * f->r * f->n, f->r, 0, f->n, 1, f->n}, err));
    RT_TRY(rt_upload(rt, &lat->mu, f->mu, f->groups * f->n, err));
    if (m->divs) return load_p(rt, l, err);
    if (l->kind != RT_LATENT_ABSORBED)
        return load_up(rt, l, &(up_rows){f->D, f->mu, f->n, f->n, m->dn, per * m->dn, per * m->dn, m->dv, 1}, err);
    RT_TRY(new_part(rt, &lat->rot, f->w, (part){f->Er, f->w, 0, m->G * m->d, 1, m->G * m->d}, err));
    lat->query = mla_alloc(m->G, sizeof *lat->query, 1);
    if (!lat->query) return mla_fail(err, MLA_ENOMEM, "rotary queries of %zu heads", m->G);
    for (size_t g = 0; g < m->G; g++)
        RT_TRY(new_part(rt, &lat->query[g], f->w, (part){f->Rq + g * f->w * m->d, f->w, 0, m->d, 1, m->d}, err));
    return load_up(rt, l, &(up_rows){f->D, f->mu, f->nd, f->n, m->d, m->H * m->d, m->G * m->d, m->dv, m->H / m->G}, err);
}

mla_status rt_shared_load(mla_rt *rt, rt_layer *l, mla_err *err)
{
    const mla_shared *s = &l->sh;
    size_t w = s->R * s->rot, Hd = s->H * s->d;
    l->lat.enc = mla_alloc(1, sizeof *l->lat.enc, 1);
    l->sh_query = mla_alloc(s->H, sizeof *l->sh_query, 1);
    if (!l->lat.enc || !l->sh_query) return mla_fail(err, MLA_ENOMEM, "latent of %zu heads", s->H);
    RT_TRY(new_part(rt, &l->lat.enc[0], s->r, (part){s->E, s->r, 0, s->D, 1, s->D}, err));
    RT_TRY(new_part(rt, &l->sh_key, w, (part){s->KR, w, 0, s->D, 1, s->D}, err));
    for (size_t h = 0; h < s->H; h++) RT_TRY(new_part(rt, &l->sh_query[h], w, (part){s->Q2 + h * w * s->rot, w, 0, s->rot, 1, s->rot}, err));
    /* K and V stand one after the other like the rows of a decoder; mu is of the values alone */
    return load_up(rt, l, &(up_rows){s->K, s->mu, 2 * Hd, Hd, s->d, Hd, 0, s->d, 1}, err);
}

void rt_latent_drop(mla_rt *rt, rt_layer *l)
{
    rt_latent *lat = &l->lat;
    for (size_t h = 0; l->sh_query && h < l->dim.H; h++) rt_lin_free(rt, &l->sh_query[h]);
    mla_free(l->sh_query);
    l->sh_query = NULL;
    rt_lin_free(rt, &l->sh_key);
    for (size_t a = 0; a < l->dim.groups; a++) {
        if (lat->enc) rt_lin_free(rt, &lat->enc[a]);
        if (lat->key) rt_lin_free(rt, &lat->key[a]);
    }
    for (size_t g = 0; lat->query && g < l->dim.G; g++) rt_lin_free(rt, &lat->query[g]);
    rt_lin_free(rt, &lat->rot);
    mla_free(lat->query);
    for (size_t g = 0; g < l->dim.kh; g++) {
        if (lat->key_t) rt_lin_free(rt, &lat->key_t[g]);
        if (lat->val) rt_lin_free(rt, &lat->val[g]);
    }
    mla_free(lat->enc);
    mla_free(lat->key);
    mla_free(lat->key_t);
    mla_free(lat->val);
    rt_buf_free(rt, &lat->mu);
    rt_buf_free(rt, &lat->center);
    *lat = (rt_latent){0};
}

/* --- stored DeepSeek attention ------------------------------------------------------------------------------- */

typedef struct { /* a stored matrix whose rotary rows stand as interleaved pairs: new j <- 2j, new j + rot/2 <- 2j + 1 */
    mla_mat m;
    size_t head, first, rot; /* rows per head, first rotary row within it, rotary rows */
    bool pairs;
} ds_src;

/* Where row i of such a matrix is stored. */
static size_t ds_row(const ds_src *s, size_t i)
{
    size_t in_head = i % s->head;
    if (!s->pairs || in_head < s->first) return i;
    size_t j = in_head - s->first, half = s->rot / 2;
    return i - in_head + s->first + (j < half ? 2 * j : 2 * (j - half) + 1);
}

static mla_status ds_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    const ds_src *s = ctx;
    if (!s->pairs) return mla_mat_rows(&s->m, row0, n, dst, err);
    for (size_t i = row0; i < row0 + n; i++, dst += s->m.in) RT_TRY(mla_mat_rows(&s->m, ds_row(s, i), 1, dst, err));
    return MLA_OK;
}

static mla_status ds_kv_bias(mla_rt *rt, rt_layer *l, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t n = m->r + m->rot;
    ds_src s = {.head = n, .first = m->r, .rot = m->rot, .pairs = rt->cfg->rope.interleaved_pairs};
    float *from, *to = mla_alloc(n, 1, sizeof *to);
    if (!to) return mla_fail(err, MLA_ENOMEM, "bias of %zu values", n);
    mla_status st = mla_model_vec(rt->model, MLA_W_DS_KV_A_BIAS, l->index, n, &from, err);
    for (size_t i = 0; st == MLA_OK && i < n; i++) to[i] = from[ds_row(&s, i)];
    if (st == MLA_OK) {
        mla_free(from);
        st = rt_upload(rt, &l->ds_kv_a.bias, to, n, err);
    }
    mla_free(to);
    return st;
}

static mla_status ds_lin(mla_rt *rt, rt_lin *l, mla_wkind k, const rt_layer *layer, size_t head, mla_err *err)
{
    const rt_dims *m = &layer->dim;
    ds_src s = {.head = head, .first = head - m->rot, .rot = m->rot, .pairs = rt->cfg->rope.interleaved_pairs};
    RT_TRY(mla_model_mat(rt->model, k, layer->index, &s.m, err));
    return rt_lin_new(rt, l, &(mla_weight_desc){.out = s.m.out, .in = s.m.in, .precision = rt->o.precision, .rows = ds_rows, .ctx = &s}, err);
}

mla_status rt_ds_load(mla_rt *rt, rt_layer *l, mla_err *err)
{
    const mla_config *c = rt->cfg;
    const rt_dims *m = &l->dim;
    size_t i = l->index, n = m->H * (m->dn + m->dv);
    if (c->q_lora_rank) {
        RT_TRY(rt_lin_model(rt, &l->ds_q_a, MLA_W_DS_Q_A, i, err));
        if (mla_model_has(rt->model, MLA_W_DS_Q_A_BIAS, i)) RT_TRY(rt_vec(rt, &l->ds_q_a.bias, MLA_W_DS_Q_A_BIAS, i, c->q_lora_rank, err));
        RT_TRY(rt_vec(rt, &l->ds_q_a_norm, MLA_W_DS_Q_A_NORM, i, c->q_lora_rank, err));
    }
    RT_TRY(ds_lin(rt, &l->q, c->q_lora_rank ? MLA_W_DS_Q_B : MLA_W_Q, l, m->d, err));
    RT_TRY(ds_lin(rt, &l->ds_kv_a, MLA_W_DS_KV_A, l, m->r + m->rot, err));
    if (mla_model_has(rt->model, MLA_W_DS_KV_A_BIAS, i)) RT_TRY(ds_kv_bias(rt, l, err));
    RT_TRY(rt_vec(rt, &l->ds_kv_a_norm, MLA_W_DS_KV_A_NORM, i, m->r, err));
    RT_TRY(rt_lin_model(rt, &l->o, MLA_W_O, i, err));
    if (mla_model_has(rt->model, MLA_W_O_BIAS, i)) RT_TRY(rt_vec(rt, &l->o.bias, MLA_W_O_BIAS, i, l->o.out, err));
    mla_mat b;
    RT_TRY(mla_model_mat(rt->model, MLA_W_DS_KV_B, i, &b, err));
    if (b.out != n || b.in != m->r)
        return mla_fail(err, MLA_EFORMAT, "layer %zu: kv_b is (%zu, %zu), expected (%zu, %zu)", i, b.out, b.in, n, m->r);
    float *D = mla_alloc_raw(n, m->r, sizeof *D);
    if (!D) return mla_fail(err, MLA_ENOMEM, "layer %zu: kv_b", i);
    mla_status st = mla_mat_rows(&b, 0, n, D, err);
    if (st == MLA_OK) st = load_up(rt, l, &(up_rows){D, NULL, n, n, m->dn + m->dv, m->dn, m->dn, m->dn + m->dv, 1}, err);
    mla_free(D);
    return st;
}
