/* EXL3 weights: tiles laid out for the kernels of trellis_body.h, and the transforms on both sides of a product.
 *
 * y = sv H V^T H (su x) / 128: the activations of a row are scaled and transformed in blocks of 128, multiplied with the
 * codebook's values V, transformed again and scaled. A panel is 32 outputs = two columns of tiles: (in128 / 16, words, 16)
 * u32, lane 8 b + s = segment s of tile b. A width of whole bits keeps its words; half-integer widths start segments inside
 * words, so each is stored from 16 bits before its start on, half a word more than the file has. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/ckd.h"

#define SIDE 128

static void make_plan(mla_trellis_plan *p, const mla_trellis *t)
{
    bool half = t->twice_k & 1;
    *p = (mla_trellis_plan){.codebook = t->codebook, .words = half ? (t->twice_k + 1) / 2 : t->twice_k / 2};
    for (uint32_t r = 0; r < 16; r++)
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t u = 8 * (r % 8 / 2) + 4 * h + 2 * (r / 8) + r % 2;
            uint32_t end = half ? t->twice_k / 2 * (u + 1) + (u + 1) / 2 : t->twice_k / 2 * (u + 1);
            uint32_t from = end + (half ? 32 : 16), sh = from % 32; /* word 0 of the kernel stands before the stored ones */
            p->step[r][h] = sh <= 16 ? (mla_trellis_step){from / 32, from / 32, 32, 16 - sh}
                                     : (mla_trellis_step){from / 32, from / 32 + 1, sh - 16, 48 - sh};
        }
}

/* 32 bits of a ring of n words from bit `at` on, around the end; words are MSB first */
static uint32_t ring_word(const unsigned char *tile, size_t n, size_t at)
{
    uint32_t w[2];
    for (size_t i = 0; i < 2; i++) {
        const unsigned char *b = tile + (at / 32 + i) % n * 4;
        w[i] = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    return at % 32 ? w[0] << at % 32 | w[1] >> (32 - at % 32) : w[0];
}

typedef struct {
    mla_weight *w;
    const mla_trellis *t;
} tile_job;

static void put_tiles(void *ctx, size_t begin, size_t end, size_t worker)
{
    const tile_job *j = ctx;
    size_t twice_k = j->t->twice_k, n = 4 * twice_k, bits = 32 * n, words = j->w->plan.words, cols = j->t->out128 / 16;
    (void)worker;
    for (size_t p = begin; p < end; p++) {
        uint32_t *dst = (uint32_t *)(void *)(j->w->data + p * j->w->panel_bytes);
        for (size_t a = 0; a < j->t->in128 / 16; a++)
            for (size_t w = 0; w < words; w++)
                for (size_t lane = 0; lane < 16; lane++) {
                    const unsigned char *tile = j->t->tiles + (a * cols + 2 * p + lane / 8) * 4 * n;
                    size_t at = lane % 8 * 16 * twice_k + 32 * w;
                    *dst++ = ring_word(tile, n, twice_k & 1 ? (at + bits - 16) % bits : at);
                }
    }
}

mla_status mla_cpu_trellis_new(mla_cpu *c, mla_weight *w, const mla_weight_desc *d, mla_err *err)
{
    const mla_trellis *t = &d->coded->trellis;
    tile_job j = {w, t};
    w->form = MLA_W_TRELLIS;
    make_plan(&w->plan, t);
    w->trellis_in = d->in;
    w->in = t->in128;
    w->panels = t->out128 / MLA_NR;
    if (!mla_mul(&w->panel_bytes, t->in128 / 16 * w->plan.words, 64) || !mla_mul(&w->bytes, w->panel_bytes, w->panels))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", d->out, d->in);
    w->data = w->block = mla_cpu_big(w->bytes);
    w->su = mla_alloc_raw(t->in128, 1, sizeof *w->su);
    w->sv = mla_alloc_raw(t->out128, 1, sizeof *w->sv);
    if (!w->data || !w->su || !w->sv) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): %zu bytes", d->out, d->in, w->bytes);
    d->coded->sides(d->coded, w->su, w->sv);
    for (size_t o = 0; o < t->out128; o++) w->sv[o] *= 0x1p-7f;
    mla_par_for(c->pool, w->panels, 1, put_tiles, &j);
    for (size_t i = 0; i < d->in; i++)
        if (!isfinite(w->su[i])) return mla_fail(err, MLA_EFORMAT, "weight (%zu, %zu): scale of input %zu is not finite", d->out, d->in, i);
    for (size_t o = 0; o < d->out; o++)
        if (!isfinite(w->sv[o])) return mla_fail(err, MLA_EFORMAT, "weight (%zu, %zu): scale of output %zu is not finite", d->out, d->in, o);
    return MLA_OK;
}

void mla_cpu_trellis_in(const mla_cpu_kern *k, const mla_weight *w, float *x2, const float *x)
{
    for (size_t i = 0; i < w->in; i++) x2[i] = i < w->trellis_in ? x[i] * w->su[i] : 0;
    for (size_t i = 0; i < w->in; i += SIDE) k->hadamard(x2 + i);
}

/* Panels come in the order of lanes: [0-7 | 16-23 | 8-15 | 24-31] */
void mla_cpu_trellis_out(const mla_cpu_kern *k, const mla_weight *w, float *y2)
{
    float mid[8];
    for (size_t p = 0; p < w->panels; p++) {
        memcpy(mid, y2 + p * MLA_NR + 8, sizeof mid);
        memcpy(y2 + p * MLA_NR + 8, y2 + p * MLA_NR + 16, sizeof mid);
        memcpy(y2 + p * MLA_NR + 16, mid, sizeof mid);
    }
    for (size_t o = 0; o < w->panels * MLA_NR; o += SIDE) k->hadamard(y2 + o);
    for (size_t o = 0; o < w->out; o++) y2[o] *= w->sv[o];
}
