/* Packed weights: rows of codes laid out in panels of 32 outputs (codes_body.h), blocks of them decoded or multiplied.
 *
 * A panel: plane a, plane b (codes of 3, 5 and 6 bits), scales (groups, 32), offsets (groups, 32), super scales and super
 * offsets (supers, 32), and for E4M3 a mark for each 8 inputs, each part a multiple of 64 bytes. Stored precision throughout: a panel is as large as its rows were. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/ckd.h"
#include "tensor/compare.h"
#include "tensor/fp.h"

#define EDGE 64 /* bytes before and after the panels: kernels load words from up to 3 bytes outside */

static const struct { /* bits of the planes, inputs that fill whole words of both */
    unsigned a, b, unit;
} PLANES[] = {
    [MLA_CODE_NIBBLE] = {4, 0, 8},   [MLA_CODE_NIBBLE_BIT] = {4, 1, 32}, [MLA_CODE_NIBBLE_CRUMB] = {4, 2, 16},
    [MLA_CODE_CRUMB] = {2, 0, 16},   [MLA_CODE_CRUMB_BIT] = {2, 1, 32},  [MLA_CODE_INT8] = {8, 0, 8},
    [MLA_CODE_E4M3] = {8, 0, 8},     [MLA_CODE_BF16] = {16, 0, 8},    [MLA_CODE_F16] = {16, 0, 8},
};

/* Codes that are integers: v = (u - b) / a, where b / a is 0 or a power of two and a is 1 or 2, so that neither s / a nor s b / a is
 * rounded. u = v (the first) goes beside an offset of the format's own, and only there. */
static bool as_integers(mla_code_layout *l)
{
    static const struct {
        float a, b;
    } TRY[] = {{1, 0}, {1, 2}, {1, 4}, {1, 8}, {1, 16}, {1, 32}, {1, 128}, {2, 16}};
    const mla_coded *c = &l->c;
    bool nibble = c->code == MLA_CODE_NIBBLE, alone = c->offset == MLA_OFFSET_NONE;
    if (!nibble && c->code != MLA_CODE_NIBBLE_BIT && c->code != MLA_CODE_NIBBLE_CRUMB) return false;
    for (size_t t = alone; t < (alone ? sizeof TRY / sizeof *TRY : 1); t++) {
        bool fits = true;
        for (size_t i = 0; fits && i < 16; i++) {
            float u = TRY[t].a * c->lo[i] + TRY[t].b;
            fits = u >= 0 && u <= 255 && u == (float)(uint8_t)u && (nibble || (u == (float)i && c->hi[i] == (float)(i * 16 % (c->code == MLA_CODE_NIBBLE_BIT ? 32 : 64))));
            if (fits) l->look[i] = (uint8_t)u;
        }
        l->factor = 1 / TRY[t].a, l->shift = -TRY[t].b / TRY[t].a;
        if (fits) return true;
    }
    return false;
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

static bool part(size_t *total, size_t *at, size_t n, size_t size) { return mla_cut(total, at, n, MLA_NR, size); }

static mla_status lay_out(mla_weight *w, const mla_coded *c, mla_err *err)
{
    mla_code_layout *l = &w->code;
    size_t whole, a, total = 0, unit = PLANES[c->code].unit, wa = PLANES[c->code].a, wb = PLANES[c->code].b;
    if (!mla_add(&whole, c->in, unit - 1)) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", c->out, c->in);
    whole = whole / unit * unit;
    l->c = *c;
    l->c.perm = NULL, l->c.fill = NULL, l->c.ctx = NULL, l->c.map = NULL;
    l->octets = mla_ceil_div(c->in, 8);
    l->groups = mla_code_bare(c->code) ? 0 : mla_ceil_div(c->in, c->group);
    l->supers = c->super_group ? mla_ceil_div(c->in, c->super_group) : 0;
    bool off = c->offset == MLA_OFFSET_SUPER_U8 || c->offset == MLA_OFFSET_SUPER_U4;
    if (!part(&total, &a, whole / 8 * wa, 1) || !part(&total, &l->b, whole / 8 * wb, 1) ||
        !part(&total, &l->scales, l->groups, mla_scale_size(c->scale)) || !part(&total, &l->offsets, l->groups, mla_offset_size(c->offset)) ||
        !part(&total, &l->supers_at, l->supers, 2) || !part(&total, &l->super_offs, off ? l->supers : 0, 2) ||
        !mla_cut(&total, &l->marks, c->code == MLA_CODE_E4M3 ? l->octets : 0, 1, 1) || !mla_mul(&w->bytes, total, w->panels) || !mla_add(&w->bytes, w->bytes, 2 * EDGE))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", c->out, c->in);
    w->panel_bytes = total;
    return MLA_OK;
}

typedef struct {
    mla_cpu *c;
    mla_weight *w;
    const mla_coded *src;
    size_t row_bytes;    /* scratch of a worker */
    char *rows;
    mla_status st;       /* of the lowest panel that failed */
    bool odd;            /* some scale is none that as_integers may take */
    size_t bad;
    mla_err err;
    pthread_mutex_t lock;
} pack_job;

/* width bits of every code from bit `from` on, into words MLA_NR apart */
static void put_plane(uint32_t *words, const mla_coded *c, const uint8_t *code, unsigned from, unsigned width)
{
    size_t per = 32 / width;
    uint32_t mask = (1u << width) - 1;
    for (size_t i = 0; i < c->in; i += per, words += MLA_NR) {
        uint32_t v = 0;
        size_t n = mla_min_size(per, c->in - i);
        for (size_t j = 0; j < n; j++) {
            uint32_t q = code[i + j];
            if (width == 16) q = (uint32_t)code[2 * (i + j)] | (uint32_t)code[2 * (i + j) + 1] << 8;
            v |= (q >> from & (width == 16 ? 0xffffu : mask)) << (j * width);
        }
        *words = v;
    }
}

static void put_elems(char *dst, const uint8_t *src, size_t n, size_t size, size_t r)
{
    for (size_t g = 0; g < n; g++) memcpy(dst + (g * MLA_NR + r) * size, src + g * size, size);
}

static mla_status pack_row(const pack_job *j, char *panel, size_t row, char *mem, mla_err *err)
{
    const mla_code_layout *l = &j->w->code;
    const mla_coded *c = j->src;
    size_t r = row % MLA_NR, at = (c->in * 2 + 63) / 64 * 64, g = (l->groups * 4 + 63) / 64 * 64, s = (l->supers * 2 + 63) / 64 * 64;
    mla_coded_row to = {(uint8_t *)mem, (uint8_t *)mem + at, (uint8_t *)mem + at + g, (uint16_t *)(void *)(mem + at + 2 * g),
                        (uint16_t *)(void *)(mem + at + 2 * g + s)};
    mla_status st = c->fill(c, c->row_of ? c->row_of(c->map, row) : row, &to, err);
    if (st != MLA_OK) return st;
    unsigned wa = PLANES[c->code].a, wb = PLANES[c->code].b;
    put_plane((uint32_t *)(void *)panel + r, c, to.code, 0, wa);
    if (wb) put_plane((uint32_t *)(void *)(panel + l->b) + r, c, to.code, wa, wb);
    for (size_t i = 0; c->code == MLA_CODE_E4M3 && i < c->in; i++)
        if (!(to.code[i] & 0x78) && to.code[i] & 7) panel[l->marks + i / 8] = 1;
    put_elems(panel + l->scales, to.scale, l->groups, mla_scale_size(c->scale), r);
    put_elems(panel + l->offsets, to.offset, l->groups, mla_offset_size(c->offset), r);
    put_elems(panel + l->supers_at, (const uint8_t *)to.super, l->supers, 2, r);
    if (c->offset == MLA_OFFSET_SUPER_U8 || c->offset == MLA_OFFSET_SUPER_U4)
        put_elems(panel + l->super_offs, (const uint8_t *)to.super_off, l->supers, 2, r);
    return MLA_OK;
}

/* Every value is a number: a scale or a code that is none would only show in a result. */
static mla_status look_at(const pack_job *j, size_t p, float *tile, float *scales, bool *odd, mla_err *err)
{
    const mla_weight *w = j->w;
    for (size_t kp = 0; kp * MLA_KP < w->in; kp++) {
        mla_cpu_code_tile(j->c->k, w, p, kp, tile, scales);
        size_t n = mla_min_size(MLA_KP, w->in - kp * MLA_KP), bad = mla_count_nonfinite(tile, n * MLA_NR, NULL);
        if (bad) return mla_fail(err, MLA_EFORMAT, "weight (%zu, %zu): %zu values of rows %zu.. are not finite", w->out, w->in, bad, p * MLA_NR);
        for (size_t i = 0; i < MLA_CODE_SEGS * MLA_NR && i < w->code.groups * MLA_NR; i++)
            *odd |= scales[i] != 0 && !(fabsf(scales[i]) > 0x1p-100f && fabsf(scales[i]) < 0x1p100f);
    }
    return MLA_OK;
}

static void pack_panels(void *ctx, size_t begin, size_t end, size_t worker)
{
    pack_job *j = ctx;
    char *mem = j->rows + worker * j->row_bytes;
    float *tile = (float *)(void *)mem, *scales = tile + MLA_KP * MLA_NR;
    for (size_t p = begin; p < end; p++) {
        char *panel = j->w->data + p * j->w->panel_bytes;
        mla_err err = {0};
        mla_status st = MLA_OK;
        bool odd = false;
        memset(panel, 0, j->w->panel_bytes);
        for (size_t r = p * MLA_NR; st == MLA_OK && r < (p + 1) * MLA_NR && r < j->w->out; r++)
            st = pack_row(j, panel, r, (char *)(scales + MLA_CODE_SCALES), &err);
        if (st == MLA_OK) st = look_at(j, p, tile, scales, &odd, &err);
        if (st == MLA_OK && !odd) continue;
        pthread_mutex_lock(&j->lock);
        j->odd |= odd;
        if (st != MLA_OK && (j->st == MLA_OK || p < j->bad)) j->st = st, j->bad = p, j->err = err;
        pthread_mutex_unlock(&j->lock);
    }
}

mla_status mla_cpu_coded_new(mla_cpu *c, mla_weight *w, const mla_weight_desc *d, mla_err *err)
{
    const mla_coded *s = d->coded;
    pack_job j = {.c = c, .w = w, .src = s};
    size_t room = 0, at[4], total;
    w->form = MLA_W_CODES;
    mla_status st = lay_out(w, s, err);
    if (st != MLA_OK) return st;
    if (!mla_cut(&room, &at[0], MLA_KP * MLA_NR + MLA_CODE_SCALES, 1, 4) || !mla_cut(&room, &at[1], s->in, 1, 2) ||
        !mla_cut(&room, &at[2], w->code.groups, 2, 64 + 4) || !mla_cut(&room, &at[3], w->code.supers, 2, 64 + 2) ||
        !mla_add(&room, room, 256) || !mla_mul(&total, room, c->threads))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", d->out, d->in);
    j.row_bytes = room;
    w->block = mla_cpu_big(w->bytes);
    j.rows = mla_alloc_raw(total, 1, 1);
    if (s->perm) w->perm = mla_alloc_raw(s->in, 1, sizeof *w->perm);
    if (!w->block || !j.rows || (s->perm && !w->perm)) {
        mla_free(j.rows);
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): %zu bytes", d->out, d->in, w->bytes);
    }
    memset(w->block, 0, EDGE);
    memset(w->block + w->bytes - EDGE, 0, EDGE);
    w->data = w->block + EDGE;
    if (s->perm) memcpy(w->perm, s->perm, s->in * sizeof *w->perm);
    pthread_mutex_init(&j.lock, NULL);
    mla_par_for(c->pool, w->panels, 1, pack_panels, &j);
    pthread_mutex_destroy(&j.lock);
    mla_free(j.rows);
    if (j.st != MLA_OK) *err = j.err;
    w->code.ints = !j.odd && as_integers(&w->code); /* not before: values are looked at in the plain way */
    w->code.split = s->scale == MLA_SCALE_TABLE && split_table(w->code.digits, s->table);
    return j.st;
}

/* The block of inputs [MLA_KP kp, ..) of panels p .., scales expanded into `scales`; ints: those of codes as integers. */
static mla_code_block block_at(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t np, size_t kp, bool ints, float *scales)
{
    const mla_code_layout *l = &w->code;
    const mla_coded *c = &l->c;
    const char *panel = w->data + p * w->panel_bytes;
    size_t k0 = kp * MLA_KP, n = mla_min_size(MLA_KP, l->octets * 8 - k0);
    unsigned wa = PLANES[c->code].a, wb = PLANES[c->code].b;
    mla_code_block q = {.code = c->code, .offset = c->offset != MLA_OFFSET_NONE, .lo = c->lo, .hi = c->hi, .look = l->look,
                        .a = (const uint32_t *)(const void *)(panel + k0 / 8 * wa * MLA_NR),
                        .b = (const uint32_t *)(const void *)(panel + l->b + k0 / 8 * wb * MLA_NR),
                        .marks = (const uint8_t *)panel + l->marks + k0 / 8, .panel_words = w->panel_bytes / 4, .s = scales, .m = scales + MLA_CODE_PANELS * MLA_CODE_SEGS * MLA_NR,
                        .first = n, .seg = n, .octets = n / 8};
    if (mla_code_bare(c->code)) return q;
    size_t g0 = k0 / c->group, g1 = (k0 + n - 1) / c->group;
    if (g1 >= l->groups) g1 = l->groups - 1;
    if (g1 > g0) q.first = (g0 + 1) * c->group - k0, q.seg = c->group;
    for (size_t i = 0; i < np; i++, panel += w->panel_bytes) {
        const unsigned char *b = (const unsigned char *)panel;
        mla_code_scales a = {.scale = c->scale, .offset = c->offset, .scales = b + l->scales, .offsets = b + l->offsets,
                             .supers = b + l->supers_at, .super_offs = b + l->super_offs,
                             .per_super = c->super_group ? c->super_group / c->group : 0, .g0 = g0, .n = g1 - g0 + 1,
                             .table = c->table, .digits = l->split ? l->digits : NULL, .factor = ints ? l->factor : c->code == MLA_CODE_E4M3 ? 0x1p120f : 1, .shift = ints ? l->shift : 0};
        size_t at = i * MLA_CODE_SEGS * MLA_NR;
        k->code_scales((float *)(uintptr_t)q.s + at, (float *)(uintptr_t)q.m + at, &a);
    }
    return q;
}

static const uint16_t *trellis_at(const mla_weight *w, size_t p, size_t kp)
{
    return (const uint16_t *)(const void *)(w->data + p / 2 * 2 * w->panel_bytes) + kp * (MLA_KP / 16) * w->plan.twice_k * 32;
}

void mla_cpu_code_tile(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t kp, float *dst, float *scales)
{
    if (w->form == MLA_W_TRELLIS) {
        k->trellis_tile(dst, trellis_at(w, p, kp), p % 2, mla_min_size(MLA_KP, w->in - kp * MLA_KP) / 16, &w->plan);
        return;
    }
    mla_code_block q = block_at(k, w, p, 1, kp, false, scales);
    k->codes_tile(dst, &q);
}

void mla_cpu_code_gemv(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t np, size_t kp, const float *x, float *c, float *scales)
{
    if (w->form == MLA_W_TRELLIS) { /* panels come in fours: np is 2 */
        k->trellis_gemv(c, x, trellis_at(w, p, kp), mla_min_size(MLA_KP, w->in - kp * MLA_KP) / 16, &w->plan, kp > 0);
        return;
    }
    bool ints = k->codes_gemv_bytes && w->code.ints;
    mla_code_block q = block_at(k, w, p, np, kp, ints, scales);
    (ints ? k->codes_gemv_bytes : k->codes_gemv)(c, x, &q, np, kp > 0);
}
