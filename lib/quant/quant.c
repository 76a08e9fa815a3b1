/* The format table and what all formats share: range checks, sizes, counting non-finite values. */
#include "quant/quant.h"

#include <stdio.h>

#include "base/alloc.h"
#include "quant/formats.h"
#include "tensor/compare.h"

/* Detection order: a format whose parts include another's must stand before it. */
static const mla_qformat *const FORMATS[] = {
    &MLA_QFORMAT_DENSE,
    &MLA_QFORMAT_GGUF,
};

const mla_qformat *mla_qformat_at(size_t i) { return i < sizeof FORMATS / sizeof *FORMATS ? FORMATS[i] : NULL; }

mla_status mla_qmat_open(mla_qmat *out, const mla_qsource *src, const char *module, mla_err *err)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (FORMATS[i]->detect && FORMATS[i]->detect(src, module)) return FORMATS[i]->describe(out, src, module, err);
    return mla_fail(err, MLA_EFORMAT, "%s: no known weight format has its tensors under this name", module);
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
    float *row = mla_alloc_raw(m->in, 1, sizeof *row);
    if (!row) return mla_fail(err, MLA_ENOMEM, "%s: a row of %zu values", m->name, m->in);
    *count = 0;
    if (first_row) *first_row = m->out;
    for (size_t r = 0; r < m->out; r++) {
        st = mla_qmat_rows_f32(m, r, 1, row, err);
        if (st) goto done;
        size_t bad = mla_count_nonfinite(row, m->in, NULL);
        if (bad && *count == 0 && first_row) *first_row = r;
        *count += bad;
    }
done:
    mla_free(row);
    return st;
}

const char *mla_qmat_text(const mla_qmat *m, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "%s [%zu, %zu]", m->format, m->out, m->in);
    return buf;
}
