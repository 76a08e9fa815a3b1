/* The GGUF formats: one tensor of ggml blocks, row after row; quant/gguf_blocks.h decodes them. */
#include "quant/formats.h"

#include "base/ckd.h"
#include "quant/gguf_blocks.h"

static mla_status gguf_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    const mla_tensor *t = &m->part[0];
    const mla_ggml_info *info = mla_ggml_type_info(m->kind);
    if (!info) return mla_fail(err, MLA_EINTERNAL, "%s: ggml type %u", m->name, (unsigned)m->kind);
    size_t blocks = m->in / info->block, row_bytes = blocks * info->bytes;
    const unsigned char *src = t->data;
    /* rows are whole blocks, so consecutive rows are consecutive blocks */
    if (nrows && row_bytes && !mla_ggml_blocks_f32(m->kind, src + row0 * row_bytes, nrows * blocks, dst))
        return mla_fail(err, MLA_EINTERNAL, "%s: decoder of %s", m->name, m->format);
    return MLA_OK;
}

const mla_qformat MLA_QFORMAT_GGUF = {"gguf", MLA_QL_GGUF, NULL, NULL, gguf_rows};

mla_status mla_qmat_gguf(mla_qmat *out, const mla_gguf_tensor *t, mla_err *err)
{
    const mla_ggml_info *info = mla_ggml_type_info(t->type);
    if (!info || !mla_ggml_decodes(t->type))
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: ggml type %u (%s) has no decoder", t->name, (unsigned)t->type,
                        info && info->name ? info->name : "unknown");
    if (t->ndim < 1 || t->ndim > 2)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: expected a matrix or a vector, found %zu dimensions", t->name, t->ndim);
    mla_qmat m = {.name = t->name, .format = mla_ggml_format(t->type), .ops = &MLA_QFORMAT_GGUF, .nparts = 1,
                  .row_block = 1};
    m.in = t->ne[0];
    m.out = t->ndim == 2 ? t->ne[1] : 1;
    m.kind = t->type;
    size_t row_bytes, need;
    if (m.in % info->block || !mla_mul(&row_bytes, m.in / info->block, info->bytes) ||
        !mla_mul(&need, row_bytes, m.out) || need != t->nbytes)
        return mla_fail(err, MLA_EFORMAT, "%s: %s [%zu, %zu] does not span its %zu bytes", t->name, m.format, m.out, m.in,
                        t->nbytes);
    /* the stored part as bytes: [out, bytes of a row] */
    m.part[0] = (mla_tensor){.name = t->name, .dtype = MLA_U8, .ndim = 2, .shape = {m.out, row_bytes}, .data = t->data,
                             .nbytes = t->nbytes};
    *out = m;
    return MLA_OK;
}
