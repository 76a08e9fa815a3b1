/* Gated delta net: projections over all rows of the block; convolution, recurrence and their states per sequence;
 * gated norm per value head; output projection: one operation of the backend. */
#include "base/alloc.h"
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
    mla_linear_job out = rt_job(&l->gdn_out, (rt_rows){io->out, D}, (rt_rows){in, V}, T);
    out.a.accumulate = io->add;
    mla_delta_seq *seq = mla_alloc(b->n, sizeof *seq, 1);
    if (!seq) return mla_fail(err, MLA_ENOMEM, "%zu sequences", b->n);
    for (size_t i = 0; i < b->n; i++) seq[i] = (mla_delta_seq){b->piece[i].n, b->piece[i].seq->conv[at].p, b->piece[i].seq->state[at].p};
    mla_delta_args a = {.in = jobs, .out = &out, .mixed = qkv, .o = o, .conv_w = l->conv_w.p, .A_log = l->a_log.p, .dt_bias = l->dt_bias.p,
                        .gain = l->gdn_norm.p, .eps = c->rms_eps, .seq = seq, .n = b->n, .T = T, .nk = c->lin_k_heads, .nv = nv, .dk = c->lin_k_dim,
                        .dv = c->lin_v_dim, .K = c->lin_conv, .chunk = rt->o.gdn_chunk, .bf16 = rt->o.precision == MLA_PREC_BF16};
    mla_status st = RT_OP(rt, delta, io->norm, &a, err);
    mla_free(seq);
    return st;
}
