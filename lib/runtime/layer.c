/* One decoder layer on a block of rows: x += mixer(norm(x)); x += mlp(norm(x)); mlp = down(silu(gate x) * up x). The norms
 * go with the layers that read them and the sums with the last ones, unless somebody looks: the same bits either way. */
#include "runtime/rt.h"

mla_status rt_norm(mla_rt *rt, const rt_buf *gain, rt_rows y, rt_rows x, size_t rows, size_t d, mla_err *err)
{
    mla_norm_args a = {.y = y.p, .ldy = y.ld, .x = x.p, .ldx = x.ld, .rows = rows, .d = d, .gain = gain->p, .eps = rt->cfg->rms_eps};
    return RT_OP(rt, rmsnorm, &a, err);
}

mla_kv_row rt_row(const mla_rt *rt, const rt_layer *l)
{
    return mla_kv_row_of((mla_kv_type){rt->o.kv_dtype, rt->o.keys16}, l->width, l->kind != RT_GQA);
}

mla_kv_view rt_view(const mla_rt *rt, const rt_layer *l, const mla_seq *s, size_t part, size_t head_stride)
{
    mla_kv_row r = rt_row(rt, l);
    size_t e = mla_dtype_bits(r.dtype[part]) / 8; /* divides every place of this part */
    return (mla_kv_view){.data = l->cache.p, .pages = s->pages, .page_tokens = rt->pool.page_tokens, .row_elems = r.bytes / e,
                         .col = r.at[part] / e, .head_stride = head_stride, .dtype = r.dtype[part],
                         .scale = r.dtype[part] != MLA_F8_E4M3 ? 1 : part == MLA_KV_FIRST ? l->scale.k : l->scale.v};
}

mla_status rt_tap(mla_rt *rt, const rt_block *b, mla_tap_point point, size_t layer, rt_rows data, size_t width, mla_err *err)
{
    if (!b->tap) return MLA_OK;
    for (size_t i = 0; i < b->n; i++) {
        const rt_piece *p = &b->piece[i];
        mla_tap t = {.point = point, .layer = layer, .seq = p->job, .data = mla_at(data.p, p->row * data.ld), .rows = p->n,
                     .width = width, .ld = data.ld, .be = rt->be};
        RT_TRY(b->tap(b->ctx, &t, err));
    }
    return MLA_OK;
}

mla_status rt_mlp(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err)
{
    size_t D = rt->cfg->hidden, I = l->gate.out;
    rt_rows h = {io->h, D}, g = {NULL, I}, u = {NULL, I};
    RT_TRY(rt_scratch(rt, RT_S_B1, b->rows, I, &g.p, err));
    RT_TRY(rt_scratch(rt, RT_S_B2, b->rows, I, &u.p, err));
    if (l->gate.bias.p || l->up.bias.p) {
        const mla_linear_job jobs[2] = {rt_job(&l->gate, g, h, b->rows), rt_job(&l->up, u, h, b->rows)};
        RT_TRY(RT_OP(rt, linears, io->norm, jobs, 2, err));
        RT_TRY(RT_OP(rt, silu_mul, g.p, g.p, u.p, b->rows * I, err));
        return rt_linear_out(rt, &l->down, io, g, b->rows, err);
    }
    const mla_gated_args a = {.gate = l->gate.w, .up = l->up.w, .out = I, .g = g.p, .u = u.p, .x = h.p, .ldx = D, .T = b->rows};
    mla_linear_job down = rt_job(&l->down, (rt_rows){io->out, D}, g, b->rows);
    down.a.accumulate = io->add;
    return RT_OP(rt, mlp, io->norm, &a, &down, err);
}

static mla_status mixer(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err)
{
    switch (l->kind) {
    case RT_GDN: return rt_gdn(rt, l, b, io, err);
    case RT_LATENT_DS: return rt_ds(rt, l, b, io, err);
    case RT_LATENT_SHARED: return rt_shared(rt, l, b, io, err);
    default: return rt_attn(rt, l, b, io, err);
    }
}

/* Names the first row that went wrong. Decode steps skip the look (it waits for the device): their logits are checked. */
static mla_status check_finite(mla_rt *rt, const rt_layer *l, const rt_block *b, mla_err *err)
{
    size_t D = rt->cfg->hidden;
    mla_range r;
    char text[32];
    if (b->rows == b->n || b->piece[0].at) return MLA_OK; /* one row per sequence, or a step that may be recorded */
    RT_TRY(RT_OP(rt, range, b->x, b->rows, D, D, &r, err));
    if (!r.nonfinite) return MLA_OK;
    for (size_t i = 0; i < b->n; i++)
        for (size_t t = 0; t < b->piece[i].n; t++) {
            RT_TRY(RT_OP(rt, range, mla_at(b->x, (b->piece[i].row + t) * D), 1, D, D, &r, err));
            if (r.nonfinite)
                return mla_fail(err, MLA_EFORMAT, "%s: %llu of %zu activations of token %zu of sequence %zu are not finite",
                                rt_layer_text(l, text), (unsigned long long)r.nonfinite, D, b->piece[i].pos + t, b->piece[i].job);
        }
    return mla_fail(err, MLA_EINTERNAL, "%s: non-finite activations without a row", rt_layer_text(l, text));
}

mla_status rt_layer_run(mla_rt *rt, rt_layer *l, rt_block *b, mla_err *err)
{
    size_t D = rt->cfg->hidden;
    rt_rows x = {b->x, D}, out = {NULL, D};
    mla_norm_args norm = {.ldy = D, .x = x.p, .ldx = D, .rows = b->rows, .d = D, .eps = rt->cfg->rms_eps};
    RT_TRY(rt_scratch(rt, RT_S_H, b->rows, D, &norm.y, err));
    rt_io io = {.h = norm.y, .norm = &norm, .out = x.p, .add = true};
    if (b->tap) {
        RT_TRY(rt_scratch(rt, RT_S_OUT, b->rows, D, &out.p, err));
        io = (rt_io){.h = norm.y, .out = out.p};
    }
    for (int mlp = 0; mlp < 2; mlp++) {
        norm.gain = mlp ? l->post_norm.p : l->in_norm.p;
        if (b->tap) RT_TRY(RT_OP(rt, rmsnorm, &norm, err));
        RT_TRY(mlp ? rt_mlp(rt, l, b, &io, err) : mixer(rt, l, b, &io, err));
        RT_TRY(rt_tap(rt, b, mlp ? MLA_TAP_MLP : MLA_TAP_MIXER, l->index, out, D, err));
        if (b->tap) RT_TRY(RT_OP(rt, add, x.p, out.p, b->rows * D, err));
    }
    RT_TRY(rt_tap(rt, b, MLA_TAP_LAYER, l->index, x, D, err));
    return check_finite(rt, l, b, err);
}
