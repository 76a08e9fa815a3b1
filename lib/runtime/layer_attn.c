/* Full attention with the model's own projections: q, k, v (+bias) -> per-head norm -> rotation -> cache -> attention
 * over the cached, rounded values -> sigmoid gate -> output projection. What is cached decides the middle part:
 * keys and values (GQA), or a latent of a retrofit. */
#include <string.h>

#include "runtime/rt.h"

typedef struct { /* activations of one block; row-major, T = rows of the block */
    mla_mem *proj;        /* (T, H, d) or, gated, (T, H, [q d | gate d]) */
    size_t qw;            /* width of a head in proj */
    mla_mem *q, *q_rot;   /* (T, H, d) before / after rotation: one buffer when nobody needs both */
    mla_mem *qx;          /* (T, H, qd) what attention takes: q_rot but for layout absorbed-rope */
    mla_mem *k, *k_rot;   /* (T, G, d) likewise */
    mla_mem *k_pre;       /* (T, G, d) before the norm; k where there is none */
    mla_mem *v;           /* (T, G, d) */
    mla_mem *o;           /* (T, H, dv) */
} attn;

/* Per-head norm of heads standing xw apart, to dense rows; a model without norms only needs the gate stripped. */
static mla_status head_norm(mla_rt *rt, const rt_buf *gain, mla_mem **x, rt_scratch_id to, size_t xw, size_t heads, size_t d, mla_err *err)
{
    mla_mem *y;
    if (!gain->p && xw == d) return MLA_OK;
    RT_TRY(rt_scratch(rt, to, heads, d, &y, err));
    mla_mem *from = *x;
    *x = y;
    if (gain->p) return rt_norm(rt, gain, (rt_rows){y, d}, (rt_rows){from, xw}, heads, d, err);
    return RT_OP(rt, copy_rows, y, d, from, xw, heads, d, err);
}

static mla_status project(mla_rt *rt, const rt_layer *l, const rt_block *b, const rt_io *io, attn *a, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t T = b->rows, D = rt->cfg->hidden;
    a->qw = rt->cfg->attn_gate ? 2 * m->d : m->d;
    RT_TRY(rt_scratch(rt, RT_S_PROJ, T, m->H * a->qw, &a->proj, err));
    RT_TRY(rt_scratch(rt, RT_S_K0, T, m->G * m->d, &a->k, err));
    RT_TRY(rt_scratch(rt, RT_S_V, T, m->G * m->d, &a->v, err));
    RT_TRY(rt_scratch(rt, RT_S_O, T, m->H * m->dv, &a->o, err));
    rt_rows h = {io->h, D};
    const mla_linear_job jobs[3] = {rt_job(&l->q, (rt_rows){a->proj, m->H * a->qw}, h, T), rt_job(&l->k, (rt_rows){a->k, m->G * m->d}, h, T),
                                    rt_job(&l->v, (rt_rows){a->v, m->G * m->d}, h, T)};
    RT_TRY(RT_OP(rt, linears, io->norm, jobs, 3, err));
    a->q = a->proj;
    RT_TRY(head_norm(rt, &l->q_norm, &a->q, RT_S_Q, a->qw, T * m->H, m->d, err));
    a->k_pre = a->k;
    RT_TRY(head_norm(rt, &l->k_norm, &a->k, RT_S_K, m->d, T * m->G, m->d, err));
    if (l->q_norm.p) {
        RT_TRY(rt_tap(rt, b, MLA_TAP_Q_NORM, l->index, (rt_rows){a->q, m->H * m->d}, m->H * m->d, err));
        RT_TRY(rt_tap(rt, b, MLA_TAP_K_NORM, l->index, (rt_rows){a->k, m->G * m->d}, m->G * m->d, err));
    }
    return rt_tap(rt, b, MLA_TAP_V, l->index, (rt_rows){a->v, m->G * m->d}, m->G * m->d, err);
}

/* *rot = x rotated, piece by piece; x survives in its own buffer only when somebody taps, or absorbed-rope queries need it. */
static mla_status rotate(mla_rt *rt, const rt_layer *l, const rt_block *b, mla_mem *x, mla_mem **rot, rt_scratch_id to, size_t heads,
                         mla_err *err)
{
    size_t d = l->dim.d, w = heads * d;
    *rot = x;
    if (b->tap || (l->kind == RT_LATENT_ABSORBED && to == RT_S_QROT)) {
        RT_TRY(rt_scratch(rt, to, b->rows, w, rot, err));
        RT_TRY(RT_OP(rt, copy, *rot, x, b->rows * w * 4, err));
    }
    return l->dim.rot ? rt_turn(rt, b, (rt_rows){*rot, w}, (rt_heads){heads, d, l->dim.rot}, err) : MLA_OK;
}

/* What a block caches: rotated keys and values, or latents and rotary keys (T, G2, kr; NULL when there are none). */
typedef struct {
    rt_rows first, second;
    size_t w1, w2;        /* values per token of each */
    rt_rows keys;         /* layout P: keys before their norm, whose root mean squares are the divisors */
} cached;

/* Writes one piece's rows and attends over what is cached. Cached row: [K (G d) | V (G d)], or [latent | rotary keys]. */
static mla_status cache_and_attend(mla_rt *rt, const rt_layer *l, const rt_piece *p, const cached *c, rt_qo qo, mla_err *err)
{
    const rt_dims *m = &l->dim;
    bool gqa = l->kind == RT_GQA;
    mla_kv_view k = rt_view(rt, l, p->seq, MLA_KV_FIRST, gqa ? m->d : m->r);
    mla_kv_view v = rt_view(rt, l, p->seq, MLA_KV_SECOND, gqa ? m->d : m->kr);
    RT_TRY(rt_write(rt, k, c->first, p, c->w1, err));
    if (c->w2) RT_TRY(rt_write(rt, v, c->second, p, c->w2, err));
    if (m->divs) {
        mla_divisor_args d = {.to = rt_view(rt, l, p->seq, MLA_KV_DIVISORS, 1), .x = mla_at(c->keys.p, p->row * c->keys.ld), .ldx = c->keys.ld, .T = p->n,
                              .heads = m->divs, .d = m->d, .pos0 = p->pos, .center = l->lat.center.p, .eps = rt->cfg->rms_eps};
        RT_TRY(RT_OP(rt, divisor, &d, err));
    }
    if (!gqa) return rt_latent_attend(rt, l, p, qo, err);
    mla_attn_args at = {.o = qo.o.p, .ldo = qo.o.ld, .q = qo.q.p, .ldq = qo.q.ld, .qh_stride = m->d, .k = k, .v = v, .kh = m->G,
                        .vh = m->G, .T = p->n, .H = m->H, .dk = m->d, .dv = m->d, .pos0 = p->pos, .scale = m->scale,
                        .bf16 = rt->o.precision == MLA_PREC_BF16, .at = p->at};
    return RT_OP(rt, attention, &at, err);
}

/* c (T, groups, r) = E (y - mu) with y (T, groups, n) = [keys head by head | values] of each group; keys unrotated, in
 * layout P before their norm. */
static mla_status encode(mla_rt *rt, const rt_layer *l, const rt_block *b, const attn *a, mla_mem **c, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t T = b->rows, per = m->G / m->groups, w = m->groups * m->n, cw = m->groups * m->r, first = m->d - m->dn;
    mla_mem *y, *k = l->kind == RT_LATENT_P ? a->k_pre : a->k;
    RT_TRY(rt_scratch(rt, RT_S_Y, T, w, &y, err));
    RT_TRY(rt_scratch(rt, RT_S_C, T, cw, c, err));
    for (size_t g = 0; g < m->G; g++)
        RT_TRY(RT_OP(rt, copy_rows, mla_at(y, g / per * m->n + g % per * m->dn), w, mla_at(k, g * m->d + first), m->G * m->d, T,
                     m->dn, err));
    for (size_t u = 0; u < m->groups; u++)
        RT_TRY(RT_OP(rt, copy_rows, mla_at(y, u * m->n + per * m->dn), w, mla_at(a->v, u * per * m->d), m->G * m->d, T, per * m->d, err));
    RT_TRY(RT_OP(rt, add_rows, y, w, T, w, l->lat.mu.p, -1.0f, err));
    for (size_t u = 0; u < m->groups; u++)
        RT_TRY(rt_linear(rt, &l->lat.enc[u], (rt_rows){mla_at(*c, u * m->r), cw}, (rt_rows){mla_at(y, u * m->n), w}, T, err));
    return rt_tap(rt, b, MLA_TAP_LATENT, l->index, (rt_rows){*c, cw}, cw, err);
}

/* Rotary keys beside a latent, (T, G, rot) or (T, w) dense. */
static mla_status rotary_keys(mla_rt *rt, const rt_layer *l, const rt_block *b, const attn *a, cached *c, mla_err *err)
{
    const rt_dims *m = &l->dim;
    c->w2 = m->G2 * m->kr;
    c->second.ld = c->w2;
    if (!c->w2) return MLA_OK;
    RT_TRY(rt_scratch(rt, RT_S_KR, b->rows, c->w2, &c->second.p, err));
    if (l->kind == RT_LATENT_ABSORBED) RT_TRY(rt_linear(rt, &l->lat.rot, c->second, (rt_rows){a->k_rot, m->G * m->d}, b->rows, err));
    else RT_TRY(RT_OP(rt, copy_rows, c->second.p, m->rot, a->k_rot, m->d, b->rows * m->G, m->rot, err));
    return rt_tap(rt, b, MLA_TAP_K_ROPE, l->index, c->second, c->w2, err);
}

typedef struct { /* mla_tap_attn.self */
    mla_rt *rt;
    const rt_layer *l;
    const rt_piece *p;
    const cached *c;
    rt_rows q;
} trial;

/* The piece again, through an FP8 cache of its own: contiguous, thrown away. */
static mla_status with_fp8(const mla_tap_attn *a, mla_kv_scale s, mla_mem *o2, mla_err *err)
{
    const trial *t = a->self;
    const rt_dims *m = &t->l->dim;
    mla_rt rt = *t->rt;
    rt_layer l = *t->l;
    mla_seq seq = *t->p->seq;
    rt_piece p = *t->p;
    if (p.pos) return mla_fail(err, MLA_EINVAL, "an FP8 trial needs a chunk from position 0, not %zu", p.pos);
    rt.o.kv_dtype = MLA_F8_E4M3;
    rt.o.keys16 = false; /* all parts rounded: scales do not depend on what is judged */
    seq.pages = NULL;
    p.seq = &seq;
    l.scale = s;
    mla_status st = rt_scratch(&rt, RT_S_TRIAL, p.n, rt_row(&rt, &l).bytes, &l.cache.p, err);
    rt_qo qo = {.q = t->q, .o = {o2, m->H * m->dv}};
    if (st == MLA_OK) st = cache_and_attend(&rt, &l, &p, t->c, qo, err);
    memcpy(t->rt->scratch, rt.scratch, sizeof rt.scratch); /* scratch may have grown */
    t->rt->bytes = rt.bytes;
    t->rt->peak = rt.peak;
    t->rt->moved = rt.moved;
    return st;
}

static mla_status tap_attn(mla_rt *rt, const rt_layer *l, const rt_block *b, mla_mem *h, const attn *a, const cached *c, mla_err *err)
{
    const rt_dims *m = &l->dim;
    for (size_t i = 0; b->tap && i < b->n; i++) {
        const rt_piece *p = &b->piece[i];
        size_t qo = p->row * m->H * m->d, ko = p->row * m->G * m->d;
        trial again = {rt, l, p, c, {mla_at(a->qx, p->row * m->H * m->qd), m->H * m->qd}};
        mla_tap_attn t = {.x = mla_at(h, p->row * rt->cfg->hidden), .q = mla_at(a->q, qo), .q_rot = mla_at(a->q_rot, qo), .k = mla_at(a->k, ko),
                          .k_pre = mla_at(a->k_pre, ko), .k_rot = mla_at(a->k_rot, ko),
                          .v = mla_at(a->v, ko), .o = mla_at(a->o, p->row * m->H * m->dv), .pos0 = p->pos, .with_fp8 = with_fp8, .self = &again};
        if (rt->cfg->attn_gate) t.gate = mla_at(a->proj, p->row * m->H * a->qw + m->d), t.gate_ld = m->H * a->qw, t.gate_h = a->qw;
        mla_tap tap = {.point = MLA_TAP_ATTN, .layer = l->index, .seq = p->job, .rows = p->n, .attn = &t, .be = rt->be};
        RT_TRY(b->tap(b->ctx, &tap, err));
    }
    return MLA_OK;
}

mla_status rt_attn(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t w = m->G * m->d, ow = m->H * m->dv;
    attn a = {0};
    RT_TRY(project(rt, l, b, io, &a, err));
    cached c = {.first.ld = m->groups * m->r, .w1 = m->groups * m->r, .keys = {a.k_pre, w}};
    if (l->kind != RT_GQA) RT_TRY(encode(rt, l, b, &a, &c.first.p, err)); /* before the keys turn */
    RT_TRY(rotate(rt, l, b, a.q, &a.q_rot, RT_S_QROT, m->H, err));
    RT_TRY(rotate(rt, l, b, a.k, &a.k_rot, RT_S_KROT, m->G, err));
    a.qx = a.q_rot;
    if (l->kind == RT_LATENT_ABSORBED) {
        RT_TRY(rt_scratch(rt, RT_S_QX, b->rows, m->H * m->qd, &a.qx, err));
        RT_TRY(rt_absorbed_query(rt, l, b->rows, a.q, a.q_rot, a.qx, err));
    }
    if (l->kind == RT_GQA) {
        c = (cached){.first = {a.k_rot, w}, .second = {a.v, w}, .w1 = w, .w2 = w};
        RT_TRY(rt_tap(rt, b, MLA_TAP_K_ROPE, l->index, c.first, w, err));
    } else {
        RT_TRY(rotary_keys(rt, l, b, &a, &c, err));
    }
    bool gqa = l->kind == RT_GQA;
    RT_TRY(rt_code(rt, l, c.first, (mla_kv_rows){.part = 0, .rows = b->rows, .width = c.w1, .head = gqa ? m->d : m->r}, err));
    if (c.w2) RT_TRY(rt_code(rt, l, c.second, (mla_kv_rows){.part = 1, .rows = b->rows, .width = c.w2, .head = gqa ? m->d : m->rot}, err));
    for (size_t i = 0; i < b->n; i++) {
        const rt_piece *p = &b->piece[i];
        rt_qo qo = {.q = {mla_at(a.qx, p->row * m->H * m->qd), m->H * m->qd}, .o = {mla_at(a.o, p->row * ow), ow}};
        RT_TRY(cache_and_attend(rt, l, p, &c, qo, err));
    }
    RT_TRY(tap_attn(rt, l, b, io->h, &a, &c, err));
    if (rt->cfg->attn_gate) RT_TRY(RT_OP(rt, sigmoid_mul, a.o, mla_at(a.proj, m->d), b->rows * m->H, m->d, a.qw, err));
    return rt_linear_out(rt, &l->o, io, (rt_rows){a.o, ow}, b->rows, err);
}
