/* Codes, scales and offsets out of ggml blocks: the fields that gguf_blocks.c multiplies out. */
#include "quant/coded_parts.h"
#include "quant/gguf_bits.h"

typedef struct { /* how one block type splits; each is per block unless it says otherwise */
    mla_code code;
    unsigned bits;        /* for the tables of consecutive integers; 0: `values` */
    int zero;
    const int8_t *values; /* (16) */
    size_t block, bytes, group;
    mla_scale_kind scale;
    mla_offset_kind offset;
    void (*take)(const unsigned char *b, const mla_coded_row *to); /* one block */
} split;

static void put16(uint8_t *dst, const unsigned char *b) { memcpy(dst, b, 2); }
static void super16(uint16_t *dst, const unsigned char *b) { *dst = u16le(b); }

/* 16 bytes of nibbles */
static void nibbles(uint8_t *code, const unsigned char *q)
{
    for (unsigned j = 0; j < 16; j++) code[j] = q[j] & 15u, code[16 + j] = q[j] >> 4;
}

/* the same with fifth bits h */
static void fives(uint8_t *code, const unsigned char *q, uint32_t h)
{
    nibbles(code, q);
    for (unsigned j = 0; j < 32; j++) code[j] |= (uint8_t)((h >> j & 1u) << 4);
}

static void q4_0(const unsigned char *b, const mla_coded_row *to) { put16(to->scale, b), nibbles(to->code, b + 2); }
static void q4_1(const unsigned char *b, const mla_coded_row *to) { put16(to->scale, b), put16(to->offset, b + 2), nibbles(to->code, b + 4); }
static void q5_0(const unsigned char *b, const mla_coded_row *to) { put16(to->scale, b), fives(to->code, b + 6, u32le(b + 2)); }
static void q5_1(const unsigned char *b, const mla_coded_row *to)
{
    put16(to->scale, b), put16(to->offset, b + 2), fives(to->code, b + 8, u32le(b + 4));
}
static void q8_0(const unsigned char *b, const mla_coded_row *to) { put16(to->scale, b), memcpy(to->code, b + 2, 32); }
static void mxfp4(const unsigned char *b, const mla_coded_row *to) { to->scale[0] = b[0], nibbles(to->code, b + 1); }

static void q2_k(const unsigned char *b, const mla_coded_row *to)
{
    memcpy(to->scale, b, 16);
    for (unsigned j = 0; j < 256; j++) to->code[j] = (uint8_t)crumb(b + 16, j);
    super16(to->super, b + 80), super16(to->super_off, b + 82);
}

static void q3_k(const unsigned char *b, const mla_coded_row *to)
{
    for (unsigned k = 0; k < 16; k++) to->scale[k] = (uint8_t)(int8_t)q3_scale(b + 96, k);
    for (unsigned j = 0; j < 256; j++) to->code[j] = (uint8_t)(crumb(b + 32, j) | (unsigned)(b[j % 32] >> j / 32 & 1) << 2);
    super16(to->super, b + 108);
}

static void q45_k(const unsigned char *b, const unsigned char *qh, const unsigned char *q, const mla_coded_row *to)
{
    for (unsigned k = 0; k < 8; k++) {
        unsigned sc, mn;
        scale_min(b + 4, k, &sc, &mn);
        to->scale[k] = (uint8_t)sc, to->offset[k] = (uint8_t)mn;
        for (unsigned l = 0; l < 32; l++)
            to->code[32 * k + l] = (uint8_t)((q[32 * (k / 2) + l] >> 4 * (k % 2) & 15u) | (qh ? (qh[l] >> k & 1u) << 4 : 0));
    }
    super16(to->super, b), super16(to->super_off, b + 2);
}
static void q4_k(const unsigned char *b, const mla_coded_row *to) { q45_k(b, NULL, b + 16, to); }
static void q5_k(const unsigned char *b, const mla_coded_row *to) { q45_k(b, b + 16, b + 48, to); }

static void q6_k(const unsigned char *b, const mla_coded_row *to)
{
    memcpy(to->scale, b + 192, 16);
    for (unsigned j = 0; j < 256; j++) {
        unsigned h = j / 128, r = j % 128;
        to->code[j] = (uint8_t)((b[64 * h + r % 64] >> 4 * (r / 64) & 15u) | (b[128 + 32 * h + r % 32] >> 2 * (r / 32) & 3u) << 4);
    }
    super16(to->super, b + 208);
}

static void iq4_nl(const unsigned char *b, const mla_coded_row *to) { put16(to->scale, b), nibbles(to->code, b + 2); }
static void iq4_xs(const unsigned char *b, const mla_coded_row *to)
{
    for (unsigned k = 0; k < 8; k++) {
        to->scale[k] = (uint8_t)(int8_t)iq4_scale(b, k);
        nibbles(to->code + 32 * k, b + 8 + 16 * k);
    }
    super16(to->super, b);
}

static void tq2_0(const unsigned char *b, const mla_coded_row *to)
{
    for (unsigned j = 0; j < 256; j++) to->code[j] = (uint8_t)crumb(b, j);
    put16(to->scale, b + 64);
}

static void number(const unsigned char *b, const mla_coded_row *to) { memcpy(to->code, b, 2); }

static const split SPLIT[] = {
    [MLA_GT_BF16] = {MLA_CODE_BF16, 0, 0, NULL, 1, 2, 1, MLA_SCALE_ONE, MLA_OFFSET_NONE, number},
    [MLA_GT_F16] = {MLA_CODE_F16, 0, 0, NULL, 1, 2, 1, MLA_SCALE_ONE, MLA_OFFSET_NONE, number},
    [MLA_GT_Q4_0] = {MLA_CODE_NIBBLE, 4, 8, NULL, 32, 18, 32, MLA_SCALE_F16, MLA_OFFSET_NONE, q4_0},
    [MLA_GT_Q4_1] = {MLA_CODE_NIBBLE, 4, 0, NULL, 32, 20, 32, MLA_SCALE_F16, MLA_OFFSET_F16, q4_1},
    [MLA_GT_Q5_0] = {MLA_CODE_NIBBLE_BIT, 5, 16, NULL, 32, 22, 32, MLA_SCALE_F16, MLA_OFFSET_NONE, q5_0},
    [MLA_GT_Q5_1] = {MLA_CODE_NIBBLE_BIT, 5, 0, NULL, 32, 24, 32, MLA_SCALE_F16, MLA_OFFSET_F16, q5_1},
    [MLA_GT_Q8_0] = {MLA_CODE_INT8, 8, 0, NULL, 32, 34, 32, MLA_SCALE_F16, MLA_OFFSET_NONE, q8_0},
    [MLA_GT_Q2_K] = {MLA_CODE_CRUMB, 2, 0, NULL, 256, 84, 16, MLA_SCALE_SUPER_U4, MLA_OFFSET_SUPER_U4, q2_k},
    [MLA_GT_Q3_K] = {MLA_CODE_CRUMB_BIT, 3, 4, NULL, 256, 110, 16, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, q3_k},
    [MLA_GT_Q4_K] = {MLA_CODE_NIBBLE, 4, 0, NULL, 256, 144, 32, MLA_SCALE_SUPER_I8, MLA_OFFSET_SUPER_U8, q4_k},
    [MLA_GT_Q5_K] = {MLA_CODE_NIBBLE_BIT, 5, 0, NULL, 256, 176, 32, MLA_SCALE_SUPER_I8, MLA_OFFSET_SUPER_U8, q5_k},
    [MLA_GT_Q6_K] = {MLA_CODE_NIBBLE_CRUMB, 6, 32, NULL, 256, 210, 16, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, q6_k},
    [MLA_GT_IQ4_NL] = {MLA_CODE_NIBBLE, 0, 0, IQ4, 32, 18, 32, MLA_SCALE_F16, MLA_OFFSET_NONE, iq4_nl},
    [MLA_GT_IQ4_XS] = {MLA_CODE_NIBBLE, 0, 0, IQ4, 256, 136, 32, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, iq4_xs},
    [MLA_GT_TQ2_0] = {MLA_CODE_CRUMB, 2, 1, NULL, 256, 66, 256, MLA_SCALE_F16, MLA_OFFSET_NONE, tq2_0},
    [MLA_GT_MXFP4] = {MLA_CODE_NIBBLE, 0, 0, TWICE_E2M1, 32, 17, 32, MLA_SCALE_TABLE, MLA_OFFSET_NONE, mxfp4},
};

static mla_status fill(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    const mla_qmat *m = c->ctx;
    const split *s = &SPLIT[m->kind];
    const unsigned char *b = (const unsigned char *)m->part[0].data + row * (m->in / s->block * s->bytes);
    size_t scale = s->block / s->group * mla_scale_size(s->scale), offset = s->block / s->group * mla_offset_size(s->offset);
    mla_coded_row at = *to;
    size_t code = mla_code_bare(s->code) ? 2 : s->block;
    for (size_t i = 0; i < m->in; i += s->block, b += s->bytes) {
        s->take(b, &at);
        at.code += code, at.scale += scale, at.offset += offset;
        if (c->super_group) at.super++, at.super_off++;
    }
    return s->code == MLA_CODE_F16 ? mla_coded_finite(m, row, to->code, err) : MLA_OK;
}

bool mla_coded_gguf(mla_coded *c, const mla_qmat *m)
{
    const split *s = m->kind < sizeof SPLIT / sizeof *SPLIT ? &SPLIT[m->kind] : NULL;
    if (!s || !s->take) return false;
    if (s->bits && !mla_coded_ints(c, s->bits, s->zero)) return false;
    for (unsigned i = 0; s->values && i < 16; i++) c->lo[i] = (float)s->values[i];
    for (unsigned b = 0; s->scale == MLA_SCALE_TABLE && b < 256; b++) c->table[b] = half_e8m0((unsigned char)b);
    c->code = s->code, c->group = s->group, c->scale = s->scale, c->offset = s->offset, c->fill = fill;
    if (s->scale == MLA_SCALE_SUPER_I8 || s->scale == MLA_SCALE_SUPER_U4) c->super_group = s->block;
    return true;
}
