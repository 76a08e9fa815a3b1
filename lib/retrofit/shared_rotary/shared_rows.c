/* Taps -> bf16 files -> rows. */
#include "retrofit/shared_rotary/shared_rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "runtime/runtime.h"
#include "tensor/fp.h"

enum { BATCH = 32 }; /* sequences advanced together when layers are streamed */

static size_t width_of(const mla_config *c)
{
    size_t Hd = c->heads * c->head_dim, Gd = c->kv_heads * c->head_dim;
    return c->hidden + 2 * Hd + 2 * Gd + (c->attn_gate ? Hd : 0);
}

size_t mla_shared_row_bytes(const mla_config *c) { return 2 * width_of(c); }

static char *path_of(const char *dir, size_t layer)
{
    char name[64];
    (void)snprintf(name, sizeof name, "shared-rows-%05zu.bf16", layer);
    return mla_path_join(dir, name);
}

typedef struct {
    const mla_shared_rows_opts *o;
    const mla_config *c;
    mla_out **out;           /* (layers); NULL where the layer caches nothing or is recorded */
    float *host, *raw;       /* one row of one layer; gate with its strides */
    size_t raw_cap;
    uint16_t *half;
} recorder;

static mla_status fetch(const recorder *r, float *dst, const mla_mem *src, size_t n, mla_err *err)
{
    return r->o->be->ops->download(r->o->be, dst, src, n * sizeof *dst, err);
}

static mla_status fetch_gate(recorder *r, float *dst, const mla_tap_attn *a, size_t T, mla_err *err)
{
    size_t H = r->c->heads, d = r->c->head_dim, span = (T - 1) * a->gate_ld + (H - 1) * a->gate_h + d;
    if (span > r->raw_cap) {
        float *p = mla_realloc(r->raw, span, sizeof *p);
        if (!p) return mla_fail(err, MLA_ENOMEM, "gate of %zu tokens", T);
        r->raw = p;
        r->raw_cap = span;
    }
    mla_status st = fetch(r, r->raw, a->gate, span, err);
    for (size_t t = 0; st == MLA_OK && t < T; t++)
        for (size_t h = 0; h < H; h++) memcpy(dst + (t * H + h) * d, r->raw + t * a->gate_ld + h * a->gate_h, d * sizeof *dst);
    return st;
}

static mla_status on_tap(void *ctx, const mla_tap *t, mla_err *err)
{
    recorder *r = ctx;
    const mla_tap_attn *a = t->attn;
    if (t->point != MLA_TAP_ATTN || t->layer >= r->c->layers || !r->out[t->layer]) return MLA_OK;
    size_t T = t->rows, hd = T * r->c->heads * r->c->head_dim, gd = T * r->c->kv_heads * r->c->head_dim, n = T * width_of(r->c);
    float *p = r->host;
    const struct { const mla_mem *src; size_t n; } part[] = {{a->x, T * r->c->hidden}, {a->q, hd}, {a->k, gd}, {a->v, gd}, {a->o, hd}};
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < sizeof part / sizeof *part; i++) {
        st = fetch(r, p, part[i].src, part[i].n, err);
        p += part[i].n;
    }
    if (st == MLA_OK && r->c->attn_gate) st = fetch_gate(r, p, a, T, err);
    if (st != MLA_OK) return mla_wrap(err, "layer %zu", t->layer);
    for (size_t i = 0; i < n; i++) r->half[i] = mla_f32_bf16(r->host[i]);
    return mla_out_write(r->out[t->layer], r->half, n * sizeof *r->half, err);
}

static mla_status run(recorder *r, const int32_t *ids, size_t n_rows, mla_err *err)
{
    const mla_shared_rows_opts *o = r->o;
    size_t T = o->row_tokens, batch = o->stream_layers ? BATCH : 1;
    mla_rt *rt = NULL;
    mla_seq *seq[BATCH] = {0};
    mla_job job[BATCH];
    mla_rt_opts ro = {.precision = o->precision, .kv_dtype = MLA_F32, .stream_layers = o->stream_layers, .log = o->log};
    mla_progress prog = mla_progress_begin(o->log, "recording", (double)(n_rows * T), "tokens");
    mla_status st = mla_rt_open(&rt, o->model, o->be, &ro, err);
    for (size_t i = 0; st == MLA_OK && i < batch; i++) st = mla_seq_new(&seq[i], rt, T, err);
    for (size_t at = 0; st == MLA_OK && at < n_rows; at += batch) {
        size_t n = n_rows - at < batch ? n_rows - at : batch;
        for (size_t i = 0; i < n; i++) {
            mla_seq_reset(seq[i]);
            job[i] = (mla_job){.seq = seq[i], .ids = ids + (at + i) * T, .T = T, .logits_from = T};
        }
        st = mla_rt_run(rt, job, n, on_tap, r, err);
        mla_progress_add(&prog, (double)(n * T));
    }
    if (st == MLA_OK) mla_progress_end(&prog);
    for (size_t i = 0; i < batch; i++) mla_seq_free(seq[i]);
    mla_rt_close(rt);
    return st;
}

mla_status mla_shared_record(const mla_shared_rows_opts *o, const int32_t *ids, size_t n_rows, mla_err *err)
{
    const mla_config *c = mla_model_config(o->model);
    recorder r = {.o = o, .c = c};
    size_t todo = 0;
    r.out = mla_alloc(c->layers, 1, sizeof *r.out);
    r.host = mla_alloc_raw(o->row_tokens, width_of(c), sizeof *r.host);
    r.half = mla_alloc_raw(o->row_tokens, width_of(c), sizeof *r.half);
    mla_status st = r.out && r.host && r.half ? MLA_OK : mla_fail(err, MLA_ENOMEM, "rows of %zu tokens", o->row_tokens);
    for (size_t l = 0; st == MLA_OK && l < c->layers; l++) {
        char *path = c->layer_kind[l] == MLA_LAYER_FULL ? path_of(o->dir, l) : NULL;
        uint64_t size = 0;
        mla_err none;
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (!path) st = mla_fail(err, MLA_ENOMEM, "path");
        else if (!mla_path_exists(path) || mla_file_size(&size, path, &none) != MLA_OK || size != n_rows * o->row_tokens * mla_shared_row_bytes(c))
            st = mla_out_open(&r.out[l], path, err), todo++;
        mla_free(path);
    }
    if (st == MLA_OK && todo) st = run(&r, ids, n_rows, err);
    for (size_t l = 0; r.out && l < c->layers; l++) {
        if (st == MLA_OK && r.out[l]) {
            st = mla_out_commit(r.out[l], err);
            r.out[l] = NULL;
        }
        mla_out_abort(r.out[l]);
    }
    mla_free(r.out);
    mla_free(r.host);
    mla_free(r.raw);
    mla_free(r.half);
    return st == MLA_OK ? st : mla_wrap(err, "recording activations");
}

struct mla_shared_rows {
    mla_mapped map;
    size_t T, D, Hd, Gd, width;
    bool gate;
};

mla_status mla_shared_rows_open(mla_shared_rows **out, const mla_shared_rows_opts *o, size_t layer, size_t n_rows, mla_err *err)
{
    const mla_config *c = mla_model_config(o->model);
    mla_shared_rows *r = mla_alloc(1, 1, sizeof *r);
    char *path = path_of(o->dir, layer);
    mla_status st = r && path ? mla_file_map(&r->map, path, err) : mla_fail(err, MLA_ENOMEM, "rows of layer %zu", layer);
    if (st == MLA_OK) {
        r->T = o->row_tokens, r->D = c->hidden, r->Hd = c->heads * c->head_dim, r->Gd = c->kv_heads * c->head_dim;
        r->width = width_of(c), r->gate = c->attn_gate;
        if (r->map.size != 2 * n_rows * r->T * r->width)
            st = mla_fail(err, MLA_EFORMAT, "%s: expected %zu bytes, found %zu", path, 2 * n_rows * r->T * r->width, r->map.size);
    }
    mla_free(path);
    if (st == MLA_OK) *out = r;
    else mla_shared_rows_close(r);
    return st;
}

void mla_shared_rows_close(mla_shared_rows *r)
{
    if (!r) return;
    mla_file_unmap(&r->map);
    mla_free(r);
}

size_t mla_shared_row_floats(const mla_shared_rows *r) { return r->T * r->width; }

void mla_shared_rows_get(const mla_shared_rows *r, size_t i, float *buf, mla_shared_row *out)
{
    size_t T = r->T, n = T * r->width;
    const unsigned char *p = r->map.data + 2 * i * n;
    for (size_t k = 0; k < n; k++) {
        uint16_t b;
        memcpy(&b, p + 2 * k, 2);
        buf[k] = mla_bf16_f32(b);
    }
    *out = (mla_shared_row){.T = T, .x = buf};
    out->q = out->x + T * r->D;
    out->k = out->q + T * r->Hd;
    out->v = out->k + T * r->Gd;
    out->o = out->v + T * r->Gd;
    if (!r->gate) return;
    out->gamma = out->o + T * r->Hd;
    for (size_t k = 0; k < T * r->Hd; k++) out->gamma[k] = 1 / (1 + expf(-out->gamma[k]));
}
