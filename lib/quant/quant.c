/* The format table, the doors to it, and what all formats share: range checks, sizes, counted scales and values. */
#include "quant/quant.h"

#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "quant/formats.h"
#include "quant/parts.h"
#include "tensor/compare.h"

static const mla_qformat *const FORMATS[] = {
    &MLA_QFORMAT_DENSE, &MLA_QFORMAT_GGUF, &MLA_QFORMAT_CT_PACK, &MLA_QFORMAT_INT8, &MLA_QFORMAT_FP8,
    &MLA_QFORMAT_NVFP4_CT, &MLA_QFORMAT_NVFP4_MODELOPT, &MLA_QFORMAT_MXFP4, &MLA_QFORMAT_AWQ, &MLA_QFORMAT_GPTQ,
    &MLA_QFORMAT_EXL3,
};

const mla_qformat *mla_qformat_at(size_t i) { return i < sizeof FORMATS / sizeof *FORMATS ? FORMATS[i] : NULL; }

/* The one format whose parts the module has. */
static mla_status detect(const mla_qformat **out, const mla_qsource *src, const char *module, mla_err *err)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (!FORMATS[i]->detect || !FORMATS[i]->detect(src, module)) continue;
        if (*out)
            return mla_fail(err, MLA_EFORMAT, "%s: has tensors of two formats, %s and %s", module, (*out)->family, FORMATS[i]->family);
        *out = FORMATS[i];
    }
    if (!*out) return mla_fail(err, MLA_EFORMAT, "%s: no known weight format has its tensors under this name", module);
    return MLA_OK;
}

static mla_status describe(mla_qmat *out, const mla_qformat *f, const mla_qsource *src, const char *module,
                           const mla_qscheme *want, mla_err *err)
{
    mla_qmat m;
    const mla_tensor *pre = mla_qpart(src, module, "pre_quant_scale");
    if (pre) return mla_fail(err, MLA_EUNSUPPORTED, "%s: scales the inputs, which no format here does", pre->name);
    mla_status st = f->describe(&m, src, module, want, err);
    if (st) return st;
    if (f->layout != MLA_QL_DENSE && (m.out == 0 || m.in == 0))
        return mla_fail(err, MLA_EFORMAT, "%s: a %s matrix of [%zu, %zu]", m.name, m.format, m.out, m.in);
    *out = m;
    return MLA_OK;
}

mla_status mla_qmat_open(mla_qmat *out, const mla_qsource *src, const char *module, mla_err *err)
{
    const mla_qformat *f;
    mla_status st = detect(&f, src, module, err);
    return st ? st : describe(out, f, src, module, NULL, err);
}

static const char *family_of(mla_qlayout layout)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (FORMATS[i]->layout == layout) return FORMATS[i]->family;
    return "?";
}

mla_status mla_qmat_open_with(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qconfig *cfg, mla_err *err)
{
    const mla_qformat *f;
    mla_qscheme want;
    if (!cfg) return mla_qmat_open(out, src, module, err);
    mla_status st = detect(&f, src, module, err);
    if (!st) st = mla_qconfig_scheme(cfg, module, mla_qclass(src, module), &want, err);
    if (st) return st;
    if (f->layout == MLA_QL_DENSE) {
        if (want.expect == MLA_QX_QUANTIZED)
            return mla_fail(err, MLA_EFORMAT, "%s: stored plain, but %s quantizes it as %s and nothing excludes it", module,
                            want.why, family_of(want.layout));
        return describe(out, f, src, module, NULL, err);
    }
    if (want.expect == MLA_QX_PLAIN)
        return mla_fail(err, MLA_EFORMAT, "%s: stored as %s, but %s keeps it plain", module, f->family, want.why);
    if (f->layout != want.layout)
        return mla_fail(err, MLA_EFORMAT, "%s: stored as %s, but %s says %s", module, f->family, want.why, family_of(want.layout));
    return describe(out, f, src, module, &want, err);
}

mla_status mla_qmat_expect(mla_qmat *m, size_t out, size_t in, mla_err *err)
{
    if (m->out == out && m->in == in) return MLA_OK;
    size_t step = m->ops == &MLA_QFORMAT_EXL3 ? 128 : 1;
    if (out == 0 || in == 0 || mla_qceil(out, step) * step != m->out || mla_qceil(in, step) * step != m->in)
        return mla_fail(err, MLA_EFORMAT, "%s: expected [%zu, %zu], found [%zu, %zu] as %s", m->name, out, in, m->out, m->in, m->format);
    m->out = out;
    m->in = in;
    return MLA_OK;
}

mla_status mla_qmat_scales(const mla_qmat *m, mla_qscales *out, mla_err *err)
{
    *out = (mla_qscales){0};
    for (size_t p = 0; p < m->nparts; p++) {
        if (!(m->scale_parts >> p & 1)) continue;
        const mla_tensor *t = &m->part[p];
        size_t n = mla_tensor_numel(t);
        for (size_t i = 0; i < n; i++) {
            float s;
            if (!mla_to_f32(&s, (const unsigned char *)t->data + i * (mla_dtype_bits(t->dtype) / 8), t->dtype, 1))
                return mla_fail(err, MLA_EINTERNAL, "%s: scales of %s", t->name, mla_dtype_name(t->dtype));
            out->zero += s == 0;
            out->nonfinite += !isfinite(s);
            out->negative += s < 0;
            if (!out->part && (s == 0 || !isfinite(s))) out->part = t->name, out->first = i;
        }
        out->n += n;
    }
    return MLA_OK;
}

mla_status mla_qmat_rows_f32(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    if (row0 > m->out || nrows > m->out - row0)
        return mla_fail(err, MLA_EINVAL, "%s: %zu rows from %zu asked, the matrix has %zu", m->name, nrows, row0, m->out);
    return m->ops->rows(m, row0, nrows, dst, err);
}

size_t mla_qmat_bytes(const mla_qmat *m)
{
    size_t sum = 0; /* cannot wrap: disjoint spans of mapped files */
    for (size_t i = 0; i < m->nparts; i++) sum += m->part[i].nbytes;
    return sum;
}

mla_status mla_qmat_nonfinite(const mla_qmat *m, size_t *count, size_t *first_row, mla_err *err)
{
    mla_status st = MLA_OK;
    size_t step = m->row_block ? m->row_block : 1;
    float *rows = mla_alloc_raw(step, m->in, sizeof *rows);
    if (!rows) return mla_fail(err, MLA_ENOMEM, "%s: %zu rows of %zu values", m->name, step, m->in);
    *count = 0;
    if (first_row) *first_row = m->out;
    for (size_t r0 = 0; r0 < m->out; r0 += step) {
        size_t n = m->out - r0 < step ? m->out - r0 : step;
        st = mla_qmat_rows_f32(m, r0, n, rows, err);
        if (st) goto done;
        for (size_t r = 0; r < n; r++) {
            size_t bad = mla_count_nonfinite(rows + r * m->in, m->in, NULL);
            if (bad && *count == 0 && first_row) *first_row = r0 + r;
            *count += bad;
        }
    }
done:
    mla_free(rows);
    return st;
}

const char *mla_qmat_text(const mla_qmat *m, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "%s [%zu, %zu]", m->format, m->out, m->in);
    return buf;
}
