/* EXL3: W^T = diag(suh) H What H diag(svh), What [in, out] from trellis tiles, H block-diagonal 128 x 128 Hadamard.
 *
 * trellis I16 [in/16, out/16, 16 K]; suh F16 [in] and svh F16 [out], or old files' su and sv: I16 sign bits (bit i of word
 * i/16, 1 = minus). A scalar I32 "mcg" or "mul1" names the codebook, neither means "3inst". Stored dims are multiples of
 * 128; mla_qmat_expect trims them. One row costs a block of 128: every output of a block is a sum over all of them. */
#include "base/alloc.h"
#include "quant/coded_parts.h"
#include "quant/exl3_tile.h"
#include "quant/formats.h"
#include "quant/parts.h"

enum { TRELLIS, SU, SV };
#define SIDE 128
#define KIND(twice_k, codebook) ((uint32_t)(twice_k) | (uint32_t)(codebook) << 8)

static bool exl3_detect(const mla_qsource *src, const char *module) { return mla_qpart(src, module, "trellis") != NULL; }

/* The signs and scales of one side: `wide` F16 [n] or `packed` I16 [n/16]. */
static mla_status side(mla_qmat *m, const mla_qsource *src, const char *module, bool inputs, mla_err *err)
{
    const char *wide_name = inputs ? "suh" : "svh", *packed_name = inputs ? "su" : "sv";
    const mla_tensor *wide = mla_qpart(src, module, wide_name), *packed = mla_qpart(src, module, packed_name);
    size_t n[1] = {inputs ? m->in : m->out};
    if (!wide && !packed) return mla_fail(err, MLA_EFORMAT, "%s.%s and .%s: absent", module, wide_name, packed_name);
    if (wide && packed) return mla_fail(err, MLA_EFORMAT, "%s: beside %s", packed->name, wide->name);
    mla_status st;
    if (wide) st = mla_qpart_is(wide, MLA_F16, 1, n, err);
    else {
        n[0] /= 16;
        st = mla_qpart_is(packed, MLA_I16, 1, n, err);
    }
    if (!st) mla_qadd(m, wide ? wide : packed, wide != NULL);
    return st;
}

static mla_status find_codebook(mla_qcodebook *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    static const char *const NAME[] = {"none told", "3inst", "mcg", "mul1"};
    static const uint32_t FACTOR[] = {[MLA_QC_MCG] = 0xcbac1fedu, [MLA_QC_MUL1] = 0x83dcd12du};
    const mla_tensor *mcg = mla_qpart(src, module, "mcg"), *mul1 = mla_qpart(src, module, "mul1"), *mark = mcg ? mcg : mul1;
    if (mcg && mul1) return mla_fail(err, MLA_EFORMAT, "%s: beside %s, a module has one codebook", mul1->name, mcg->name);
    *out = mcg ? MLA_QC_MCG : mul1 ? MLA_QC_MUL1 : MLA_QC_3INST;
    if (mark) {
        if (mark->dtype != MLA_I32 || mla_tensor_numel(mark) != 1 || mark->nbytes != 4)
            return mla_fail(err, MLA_EFORMAT, "%s: expected one I32", mark->name);
        if (mla_qword(mark->data, 0) != FACTOR[*out])
            return mla_fail(err, MLA_EUNSUPPORTED, "%s: multiplier 0x%08x, expected 0x%08x", mark->name,
                            (unsigned)mla_qword(mark->data, 0), (unsigned)FACTOR[*out]);
    }
    if (want && want->codebook && want->codebook != *out)
        return mla_fail(err, MLA_EFORMAT, "%s: tensors of codebook %s, but %s says %s", module, NAME[*out], want->why,
                        NAME[want->codebook]);
    return MLA_OK;
}

static mla_status exl3_describe(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err)
{
    static const char *const NAME[] = {[2] = "EXL3 1-bit", [3] = "EXL3 1.5-bit", [4] = "EXL3 2-bit", [5] = "EXL3 2.5-bit",
                                       [6] = "EXL3 3-bit", [7] = "EXL3 3.5-bit", [8] = "EXL3 4-bit", [10] = "EXL3 5-bit",
                                       [12] = "EXL3 6-bit", [14] = "EXL3 7-bit", [16] = "EXL3 8-bit"};
    char text[200];
    const mla_tensor *t;
    mla_qcodebook codebook = MLA_QC_UNTOLD;
    mla_status st = mla_qpart_need(&t, src, module, "trellis", err);
    if (st) return st;
    size_t twice_k = t->ndim == 3 && t->shape[2] % 8 == 0 ? t->shape[2] / 8 : 0;
    if (t->dtype != MLA_I16 || twice_k > 16 || !twice_k || !NAME[twice_k] || t->shape[0] % 8 || t->shape[1] % 8 ||
        t->shape[0] > SIZE_MAX / 16 || t->shape[1] > SIZE_MAX / 16)
        return mla_fail(err, MLA_EFORMAT, "%s: expected I16 [in/16, out/16, 16 K], dims of W multiples of 128, K 1 to 8 or 1.5, "
                        "2.5, 3.5; found %s", t->name, mla_tensor_text(t, text, sizeof text));
    mla_qmat m = {.name = t->name, .format = NAME[twice_k], .ops = &MLA_QFORMAT_EXL3, .row_block = SIDE,
                  .bits = (unsigned)(twice_k + 1) / 2, .in = t->shape[0] * 16, .out = t->shape[1] * 16};
    st = mla_qpart_spans(t, err);
    if (!st) st = find_codebook(&codebook, src, module, want, err);
    if (st) return st;
    if (twice_k & 1 && codebook != MLA_QC_MUL1)
        return mla_fail(err, MLA_EFORMAT, "%s: half-integer bits belong to the codebook mul1, whose marker is absent", t->name);
    m.kind = KIND(twice_k, codebook);
    mla_qadd(&m, t, false);
    st = side(&m, src, module, true, err);
    if (!st) st = side(&m, src, module, false, err);
    if (!st) *out = m;
    return st;
}

static float factor(const mla_tensor *t, size_t i)
{
    if (t->dtype == MLA_F16) return mla_qf16(t->data, i);
    const unsigned char *b = t->data; /* bit i of little-endian words of 16 is bit i of the bytes */
    return b[i / 8] >> i % 8 & 1 ? -1.0f : 1.0f;
}

/* 128-point Walsh-Hadamard transform in place of `lanes` vectors side by side: x[k * ld + lane]. Unscaled. */
static void hadamard(float *x, size_t ld, size_t lanes)
{
    for (size_t h = 1; h < SIDE; h *= 2)
        for (size_t a = 0; a < SIDE; a += 2 * h)
            for (size_t k = a; k < a + h; k++) {
                float *p = x + k * ld, *q = x + (k + h) * ld;
                for (size_t l = 0; l < lanes; l++) {
                    float u = p[l], v = q[l];
                    p[l] = u + v;
                    q[l] = u - v;
                }
            }
}

/* The 128 x 128 block of W^T at inputs i0.., outputs o0..: x [128 inputs, 128 outputs]; y is scratch of the same size. */
static void block(const mla_qmat *m, size_t i0, size_t o0, float *x, float *y)
{
    const mla_tensor *t = &m->part[TRELLIS];
    unsigned twice_k = m->kind & 255;
    size_t tile_bytes = t->shape[2] * 2;
    for (size_t a = 0; a < SIDE / 16; a++)
        for (size_t b = 0; b < SIDE / 16; b++) {
            size_t at = (i0 / 16 + a) * t->shape[1] + o0 / 16 + b;
            mla_exl3_tile(x + a * 16 * SIDE + b * 16, SIDE, (const unsigned char *)t->data + at * tile_bytes, twice_k,
                          (mla_qcodebook)(m->kind >> 8));
        }
    hadamard(x, SIDE, SIDE); /* over inputs, all outputs side by side */
    for (size_t i = 0; i < SIDE; i++)
        for (size_t o = 0; o < SIDE; o++) y[o * SIDE + i] = x[i * SIDE + o];
    hadamard(y, SIDE, SIDE); /* over outputs */
}

static mla_status exl3_rows(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    float *x = mla_alloc_raw(2 * SIDE, SIDE, sizeof *x), *y = x ? x + SIDE * SIDE : NULL;
    if (!x) return mla_fail(err, MLA_ENOMEM, "%s: scratch of a %d x %d block", m->name, SIDE, SIDE);
    for (size_t r = 0; r < nrows;) {
        size_t o0 = (row0 + r) / SIDE * SIDE, first = row0 + r - o0, run = SIDE - first < nrows - r ? SIDE - first : nrows - r;
        for (size_t i0 = 0; i0 < m->in; i0 += SIDE) {
            size_t cols = m->in - i0 < SIDE ? m->in - i0 : SIDE;
            float su[SIDE];
            for (size_t i = 0; i < SIDE; i++) su[i] = factor(&m->part[SU], i0 + i);
            block(m, i0, o0, x, y);
            for (size_t k = 0; k < run; k++) {
                float sv = factor(&m->part[SV], o0 + first + k) * 0x1p-7f; /* both transforms' 1/sqrt(128) */
                float *d = dst + (r + k) * m->in + i0;
                for (size_t i = 0; i < cols; i++) d[i] = y[(first + k) * SIDE + i] * su[i] * sv;
            }
        }
        r += run;
    }
    mla_free(x);
    return MLA_OK;
}

static void exl3_sides(const mla_coded *c, float *su, float *sv)
{
    const mla_qmat *m = c->ctx;
    for (size_t i = 0; i < c->trellis.in128; i++) su[i] = factor(&m->part[SU], i);
    for (size_t o = 0; o < c->trellis.out128; o++) sv[o] = factor(&m->part[SV], o);
}

bool mla_coded_exl3(mla_coded *c, const mla_qmat *m)
{
    const mla_tensor *t = &m->part[TRELLIS];
    c->code = MLA_CODE_TRELLIS;
    c->sides = exl3_sides;
    c->trellis = (mla_trellis){.tiles = t->data, .twice_k = m->kind & 255, .codebook = (m->kind >> 8) - MLA_QC_3INST,
                               .in128 = t->shape[0] * 16, .out128 = t->shape[1] * 16};
    return true;
}

const mla_qformat MLA_QFORMAT_EXL3 = {"EXL3", MLA_QL_EXL3, exl3_detect, exl3_describe, exl3_rows};
