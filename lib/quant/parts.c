/* Finding, checking and reading the stored parts of a module; scale grids. */
#include "quant/parts.h"

#include <stdio.h>

#include "base/ckd.h"

const mla_tensor *mla_qpart(const mla_qsource *src, const char *module, const char *suffix)
{
    char name[512];
    int n = snprintf(name, sizeof name, "%s.%s", module, suffix);
    return n > 0 && (size_t)n < sizeof name ? src->find(src->ctx, name) : NULL;
}

mla_status mla_qpart_need(const mla_tensor **out, const mla_qsource *src, const char *module, const char *suffix, mla_err *err)
{
    *out = mla_qpart(src, module, suffix);
    return *out ? MLA_OK : mla_fail(err, MLA_EFORMAT, "%s.%s: absent", module, suffix);
}

mla_status mla_qpart_spans(const mla_tensor *t, mla_err *err)
{
    char text[200];
    size_t need = 1;
    bool fits = t->ndim <= MLA_MAX_DIMS && mla_dtype_bits(t->dtype) >= 8;
    for (size_t i = 0; fits && i < t->ndim; i++) fits = mla_mul(&need, need, t->shape[i]);
    if (!fits || !mla_mul(&need, need, mla_dtype_bits(t->dtype) / 8) || need != t->nbytes)
        return mla_fail(err, MLA_EFORMAT, "%s: %s does not span its %zu bytes", t->name, mla_tensor_text(t, text, sizeof text),
                        t->nbytes);
    return MLA_OK;
}

mla_status mla_qpart_is(const mla_tensor *t, mla_dtype dtype, size_t ndim, const size_t *shape, mla_err *err)
{
    char text[200], dims[160];
    if (t->dtype != dtype || !mla_shape_is(t, ndim, shape))
        return mla_fail(err, MLA_EFORMAT, "%s: expected %s %s, found %s", t->name, mla_dtype_name(dtype),
                        mla_shape_text(shape, ndim, dims, sizeof dims), mla_tensor_text(t, text, sizeof text));
    return mla_qpart_spans(t, err);
}

mla_status mla_qscale_type(const mla_tensor *t, mla_err *err)
{
    if (t->dtype != MLA_F32 && t->dtype != MLA_F16 && t->dtype != MLA_BF16)
        return mla_fail(err, MLA_EFORMAT, "%s: expected scales of F32, F16 or BF16, found %s", t->name, mla_dtype_name(t->dtype));
    return mla_qpart_spans(t, err);
}

void mla_qadd(mla_qmat *m, const mla_tensor *t, bool scale)
{
    if (m->nparts >= MLA_QMAT_PARTS) return; /* no format has more */
    if (scale) m->scale_parts |= 1u << m->nparts;
    m->part[m->nparts++] = *t;
}

/* Does the shape of t hold the grid of this strategy? Fills the group sizes of m when it does. */
static bool grid_fits(mla_qmat *m, const mla_tensor *t, mla_qstrategy strategy, const mla_qscheme *want)
{
    size_t n = mla_tensor_numel(t), go = m->out, gi = m->in;
    switch (strategy) {
    case MLA_QS_TENSOR:
        if (n != 1) return false;
        break;
    case MLA_QS_CHANNEL:
        if (n != m->out || t->ndim < 1 || t->shape[0] != m->out) return false;
        go = 1;
        break;
    case MLA_QS_BLOCK:
        go = want && want->block_out ? want->block_out : 128;
        gi = want && want->block_in ? want->block_in : 128;
        if (t->ndim != 2 || t->shape[0] != mla_qceil(m->out, go) || t->shape[1] != mla_qceil(m->in, gi)) return false;
        break;
    case MLA_QS_GROUP:
        if (t->ndim != 2 || t->shape[0] != m->out || t->shape[1] == 0) return false;
        go = 1;
        if (want && want->strategy == MLA_QS_GROUP) gi = want->group ? want->group : m->in;
        else if (m->in % t->shape[1]) return false; /* uneven groups: only a config can tell their size */
        else gi = m->in / t->shape[1];
        if (gi == 0 || t->shape[1] != mla_qceil(m->in, gi)) return false;
        break;
    default:
        return false;
    }
    m->group_out = go ? go : 1;
    m->group_in = gi ? gi : 1;
    return true;
}

mla_status mla_qgrid_settle(mla_qmat *m, const mla_tensor *t, const mla_qscheme *want, bool by_groups, mla_qstrategy *strategy,
                            mla_err *err)
{
    static const char *const NAME[] = {"any", "tensor", "channel", "group", "block"};
    static const mla_qstrategy ORDER[] = {MLA_QS_TENSOR, MLA_QS_CHANNEL, MLA_QS_BLOCK, MLA_QS_GROUP};
    char text[200];
    mla_status st = mla_qpart_spans(t, err);
    if (st) return st;
    if (want && want->strategy != MLA_QS_ANY) {
        *strategy = want->strategy;
        if (!grid_fits(m, t, want->strategy, want))
            return mla_fail(err, MLA_EFORMAT, "%s: %s holds no scales per %s of a [%zu, %zu] matrix%s, as %s says", t->name,
                            mla_tensor_text(t, text, sizeof text), NAME[want->strategy], m->out, m->in,
                            want->strategy == MLA_QS_GROUP ? " in groups of the given size" : "", want->why);
        mla_qadd(m, t, true);
        return MLA_OK;
    }
    for (size_t i = 0; i < (by_groups ? 4 : 3); i++)
        if (grid_fits(m, t, ORDER[i], want)) {
            *strategy = ORDER[i];
            mla_qadd(m, t, true);
            return MLA_OK;
        }
    return mla_fail(err, MLA_EFORMAT, "%s: %s fits no grid of scales over a [%zu, %zu] matrix", t->name,
                    mla_tensor_text(t, text, sizeof text), m->out, m->in);
}

float mla_qgrid_at(const mla_qmat *m, size_t p, size_t o, size_t c)
{
    return mla_qscale(&m->part[p], o / m->group_out * mla_qceil(m->in, m->group_in) + c);
}

void mla_qgrid_scale_row(const mla_qmat *m, size_t p, size_t o, float *dst)
{
    for (size_t i = 0, c = 0; i < m->in; c++) {
        float s = mla_qgrid_at(m, p, o, c);
        size_t end = m->in - i < m->group_in ? m->in : i + m->group_in;
        for (; i < end; i++) dst[i] *= s;
    }
}

mla_status mla_qgidx_check(const mla_tensor *t, size_t in, size_t groups, size_t group, bool *natural, mla_err *err)
{
    size_t shape[1] = {in};
    mla_status st = mla_qpart_is(t, MLA_I32, 1, shape, err);
    if (st) return st;
    *natural = true;
    for (size_t i = 0; i < in; i++) {
        uint32_t g = mla_qword(t->data, i);
        if (g >= groups)
            return mla_fail(err, MLA_EFORMAT, "%s: entry %zu is %d, expected 0 to %zu (the matrix has %zu groups)", t->name, i,
                            (int)(int32_t)g, groups - 1, groups);
        if (g != i / group) *natural = false;
    }
    return MLA_OK;
}

mla_status mla_qgroups_settle(mla_qmat *m, const mla_tensor *scales, size_t groups, const mla_qscheme *want, mla_err *err)
{
    bool told = want && want->strategy == MLA_QS_GROUP;
    if (told) m->group_in = want->group ? want->group : m->in;
    else if (groups && m->in % groups == 0) m->group_in = m->in / groups;
    if (m->group_in == 0 || mla_qceil(m->in, m->group_in) != groups)
        return mla_fail(err, MLA_EFORMAT, "%s: %zu groups do not divide %zu inputs%s%s", scales->name, groups, m->in,
                        told ? " as the group size of " : "", told ? want->why : "");
    return MLA_OK;
}
