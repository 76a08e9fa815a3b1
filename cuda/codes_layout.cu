/* How packed weights are laid out for the device (codes.cuh): rows of codes one after another, or tiles for codes_mma.cu; and a row or tile
 * filled on the host. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/be.cuh"
#include "cuda/codes.cuh"

static bool part(size_t *total, int *at, size_t n, size_t size)
{
    size_t bytes;
    *at = (int)*total;
    return !__builtin_mul_overflow(n, size, &bytes) && !__builtin_add_overflow(*total, (bytes + 15) / 16 * 16, total) && *total <= INT32_MAX;
}

/* Whether bf16 holds x. */
static bool in_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return !(u & 0xffff) && isfinite(x);
}
/* log2 of a group's octets, of a unit's for longer ones, -1: it is no power of two of at least two. */
static int shift_of(int group)
{
    if (!group || (group > UNIT_OCTETS && group % UNIT_OCTETS == 0)) return 5;
    return group < 2 || group > UNIT_OCTETS || (group & (group - 1)) ? -1 : __builtin_ctz((unsigned)group);
}

/* Lays the layer out in tiles where codes_mma.cu can serve it: groups of 16, 32, 64, 128, 256 k inputs or the whole row, values that bf16 holds. */
static mla_status for_mma(Codes *d, mla_err *err)
{
    static const float E2M1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const int bits_a = code_bits_a(d->code), bits_b = code_bits_b(d->code), low = (1 << bits_a) - 1;
    if (mla_code_bare(d->code)) return MLA_OK;
    d->shift = shift_of(d->group), d->super_shift = shift_of(d->super_group);
    const bool off = d->offset == MLA_OFFSET_SUPER_U8 || d->offset == MLA_OFFSET_SUPER_U4, super = off || d->scale == MLA_SCALE_SUPER_I8 || d->scale == MLA_SCALE_SUPER_U4;
    if (d->shift < 0 || d->super_shift < 0 || (super && d->super_shift <= d->shift && d->shift < 5)) return MLA_OK;
    if (bits_a + bits_b < 8) {
        auto value = [&](int n) { return d->lo[n & low] + (bits_b ? d->hi[n >> bits_a] : 0.f); };
        const float b = value(0), by = value(2); /* e2m1's 2 is 1 */
        bool line = true, exact = true, e2m1 = d->code == MLA_CODE_NIBBLE && (by == 1 || by == 2);
        for (int n = 0; n < 1 << (bits_a + bits_b); n++) exact &= in_bf16(value(n)), line &= value(n) == (float)n + b, e2m1 &= value(n) == by * (n & 8 ? -E2M1[n & 7] : E2M1[n & 7]);
        if (!exact || (!line && d->code != MLA_CODE_NIBBLE)) return MLA_OK;
        d->values = line ? VALUES_LINE : e2m1 ? VALUES_E2M1 : VALUES_TABLE, d->below = line ? b - (float)(1 << (bits_a + bits_b)) : by;
    }
    const int units = (d->octets + UNIT_OCTETS - 1) / UNIT_OCTETS, codes = step_bytes(bits_a) + step_bytes(bits_b);
    d->last_steps = (d->octets - (units - 1) * UNIT_OCTETS + CODE_STEP / 8 - 1) / (CODE_STEP / 8);
    d->unit_groups = UNIT_OCTETS >> d->shift, d->unit_supers = super ? UNIT_OCTETS >> d->super_shift : 0;
    size_t tail = 0;
    if (!part(&tail, &d->scales, (size_t)d->unit_groups * CODE_ROWS, mla_scale_size(d->scale)) || !part(&tail, &d->offsets, (size_t)d->unit_groups * CODE_ROWS, mla_offset_size(d->offset)) ||
        !part(&tail, &d->supers, (size_t)d->unit_supers * CODE_ROWS, 2) || !part(&tail, &d->super_offs, off ? (size_t)d->unit_supers * CODE_ROWS : 0, 2))
        return mla_fail(err, MLA_ENOMEM, "weight: unit");
    d->units = units, d->unit_bytes = UNIT_STEPS * codes + (int)tail;
    d->row_bytes = (long long)d->unit_bytes * (units - 1) + d->last_steps * codes + (int)tail;
    return MLA_OK;
}

mla_status codes_new(mla_weight *w, const mla_coded *c, mla_err *err)
{
    const size_t octets = (c->in + 7) / 8, groups = mla_code_bare(c->code) ? 0 : (c->in + c->group - 1) / c->group, supers = c->super_group ? (c->in + c->super_group - 1) / c->super_group : 0;
    const bool off = c->offset == MLA_OFFSET_SUPER_U8 || c->offset == MLA_OFFSET_SUPER_U4, whole = c->group >= c->in;
    size_t row = 0;
    int a;
    Codes *d = (Codes *)calloc(1, sizeof *d);
    if (!d) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu)", c->out, c->in);
    w->codes = d;
    if (c->in > INT32_MAX / 32 || c->out > INT32_MAX - CODE_ROWS || (!whole && c->group % MLA_CODED_UNIT) || (c->super_group && c->super_group < c->in && c->super_group % MLA_CODED_UNIT) ||
        !part(&row, &a, octets, (size_t)code_bits_a(c->code)) || !part(&row, &d->b, octets, (size_t)code_bits_b(c->code)) || !part(&row, &d->scales, groups, mla_scale_size(c->scale)) ||
        !part(&row, &d->offsets, groups, mla_offset_size(c->offset)) || !part(&row, &d->supers, supers, 2) || !part(&row, &d->super_offs, off ? supers : 0, 2))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", c->out, c->in);
    d->row_bytes = (long long)row, d->out = (int)c->out, d->in = (int)c->in, d->octets = (int)octets;
    d->group = whole ? 0 : (int)(c->group / 8), d->super_group = c->super_group >= c->in ? 0 : (int)(c->super_group / 8);
    d->code = c->code, d->scale = c->scale, d->offset = c->offset;
    memcpy(d->lo, c->lo, sizeof d->lo);
    memcpy(d->hi, c->hi, sizeof d->hi);
    const mla_status st = for_mma(d, err);
    if (st) return st;
    const size_t pieces = d->units ? (c->out + CODE_ROWS - 1) / CODE_ROWS : c->out;
    return __builtin_mul_overflow((size_t)d->row_bytes, pieces, &w->bytes) ? mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", c->out, c->in) : MLA_OK;
}

/* The low `bits` of codes, from bit `from` on, eight codes in `bits` bytes. */
static void put_plane(uint8_t *to, const uint8_t *code, size_t in, int from, int bits)
{
    for (size_t o = 0; o * 8 < in; o++) {
        uint64_t v = 0;
        for (size_t i = 0; i < 8 && o * 8 + i < in; i++) v |= (uint64_t)(code[o * 8 + i] >> from & ((1 << bits) - 1)) << bits * (int)i;
        memcpy(to + o * (size_t)bits, &v, (size_t)bits); /* little-endian */
    }
}
static uint32_t rotate(uint32_t x, int n) { return n % 32 ? x << n % 32 | x >> (32 - n % 32) : x; }
/* The same of row r of a tile whose other codes stand or are zero: plane b behind a's. */
static void put_in_tile(const Codes *d, uint8_t *tile, const uint8_t *code, int r, int from, int bits)
{
    const int half = r / 8, turn = code_turn(d->code, d->values, from != 0);
    for (int i = 0; i < d->in; i++) {
        const int u = i / CODE_UNIT, m = i / 16 % 4, lane = r % 8 * 4 + i / 4 % 4, e = i % 4, p = half + e / 2 * 2;
        uint8_t *at = tile + (size_t)u * (size_t)d->unit_bytes + (from ? unit_steps(*d, u) * step_bytes(from) : 0) + i % CODE_UNIT / CODE_STEP * step_bytes(bits);
        if (bits == 8) {
            at[bytes_at(lane, m) + byte_at(half, e)] = code[i];
            continue;
        }
        uint32_t v, n = (uint32_t)(code[i] >> from & ((1 << bits) - 1));
        at += 4 * word_at(bits, lane, m);
        memcpy(&v, at, 4);
        if (d->values != VALUES_E2M1) v |= rotate(n, pair_at(bits, m, p) + e % 2 * 16 + turn);
        else
            for (int k = 0; k < 4; k++) v |= (n >> k & 1) << e2m1_bit(p, e % 2, k);
        memcpy(at, &v, 4);
    }
}
/* n elements of `size` bytes, `per` of them a unit, to their places behind the codes. */
static void put_in_tails(const Codes *d, uint8_t *tile, int part, const uint8_t *from, size_t n, size_t size, int shift, int r, bool super)
{
    if (!size) return;
    for (int u = 0; u < d->units; u++) {
        uint8_t *tail = tile + (size_t)u * (size_t)d->unit_bytes + unit_codes(*d, u) + part;
        const int per = super ? d->unit_supers : d->unit_groups;
        for (int k = 0; k < per; k++) {
            const size_t group = super ? (size_t)d->super_group : (size_t)d->group, o = (size_t)u * UNIT_OCTETS + ((size_t)k << shift), g = group ? o / group : 0;
            if (g >= n || o >= (size_t)d->octets) continue;
            memcpy(tail + size * (size_t)(super ? super_place(k, r) : scale_place(per, k, r)), from + g * size, size);
        }
    }
}

/* A row's codes as they are filled; behind them scales, offsets and their supers. */
static size_t pad16(size_t n) { return (n + 15) / 16 * 16; }
static size_t group_room(const mla_coded *c) { return pad16((c->group ? c->in / c->group + 2 : 2) * 4); }
static size_t super_room(const mla_coded *c) { return pad16((c->super_group ? c->in / c->super_group + 2 : 2) * 2); }
size_t codes_room(const mla_coded *c) { return pad16(c->in * 2) + 2 * group_room(c) + 2 * super_room(c); }

mla_status codes_row(const mla_weight *w, const mla_coded *c, size_t row, uint8_t *to, uint8_t *room, mla_err *err)
{
    const Codes *d = w->codes;
    const int a = code_bits_a(c->code), b = code_bits_b(c->code);
    const size_t first = d->units ? row * CODE_ROWS : row, rows = !d->units ? 1 : c->out - first < CODE_ROWS ? c->out - first : (size_t)CODE_ROWS;
    const size_t groups = c->group >= c->in ? 1 : (c->in + c->group - 1) / (c->group ? c->group : 1), supers = c->super_group ? (c->in + c->super_group - 1) / c->super_group : 0;
    uint8_t *scale = room + pad16(c->in * 2), *offset = scale + group_room(c), *super = offset + group_room(c), *super_off = super + super_room(c);
    const bool off = c->offset == MLA_OFFSET_SUPER_U8 || c->offset == MLA_OFFSET_SUPER_U4;
    const mla_coded_row r = {room, scale, offset, (uint16_t *)super, (uint16_t *)super_off};
    memset(to, 0, (size_t)d->row_bytes);
    for (size_t k = 0; k < rows; k++) {
        const mla_status st = c->fill(c, c->row_of ? c->row_of(c->map, first + k) : first + k, &r, err);
        if (st) return st;
        if (d->units) {
            put_in_tile(d, to, room, (int)k, 0, a);
            if (b) put_in_tile(d, to, room, (int)k, a, b);
            put_in_tails(d, to, d->scales, scale, groups, mla_scale_size(c->scale), d->shift, (int)k, false);
            put_in_tails(d, to, d->offsets, offset, groups, mla_offset_size(c->offset), d->shift, (int)k, false);
            if (d->unit_supers) put_in_tails(d, to, d->supers, super, supers, 2, d->super_shift, (int)k, true);
            if (d->unit_supers && off) put_in_tails(d, to, d->super_offs, super_off, supers, 2, d->super_shift, (int)k, true);
            continue;
        }
        if (a == 16) memcpy(to, room, c->in * 2);
        else put_plane(to, room, c->in, 0, a);
        if (b) put_plane(to + d->b, room, c->in, a, b);
        if (!mla_code_bare(c->code)) {
            memcpy(to + d->scales, scale, groups * mla_scale_size(c->scale));
            memcpy(to + d->offsets, offset, groups * mla_offset_size(c->offset));
        }
        memcpy(to + d->supers, super, supers * 2);
        if (off) memcpy(to + d->super_offs, super_off, supers * 2);
    }
    return MLA_OK;
}
