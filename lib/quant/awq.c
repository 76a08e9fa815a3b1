/* AWQ, version gemm: W[o,i] = (q - z) * scales[i / group, o], packed along the OUTPUTS in the order 0 2 4 6 1 3 5 7.
 *
 * qweight I32 [in, out/8], qzeros I32 [groups, out/8], scales F16 or BF16 [groups, out]. Output o is nibble
 * ORDER[o % 8] of word o / 8. Zero points are stored as they are. */
#include "base/ckd.h"
#include "quant/coded_parts.h"
#include "quant/formats.h"
#include "quant/parts.h"

enum { CODES, ZEROS, SCALES };
static const unsigned ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* Which way qweight is packed shows in its shape beside scales [groups, out]. */
static bool awq_detect(const mla_qsource *src, const char *module)
{
    const mla_tensor *q = mla_qpart(src, module, "qweight"), *s = mla_qpart(src, module, "scales");
    return q && s && q->ndim == 2 && s->ndim == 2 && q->shape[1] != s->shape[1] && q->shape[1] == s->shape[1] / 8;
}

static mla_status awq_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    const mla_tensor *q, *z, *s, *idx = mla_qpart(src, module, "g_idx");
    mla_status st = mla_qpart_need(&q, src, module, "qweight", err);
    if (!st) st = mla_qpart_need(&z, src, module, "qzeros", err);
    if (!st) st = mla_qpart_need(&s, src, module, "scales", err);
    if (st) return st;
    if (idx) return mla_fail(err, MLA_EFORMAT, "%s: beside codes packed the AWQ way, which has none", idx->name);
    mla_qmat m = {.name = q->name, .format = "AWQ INT4", .ops = &MLA_QFORMAT_AWQ, .bits = 4, .row_block = 8, .group_out = 1,
                  .in = q->shape[0], .out = s->shape[1]};
    size_t groups = s->shape[0], in8[2] = {m.in, m.out / 8}, g8[2] = {groups, m.out / 8}, g[2] = {groups, m.out};
    if (m.out % 8) return mla_fail(err, MLA_EFORMAT, "%s: %zu outputs are no multiple of 8", s->name, m.out);
    st = mla_qpart_is(q, MLA_I32, 2, in8, err);
    if (!st) st = mla_qpart_is(z, MLA_I32, 2, g8, err);
    if (!st) st = mla_qscale_type(s, err);
    if (!st) st = mla_qpart_is(s, s->dtype, 2, g, err);
    if (!st) st = mla_qgroups_settle(&m, s, groups, want, err);
    if (st) return st;
    if (want && want->bits && want->bits != 4)
        return mla_fail(err, MLA_EFORMAT, "%s: AWQ codes have 4 bits, but %s says %u", q->name, want->why, want->bits);
    mla_qadd(&m, q, false);
    mla_qadd(&m, z, false);
    mla_qadd(&m, s, true);
    *out = m;
    return MLA_OK;
}

static mla_status awq_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    (void)err;
    size_t words = m->out / 8;
    float s[8];
    int z[8];
    for (size_t r = 0; r < nrows;) { /* outputs that share a word are decoded together */
        size_t o = row0 + r, run = 8 - o % 8 < nrows - r ? 8 - o % 8 : nrows - r;
        for (size_t i = 0; i < m->in; i++) {
            if (i % m->group_in == 0) {
                size_t g = i / m->group_in;
                uint32_t zw = mla_qword(m->part[ZEROS].data, g * words + o / 8);
                for (size_t k = 0; k < run; k++) {
                    z[k] = (int)(zw >> 4 * ORDER[(o + k) % 8] & 15);
                    s[k] = mla_qscale(&m->part[SCALES], g * m->out + o + k);
                }
            }
            uint32_t w = mla_qword(m->part[CODES].data, i * words + o / 8);
            for (size_t k = 0; k < run; k++)
                dst[(r + k) * m->in + i] = (float)((int)(w >> 4 * ORDER[(o + k) % 8] & 15) - z[k]) * s[k];
        }
        r += run;
    }
    return MLA_OK;
}

static mla_status awq_fill(const mla_coded *c, size_t o, const mla_coded_row *to, mla_err *err)
{
    const mla_qmat *m = c->ctx;
    size_t words = m->out / 8;
    unsigned at = 4 * ORDER[o % 8];
    (void)err;
    for (size_t g = 0; g < m->part[SCALES].shape[0]; g++) {
        mla_coded_put(to->scale + 2 * g, &m->part[SCALES], g * m->out + o, 2);
        to->offset[g] = (uint8_t)(mla_qword(m->part[ZEROS].data, g * words + o / 8) >> at & 15);
    }
    for (size_t i = 0; i < m->in; i++) to->code[i] = (uint8_t)(mla_qword(m->part[CODES].data, i * words + o / 8) >> at & 15);
    return MLA_OK;
}

bool mla_coded_awq(mla_coded *c, const mla_qmat *m)
{
    c->group = m->group_in;
    c->offset = MLA_OFFSET_ZERO;
    c->fill = awq_fill;
    return mla_coded_ints(c, 4, 0) && mla_coded_scale(c, m->part[SCALES].dtype) && c->scale != MLA_SCALE_F32;
}

const mla_qformat MLA_QFORMAT_AWQ = {"AWQ gemm", MLA_QL_AWQ, awq_detect, awq_describe, awq_rows};
