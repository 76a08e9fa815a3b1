/* Linear weights in the CPU's layout: panels of 32 outputs, k ascending inside, f32 or bf16 pairs; packed codes are
 * coded.c's and trellis.c's, rows that stay where they are nobody's. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "tensor/fp.h"
#include "base/alloc.h"
#include "base/ckd.h"

#define ROWS_BYTES ((size_t)8 << 20) /* f32 rows read at once */

typedef struct {
    const mla_cpu_kern *k;
    const mla_weight *w;
    const float *rows; /* (n, in) */
    size_t panel0, n;
} pack_job;

static void pack_panels(void *ctx, size_t begin, size_t end, size_t worker)
{
    const pack_job *j = ctx;
    (void)worker;
    for (size_t p = begin; p < end; p++) {
        char *dst = j->w->data + (j->panel0 + p) * j->w->panel_bytes;
        const float *src = j->rows + p * MLA_NR * j->w->in;
        size_t rows = mla_min_size(MLA_NR, j->n - p * MLA_NR);
        if (j->w->precision == MLA_PREC_F32)
            j->k->pack_f32((float *)(void *)dst, src, j->w->in, rows, j->w->in);
        else
            j->k->pack_bf16((uint32_t *)(void *)dst, src, j->w->in, rows, j->w->in);
    }
}

static mla_status size_weight(mla_weight *w, const mla_weight_desc *d, mla_err *err)
{
    size_t k = d->precision == MLA_PREC_F32 ? d->in : d->in / 2 + (d->in & 1);
    *w = (mla_weight){.out = d->out, .in = d->in, .panels = mla_ceil_div(d->out, MLA_NR), .precision = d->precision};
    if (d->out == 0 || d->in == 0 || !d->rows) return mla_fail(err, MLA_EINVAL, "weight (%zu, %zu): empty", d->out, d->in);
    if (!mla_mul(&w->panel_bytes, k, MLA_NR * sizeof(float)) || !mla_mul(&w->bytes, w->panel_bytes, w->panels))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", d->out, d->in);
    return MLA_OK;
}

static mla_status decode_rows(mla_cpu *c, mla_weight *w, const mla_weight_desc *d, mla_err *err)
{
    mla_status st = MLA_OK;
    size_t at_once = ROWS_BYTES / sizeof(float) / d->in / MLA_NR * MLA_NR;
    if (at_once == 0) at_once = MLA_NR;
    at_once = mla_min_size(at_once, w->panels * MLA_NR);
    w->data = w->block = mla_cpu_big(w->bytes);
    float *rows = mla_alloc_raw(at_once, d->in, sizeof *rows);
    if (!w->data || !rows) st = mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): %zu bytes", d->out, d->in, w->bytes);
    for (size_t r = 0; st == MLA_OK && r < d->out; r += at_once) {
        size_t n = mla_min_size(at_once, d->out - r);
        if ((st = d->rows(d->ctx, r, n, rows, err)) != MLA_OK) break;
        pack_job j = {c->k, w, rows, r / MLA_NR, n};
        mla_par_for(c->pool, mla_ceil_div(n, MLA_NR), 1, pack_panels, &j);
    }
    mla_free(rows);
    return st;
}

mla_status mla_cpu_weight_new(mla_backend *be, mla_weight **out, const mla_weight_desc *d, mla_err *err)
{
    mla_cpu *c = mla_cpu_of(be);
    mla_status st = MLA_OK;
    mla_weight_desc own = *d;
    if (own.coded && own.coded->code == MLA_CODE_BF16 && own.precision == MLA_PREC_BF16) own.coded = NULL; /* decoded, it is the same and faster */
    d = &own;
    mla_weight *w = mla_alloc(1, 1, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu)", d->out, d->in);
    st = size_weight(w, d, err);
    if (st == MLA_OK && d->coded) {
        st = d->coded->code == MLA_CODE_TRELLIS ? mla_cpu_trellis_new(c, w, d, err) : mla_cpu_coded_new(c, w, d, err);
    } else if (st == MLA_OK && d->undecoded) {
        w->form = MLA_W_UNDECODED, w->bytes = 0, w->rows = d->rows, w->ctx = d->ctx;
    } else if (st == MLA_OK) {
        st = decode_rows(c, w, d, err);
    }
    if (st == MLA_OK) *out = w;
    else mla_cpu_weight_free(be, w);
    return st;
}

void mla_cpu_weight_free(mla_backend *be, mla_weight *w)
{
    (void)be;
    if (!w) return;
    mla_free(w->block);
    mla_free(w->perm);
    mla_free(w->su);
    mla_free(w->sv);
    mla_free(w);
}

size_t mla_cpu_weight_bytes(const mla_weight *w) { return w->bytes; }

/* W[n][k] as f32 */
static float element(const mla_weight *w, size_t n, size_t k)
{
    const char *p = w->data + n / MLA_NR * w->panel_bytes;
    if (w->precision == MLA_PREC_F32) return ((const float *)(const void *)p)[k * MLA_NR + n % MLA_NR];
    uint32_t pair = ((const uint32_t *)(const void *)p)[k / 2 * MLA_NR + n % MLA_NR];
    return mla_bf16_f32((uint16_t)(k & 1 ? pair >> 16 : pair & 0xffffu));
}

typedef struct {
    const mla_cpu_kern *k;
    const mla_weight *w;
    float *y;
    const int32_t *ids;
    float *room; /* per worker (MLA_KP, MLA_NR) and MLA_CODE_SCALES; CODES only */
} embed_job;

/* One row out of a packed panel: its whole block is decoded. */
static void code_row(const embed_job *j, size_t t, float *tile)
{
    const mla_weight *w = j->w;
    size_t n = (size_t)j->ids[t];
    for (size_t k0 = 0; k0 < w->in; k0 += MLA_KP) {
        mla_cpu_code_tile(j->k, w, n / MLA_NR, k0 / MLA_KP, tile, tile + MLA_KP * MLA_NR);
        for (size_t k = 0; k < MLA_KP && k0 + k < w->in; k++)
            j->y[t * w->in + (w->perm ? w->perm[k0 + k] : k0 + k)] = tile[k * MLA_NR + n % MLA_NR];
    }
}

static void embed_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const embed_job *j = ctx;
    for (size_t t = begin; t < end; t++) {
        if (j->w->form == MLA_W_CODES) code_row(j, t, j->room + worker * (MLA_KP * MLA_NR + MLA_CODE_SCALES));
        else
            for (size_t k = 0; k < j->w->in; k++) j->y[t * j->w->in + k] = element(j->w, (size_t)j->ids[t], k);
    }
}

mla_status mla_cpu_embed(mla_backend *be, const mla_weight *w, mla_mem *y, const int32_t *ids, size_t T, mla_err *err)
{
    for (size_t t = 0; t < T; t++)
        if (ids[t] < 0 || (size_t)ids[t] >= w->out)
            return mla_fail(err, MLA_EINVAL, "token id %d at %zu: vocabulary has %zu", (int)ids[t], t, w->out);
    mla_cpu *c = mla_cpu_of(be);
    embed_job j = {c->k, w, mla_f32p(y), ids, NULL};
    if (w->form == MLA_W_TRELLIS) return mla_fail(err, MLA_EUNSUPPORTED, "weight (%zu, %zu): EXL3 has no rows to embed", w->out, w->in);
    for (size_t t = 0; w->form == MLA_W_UNDECODED && t < T; t++) {
        mla_status st = w->rows(w->ctx, (size_t)ids[t], 1, j.y + t * w->in, err);
        if (st != MLA_OK) return st;
    }
    if (w->form == MLA_W_UNDECODED) return MLA_OK;
    if (w->form == MLA_W_CODES) {
        char *mem;
        mla_status st = mla_cpu_scratch(c, c->threads * (MLA_KP * MLA_NR + MLA_CODE_SCALES) * sizeof(float), "embed", &mem, err);
        if (st != MLA_OK) return st;
        j.room = (float *)(void *)mem;
    }
    mla_par_for(c->pool, T, 8, embed_rows, &j);
    return MLA_OK;
}
