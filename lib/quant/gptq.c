/* GPTQ: W[o,i] = (q - z) * scales[g, o], g = g_idx[i] or i / group; codes of b = 2, 4 or 8 bits.
 *
 * qweight I32 [in b/32, out] packed along the INPUTS, qzeros I32 [groups, out b/32] along the outputs, both lowest bits
 * first; scales F16 or BF16 [groups, out]; g_idx I32 [in] (may be absent without activation order). Checkpoint format
 * "gptq" (v1) stores z - 1, subtracted from the WHOLE word: a zero point of 0 borrows from its neighbour, so 1 is added
 * to every field by one addition to the word, wrapping at 32 bits. "gptq_v2" stores z. Only the config tells the two apart. */
#include "base/ckd.h"
#include "quant/coded_parts.h"
#include "quant/formats.h"
#include "quant/parts.h"

enum { CODES, ZEROS, SCALES, GIDX };
enum { V_UNTOLD, V1, V2 }; /* kind */
#define TILE 16 /* rows decoded together: one cache line of words */

static bool gptq_detect(const mla_qsource *src, const char *module)
{
    const mla_tensor *q = mla_qpart(src, module, "qweight"), *s = mla_qpart(src, module, "scales");
    return q && s && q->ndim == 2 && s->ndim == 2 && q->shape[1] == s->shape[1];
}

static inline uint32_t zero_word(const mla_qmat *m, size_t at)
{
    static const uint32_t ONES[] = {[2] = 0x55555555u, [4] = 0x11111111u, [8] = 0x01010101u};
    uint32_t w = mla_qword(m->part[ZEROS].data, at);
    return m->kind == V1 ? w + ONES[m->bits] : w;
}

static inline int field(uint32_t w, size_t k, unsigned bits) { return (int)(w >> (k % (32 / bits) * bits) & ((1u << bits) - 1)); }

/* Symmetric weights have the zero point 2^(b-1) everywhere; any other value means that config and tensors disagree,
 * most often about v1 and v2. */
static mla_status check_symmetric(const mla_qmat *m, const mla_qscheme *want, mla_err *err)
{
    size_t per = 32 / m->bits, words = m->out / per, groups = m->part[SCALES].shape[0];
    for (size_t g = 0; g < groups; g++)
        for (size_t o = 0; o < m->out; o++) {
            int z = field(zero_word(m, g * words + o / per), o, m->bits);
            if (z != 1 << (m->bits - 1))
                return mla_fail(err, MLA_EFORMAT, "%s: zero point %d of output %zu in group %zu, but %s says symmetric (%d) "
                                "stored as %s", m->part[ZEROS].name, z, o, g, want->why, 1 << (m->bits - 1),
                                m->kind == V1 ? "gptq (v1)" : "gptq_v2");
        }
    return MLA_OK;
}

static mla_status add_gidx(mla_qmat *m, const mla_tensor *idx, size_t groups, const mla_qscheme *want, mla_err *err)
{
    bool natural;
    if (!idx) {
        if (want && want->g_idx == MLA_QT_YES)
            return mla_fail(err, MLA_EFORMAT, "%s: no g_idx, but %s says activation order", m->name, want->why);
        return MLA_OK;
    }
    mla_status st = mla_qgidx_check(idx, m->in, groups, m->group_in, &natural, err);
    if (st) return st;
    if (!natural && want && want->g_idx == MLA_QT_NO)
        return mla_fail(err, MLA_EFORMAT, "%s: columns in another order than by group, but %s says no activation order",
                        idx->name, want->why);
    mla_qadd(m, idx, false);
    return MLA_OK;
}

/* bits from the packing of the zero points: out * bits / 32 words for out outputs. */
static mla_status settle(mla_qmat *m, const mla_tensor *q, const mla_tensor *z, const mla_tensor *s, const mla_qscheme *want,
                         mla_err *err)
{
    char text[200];
    m->out = s->shape[1];
    size_t bits = z->ndim == 2 && m->out && z->shape[1] <= SIZE_MAX / 32 ? z->shape[1] * 32 / m->out : 0;
    if ((bits != 2 && bits != 4 && bits != 8) || z->shape[1] * 32 != m->out * bits)
        return mla_fail(err, MLA_EFORMAT, "%s: %s holds no zero points of 2, 4 or 8 bits for %zu outputs", z->name,
                        mla_tensor_text(z, text, sizeof text), m->out);
    if (want && want->bits && want->bits != bits)
        return mla_fail(err, MLA_EFORMAT, "%s: zero points of %zu bits, but %s says %u", z->name, bits, want->why, want->bits);
    m->bits = (unsigned)bits;
    m->format = bits == 2 ? "GPTQ INT2" : bits == 4 ? "GPTQ INT4" : "GPTQ INT8";
    if (!mla_mul(&m->in, q->shape[0], 32 / bits))
        return mla_fail(err, MLA_EFORMAT, "%s: %zu rows of words", q->name, q->shape[0]);
    size_t groups = s->shape[0], zs[2] = {groups, z->shape[1]}, ss[2] = {groups, m->out}, qs[2] = {q->shape[0], m->out};
    mla_status st = mla_qpart_is(q, MLA_I32, 2, qs, err);
    if (!st) st = mla_qpart_is(z, MLA_I32, 2, zs, err);
    if (!st) st = mla_qscale_type(s, err);
    if (!st) st = mla_qpart_is(s, s->dtype, 2, ss, err);
    if (!st) st = mla_qgroups_settle(m, s, groups, want, err);
    return st;
}

static mla_status gptq_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    const mla_tensor *q, *z, *s;
    mla_status st = mla_qpart_need(&q, src, module, "qweight", err);
    if (!st) st = mla_qpart_need(&z, src, module, "qzeros", err);
    if (!st) st = mla_qpart_need(&s, src, module, "scales", err);
    if (st) return st;
    mla_qmat m = {.name = q->name, .ops = &MLA_QFORMAT_GPTQ, .row_block = TILE, .group_out = 1};
    if (want && want->zero_minus_1) m.kind = want->zero_minus_1 == MLA_QT_YES ? V1 : V2;
    st = settle(&m, q, z, s, want, err);
    if (st) return st;
    mla_qadd(&m, q, false);
    mla_qadd(&m, z, false);
    mla_qadd(&m, s, true);
    st = add_gidx(&m, mla_qpart(src, module, "g_idx"), s->shape[0], want, err);
    if (!st && want && want->symmetric == MLA_QT_YES && m.kind) st = check_symmetric(&m, want, err);
    if (!st) *out = m;
    return st;
}

static mla_status tile_rows(const mla_qmat *m, size_t o, size_t n, float *dst, mla_err *err)
{
    size_t per = 32 / m->bits, words = m->out / per, groups = m->part[SCALES].shape[0], now = SIZE_MAX;
    const mla_tensor *idx = m->nparts > GIDX ? &m->part[GIDX] : NULL;
    float s[TILE];
    int z[TILE];
    for (size_t i = 0; i < m->in; i++) { /* a row of W is a column of the stored words */
        size_t g = idx ? mla_qword(idx->data, i) : i / m->group_in;
        if (g >= groups) return mla_fail(err, MLA_EFORMAT, "%s: entry %zu changed since it was opened", idx ? idx->name : m->name, i);
        for (size_t k = 0; g != now && k < n; k++) {
            z[k] = field(zero_word(m, g * words + (o + k) / per), o + k, m->bits);
            s[k] = mla_qscale(&m->part[SCALES], g * m->out + o + k);
        }
        now = g;
        const unsigned char *codes = (const unsigned char *)m->part[CODES].data + (i / per * m->out + o) * 4;
        for (size_t k = 0; k < n; k++) dst[k * m->in + i] = (float)(field(mla_qword(codes, k), i, m->bits) - z[k]) * s[k];
    }
    return MLA_OK;
}

static mla_status gptq_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    if (m->kind == V_UNTOLD)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: only a quantization_config tells whether zero points are stored as they are "
                        "(gptq_v2) or less one (gptq)", m->name);
    for (size_t r = 0; r < nrows; r += TILE) {
        mla_status st = tile_rows(m, row0 + r, nrows - r < TILE ? nrows - r : TILE, dst + r * m->in, err);
        if (st) return st;
    }
    return MLA_OK;
}

static mla_status gptq_fill(const mla_coded *c, size_t o, const mla_coded_row *to, mla_err *err)
{
    const mla_qmat *m = c->ctx;
    size_t per = 32 / m->bits, words = m->out / per;
    uint8_t flip = c->code == MLA_CODE_INT8 ? 128 : 0; /* signed codes */
    (void)err;
    for (size_t g = 0; g < m->part[SCALES].shape[0]; g++) {
        mla_coded_put(to->scale + 2 * g, &m->part[SCALES], g * m->out + o, 2);
        to->offset[g] = (uint8_t)field(zero_word(m, g * words + o / per), o, m->bits) ^ flip;
    }
    for (size_t p = 0; p < m->in; p++) {
        size_t i = c->perm ? c->perm[p] : p;
        to->code[p] = (uint8_t)field(mla_qword(m->part[CODES].data, i / per * m->out + o), i, m->bits) ^ flip;
    }
    return MLA_OK;
}

bool mla_coded_gptq(mla_coded *c, const mla_qmat *m)
{
    c->group = m->group_in;
    c->offset = MLA_OFFSET_ZERO;
    c->fill = gptq_fill;
    return m->kind != V_UNTOLD && mla_coded_ints(c, m->bits, 0) && mla_coded_scale(c, m->part[SCALES].dtype) &&
           c->scale != MLA_SCALE_F32;
}

const mla_qformat MLA_QFORMAT_GPTQ = {"GPTQ", MLA_QL_GPTQ, gptq_detect, gptq_describe, gptq_rows};
