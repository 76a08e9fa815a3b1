/* The dense format: one stored tensor, "M.weight", of plain floats. */
#include "quant/formats.h"

#include "base/ckd.h"
#include "quant/parts.h"

static bool is_plain_float(mla_dtype t) { return t == MLA_F32 || t == MLA_F16 || t == MLA_BF16 || t == MLA_F64; }

static bool dense_detect(const mla_qsource *src, const char *module)
{
    const mla_tensor *t = mla_qpart(src, module, "weight");
    return t && is_plain_float(t->dtype);
}

static mla_status dense_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    (void)want;
    static const char *const ALIEN[] = {"weight_scale", "weight_scale_inv", "weight_scale_2", "weight_zero_point"};
    const mla_tensor *t;
    mla_status st = mla_qpart_need(&t, src, module, "weight", err);
    if (st) return st;
    for (size_t i = 0; i < sizeof ALIEN / sizeof *ALIEN; i++) { /* plain values need no scale: one of the two is wrong */
        const mla_tensor *s = mla_qpart(src, module, ALIEN[i]);
        if (s) return mla_fail(err, MLA_EFORMAT, "%s: beside plain %s values in %s", s->name, mla_dtype_name(t->dtype), t->name);
    }
    return mla_qmat_dense(out, t, err);
}

static mla_status dense_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    const mla_tensor *t = &m->part[0];
    size_t row_bytes = m->in * (mla_dtype_bits(t->dtype) / 8);
    const unsigned char *src = t->data;
    if (nrows == 0 || m->in == 0) return MLA_OK;
    if (!mla_to_f32(dst, src + row0 * row_bytes, t->dtype, nrows * m->in))
        return mla_fail(err, MLA_EINTERNAL, "%s: conversion of %s", m->name, m->format);
    return MLA_OK;
}

const mla_qformat MLA_QFORMAT_DENSE = {"dense", MLA_QL_DENSE, dense_detect, dense_describe, dense_rows};

mla_status mla_qmat_dense(mla_qmat *out, const mla_tensor *t, mla_err *err)
{
    char text[160];
    if (!is_plain_float(t->dtype))
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: %s is no dense matrix (F32, F16, BF16 or F64)", t->name,
                        mla_tensor_text(t, text, sizeof text));
    if (t->ndim != 1 && t->ndim != 2)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: expected a matrix or a vector, found %s", t->name,
                        mla_tensor_text(t, text, sizeof text));
    mla_qmat m = {.name = t->name, .format = mla_dtype_name(t->dtype), .ops = &MLA_QFORMAT_DENSE, .nparts = 1,
                  .row_block = 1};
    m.out = t->ndim == 2 ? t->shape[0] : 1;
    m.in = t->shape[t->ndim - 1];
    m.part[0] = *t;
    size_t need;
    if (!mla_mul(&need, m.out, m.in) || !mla_mul(&need, need, mla_dtype_bits(t->dtype) / 8) || need != t->nbytes)
        return mla_fail(err, MLA_EFORMAT, "%s: %s does not span its %zu bytes", t->name,
                        mla_tensor_text(t, text, sizeof text), t->nbytes);
    *out = m;
    return MLA_OK;
}
