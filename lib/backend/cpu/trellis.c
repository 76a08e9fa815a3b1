/* EXL3 weights: tiles laid out for the kernels of trellis_body.h, and the transforms on both sides of a product.
 *
 * y = sv H V^T H (su x) / 128: the activations of a row are scaled and transformed in blocks of 128, multiplied with the
 * codebook's values V, transformed again and scaled. Two panels are 64 outputs = four columns of tiles: (in128 / 16, 2 K, 32)
 * u16, the stored bits and no more; every lane holds one of the 8 segments of one of the four tiles. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/ckd.h"

#define SIDE 128

/* Segment and tile of a lane: joined to 32-bit lanes (v32h_join0, v32h_join1) the first two tiles come out in order, then the
 * other two. */
static void trellis_lane(size_t lane, size_t *tile, size_t *segment)
{
    size_t place = lane / 8 * 4 + lane % 4;
    *tile = lane % 8 / 4 * 2 + place / 8;
    *segment = place % 8;
}

typedef struct {
    mla_weight *w;
    const mla_trellis *t;
} tile_job;

/* piece = two panels */
static void put_tiles(void *ctx, size_t begin, size_t end, size_t worker)
{
    const tile_job *j = ctx;
    size_t n = j->t->twice_k, cols = j->t->out128 / 16, tile, segment;
    (void)worker;
    for (size_t p = begin; p < end; p++) {
        uint16_t *dst = (uint16_t *)(void *)(j->w->data + p * 2 * j->w->panel_bytes);
        for (size_t a = 0; a < j->t->in128 / 16; a++)
            for (size_t h = 0; h < n; h++)
                for (size_t lane = 0; lane < 32; lane++) {
                    trellis_lane(lane, &tile, &segment);
                    /* halves of a ring: the high one of every u32 comes first */
                    const unsigned char *b = j->t->tiles + ((a * cols + 4 * p + tile) * 8 * n + ((segment * n + h) ^ 1)) * 2;
                    *dst++ = (uint16_t)(b[0] | b[1] << 8);
                }
    }
}

mla_status mla_cpu_trellis_new(mla_cpu *c, mla_weight *w, const mla_weight_desc *d, mla_err *err)
{
    const mla_trellis *t = &d->coded->trellis;
    tile_job j = {w, t};
    w->form = MLA_W_TRELLIS;
    w->plan = (mla_trellis_plan){t->codebook, t->twice_k, d->precision == MLA_PREC_BF16};
    w->trellis_in = d->in;
    w->in = t->in128;
    w->panels = t->out128 / MLA_NR;
    if (!mla_mul(&w->panel_bytes, t->in128 / 16 * t->twice_k, 32) || !mla_mul(&w->bytes, w->panel_bytes, w->panels))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", d->out, d->in);
    w->data = w->block = mla_cpu_big(w->bytes);
    w->su = mla_alloc_raw(t->in128, 1, sizeof *w->su);
    w->sv = mla_alloc_raw(t->out128, 1, sizeof *w->sv);
    if (!w->data || !w->su || !w->sv) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): %zu bytes", d->out, d->in, w->bytes);
    d->coded->sides(d->coded, w->su, w->sv);
    for (size_t o = 0; o < t->out128; o++) w->sv[o] *= 0x1p-7f;
    mla_par_for(c->pool, w->panels / 2, 1, put_tiles, &j);
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
