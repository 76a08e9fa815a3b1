/* Attention over cached latents. Absorbed: queries are mapped into the latent, (D_K q) . c, and the averaged latent is
 * mapped to values, D_V o + mu_V; nothing per cached token is computed. Expanded: keys and values of all cached tokens
 * are formed from the latents first, cheaper once many queries share them. mu_K shifts all logits of a query alike
 * and is left out, except in the rebuild layout, where the rotation makes it matter, and in layout P, where each token
 * divides it by a number of its own. */
#include "runtime/rt.h"

/* Rows are heads of one token, or tokens of one head, whichever makes fewer layers; many of them go in one call. */
mla_status rt_per_head(mla_rt *rt, const rt_head_map *a, size_t T, mla_err *err)
{
    enum { MOST = 32 };
    mla_linear_job jobs[MOST];
    bool heads = T <= a->m; /* as rows */
    size_t all = heads ? T * a->G : a->G * a->m, n = 0;
    for (size_t i = 0; i < all; i++) {
        size_t t = heads ? i / a->G : 0, h = heads ? i % a->G * a->m : i;
        rt_rows y = {mla_at(a->y.p, t * a->y.ld + h * a->yh), heads ? a->yh : a->y.ld};
        rt_rows x = {mla_at(a->x.p, t * a->x.ld + h * a->xh), heads ? a->xh : a->x.ld};
        jobs[n++] = rt_job(&a->w[h / a->m], y, x, heads ? a->m : T);
        if (n < MOST && i + 1 < all) continue;
        RT_TRY(RT_OP(rt, linears, NULL, jobs, n, err));
        n = 0;
    }
    return MLA_OK;
}

mla_status rt_absorbed_query(mla_rt *rt, const rt_layer *l, size_t T, mla_mem *q, mla_mem *q_rot, mla_mem *qx, mla_err *err)
{
    const rt_dims *m = &l->dim;
    RT_TRY(RT_OP(rt, copy_rows, qx, m->qd, q, m->d, T * m->H, m->d, err));
    rt_head_map f = {.w = l->lat.query, .y = {mla_at(qx, m->d), m->H * m->qd}, .x = {q_rot, m->H * m->d}, .yh = m->qd, .xh = m->d, .G = m->G,
                  .m = m->H / m->G};
    return rt_per_head(rt, &f, T, err);
}

static mla_kv_view dense(const mla_rt *rt, mla_mem *p, size_t heads, size_t w)
{
    return (mla_kv_view){.data = p, .page_tokens = rt->pool.page_tokens, .row_elems = heads * w, .head_stride = w, .dtype = MLA_F32, .scale = 1};
}

/* Keys xk (S, G, dn) and, when asked, values xv (S, G, dv) of all S cached tokens. */
static mla_status expand(mla_rt *rt, const rt_layer *l, const rt_piece *p, mla_mem **xk, mla_mem **xv, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t S = p->pos + p->n, cw = m->groups * m->r, per = m->kh / m->groups;
    mla_mem *c; /* (S, groups, r) */
    RT_TRY(rt_scratch(rt, RT_S_XC, S, cw, &c, err));
    RT_TRY(rt_scratch(rt, RT_S_XK, S, m->kh * m->dn, xk, err));
    if (xv) RT_TRY(rt_scratch(rt, RT_S_XV, S, m->kh * m->dv, xv, err));
    mla_kv_read_args rd = {.from = rt_view(rt, l, p->seq, MLA_KV_FIRST, m->r), .y = c, .ldy = cw, .n = S, .width = cw};
    RT_TRY(RT_OP(rt, kv_read, &rd, err));
    for (size_t a = 0; a < m->groups; a++)
        RT_TRY(rt_linear(rt, &l->lat.key[a], (rt_rows){mla_at(*xk, a * per * m->dn), m->kh * m->dn}, (rt_rows){mla_at(c, a * m->r), cw}, S, err));
    for (size_t g = 0; xv && g < m->kh; g++)
        RT_TRY(rt_linear(rt, &l->lat.val[g], (rt_rows){mla_at(*xv, g * m->dv), m->kh * m->dv}, (rt_rows){mla_at(c, g / per * m->r), cw}, S, err));
    return MLA_OK;
}

/* Keys for this piece's queries: q, k and the rotary part of the attention's arguments. */
static mla_status set_keys(mla_rt *rt, const rt_layer *l, const rt_piece *p, const rt_qo *qo, mla_attn_args *at, mla_err *err)
{
    const rt_dims *m = &l->dim;
    rt_rows q = qo->q;
    bool rebuild = l->kind == RT_LATENT_REBUILD;
    mla_mem *xk, *xv = NULL;
    if (rebuild || p->expand) {
        RT_TRY(expand(rt, l, p, &xk, p->expand ? &xv : NULL, err));
        if (rebuild) {
            mla_rope_args ra = {.x = xk, .ldx = m->kh * m->d, .T = p->pos + p->n, .heads = m->kh, .head_stride = m->d, .rot = m->rot,
                                .cos = p->seq->cos.p, .sin = p->seq->sin.p};
            RT_TRY(RT_OP(rt, rope, &ra, err));
        }
        at->q = rebuild ? q.p : mla_at(q.p, m->q_nope);
        at->ldq = q.ld;
        at->qh_stride = m->qd;
        at->k = dense(rt, xk, m->kh, m->dn);
        at->kh = m->kh;
        at->dk = m->dn;
        if (xv) at->v = dense(rt, xv, m->kh, m->dv), at->vh = m->kh, at->dv = m->dv;
    } else {
        mla_mem *a; /* (n, H, r) absorbed queries; layout P: (n, H, r + 1) with the mean's part of the logit last */
        size_t w = l->lat.key_t[0].out;
        RT_TRY(rt_scratch(rt, RT_S_A, p->n, m->H * w, &a, err));
        rt_head_map f = {.w = l->lat.key_t, .y = {a, m->H * w}, .x = {mla_at(q.p, m->q_nope), q.ld}, .yh = w, .xh = m->qd, .G = m->kh,
                      .m = m->H / m->kh};
        RT_TRY(rt_per_head(rt, &f, p->n, err));
        at->q = a;
        at->ldq = m->H * w;
        at->qh_stride = w;
        if (m->divs) at->qb = mla_at(a, m->r);
        at->k = rt_view(rt, l, p->seq, MLA_KV_FIRST, m->r);
        at->kh = m->groups;
        at->dk = m->r;
    }
    if (m->divs) at->div = rt_view(rt, l, p->seq, MLA_KV_DIVISORS, 1), at->divh = m->divs;
    if (!m->G2 || !m->rot) return MLA_OK;
    at->q2 = qo->q2.p ? qo->q2.p : mla_at(q.p, m->q_rot);
    at->ldq2 = qo->q2.p ? qo->q2.ld : q.ld;
    at->q2h_stride = qo->q2.p ? m->rot : m->qd;
    at->k2 = rt_view(rt, l, p->seq, MLA_KV_SECOND, m->kr);
    at->k2h = m->G2;
    at->dk2 = m->kr;
    return MLA_OK;
}

mla_status rt_latent_attend(mla_rt *rt, const rt_layer *l, const rt_piece *p, rt_qo qo, mla_err *err)
{
    const rt_dims *m = &l->dim;
    mla_attn_args at = {.o = qo.o.p, .ldo = qo.o.ld, .T = p->n, .H = m->H, .pos0 = p->pos, .scale = m->scale,
                        .bf16 = rt->o.precision == MLA_PREC_BF16, .at = p->at};
    RT_TRY(set_keys(rt, l, p, &qo, &at, err));
    if (p->expand) return RT_OP(rt, attention, &at, err);
    mla_mem *ol; /* (n, H, r) averaged latents */
    RT_TRY(rt_scratch(rt, RT_S_OL, p->n, m->H * m->r, &ol, err));
    at.o = ol;
    at.ldo = m->H * m->r;
    at.v = rt_view(rt, l, p->seq, MLA_KV_FIRST, m->r);
    at.vh = m->groups;
    at.dv = m->r;
    RT_TRY(RT_OP(rt, attention, &at, err));
    rt_head_map f = {.w = l->lat.val, .y = qo.o, .x = {ol, m->H * m->r}, .yh = m->dv, .xh = m->r, .G = m->kh, .m = m->H / m->kh};
    return rt_per_head(rt, &f, p->n, err);
}
