/* Attention of the shared-rotary layout (model/shared.h): q as the base makes it; latent and rotary keys linear in the
 * layer's input, so that the base's keys and values are never formed; then absorbed or expanded attention as elsewhere. */
#include "runtime/rt.h"

/* q (T, H, d) normed, from rows of proj, qw for each head: q, and the gate where the model has one. */
static mla_status query(mla_rt *rt, const rt_layer *l, const rt_block *b, mla_mem *proj, size_t qw, rt_rows *q, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t T = b->rows;
    *q = (rt_rows){proj, m->H * m->d};
    if (!l->q_norm.p && qw == m->d) return MLA_OK;
    RT_TRY(rt_scratch(rt, RT_S_Q, T * m->H, m->d, &q->p, err));
    if (!l->q_norm.p) return RT_OP(rt, copy_rows, q->p, m->d, proj, qw, T * m->H, m->d, err);
    RT_TRY(rt_norm(rt, &l->q_norm, (rt_rows){q->p, m->d}, (rt_rows){proj, qw}, T * m->H, m->d, err));
    return rt_tap(rt, b, MLA_TAP_Q_NORM, l->index, *q, q->ld, err);
}

mla_status rt_shared(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t T = b->rows, D = rt->cfg->hidden, qw = rt->cfg->attn_gate ? 2 * m->d : m->d;
    rt_rows x = {io->h, D}, q, c = {NULL, m->r}, z = {NULL, m->rot}, q2 = {NULL, m->H * m->rot}, o = {NULL, m->H * m->dv};
    mla_mem *proj;
    RT_TRY(rt_scratch(rt, RT_S_PROJ, T, m->H * qw, &proj, err));
    RT_TRY(rt_scratch(rt, RT_S_C, T, c.ld, &c.p, err));
    RT_TRY(rt_scratch(rt, RT_S_KR, T, z.ld, &z.p, err));
    RT_TRY(rt_scratch(rt, RT_S_QROT, T, q2.ld, &q2.p, err));
    RT_TRY(rt_scratch(rt, RT_S_O, T, o.ld, &o.p, err));
    const mla_linear_job jobs[3] = {rt_job(&l->q, (rt_rows){proj, m->H * qw}, x, T), rt_job(&l->lat.enc[0], c, x, T), rt_job(&l->sh_key, z, x, T)};
    RT_TRY(RT_OP(rt, linears, io->norm, jobs, 3, err));
    RT_TRY(query(rt, l, b, proj, qw, &q, err));
    rt_head_map f = {.w = l->sh_query, .y = q2, .x = q, .yh = m->rot, .xh = m->d, .G = m->H, .m = 1};
    RT_TRY(rt_per_head(rt, &f, T, err));
    RT_TRY(rt_turn(rt, b, z, (rt_heads){l->sh.R, l->sh.rot, l->sh.rot}, err));
    RT_TRY(rt_turn(rt, b, q2, (rt_heads){m->H * l->sh.R, l->sh.rot, l->sh.rot}, err));
    RT_TRY(rt_tap(rt, b, MLA_TAP_LATENT, l->index, c, c.ld, err));
    RT_TRY(rt_tap(rt, b, MLA_TAP_K_ROPE, l->index, z, z.ld, err));
    RT_TRY(rt_code(rt, l, c, (mla_kv_rows){.part = 0, .rows = T, .width = c.ld, .head = c.ld}, err));
    RT_TRY(rt_code(rt, l, z, (mla_kv_rows){.part = 1, .rows = T, .width = z.ld, .head = z.ld}, err));
    for (size_t i = 0; i < b->n; i++) {
        const rt_piece *p = &b->piece[i];
        RT_TRY(rt_write(rt, rt_view(rt, l, p->seq, MLA_KV_FIRST, m->r), c, p, m->r, err));
        RT_TRY(rt_write(rt, rt_view(rt, l, p->seq, MLA_KV_SECOND, m->rot), z, p, m->rot, err));
        rt_qo qo = {.q = {mla_at(q.p, p->row * q.ld), q.ld}, .o = {mla_at(o.p, p->row * o.ld), o.ld}, .q2 = {mla_at(q2.p, p->row * q2.ld), q2.ld}};
        RT_TRY(rt_latent_attend(rt, l, p, qo, err));
    }
    if (rt->cfg->attn_gate) RT_TRY(RT_OP(rt, sigmoid_mul, o.p, mla_at(proj, m->d), T * m->H, m->d, qw, err));
    return rt_linear_out(rt, &l->o, io, o, T, err);
}
