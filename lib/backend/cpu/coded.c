/* Packed weights: rows of codes laid out in panels of 32 outputs (codes_body.h).
 *
 * A panel is cut into blocks of MLA_KP inputs, which stand as they are read: scales (groups, 32), offsets (groups, 32), super scales
 * and super offsets (supers, 32), for E4M3 a mark for each 8 inputs, plane a, plane b (codes of 3, 5 and 6 bits), each part a multiple
 * of 64 bytes. Stored precision throughout: a panel is as large as its rows were; only scales of a group that goes on into the next
 * block stand twice. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/ckd.h"
#include "tensor/compare.h"

#define EDGE 64 /* bytes before and after the panels: kernels load words from up to 3 bytes outside */

static bool super_offset(const mla_coded *c) { return c->offset == MLA_OFFSET_SUPER_U8 || c->offset == MLA_OFFSET_SUPER_U4; }

/* Runs of `group` inputs that block kp touches */
static size_t runs_of(const mla_code_layout *l, size_t kp, size_t group)
{
    size_t k0 = kp * MLA_KP, last = mla_min_size(MLA_KP, l->c.in - k0) - 1;
    return (k0 + last) / group - k0 / group + 1;
}
static size_t groups_of(const mla_code_layout *l, size_t kp) { return mla_code_bare(l->c.code) ? 0 : runs_of(l, kp, l->c.group); }
static size_t supers_of(const mla_code_layout *l, size_t kp) { return l->c.super_group ? runs_of(l, kp, l->c.super_group) : 0; }

/* A block of n inputs with so many groups and super groups: 16 bits an element at most, no sum overflows */
static void lay_block(mla_code_part *p, const mla_coded *c, size_t n, size_t groups, size_t supers)
{
    const mla_code_plane w = mla_code_planes[c->code];
    size_t whole = mla_ceil_div(n, w.unit) * w.unit;
    *p = (mla_code_part){.bytes = 0};
    (void)(mla_cut(&p->bytes, &p->scales, groups, MLA_NR, mla_scale_size(c->scale)) && mla_cut(&p->bytes, &p->offsets, groups, MLA_NR, mla_offset_size(c->offset)) &&
           mla_cut(&p->bytes, &p->supers, supers, MLA_NR, 2) && mla_cut(&p->bytes, &p->super_offs, super_offset(c) ? supers : 0, MLA_NR, 2) &&
           mla_cut(&p->bytes, &p->marks, c->code == MLA_CODE_E4M3 ? mla_ceil_div(n, 8) : 0, 1, 1) &&
           mla_cut(&p->bytes, &p->a, whole / 8 * w.a, MLA_NR, 1) && mla_cut(&p->bytes, &p->b, whole / 8 * w.b, MLA_NR, 1));
}

static mla_status lay_out(mla_weight *w, const mla_coded *c, mla_err *err)
{
    mla_code_layout *l = &w->code;
    size_t groups = 0, supers = 0, last;
    l->c = *c;
    l->c.perm = NULL, l->c.fill = NULL, l->c.ctx = NULL, l->c.map = NULL;
    l->octets = mla_ceil_div(c->in, 8);
    l->groups = mla_code_bare(c->code) ? 0 : mla_ceil_div(c->in, c->group);
    l->supers = c->super_group ? mla_ceil_div(c->in, c->super_group) : 0;
    l->blocks = mla_ceil_div(c->in, MLA_KP);
    last = l->blocks - 1;
    for (size_t kp = 0; kp < last; kp++) {
        if (groups_of(l, kp) > groups) groups = groups_of(l, kp);
        if (supers_of(l, kp) > supers) supers = supers_of(l, kp);
    }
    lay_block(&l->part[0], c, MLA_KP, groups, supers);
    lay_block(&l->part[1], c, c->in - last * MLA_KP, groups_of(l, last), supers_of(l, last));
    if (!mla_mul(&w->panel_bytes, l->part[0].bytes, last) || !mla_add(&w->panel_bytes, w->panel_bytes, l->part[1].bytes) ||
        !mla_mul(&w->bytes, w->panel_bytes, w->panels) || !mla_add(&w->bytes, w->bytes, 2 * EDGE))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", c->out, c->in);
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

/* width bits of n codes from bit `from` on, into words MLA_NR apart; where in a word: codes_body.h */
static void put_plane(uint32_t *words, const uint8_t *code, size_t count, unsigned from, unsigned width)
{
    size_t per = 32 / width;
    uint32_t mask = (1u << width) - 1;
    for (size_t i = 0; i < count; i += per, words += MLA_NR) {
        uint32_t v = 0;
        size_t n = mla_min_size(per, count - i);
        for (size_t j = 0; j < n; j++) {
            uint32_t q = code[i + j];
            size_t at = width < 8 ? j % 8 / 2 * 8 + (j / 8 * 2 + j % 2) * width : j * width;
            if (width == 16) q = (uint32_t)code[2 * (i + j)] | (uint32_t)code[2 * (i + j) + 1] << 8;
            v |= (q >> from & mask) << at;
        }
        *words = v;
    }
}

/* n elements from the first on */
static void put_elems(char *dst, const uint8_t *src, size_t first, size_t n, size_t size, size_t r)
{
    for (size_t g = 0; g < n && size; g++) memcpy(dst + (g * MLA_NR + r) * size, src + (first + g) * size, size);
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
    for (size_t kp = 0; kp < l->blocks; kp++, panel += l->part[0].bytes) {
        const mla_code_part *p = &l->part[kp + 1 == l->blocks];
        unsigned wa = mla_code_planes[c->code].a, wb = mla_code_planes[c->code].b;
        size_t k0 = kp * MLA_KP, n = mla_min_size(MLA_KP, c->in - k0), size = mla_scale_size(c->scale), g0 = size ? k0 / c->group : 0;
        const uint8_t *code = to.code + (wa == 16 ? 2 * k0 : k0);
        put_plane((uint32_t *)(void *)(panel + p->a) + r, code, n, 0, wa);
        if (wb) put_plane((uint32_t *)(void *)(panel + p->b) + r, code, n, wa, wb);
        for (size_t i = 0; c->code == MLA_CODE_E4M3 && i < n; i++)
            if (!(code[i] & 0x78) && code[i] & 7) panel[p->marks + i / 8] = 1;
        put_elems(panel + p->scales, to.scale, g0, groups_of(l, kp), size, r);
        put_elems(panel + p->offsets, to.offset, g0, groups_of(l, kp), mla_offset_size(c->offset), r);
        if (!c->super_group) continue;
        put_elems(panel + p->supers, (const uint8_t *)to.super, k0 / c->super_group, supers_of(l, kp), 2, r);
        if (super_offset(c)) put_elems(panel + p->super_offs, (const uint8_t *)to.super_off, k0 / c->super_group, supers_of(l, kp), 2, r);
    }
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
        for (size_t i = 0; !mla_code_bare(w->code.c.code) && i < groups_of(&w->code, kp) * MLA_NR; i++)
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
    mla_cpu_code_kinds(&w->code, j.odd); /* not before: values are looked at in the plain way */
    return j.st;
}
