/* Gated delta net: projections over all rows of the block; convolution, recurrence and their states per sequence;
 * gated norm per value head; output projection. */
#include "runtime/rt.h"

mla_status rt_gdn(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err)
{
    const mla_config *c = rt->cfg;
    size_t T = b->rows, D = c->hidden, nv = c->lin_v_heads, V = nv * c->lin_v_dim, C = 2 * c->lin_k_heads * c->lin_k_dim + V;
    size_t at = (size_t)(l - rt->layer);
    rt_rows x = {io->h, D};
    mla_mem *in, *qkv, *z, *ba, *o; /* (T, C) (T, C) (T, V) (2, T, nv) (T, V) */
    RT_TRY(rt_scratch(rt, RT_S_B1, T, C, &in, err));
    RT_TRY(rt_scratch(rt, RT_S_B2, T, C, &qkv, err));
    RT_TRY(rt_scratch(rt, RT_S_B3, T, V, &z, err));
    RT_TRY(rt_scratch(rt, RT_S_B4, T, 2 * nv, &ba, err));
    RT_TRY(rt_scratch(rt, RT_S_B5, T, V, &o, err));
    mla_mem *beta = ba, *alpha = mla_at(ba, T * nv);
    const mla_linear_job jobs[4] = {rt_job(&l->gdn_qkv, (rt_rows){in, C}, x, T), rt_job(&l->gdn_z, (rt_rows){z, V}, x, T),
                                    rt_job(&l->gdn_b, (rt_rows){beta, nv}, x, T), rt_job(&l->gdn_a, (rt_rows){alpha, nv}, x, T)};
    RT_TRY(RT_OP(rt, linears, io->norm, jobs, 4, err));
    for (size_t i = 0; i < b->n; i++) {
        const rt_piece *p = &b->piece[i];
        mla_conv_args cv = {.y = mla_at(qkv, p->row * C), .x = mla_at(in, p->row * C), .w = l->conv_w.p, .state = p->seq->conv[at].p,
                            .T = p->n, .C = C, .K = c->lin_conv};
        RT_TRY(RT_OP(rt, conv, &cv, err));
        mla_gdn_args g = {.o = mla_at(o, p->row * V), .qkv = mla_at(qkv, p->row * C), .a = mla_at(alpha, p->row * nv),
                          .b = mla_at(beta, p->row * nv), .A_log = l->a_log.p, .dt_bias = l->dt_bias.p, .state = p->seq->state[at].p,
                          .T = p->n, .nk = c->lin_k_heads, .nv = nv, .dk = c->lin_k_dim, .dv = c->lin_v_dim,
                          .chunk = p->n > 1 ? rt->o.gdn_chunk : 0, .bf16 = rt->o.precision == MLA_PREC_BF16};
        RT_TRY(RT_OP(rt, gdn, &g, err));
    }
    mla_gated_norm_args gn = {.y = in, .x = o, .z = z, .gain = l->gdn_norm.p, .rows = T * nv, .d = c->lin_v_dim, .eps = c->rms_eps};
    RT_TRY(RT_OP(rt, gated_norm, &gn, err));
    return rt_linear_out(rt, &l->gdn_out, io, (rt_rows){in, V}, T, err);
}
