/* compressed-tensors int-quantized: W[o,i] = (weight[o,i] - z) * s, weight I8 [out, in].
 * weight_scale per tensor, channel, block or group (F32, F16, BF16); weight_zero_point I8 of the same shape, or none (0). */
#include "quant/formats.h"
#include "quant/parts.h"

enum { CODES, SCALE, ZERO };

static bool int8_detect(const mla_qsource *src, const char *module)
{
    const mla_tensor *t = mla_qpart(src, module, "weight");
    return t && t->dtype == MLA_I8;
}

static mla_status int8_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    const mla_tensor *w, *scale, *zero = mla_qpart(src, module, "weight_zero_point");
    mla_qstrategy strategy;
    mla_status st = mla_qpart_need(&w, src, module, "weight", err);
    if (!st) st = mla_qpart_need(&scale, src, module, "weight_scale", err);
    if (st) return st;
    mla_qmat m = {.name = w->name, .format = "CT INT8", .ops = &MLA_QFORMAT_INT8, .row_block = 1, .bits = 8};
    if (w->ndim != 2) return mla_fail(err, MLA_EFORMAT, "%s: expected a matrix, found %zu dimensions", w->name, w->ndim);
    if (want && want->bits && want->bits != 8)
        return mla_fail(err, MLA_EFORMAT, "%s: codes of 8 bits, but %s says %u", w->name, want->why, want->bits);
    m.out = w->shape[0], m.in = w->shape[1];
    st = mla_qpart_spans(w, err);
    if (!st) st = mla_qscale_type(scale, err);
    if (st) return st;
    mla_qadd(&m, w, false);
    st = mla_qgrid_settle(&m, scale, want, true, &strategy, err);
    if (st) return st;
    if (want && want->symmetric == MLA_QT_YES && zero)
        return mla_fail(err, MLA_EFORMAT, "%s: zero points, but %s says symmetric", zero->name, want->why);
    if (want && want->symmetric == MLA_QT_NO && !zero)
        return mla_fail(err, MLA_EFORMAT, "%s: no weight_zero_point, but %s says asymmetric", w->name, want->why);
    if (zero) {
        st = mla_qpart_is(zero, MLA_I8, scale->ndim, scale->shape, err);
        if (st) return st;
        mla_qadd(&m, zero, false);
    }
    *out = m;
    return MLA_OK;
}

static mla_status int8_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    (void)err;
    const unsigned char *codes = m->part[CODES].data;
    size_t cols = mla_qceil(m->in, m->group_in);
    for (size_t r = 0; r < nrows; r++, dst += m->in) {
        size_t o = row0 + r;
        for (size_t i = 0, c = 0; i < m->in; c++) {
            float s = mla_qgrid_at(m, SCALE, o, c);
            int z = m->nparts > ZERO ? (int8_t)((const unsigned char *)m->part[ZERO].data)[o / m->group_out * cols + c] : 0;
            size_t end = m->in - i < m->group_in ? m->in : i + m->group_in;
            for (; i < end; i++) dst[i] = (float)((int8_t)codes[o * m->in + i] - z) * s;
        }
    }
    return MLA_OK;
}

const mla_qformat MLA_QFORMAT_INT8 = {"compressed-tensors int-quantized", MLA_QL_INT8, int8_detect, int8_describe, int8_rows};
