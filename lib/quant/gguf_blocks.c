/* Block decoders of the ggml types and the table that names them: layouts as in the format page, section GGUF. */
#include "quant/gguf_blocks.h"

#include <string.h>

#include "base/ckd.h"
#include "quant/gguf_bits.h"
#include "tensor/dtype.h"

typedef void (*block_fn)(const unsigned char *b, float *y); /* one block */

static void q4_0(const unsigned char *b, float *y)
{
    float d = f16(b);
    for (unsigned j = 0; j < 32; j++) y[j] = d * (float)((int)nibble(b + 2, j) - 8);
}

static void q4_1(const unsigned char *b, float *y)
{
    float d = f16(b), m = f16(b + 2);
    for (unsigned j = 0; j < 32; j++) y[j] = d * (float)nibble(b + 4, j) + m;
}

static void q5_0(const unsigned char *b, float *y)
{
    float d = f16(b);
    uint32_t h = u32le(b + 2);
    for (unsigned j = 0; j < 32; j++) y[j] = d * (float)((int)(nibble(b + 6, j) + 16 * (h >> j & 1u)) - 16);
}

static void q5_1(const unsigned char *b, float *y)
{
    float d = f16(b), m = f16(b + 2);
    uint32_t h = u32le(b + 4);
    for (unsigned j = 0; j < 32; j++) y[j] = d * (float)(nibble(b + 8, j) + 16 * (h >> j & 1u)) + m;
}

static void q8_0(const unsigned char *b, float *y)
{
    float d = f16(b);
    for (unsigned j = 0; j < 32; j++) y[j] = d * (float)(int8_t)b[2 + j];
}

static void q2_k(const unsigned char *b, float *y)
{
    float d = f16(b + 80), dmin = f16(b + 82);
    for (unsigned j = 0; j < 256; j++) {
        unsigned s = b[j / 16];
        y[j] = d * (float)(s & 15u) * (float)crumb(b + 16, j) - dmin * (float)(s >> 4);
    }
}

static void q3_k(const unsigned char *b, float *y)
{
    const unsigned char *hmask = b, *q = b + 32, *s = b + 96;
    float d = f16(b + 108);
    for (unsigned j = 0; j < 256; j++) {
        unsigned k = j / 16;
        int scale = q3_scale(s, k);
        int v = (int)crumb(q, j) - (hmask[j % 32] >> j / 32 & 1 ? 0 : 4);
        y[j] = d * (float)scale * (float)v;
    }
}

/* Q4_K and Q5_K: qh is NULL or the 32 bytes of fifth bits. */
static void q45_k(const unsigned char *b, const unsigned char *qh, const unsigned char *q, float *y)
{
    float d = f16(b), dmin = f16(b + 2);
    for (unsigned k = 0; k < 8; k++) {
        unsigned sc, mn;
        scale_min(b + 4, k, &sc, &mn);
        float ds = d * (float)sc, m = dmin * (float)mn;
        for (unsigned l = 0; l < 32; l++) {
            unsigned v = q[32 * (k / 2) + l] >> 4 * (k % 2) & 15u;
            if (qh) v += 16 * (qh[l] >> k & 1u);
            y[32 * k + l] = ds * (float)v - m;
        }
    }
}
static void q4_k(const unsigned char *b, float *y) { q45_k(b, NULL, b + 16, y); }
static void q5_k(const unsigned char *b, float *y) { q45_k(b, b + 16, b + 48, y); }

static void q6_k(const unsigned char *b, float *y)
{
    const unsigned char *ql = b, *qh = b + 128, *sc = b + 192;
    float d = f16(b + 208);
    for (unsigned j = 0; j < 256; j++) {
        unsigned h = j / 128, r = j % 128;
        unsigned low = ql[64 * h + r % 64] >> 4 * (r / 64) & 15u, high = qh[32 * h + r % 32] >> 2 * (r / 32) & 3u;
        y[j] = d * (float)(int8_t)sc[j / 16] * (float)((int)(low + 16 * high) - 32);
    }
}

static void iq4_nl(const unsigned char *b, float *y)
{
    float d = f16(b);
    for (unsigned j = 0; j < 32; j++) y[j] = d * (float)IQ4[nibble(b + 2, j)];
}

static void iq4_xs(const unsigned char *b, float *y)
{
    float d = f16(b);
    for (unsigned k = 0; k < 8; k++) {
        int s = iq4_scale(b, k);
        float ds = d * (float)s;
        for (unsigned j = 0; j < 32; j++) y[32 * k + j] = ds * (float)IQ4[nibble(b + 8 + 16 * k, j)];
    }
}

/* Base-3 digit n of byte v: the byte is a fixed-point fraction, multiplied by 3 until the digit is on top. */
static int trit(unsigned v, unsigned n)
{
    static const unsigned POW3[5] = {1, 3, 9, 27, 81};
    return (int)((v * POW3[n] & 255u) * 3 >> 8);
}

static void tq1_0(const unsigned char *b, float *y)
{
    float d = f16(b + 52);
    for (unsigned j = 0; j < 256; j++) {
        int t = j < 160   ? trit(b[j % 32], j / 32)
                : j < 240 ? trit(b[32 + (j - 160) % 16], (j - 160) / 16)
                          : trit(b[48 + (j - 240) % 4], (j - 240) / 4);
        y[j] = d * (float)(t - 1);
    }
}

static void tq2_0(const unsigned char *b, float *y)
{
    float d = f16(b + 64);
    for (unsigned j = 0; j < 256; j++) y[j] = d * (float)((int)crumb(b, j) - 1);
}

/* Twice the e2m1 values times half the e8m0 scale: as the library, so byte 255 is the number 2^128, not a NaN. */
static void mxfp4(const unsigned char *b, float *y)
{
    float half = half_e8m0(b[0]);
    for (unsigned j = 0; j < 32; j++) y[j] = half * (float)TWICE_E2M1[nibble(b + 1, j)];
}

typedef struct {
    const char *format; /* NULL: no decoder */
    block_fn fn;        /* NULL: one value a block, converted as `dtype` */
    mla_dtype dtype;
} row;

static const row DECODER[] = {
    [MLA_GT_F32] = {"GGUF F32", NULL, MLA_F32},       [MLA_GT_F16] = {"GGUF F16", NULL, MLA_F16},
    [MLA_GT_BF16] = {"GGUF BF16", NULL, MLA_BF16},    [MLA_GT_F64] = {"GGUF F64", NULL, MLA_F64},
    [MLA_GT_Q4_0] = {"GGUF Q4_0", q4_0, MLA_F32},     [MLA_GT_Q4_1] = {"GGUF Q4_1", q4_1, MLA_F32},
    [MLA_GT_Q5_0] = {"GGUF Q5_0", q5_0, MLA_F32},     [MLA_GT_Q5_1] = {"GGUF Q5_1", q5_1, MLA_F32},
    [MLA_GT_Q8_0] = {"GGUF Q8_0", q8_0, MLA_F32},     [MLA_GT_Q2_K] = {"GGUF Q2_K", q2_k, MLA_F32},
    [MLA_GT_Q3_K] = {"GGUF Q3_K", q3_k, MLA_F32},     [MLA_GT_Q4_K] = {"GGUF Q4_K", q4_k, MLA_F32},
    [MLA_GT_Q5_K] = {"GGUF Q5_K", q5_k, MLA_F32},     [MLA_GT_Q6_K] = {"GGUF Q6_K", q6_k, MLA_F32},
    [MLA_GT_IQ4_NL] = {"GGUF IQ4_NL", iq4_nl, MLA_F32}, [MLA_GT_IQ4_XS] = {"GGUF IQ4_XS", iq4_xs, MLA_F32},
    [MLA_GT_TQ1_0] = {"GGUF TQ1_0", tq1_0, MLA_F32},  [MLA_GT_TQ2_0] = {"GGUF TQ2_0", tq2_0, MLA_F32},
    [MLA_GT_MXFP4] = {"GGUF MXFP4", mxfp4, MLA_F32},
};

static const row *decoder(uint32_t type)
{
    return type < sizeof DECODER / sizeof *DECODER && DECODER[type].format ? &DECODER[type] : NULL;
}

bool mla_ggml_decodes(uint32_t type) { return decoder(type) != NULL; }

const char *mla_ggml_format(uint32_t type)
{
    const row *r = decoder(type);
    return r ? r->format : NULL;
}

bool mla_ggml_blocks_f32(uint32_t type, const void *src, size_t nblocks, float *dst)
{
    const row *r = decoder(type);
    const mla_ggml_info *info = mla_ggml_type_info(type);
    if (!r || !info) return false;
    if (!r->fn) return mla_to_f32(dst, src, r->dtype, nblocks);
    const unsigned char *b = src;
    for (size_t i = 0; i < nblocks; i++) r->fn(b + i * info->bytes, dst + i * info->block);
    return true;
}

mla_status mla_gguf_rows_f32(const mla_gguf_tensor *t, size_t row0, size_t nrows, float *dst, mla_err *err)
{
    const mla_ggml_info *info = mla_ggml_type_info(t->type);
    if (!info || !decoder(t->type))
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: ggml type %u (%s) has no decoder", t->name, (unsigned)t->type,
                        info && info->name ? info->name : "unknown");
    if (t->ne[0] % info->block)
        return mla_fail(err, MLA_EFORMAT, "%s: rows of %zu values are no whole %s blocks of %zu", t->name, t->ne[0],
                        info->name, info->block);
    size_t rows, row_bytes, need;
    if (!mla_mul(&rows, t->ne[1], t->ne[2]) || !mla_mul(&rows, rows, t->ne[3]) ||
        !mla_mul(&row_bytes, t->ne[0] / info->block, info->bytes) || !mla_mul(&need, rows, row_bytes) || need > t->nbytes)
        return mla_fail(err, MLA_EFORMAT, "%s: %zu bytes do not hold the tensor's rows", t->name, t->nbytes);
    if (row0 > rows || nrows > rows - row0)
        return mla_fail(err, MLA_EINVAL, "%s: rows %zu..%zu asked, the tensor has %zu", t->name, row0, row0 + nrows, rows);
    size_t blocks = t->ne[0] / info->block;
    for (size_t i = 0; i < nrows; i++)
        if (!mla_ggml_blocks_f32(t->type, t->data + (row0 + i) * row_bytes, blocks, dst + i * t->ne[0]))
            return mla_fail(err, MLA_EINTERNAL, "%s: decoder of %s", t->name, info->name);
    return MLA_OK;
}
