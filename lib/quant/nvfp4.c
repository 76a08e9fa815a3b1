/* NVFP4: blocks of 16 inputs share an E4M3 scale, the matrix one F32 scale; codes U8 [out, in/2] (quant/fp4.h).
 *
 * compressed-tensors: weight_packed, weight_scale [out, in/16], weight_global_scale [1]; W = e2m1 * (s / global).
 * ModelOpt: weight, weight_scale, weight_scale_2 ([] or [1]); W = e2m1 * (s * scale_2), its code 8 being +0.
 * input_scale and input_global_scale are not for the weight. */
#include "quant/formats.h"
#include "quant/fp4.h"
#include "quant/parts.h"

enum { CODES, SCALE, GLOBAL };
enum { CT, MODELOPT };
#define BLOCK 16

static bool is_u8(const mla_tensor *t) { return t && t->dtype == MLA_U8; }

static bool ct_detect(const mla_qsource *src, const char *module)
{
    return is_u8(mla_qpart(src, module, "weight_packed")) && mla_qpart(src, module, "weight_global_scale");
}

static bool modelopt_detect(const mla_qsource *src, const char *module) { return is_u8(mla_qpart(src, module, "weight")); }

static mla_status describe(mla_qmat *m, const mla_tensor *codes, const mla_tensor *scale, const mla_tensor *global,
                           const mla_qscheme *want, mla_err *err)
{
    char text[200];
    if (codes->ndim != 2 || codes->shape[1] > SIZE_MAX / 2 || codes->shape[1] % (BLOCK / 2))
        return mla_fail(err, MLA_EFORMAT, "%s: expected U8 [out, in / 2] with whole blocks of %d inputs, found %s", codes->name,
                        BLOCK, mla_tensor_text(codes, text, sizeof text));
    if (want && want->group && want->group != BLOCK)
        return mla_fail(err, MLA_EFORMAT, "%s: NVFP4 has blocks of %d, but %s says %zu", codes->name, BLOCK, want->why, want->group);
    m->name = codes->name;
    m->out = codes->shape[0];
    m->in = codes->shape[1] * 2;
    m->bits = 4;
    m->row_block = 1;
    m->group_out = 1;
    m->group_in = BLOCK;
    size_t shape[2] = {m->out, m->in / BLOCK};
    mla_status st = mla_qpart_spans(codes, err);
    if (!st) st = mla_qpart_is(scale, MLA_F8_E4M3, 2, shape, err);
    if (st) return st;
    if (global->dtype != MLA_F32 || global->ndim > 1 || mla_tensor_numel(global) != 1)
        return mla_fail(err, MLA_EFORMAT, "%s: expected one F32, found %s", global->name, mla_tensor_text(global, text, sizeof text));
    st = mla_qpart_spans(global, err);
    if (st) return st;
    mla_qadd(m, codes, false);
    mla_qadd(m, scale, true);
    mla_qadd(m, global, true);
    return MLA_OK;
}

static mla_status ct_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    const mla_tensor *codes, *scale, *global;
    mla_qmat m = {.format = "NVFP4 (CT)", .ops = &MLA_QFORMAT_NVFP4_CT, .kind = CT};
    mla_status st = mla_qpart_need(&codes, src, module, "weight_packed", err);
    if (!st) st = mla_qpart_need(&scale, src, module, "weight_scale", err);
    if (!st) st = mla_qpart_need(&global, src, module, "weight_global_scale", err);
    if (!st) st = describe(&m, codes, scale, global, want, err);
    if (!st) *out = m;
    return st;
}

static mla_status modelopt_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want,
                                    mla_err *err)
{
    const mla_tensor *codes, *scale, *global;
    mla_qmat m = {.format = "NVFP4 (ModelOpt)", .ops = &MLA_QFORMAT_NVFP4_MODELOPT, .kind = MODELOPT};
    mla_status st = mla_qpart_need(&codes, src, module, "weight", err);
    if (!st) st = mla_qpart_need(&scale, src, module, "weight_scale", err);
    if (!st) st = mla_qpart_need(&global, src, module, "weight_scale_2", err);
    if (!st) st = describe(&m, codes, scale, global, want, err);
    if (!st) *out = m;
    return st;
}

static mla_status rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    (void)err;
    const unsigned char *codes = (const unsigned char *)m->part[CODES].data + row0 * (m->in / 2);
    float global = mla_qscale(&m->part[GLOBAL], 0);
    for (size_t r = 0; r < nrows; r++, dst += m->in, codes += m->in / 2)
        for (size_t i = 0; i < m->in; i += BLOCK) {
            float s = mla_qgrid_at(m, SCALE, row0 + r, i / BLOCK);
            s = m->kind == CT ? s / global : s * global;
            mla_fp4_run(dst + i, codes + i / 2, BLOCK, s);
            if (m->kind == MODELOPT) /* its table has no -0 */
                for (size_t j = i; j < i + BLOCK; j++)
                    if ((codes[j / 2] >> (j % 2 * 4) & 15) == 8) dst[j] = 0.0f * s;
        }
    return MLA_OK;
}

const mla_qformat MLA_QFORMAT_NVFP4_CT = {"compressed-tensors nvfp4-pack-quantized", MLA_QL_NVFP4_CT, ct_detect, ct_describe, rows};
const mla_qformat MLA_QFORMAT_NVFP4_MODELOPT = {"ModelOpt NVFP4", MLA_QL_NVFP4_MODELOPT, modelopt_detect, modelopt_describe, rows};
