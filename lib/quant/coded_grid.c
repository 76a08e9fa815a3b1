/* Codes of the formats that store one code after the other in rows, scales in a grid beside them. */
#include "quant/coded_parts.h"
#include "quant/fp4.h"

enum { CODES, SCALE, THIRD }; /* THIRD: zero points of INT8, the global scale of NVFP4 */

static mla_status fill_numbers(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    const mla_qmat *m = c->ctx;
    memcpy(to->code, (const unsigned char *)m->part[CODES].data + row * m->in * 2, m->in * 2);
    return c->code == MLA_CODE_F16 ? mla_coded_finite(m, row, to->code, err) : MLA_OK;
}

mla_status mla_coded_finite(const mla_qmat *m, size_t row, const uint8_t *code, mla_err *err)
{
    for (size_t i = 0; i < m->in; i++)
        if ((code[2 * i + 1] & 0x7c) == 0x7c) return mla_fail(err, MLA_EFORMAT, "%s: non-finite value at [%zu, %zu]", m->name, row, i);
    return MLA_OK;
}

/* The scales of row o from the grid, and zero points of the same shape. */
static void fill_grid(const mla_coded *c, size_t row, const mla_coded_row *to)
{
    const mla_qmat *m = c->ctx;
    size_t cols = mla_qceil(m->in, m->group_in), n = mla_scale_size(c->scale);
    for (size_t g = 0; g < cols; g++) {
        size_t at = row / m->group_out * cols + g;
        mla_coded_put(to->scale + g * n, &m->part[SCALE], at, n);
        if (c->offset == MLA_OFFSET_ZERO) mla_coded_put(to->offset + g, &m->part[THIRD], at, 1);
    }
}

static mla_status fill_bytes(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    const mla_qmat *m = c->ctx;
    const unsigned char *codes = (const unsigned char *)m->part[CODES].data + row * m->in;
    fill_grid(c, row, to);
    memcpy(to->code, codes, m->in);
    for (size_t i = 0; c->code == MLA_CODE_E4M3 && i < m->in; i++)
        if ((codes[i] & 0x7f) == 0x7f) return mla_fail(err, MLA_EFORMAT, "%s: NaN at [%zu, %zu]", m->name, row, i);
    return MLA_OK;
}

static mla_status fill_fp4(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    const mla_qmat *m = c->ctx;
    const unsigned char *codes = (const unsigned char *)m->part[CODES].data + row * (m->in / 2);
    (void)err;
    fill_grid(c, row, to);
    for (size_t i = 0; i < m->in; i += 2) to->code[i] = codes[i / 2] & 15u, to->code[i + 1] = codes[i / 2] >> 4;
    return MLA_OK;
}

/* A table of what the bytes of a scale stand for, times or over the matrix's own scale. */
static void byte_scales(mla_coded *c, const mla_qmat *m)
{
    c->scale = MLA_SCALE_TABLE;
    bool nv = m->ops->layout != MLA_QL_MXFP4 && m->part[SCALE].dtype == MLA_F8_E4M3;
    float global = nv ? mla_qscale(&m->part[THIRD], 0) : 1;
    for (unsigned b = 0; b < 256; b++) {
        float s = m->part[SCALE].dtype == MLA_F8_E8M0 ? mla_e8m0_f32((uint8_t)b) : mla_e4m3_f32((uint8_t)b);
        c->table[b] = !nv ? s : m->ops->layout == MLA_QL_NVFP4_CT ? s / global : s * global;
    }
}

bool mla_coded_grid(mla_coded *c, const mla_qmat *m)
{
    c->group = m->group_in;
    switch (m->ops->layout) {
    case MLA_QL_DENSE:
        c->code = m->part[CODES].dtype == MLA_BF16 ? MLA_CODE_BF16 : MLA_CODE_F16, c->fill = fill_numbers;
        return m->part[CODES].dtype == MLA_BF16 || m->part[CODES].dtype == MLA_F16;
    case MLA_QL_INT8:
        c->fill = fill_bytes;
        if (m->nparts > THIRD) c->offset = MLA_OFFSET_ZERO;
        return mla_coded_ints(c, 8, 0) && mla_coded_scale(c, m->part[SCALE].dtype) && !(c->offset && c->scale == MLA_SCALE_F32);
    case MLA_QL_FP8:
        c->code = MLA_CODE_E4M3, c->fill = fill_bytes;
        if (m->part[SCALE].dtype != MLA_F8_E8M0) return mla_coded_scale(c, m->part[SCALE].dtype);
        byte_scales(c, m);
        return true;
    case MLA_QL_NVFP4_CT:
    case MLA_QL_NVFP4_MODELOPT:
    case MLA_QL_MXFP4:
        c->code = MLA_CODE_NIBBLE, c->fill = fill_fp4;
        memcpy(c->lo, MLA_E2M1, sizeof c->lo);
        if (m->ops->layout == MLA_QL_NVFP4_MODELOPT) c->lo[8] = 0;
        byte_scales(c, m);
        return true;
    default: return false;
    }
}
