/* What every piece of a block does apart, at its own positions and in its own sequence: rotations and cached rows. */
#include "runtime/rt.h"

mla_status rt_turn(mla_rt *rt, const rt_block *b, rt_rows x, rt_heads h, mla_err *err)
{
    for (size_t i = 0; i < b->n; i++) {
        const rt_piece *p = &b->piece[i];
        mla_rope_args a = {.x = mla_at(x.p, p->row * x.ld), .ldx = x.ld, .T = p->n, .heads = h.n, .head_stride = h.stride, .rot = h.rot,
                           .cos = p->at ? p->seq->cos.p : p->cos, .sin = p->at ? p->seq->sin.p : p->sin, .at = p->at};
        RT_TRY(RT_OP(rt, rope, &a, err));
    }
    return MLA_OK;
}

mla_status rt_write(mla_rt *rt, mla_kv_view to, rt_rows x, const rt_piece *p, size_t width, mla_err *err)
{
    mla_kv_write_args a = {.to = to, .x = mla_at(x.p, p->row * x.ld), .ldx = x.ld, .T = p->n, .width = width, .pos0 = p->pos, .at = p->at};
    return RT_OP(rt, kv_write, &a, err);
}
