/* Blocks of packed weights, found and handed to the kernels: decoded to a panel, or multiplied with rows. */
#include "backend/cpu/cpu.h"

typedef enum { PLAIN, BYTES, DOT } how; /* v; u for codes_gemv_bytes; u for dot_gemv, which counts the base itself */

/* The block of inputs [MLA_KP kp, ..) of panels p .., scales expanded into `scales` */
static mla_code_block block_at(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t np, size_t kp, how h, float *scales)
{
    const mla_code_layout *l = &w->code;
    const mla_coded *c = &l->c;
    const mla_code_part *part = &l->part[kp + 1 == l->blocks];
    const char *at = w->data + p * w->panel_bytes + kp * l->part[0].bytes;
    size_t k0 = kp * MLA_KP, n = mla_min_size(MLA_KP, l->octets * 8 - k0);
    mla_code_block q = {.code = c->code, .offset = c->offset != MLA_OFFSET_NONE, .lo = c->lo, .hi = c->hi, .look = l->look, .form = l->dot, .base = l->base, .unit = l->unit,
                        .a = (const uint32_t *)(const void *)(at + part->a), .b = (const uint32_t *)(const void *)(at + part->b),
                        .marks = (const uint8_t *)at + part->marks, .panel_words = w->panel_bytes / 4, .s = scales, .m = scales + MLA_CODE_PANELS * MLA_CODE_SEGS * MLA_NR,
                        .first = n, .seg = n, .octets = n / 8};
    if (mla_code_bare(c->code)) return q;
    size_t g0 = k0 / c->group, g1 = (k0 + n - 1) / c->group;
    if (g1 >= l->groups) g1 = l->groups - 1;
    if (g1 > g0) q.first = (g0 + 1) * c->group - k0, q.seg = c->group;
    for (size_t i = 0; i < np; i++, at += w->panel_bytes) {
        const unsigned char *b = (const unsigned char *)at;
        mla_code_scales a = {.scale = c->scale, .offset = c->offset, .scales = b + part->scales, .offsets = b + part->offsets,
                             .supers = b + part->supers, .super_offs = b + part->super_offs,
                             .per_super = c->super_group ? c->super_group / c->group : 0, .g0 = g0, .n = g1 - g0 + 1,
                             .table = c->table, .digits = l->split ? l->digits : NULL, .e4m3 = h == DOT ? l->e4m3 : 0,
                             .factor = h != PLAIN ? l->factor : c->code == MLA_CODE_E4M3 ? 0x1p120f : 1, .shift = h == BYTES ? l->shift : 0};
        size_t to = i * MLA_CODE_SEGS * MLA_NR;
        k->code_scales((float *)(uintptr_t)q.s + to, (float *)(uintptr_t)q.m + to, &a);
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
    mla_code_block q = block_at(k, w, p, 1, kp, PLAIN, scales);
    k->codes_tile(dst, &q);
}

void mla_cpu_code_gemv(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t np, size_t kp, const float *x, float *c, float *scales)
{
    if (w->form == MLA_W_TRELLIS) { /* panels come in fours: np is 2 */
        k->trellis_gemv(c, x, trellis_at(w, p, kp), mla_min_size(MLA_KP, w->in - kp * MLA_KP) / 16, &w->plan, kp > 0);
        return;
    }
    bool ints = k->codes_gemv_bytes && w->code.ints;
    mla_code_block q = block_at(k, w, p, np, kp, ints ? BYTES : PLAIN, scales);
    (ints ? k->codes_gemv_bytes : k->codes_gemv)(c, x, &q, np, kp > 0);
}

mla_code_block mla_cpu_code_dot_block(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t kp, float *scales)
{
    return block_at(k, w, p, 1, kp, DOT, scales);
}
