/* MXFP4 of compressed-tensors: W[o,i] = e2m1(code) * 2^(weight_scale[o, i/32] - 127).
 * weight_packed U8 [out, in/2] (quant/fp4.h), weight_scale U8 or F8_E8M0 [out, in/32]. No global scale. */
#include "quant/formats.h"
#include "quant/fp4.h"
#include "quant/parts.h"

enum { CODES, SCALE };
#define BLOCK 32

static bool mxfp4_detect(const mla_qsource *src, const char *module)
{
    const mla_tensor *t = mla_qpart(src, module, "weight_packed");
    return t && t->dtype == MLA_U8 && !mla_qpart(src, module, "weight_global_scale");
}

static mla_status mxfp4_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    char text[200];
    const mla_tensor *codes, *found;
    mla_status st = mla_qpart_need(&codes, src, module, "weight_packed", err);
    if (!st) st = mla_qpart_need(&found, src, module, "weight_scale", err);
    if (st) return st;
    if (codes->ndim != 2 || codes->shape[1] > SIZE_MAX / 2 || codes->shape[1] % (BLOCK / 2))
        return mla_fail(err, MLA_EFORMAT, "%s: expected U8 [out, in / 2] with whole blocks of %d inputs, found %s", codes->name,
                        BLOCK, mla_tensor_text(codes, text, sizeof text));
    if (want && want->group && want->group != BLOCK)
        return mla_fail(err, MLA_EFORMAT, "%s: MXFP4 has blocks of %d, but %s says %zu", codes->name, BLOCK, want->why, want->group);
    mla_tensor scale = *found;
    if (scale.dtype == MLA_U8) scale.dtype = MLA_F8_E8M0; /* the same byte under its storage type */
    mla_qmat m = {.name = codes->name, .format = "MXFP4", .ops = &MLA_QFORMAT_MXFP4, .bits = 4, .row_block = 1,
                  .out = codes->shape[0], .in = codes->shape[1] * 2, .group_out = 1, .group_in = BLOCK};
    size_t shape[2] = {m.out, m.in / BLOCK};
    st = mla_qpart_spans(codes, err);
    if (!st) st = mla_qpart_is(&scale, MLA_F8_E8M0, 2, shape, err);
    if (st) return st;
    mla_qadd(&m, codes, false);
    mla_qadd(&m, &scale, true);
    *out = m;
    return MLA_OK;
}

static mla_status mxfp4_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    (void)err;
    const unsigned char *codes = (const unsigned char *)m->part[CODES].data + row0 * (m->in / 2);
    for (size_t r = 0; r < nrows; r++, dst += m->in, codes += m->in / 2)
        for (size_t i = 0; i < m->in; i += BLOCK)
            mla_fp4_run(dst + i, codes + i / 2, BLOCK, mla_qgrid_at(m, SCALE, row0 + r, i / BLOCK));
    return MLA_OK;
}

const mla_qformat MLA_QFORMAT_MXFP4 = {"compressed-tensors mxfp4-pack-quantized", MLA_QL_MXFP4, mxfp4_detect, mxfp4_describe, mxfp4_rows};
