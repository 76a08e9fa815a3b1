/* compressed-tensors pack-quantized: W[o,i] = (q[o,i] - z[o,g]) * s[o,g], g = i / group or weight_g_idx[i].
 *
 * weight_packed I32 [out, ceil(in bits / 32)]: code i of a row at bit i * bits, lowest first, dense across words.
 * weight_scale [out, groups] (F32, F16, BF16). weight_shape I64 [2] = [out, in]. Without weight_zero_point I32
 * [ceil(out bits / 32), groups], packed the same way down the OUTPUTS, z is 2^(bits - 1). */
#include "base/ckd.h"
#include "quant/coded_parts.h"
#include "quant/formats.h"
#include "quant/parts.h"

enum { PACKED, SCALE, SHAPE, MORE }; /* part[MORE..]: zero point and g_idx, where `kind` says so */
#define HAS_ZERO 1u
#define HAS_GIDX 2u

static const char *const NAME[] = {NULL, NULL, "CT INT2 packed", "CT INT3 packed", "CT INT4 packed",
                                   "CT INT5 packed", "CT INT6 packed", "CT INT7 packed", "CT INT8 packed"};

static bool pack_detect(const mla_qsource *src, const char *module)
{
    const mla_tensor *t = mla_qpart(src, module, "weight_packed");
    return t && t->dtype == MLA_I32;
}

/* weight_shape holds [out, in] as int64. */
static mla_status read_shape(mla_qmat *m, const mla_tensor *t, mla_err *err)
{
    size_t two[1] = {2};
    int64_t v[2];
    mla_status st = mla_qpart_is(t, MLA_I64, 1, two, err);
    if (st) return st;
    memcpy(v, t->data, sizeof v);
    if (v[0] <= 0 || v[1] <= 0 || v[0] > INT64_C(1) << 40 || v[1] > INT64_C(1) << 40)
        return mla_fail(err, MLA_EFORMAT, "%s: [%lld, %lld] is no shape of a matrix", t->name, (long long)v[0], (long long)v[1]);
    m->out = (size_t)v[0];
    m->in = (size_t)v[1];
    return MLA_OK;
}

/* The code width whose dense packing fills the words of a row; unambiguous from 32 inputs on. */
static mla_status settle_bits(mla_qmat *m, const mla_tensor *packed, const mla_qscheme *want, mla_err *err)
{
    char text[200];
    unsigned found = 0;
    if (packed->ndim != 2 || packed->shape[0] != m->out)
        return mla_fail(err, MLA_EFORMAT, "%s: expected %zu rows as weight_shape says, found %s", packed->name, m->out,
                        mla_tensor_text(packed, text, sizeof text));
    unsigned lo = want && want->bits ? want->bits : 2, hi = want && want->bits ? want->bits : 8;
    for (unsigned b = lo; b <= hi && b <= 8; b++)
        if (packed->shape[1] == mla_qceil(m->in * b, 32)) {
            if (found) return mla_fail(err, MLA_EFORMAT, "%s: %u or %u bits, only a config could tell", packed->name, found, b);
            found = b;
        }
    if (!found && want && want->bits)
        return mla_fail(err, MLA_EFORMAT, "%s: rows of %zu words do not hold %zu codes of %u bits, as %s says", packed->name,
                        packed->shape[1], m->in, want->bits, want->why);
    if (!found)
        return mla_fail(err, MLA_EFORMAT, "%s: rows of %zu words do not hold %zu codes of 2 to 8 bits", packed->name,
                        packed->shape[1], m->in);
    m->bits = found;
    m->format = NAME[found];
    return MLA_OK;
}

static mla_status add_zero(mla_qmat *m, const mla_tensor *zero, const mla_qscheme *want, mla_err *err)
{
    if (want && want->symmetric == MLA_QT_YES && zero)
        return mla_fail(err, MLA_EFORMAT, "%s: zero points, but %s says symmetric", zero->name, want->why);
    if (want && want->symmetric == MLA_QT_NO && !zero)
        return mla_fail(err, MLA_EFORMAT, "%s: no weight_zero_point, but %s says asymmetric", m->name, want->why);
    if (!zero) return MLA_OK;
    size_t shape[2] = {mla_qceil(m->out * m->bits, 32), mla_qceil(m->in, m->group_in)};
    mla_status st = mla_qpart_is(zero, MLA_I32, 2, shape, err);
    if (st) return st;
    mla_qadd(m, zero, false);
    m->kind |= HAS_ZERO;
    return MLA_OK;
}

static mla_status add_gidx(mla_qmat *m, const mla_tensor *idx, const mla_qscheme *want, mla_err *err)
{
    bool natural;
    if (want && want->g_idx == MLA_QT_NO && idx)
        return mla_fail(err, MLA_EFORMAT, "%s: stored, but %s says no activation order by group", idx->name, want->why);
    if (want && want->g_idx == MLA_QT_YES && !idx)
        return mla_fail(err, MLA_EFORMAT, "%s: no weight_g_idx, but %s says activation order by group", m->name, want->why);
    if (!idx) return MLA_OK;
    mla_status st = mla_qgidx_check(idx, m->in, mla_qceil(m->in, m->group_in), m->group_in, &natural, err);
    if (st) return st;
    mla_qadd(m, idx, false);
    m->kind |= HAS_GIDX;
    return MLA_OK;
}

static mla_status pack_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    const mla_tensor *packed, *scale, *shape;
    mla_qstrategy strategy;
    mla_status st = mla_qpart_need(&packed, src, module, "weight_packed", err);
    if (!st) st = mla_qpart_need(&scale, src, module, "weight_scale", err);
    if (!st) st = mla_qpart_need(&shape, src, module, "weight_shape", err);
    if (st) return st;
    mla_qmat m = {.name = packed->name, .ops = &MLA_QFORMAT_CT_PACK, .row_block = 1};
    st = read_shape(&m, shape, err);
    if (!st) st = settle_bits(&m, packed, want, err);
    if (!st) st = mla_qpart_spans(packed, err);
    if (!st) st = mla_qscale_type(scale, err);
    if (st) return st;
    mla_qadd(&m, packed, false);
    st = mla_qgrid_settle(&m, scale, want, true, &strategy, err);
    if (st) return st;
    if (strategy == MLA_QS_BLOCK)
        return mla_fail(err, MLA_EFORMAT, "%s: packed codes have no scales per block", scale->name);
    mla_qadd(&m, shape, false);
    st = add_zero(&m, mla_qpart(src, module, "weight_zero_point"), want, err);
    if (!st) st = add_gidx(&m, mla_qpart(src, module, "weight_g_idx"), want, err);
    if (!st) *out = m;
    return st;
}

/* Code i of a dense run of words that lie `stride` words apart. */
static inline uint32_t code_at(const unsigned char *base, size_t stride, size_t i, unsigned bits)
{
    size_t p = i * bits;
    unsigned at = p & 31;
    uint32_t w = mla_qword(base, p / 32 * stride) >> at;
    if (at + bits > 32 && at) w |= mla_qword(base, (p / 32 + 1) * stride) << (32 - at);
    return w & ((1u << bits) - 1);
}

static int zero_at(const mla_qmat *m, size_t o, size_t g)
{
    if (!(m->kind & HAS_ZERO)) return 1 << (m->bits - 1);
    size_t groups = m->part[MORE].shape[1];
    return (int)code_at((const unsigned char *)m->part[MORE].data + 4 * g, groups, o, m->bits);
}

static mla_status pack_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    const mla_tensor *packed = &m->part[PACKED], *idx = m->kind & HAS_GIDX ? &m->part[m->nparts - 1] : NULL;
    size_t groups = mla_qceil(m->in, m->group_in);
    for (size_t r = 0; r < nrows; r++, dst += m->in) {
        size_t o = row0 + r;
        const unsigned char *row = (const unsigned char *)packed->data + o * packed->shape[1] * 4;
        if (idx) { /* every column looks up its own group */
            for (size_t i = 0; i < m->in; i++) {
                uint32_t g = mla_qword(idx->data, i);
                if (g >= groups) return mla_fail(err, MLA_EFORMAT, "%s: entry %zu changed since it was opened", idx->name, i);
                dst[i] = (float)((int)code_at(row, 1, i, m->bits) - zero_at(m, o, g)) * mla_qgrid_at(m, SCALE, o, g);
            }
            continue;
        }
        for (size_t i = 0, g = 0; i < m->in; g++) {
            float s = mla_qgrid_at(m, SCALE, o, g);
            int z = zero_at(m, o, g);
            size_t end = m->in - i < m->group_in ? m->in : i + m->group_in;
            for (; i < end; i++) dst[i] = (float)((int)code_at(row, 1, i, m->bits) - z) * s;
        }
    }
    return MLA_OK;
}

/* In order of places: without perm a place is its column. */
static mla_status pack_fill(const mla_coded *c, size_t o, const mla_coded_row *to, mla_err *err)
{
    const mla_qmat *m = c->ctx;
    const unsigned char *row = (const unsigned char *)m->part[PACKED].data + o * m->part[PACKED].shape[1] * 4;
    size_t groups = mla_qceil(m->in, m->group_in), n = mla_scale_size(c->scale);
    uint8_t flip = c->code == MLA_CODE_INT8 ? 128 : 0; /* signed codes */
    (void)err;
    for (size_t g = 0; g < groups; g++) {
        mla_coded_put(to->scale + g * n, &m->part[SCALE], o / m->group_out * groups + g, n);
        if (c->offset == MLA_OFFSET_ZERO) to->offset[g] = (uint8_t)zero_at(m, o, g) ^ flip;
    }
    for (size_t p = 0; p < m->in; p++) to->code[p] = (uint8_t)code_at(row, 1, c->perm ? c->perm[p] : p, m->bits) ^ flip;
    return MLA_OK;
}

bool mla_coded_ct_pack(mla_coded *c, const mla_qmat *m)
{
    bool zeros = m->kind & HAS_ZERO;
    c->group = m->group_in;
    c->fill = pack_fill;
    if (zeros) c->offset = MLA_OFFSET_ZERO;
    return mla_coded_ints(c, m->bits, zeros || m->bits == 8 ? 0 : 1 << (m->bits - 1)) && mla_coded_scale(c, m->part[SCALE].dtype) &&
           !(zeros && c->scale == MLA_SCALE_F32);
}

const mla_qformat MLA_QFORMAT_CT_PACK = {"compressed-tensors pack-quantized", MLA_QL_CT_PACK, pack_detect, pack_describe, pack_rows};
