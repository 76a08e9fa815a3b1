/* FP8: W[o,i] = e4m3(weight[o,i]) * s[o / bh, i / bw], weight F8_E4M3 [out, in].
 *
 * compressed-tensors and ModelOpt call the scales weight_scale; Hugging Face's fp8 calls them weight_scale_inv, and
 * multiplies all the same. Per tensor ([] or [1]), per channel ([out] or [out, 1]), per block [ceil(out/bh), ceil(in/bw)]
 * (128 x 128 unless the config says otherwise) or per group. F32, F16, BF16, or E8M0 bytes (stored as F8_E8M0 or U8).
 * input_scale is not for the weight. */
#include "quant/formats.h"
#include "quant/parts.h"

enum { CODES, SCALE };

static bool fp8_detect(const mla_qsource *src, const char *module)
{
    const mla_tensor *t = mla_qpart(src, module, "weight");
    return t && t->dtype == MLA_F8_E4M3;
}

static mla_status pick_scale(mla_tensor *scale, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    const mla_tensor *plain = mla_qpart(src, module, "weight_scale"), *inv = mla_qpart(src, module, "weight_scale_inv");
    if (plain && inv) return mla_fail(err, MLA_EFORMAT, "%s: beside %s, one of them is alien", inv->name, plain->name);
    if (!plain && !inv) return mla_fail(err, MLA_EFORMAT, "%s.weight_scale or .weight_scale_inv: absent beside FP8 codes", module);
    *scale = plain ? *plain : *inv;
    if (scale->dtype == MLA_U8) scale->dtype = MLA_F8_E8M0;
    if (scale->dtype == MLA_F8_E8M0) {
        if (want && want->e8m0 == MLA_QT_NO)
            return mla_fail(err, MLA_EFORMAT, "%s: E8M0 scales, but %s says floats", scale->name, want->why);
        return mla_qpart_spans(scale, err);
    }
    if (want && want->e8m0 == MLA_QT_YES && scale->dtype != MLA_F32) /* powers of two may be stored as F32, too */
        return mla_fail(err, MLA_EFORMAT, "%s: %s scales, but %s says ue8m0", scale->name, mla_dtype_name(scale->dtype), want->why);
    return mla_qscale_type(scale, err);
}

static mla_status fp8_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    static const char *const NAME[] = {[MLA_QS_TENSOR] = "FP8 E4M3 per tensor", [MLA_QS_CHANNEL] = "FP8 E4M3 per channel",
                                       [MLA_QS_GROUP] = "FP8 E4M3 per group", [MLA_QS_BLOCK] = "FP8 E4M3 per block"};
    const mla_tensor *w;
    mla_tensor scale;
    mla_qstrategy strategy;
    mla_status st = mla_qpart_need(&w, src, module, "weight", err);
    if (st) return st;
    mla_qmat m = {.name = w->name, .ops = &MLA_QFORMAT_FP8, .row_block = 1, .bits = 8};
    if (w->ndim != 2) return mla_fail(err, MLA_EFORMAT, "%s: expected a matrix, found %zu dimensions", w->name, w->ndim);
    m.out = w->shape[0], m.in = w->shape[1];
    st = mla_qpart_spans(w, err);
    if (!st) st = pick_scale(&scale, src, module, want, err);
    if (st) return st;
    mla_qadd(&m, w, false);
    st = mla_qgrid_settle(&m, &scale, want, true, &strategy, err);
    if (st) return st;
    m.format = NAME[strategy];
    *out = m;
    return MLA_OK;
}

static mla_status fp8_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    (void)err;
    const unsigned char *codes = (const unsigned char *)m->part[CODES].data + row0 * m->in;
    float value[256];
    for (unsigned b = 0; b < 256; b++) value[b] = mla_e4m3_f32((uint8_t)b);
    for (size_t r = 0; r < nrows; r++, dst += m->in, codes += m->in) {
        for (size_t i = 0; i < m->in; i++) dst[i] = value[codes[i]];
        mla_qgrid_scale_row(m, SCALE, row0 + r, dst);
    }
    return MLA_OK;
}

const mla_qformat MLA_QFORMAT_FP8 = {"FP8", MLA_QL_FP8, fp8_detect, fp8_describe, fp8_rows};
