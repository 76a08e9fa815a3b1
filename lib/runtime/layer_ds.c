/* Stored DeepSeek attention: q (through its own low rank or direct), one normed latent and one rotary key per token
 * for all heads; keys and values of the heads come from kv_b. Its two inner norms use eps 1e-6 whatever the config. */
#include "runtime/rt.h"

static mla_status inner_norm(mla_rt *rt, const rt_buf *gain, rt_rows y, rt_rows x, size_t rows, size_t d, mla_err *err)
{
    mla_norm_args a = {.y = y.p, .ldy = y.ld, .x = x.p, .ldx = x.ld, .rows = rows, .d = d, .gain = gain->p, .eps = 1e-6};
    return RT_OP(rt, rmsnorm, &a, err);
}

/* q (T, H, [nope | rope]) with the second part rotated, and kv: both from io's h */
static mla_status project(mla_rt *rt, const rt_layer *l, const rt_block *b, const rt_io *io, rt_rows *q, rt_rows kv, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t w = m->H * m->d, ra = l->ds_q_a.out;
    rt_rows h = {io->h, rt->cfg->hidden}, lo = {NULL, ra}, n = {NULL, ra};
    q->ld = w;
    RT_TRY(rt_scratch(rt, RT_S_Q, b->rows, w, &q->p, err));
    if (l->ds_q_a.w) RT_TRY(rt_scratch(rt, RT_S_PROJ, b->rows, ra, &lo.p, err));
    const mla_linear_job jobs[2] = {l->ds_q_a.w ? rt_job(&l->ds_q_a, lo, h, b->rows) : rt_job(&l->q, *q, h, b->rows), rt_job(&l->ds_kv_a, kv, h, b->rows)};
    RT_TRY(RT_OP(rt, linears, io->norm, jobs, 2, err));
    if (l->ds_q_a.w) {
        RT_TRY(rt_scratch(rt, RT_S_Y, b->rows, ra, &n.p, err));
        RT_TRY(inner_norm(rt, &l->ds_q_a_norm, n, lo, b->rows, ra, err));
        RT_TRY(rt_linear(rt, &l->q, *q, n, b->rows, err));
    }
    return rt_turn(rt, b, (rt_rows){mla_at(q->p, m->q_rot), w}, (rt_heads){m->H, m->d, m->rot}, err);
}

mla_status rt_ds(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t w = m->r + m->rot;
    rt_rows q, kv = {NULL, w}, c = {NULL, m->r}, kr, o = {NULL, m->H * m->dv};
    RT_TRY(rt_scratch(rt, RT_S_K0, b->rows, w, &kv.p, err));
    RT_TRY(rt_scratch(rt, RT_S_C, b->rows, m->r, &c.p, err));
    RT_TRY(rt_scratch(rt, RT_S_O, b->rows, o.ld, &o.p, err));
    RT_TRY(project(rt, l, b, io, &q, kv, err));
    RT_TRY(inner_norm(rt, &l->ds_kv_a_norm, c, kv, b->rows, m->r, err));
    kr = (rt_rows){mla_at(kv.p, m->r), w};
    RT_TRY(rt_turn(rt, b, kr, (rt_heads){1, m->rot, m->rot}, err));
    RT_TRY(rt_tap(rt, b, MLA_TAP_LATENT, l->index, c, m->r, err));
    RT_TRY(rt_tap(rt, b, MLA_TAP_K_ROPE, l->index, kr, m->rot, err));
    RT_TRY(rt_code(rt, l, c, (mla_kv_rows){.part = 0, .rows = b->rows, .width = m->r, .head = m->r}, err));
    RT_TRY(rt_code(rt, l, kr, (mla_kv_rows){.part = 1, .rows = b->rows, .width = m->rot, .head = m->rot}, err));
    for (size_t i = 0; i < b->n; i++) {
        const rt_piece *p = &b->piece[i];
        RT_TRY(rt_write(rt, rt_view(rt, l, p->seq, MLA_KV_FIRST, m->r), c, p, m->r, err));
        RT_TRY(rt_write(rt, rt_view(rt, l, p->seq, MLA_KV_SECOND, m->rot), kr, p, m->rot, err));
        rt_qo qo = {.q = {mla_at(q.p, p->row * q.ld), q.ld}, .o = {mla_at(o.p, p->row * o.ld), o.ld}};
        RT_TRY(rt_latent_attend(rt, l, p, qo, err));
    }
    return rt_linear_out(rt, &l->o, io, o, b->rows, err);
}
