/* What packed codes and scales are made of: whole numbers where they are (for codes_bytes.h and dot.h), E4M3 digits where scales are. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "tensor/fp.h"

const mla_code_plane mla_code_planes[MLA_CODE_TRELLIS] = {
    [MLA_CODE_NIBBLE] = {4, 0, 8},   [MLA_CODE_NIBBLE_BIT] = {4, 1, 32}, [MLA_CODE_NIBBLE_CRUMB] = {4, 2, 16},
    [MLA_CODE_CRUMB] = {2, 0, 16},   [MLA_CODE_CRUMB_BIT] = {2, 1, 32},  [MLA_CODE_INT8] = {8, 0, 8},
    [MLA_CODE_E4M3] = {8, 0, 8},     [MLA_CODE_BF16] = {16, 0, 8},    [MLA_CODE_F16] = {16, 0, 8},
};

/* Codes that are integers: v = (u - b) / a, where b / a is 0 or a power of two and a is 1 or 2, so that neither s / a nor s b / a is
 * rounded. u = v (the first) goes beside an offset of the format's own, and only there. Narrow codes are u themselves. */
static bool as_integers(mla_code_layout *l)
{
    static const struct {
        float a, b;
    } TRY[] = {{1, 0}, {1, 1}, {1, 2}, {1, 4}, {1, 8}, {1, 16}, {1, 32}, {1, 128}, {2, 16}};
    const mla_coded *c = &l->c;
    bool nibble = c->code == MLA_CODE_NIBBLE, alone = c->offset == MLA_OFFSET_NONE;
    unsigned low = mla_code_planes[c->code].a, high = mla_code_planes[c->code].b;
    if (low > 4) return false;
    for (size_t t = 0; t < (alone ? sizeof TRY / sizeof *TRY : 1); t++) {
        bool fits = true;
        for (unsigned i = 0; fits && i < 16; i++) {
            float u = TRY[t].a * c->lo[i] + TRY[t].b;
            unsigned own = i & ((1u << low) - 1);
            fits = u >= 0 && u <= 255 && u == (float)(uint8_t)u && (nibble || u == (float)own) && (!high || c->hi[i] == (float)((i & ((1u << high) - 1)) << low));
            if (fits) l->look[i] = (uint8_t)u;
        }
        l->factor = 1 / TRY[t].a, l->shift = -TRY[t].b / TRY[t].a, l->base = (int32_t)TRY[t].b;
        if (fits) return true;
    }
    return false;
}

/* Codes that codes_gemv_bytes takes: beside no offset v = u is left to the plain way, which multiplies once. */
static bool by_bytes(mla_code_layout *l)
{
    mla_code k = l->c.code;
    return (k == MLA_CODE_NIBBLE || k == MLA_CODE_NIBBLE_BIT || k == MLA_CODE_NIBBLE_CRUMB) && as_integers(l) && (l->base || l->c.offset != MLA_OFFSET_NONE);
}

/* How products in whole numbers take these codes apart (dot.h) */
static mla_dot_form dot_form(mla_code_layout *l)
{
    const mla_coded *c = &l->c;
    bool whole = l->groups <= 1;
    unsigned most = 0, same = 1;
    l->unit = whole || c->group % 32 == 0 ? 4 : 2;
    if (!whole && c->group % 16) return MLA_DOT_NONE;
    if (c->code == MLA_CODE_INT8) l->factor = 1;
    if (c->code == MLA_CODE_INT8) return MLA_DOT_INT8;
    if (!as_integers(l)) return MLA_DOT_NONE;
    for (unsigned i = 0; i < 16; i++) most = l->look[i] > most ? l->look[i] : most, same &= l->look[i] == i;
    switch (c->code) {
    case MLA_CODE_NIBBLE: return same ? MLA_DOT_NIBBLE : most <= 31 ? MLA_DOT_LOOK : MLA_DOT_WIDE;
    case MLA_CODE_NIBBLE_BIT: return MLA_DOT_NIBBLE_BIT;
    case MLA_CODE_NIBBLE_CRUMB: return MLA_DOT_NIBBLE_CRUMB;
    case MLA_CODE_CRUMB: return MLA_DOT_CRUMB;
    default: return MLA_DOT_CRUMB_BIT;
    }
}

/* A table of E4M3 numbers times or over one factor has 8 mantissas, and 8 below the smallest exponent: no gathers then. */
static bool split_table(float digits[16], const float table[256])
{
    for (size_t m = 0; m < 8; m++) digits[m] = table[8 + m] * 0x1p26f, digits[8 + m] = table[m] * 0x1p27f;
    for (unsigned b = 0; b < 256; b++) {
        unsigned e = b >> 3 & 15;
        float v = digits[(e ? 0 : 8) + (b & 7)] * mla_bits_f32((e + 100) << 23);
        if ((b & 0x7f) != 0x7f && mla_f32_bits(b & 0x80 ? -v : v) != mla_f32_bits(table[b])) return false; /* 0x7f: refused when packed */
    }
    return true;
}

/* table[b] = e4m3(b) k, where both may be rounded: what k is. Zero when some entry is none of that, or so small that f32 has fewer digits. */
static float e4m3_factor(const float table[256])
{
    float k = table[0x38]; /* of 1 */
    if (!(fabsf(k) > 0x1p-100f && fabsf(k) < 0x1p100f)) return 0;
    for (unsigned b = 0; b < 256; b++) {
        double want = (double)mla_e4m3_f32((uint8_t)b) * (double)k;
        if ((b & 0x7f) != 0x7f && !(fabs((double)table[b] - want) <= 0x1p-23 * fabs(want))) return 0;
    }
    return k;
}

void mla_cpu_code_kinds(mla_code_layout *l, bool odd)
{
    l->dot = dot_form(l);
    l->ints = !odd && by_bytes(l);
    l->e4m3 = l->c.scale == MLA_SCALE_TABLE ? e4m3_factor(l->c.table) : 0;
    l->split = l->c.scale == MLA_SCALE_TABLE && split_table(l->digits, l->c.table);
}
