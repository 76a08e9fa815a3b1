/* Drawn codes for the suites of packed weights, and their definition in plain C. */
#include "coded_lab.h"

#include <string.h>

#include "base/rng.h"
#include "quant/fp4.h"
#include "tensor/fp.h"

const drawn DRAWN[] = {
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 37, 300, 40, 0, ODD, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_TABLE, MLA_OFFSET_NONE, 1, 8, 8, 0, ODD, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_BF16, MLA_OFFSET_ZERO, 65, 1, 64, 0, ODD, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F32, MLA_OFFSET_NONE, 96, 531, 1000, 0, ODD, false},
    {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F16, MLA_OFFSET_NONE, 33, 263, 24, 0, ODD, false},
    {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 31, 777, 16, 256, ODD, false},
    {MLA_CODE_CRUMB, 2, MLA_SCALE_SUPER_U4, MLA_OFFSET_SUPER_U4, 34, 530, 16, 256, ODD, false},
    {MLA_CODE_CRUMB_BIT, 3, MLA_SCALE_SUPER_I8, MLA_OFFSET_SUPER_U8, 64, 270, 32, 128, ODD, false},
    {MLA_CODE_INT8, 8, MLA_SCALE_F16, MLA_OFFSET_ZERO, 35, 259, 48, 0, ODD, false},
    {MLA_CODE_E4M3, 8, MLA_SCALE_F32, MLA_OFFSET_NONE, 70, 300, 104, 0, ODD, false},
    {MLA_CODE_BF16, 16, MLA_SCALE_ONE, MLA_OFFSET_NONE, 39, 521, 521, 0, ODD, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 97, 300, 40, 0, WHOLE, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F32, MLA_OFFSET_NONE, 65, 777, 40, 0, MIDDLE, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_TABLE, MLA_OFFSET_NONE, 70, 531, 16, 0, E2M1, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F32, MLA_OFFSET_NONE, 65, 300, 40, 0, TINY, false},
    {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F16, MLA_OFFSET_F16, 33, 779, 24, 0, WHOLE, false},
    {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F32, MLA_OFFSET_NONE, 64, 259, 24, 0, MIDDLE, false},
    {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_F16, MLA_OFFSET_F16, 66, 333, 56, 0, WHOLE, false},
    {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 31, 777, 16, 256, MIDDLE, false},
    /* whole numbers in groups of 16, 32, more, the row */
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 70, 584, 32, 0, WHOLE, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 33, 296, 48, 0, WHOLE, true},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_BF16, MLA_OFFSET_ZERO, 33, 1032, 320, 0, WHOLE, true},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_TABLE, MLA_OFFSET_NONE, 64, 320, 32, 0, E2M1, true},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_NONE, 64, 360, 64, 0, SIGNED, false},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_NONE, 31, 560, 16, 0, SIGNED, true},
    {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F16, MLA_OFFSET_F16, 33, 552, 32, 0, WHOLE, true},
    {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F16, MLA_OFFSET_NONE, 33, 300, 80, 0, MIDDLE, false},
    {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 64, 520, 32, 256, MIDDLE, true},
    {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_F16, MLA_OFFSET_F16, 40, 312, 16, 0, WHOLE, false},
    {MLA_CODE_CRUMB, 2, MLA_SCALE_F16, MLA_OFFSET_NONE, 64, 552, 256, 0, MIDDLE, false},
    {MLA_CODE_CRUMB, 2, MLA_SCALE_SUPER_U4, MLA_OFFSET_SUPER_U4, 34, 520, 16, 256, WHOLE, true},
    {MLA_CODE_CRUMB_BIT, 3, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 64, 568, 16, 256, MIDDLE, true},
    {MLA_CODE_CRUMB_BIT, 3, MLA_SCALE_F16, MLA_OFFSET_F16, 40, 321, 321, 0, WHOLE, false},
    {MLA_CODE_INT8, 8, MLA_SCALE_F16, MLA_OFFSET_NONE, 35, 552, 32, 0, WHOLE, false},
    {MLA_CODE_INT8, 8, MLA_SCALE_F32, MLA_OFFSET_NONE, 64, 777, 777, 0, WHOLE, false},
    {MLA_CODE_INT8, 8, MLA_SCALE_F16, MLA_OFFSET_ZERO, 64, 336, 16, 0, WHOLE, false},
};
const size_t N_DRAWN = sizeof DRAWN / sizeof *DRAWN;

static uint32_t draw(size_t row, size_t i, unsigned what) { return mla_f32_bits((float)mla_rng_normal(77 + what, row * 4096 + i)) >> 3; }
static uint16_t half_near_1(size_t row, size_t g, unsigned what) { return (uint16_t)(0x3800 + draw(row, g, what) % 0x700); }

mla_status drawn_fill(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    const drawn *d = c->ctx;
    (void)err;
    for (size_t i = 0; i < c->in; i++) {
        uint32_t q = (d->full ? ~0u : draw(row, i, 0)) & ((1u << d->bits) - 1);
        if (d->code == MLA_CODE_E4M3 && (q & 0x7f) == 0x7f) q = 0;
        if (d->code == MLA_CODE_BF16) {
            uint16_t h = mla_f32_bf16((float)(q % 1000) * 0.37f - 180);
            memcpy(to->code + 2 * i, &h, 2);
        } else to->code[i] = (uint8_t)q;
    }
    for (size_t g = 0; d->scale != MLA_SCALE_ONE && g * c->group < c->in; g++) {
        uint16_t h = half_near_1(row, g, 1), o = half_near_1(row, g, 2);
        float f = mla_f16_f32(h) * (d->values == TINY && g % 2 ? 0x1.01p-125f : 1.0001f);
        uint16_t b = mla_f32_bf16(f);
        if (d->scale == MLA_SCALE_F32) memcpy(to->scale + 4 * g, &f, 4);
        else if (d->scale == MLA_SCALE_F16) memcpy(to->scale + 2 * g, &h, 2);
        else if (d->scale == MLA_SCALE_BF16) memcpy(to->scale + 2 * g, &b, 2);
        else to->scale[g] = (uint8_t)draw(row, g, 3);
        if (d->values == E2M1 && (to->scale[g] & 0x7f) == 0x7f) to->scale[g] = 0x81;
        if (d->offset == MLA_OFFSET_F16) memcpy(to->offset + 2 * g, &o, 2);
        else if (mla_offset_size(d->offset)) to->offset[g] = (uint8_t)draw(row, g, 4);
    }
    for (size_t u = 0; d->super && u * d->super < c->in; u++) to->super[u] = half_near_1(row, u, 5), to->super_off[u] = half_near_1(row, u, 6);
    return MLA_OK;
}

/* The definition in plain C. */
coded_parts coded_at(const mla_coded *c, const mla_coded_row *r, size_t i)
{
    static const unsigned BITS[] = {[MLA_CODE_NIBBLE] = 4, [MLA_CODE_NIBBLE_BIT] = 5, [MLA_CODE_NIBBLE_CRUMB] = 6, [MLA_CODE_CRUMB] = 2, [MLA_CODE_CRUMB_BIT] = 3};
    size_t g = i / c->group, u = c->super_group ? i / c->super_group : 0;
    uint16_t h = 0, o = 0;
    float f = 0, v, s = 1, m = 0;
    if (mla_code_bare(c->code)) return memcpy(&h, r->code + 2 * i, 2), (coded_parts){1, c->code == MLA_CODE_BF16 ? mla_bf16_f32(h) : mla_f16_f32(h), 0};
    if (c->code == MLA_CODE_INT8) v = (int8_t)r->code[i];
    else if (c->code == MLA_CODE_E4M3) v = mla_e4m3_f32(r->code[i]);
    else {
        unsigned bits = BITS[c->code], low = bits < 4 ? 2 : 4;
        v = c->lo[r->code[i] & ((1u << low) - 1)] + (bits > low ? c->hi[r->code[i] >> low] : 0);
    }
    if (mla_scale_size(c->scale) == 2) memcpy(&h, r->scale + 2 * g, 2);
    if (c->scale == MLA_SCALE_F32) memcpy(&f, r->scale + 4 * g, 4);
    switch (c->scale) {
    case MLA_SCALE_F32: s = f; break;
    case MLA_SCALE_F16: s = mla_f16_f32(h); break;
    case MLA_SCALE_BF16: s = mla_bf16_f32(h); break;
    case MLA_SCALE_TABLE: s = c->table[r->scale[g]]; break;
    case MLA_SCALE_SUPER_I8: s = mla_f16_f32(r->super[u]) * (float)(int8_t)r->scale[g]; break;
    case MLA_SCALE_SUPER_U4: s = mla_f16_f32(r->super[u]) * (float)(r->scale[g] & 15); break;
    default: break;
    }
    if (c->offset == MLA_OFFSET_F16) memcpy(&o, r->offset + 2 * g, 2), m = mla_f16_f32(o);
    if (c->offset == MLA_OFFSET_ZERO) m = -((float)(int8_t)r->offset[g] * s);
    if (c->offset == MLA_OFFSET_SUPER_U8) m = -(mla_f16_f32(r->super_off[u]) * (float)r->offset[g]);
    if (c->offset == MLA_OFFSET_SUPER_U4) m = -(mla_f16_f32(r->super_off[u]) * (float)(r->scale[g] >> 4));
    return (coded_parts){s, v, m};
}

mla_status drawn_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    const mla_coded *c = ctx;
    uint8_t code[2 * 1024], scale[4 * 256], offset[2 * 256];
    uint16_t super[16], off[16];
    mla_coded_row r = {code, scale, offset, super, off};
    for (size_t k = 0; k < n; k++) {
        mla_status st = c->fill(c, row0 + k, &r, err);
        if (st != MLA_OK) return st;
        for (size_t p = 0; p < c->in; p++) {
            coded_parts w = coded_at(c, &r, p);
            dst[k * c->in + (c->perm ? c->perm[p] : p)] = w.s * w.v + w.m; /* s v is exact where there is an m */
        }
    }
    return MLA_OK;
}

void drawn_make(mla_coded *c, const drawn *d)
{
    *c = (mla_coded){.out = d->out, .in = d->in, .code = d->code, .group = d->group, .scale = d->scale, .offset = d->offset,
                     .super_group = d->super, .fill = drawn_fill, .ctx = d};
    unsigned low = d->bits < 4 ? 3 : 15, high = d->bits == 6 ? 3 : 1;
    float zero = d->values == ODD ? 3 : d->values == WHOLE ? 0 : (float)(1u << (d->bits - 1));
    for (unsigned i = 0; i < 16; i++) {
        c->lo[i] = d->values == E2M1 ? MLA_E2M1[i] : d->values == SIGNED ? (float)(i * 16) - 127 : (float)(i & low) - zero;
        c->hi[i] = (float)((i & high) * (low + 1));
    }
    for (unsigned i = 0; i < 256; i++) c->table[i] = d->values == E2M1 ? mla_e4m3_f32((uint8_t)i) / 0.3701f : (float)i * 0.013f - 1;
}
