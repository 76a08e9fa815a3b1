/* Recording taps: rows stay on the device, or go into one file per layer. A device that has the operations of backend/fit.h packs
 * them; the host packs those of others. */
#include "retrofit/refine/record.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "retrofit/refine/row_store.h"
#include "retrofit/stats/tap_host.h"
#include "runtime/runtime.h"
#include "tensor/fp.h"

static bool is_whole(const char *path, uint64_t want)
{
    mla_err why;
    uint64_t size;
    return mla_path_exists(path) && mla_file_size(&size, path, &why) == MLA_OK && size == want;
}

typedef struct {
    const mla_rows_opts *o;
    const mla_config *c;
    mla_row_shape s;
    size_t n_rows, first; /* all of them; the first of this run */
    mla_row_store *store; /* where they stay, or NULL: */
    mla_out **out;        /* (c->layers); NULL where nothing is recorded */
    mla_mem *packed, *rms;/* of a device that packs: a row as stored; (T, G) */
    float *f;             /* otherwise q, k, k_rot, v, gate of one row */
    uint16_t *bits;       /* the row as stored */
    atomic_bool odd;      /* not all of it is finite */
} recorder;

enum { PIECE = 1 << 16 }; /* values that a thread rounds at a time */

/* y (T, groups, n) from keys and values (T, G, d): each group's keys (dims from skip on), then its values. */
static void features(float *y, const recorder *r, const float *k, const float *v)
{
    size_t G = r->c->kv_heads, d = r->c->head_dim, per = G / r->o->groups;
    size_t dk = mla_layout_key_dims(r->c, r->o->layout), skip = d - dk, n = per * (dk + d);
    for (size_t t = 0; t < r->s.T; t++)
        for (size_t g = 0; g < G; g++) {
            float *ya = y + (t * r->o->groups + g / per) * n;
            memcpy(ya + g % per * dk, k + (t * G + g) * d + skip, dk * sizeof *y);
            memcpy(ya + per * dk + g % per * d, v + (t * G + g) * d, d * sizeof *y);
        }
}

void mla_inverse_rms(float *x, const float *k, size_t n, size_t d, double eps)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t j = 0; j < d; j++) sum += (double)k[i * d + j] * k[i * d + j];
        x[i] = (float)(1 / sqrt(sum / (double)d + eps));
    }
}

static void round_values(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    recorder *r = ctx;
    bool odd = false;
    for (size_t i = b; i < e; i++) {
        odd = odd || !isfinite(r->f[i]);
        r->bits[i] = mla_f32_bf16(r->f[i]);
    }
    if (odd) atomic_store(&r->odd, true);
}

/* bits of a tap by the host. */
static mla_status pack_here(recorder *r, const mla_tap_attn *a, mla_err *err)
{
    mla_backend *be = r->o->be;
    size_t G = r->c->kv_heads, d = r->c->head_dim, rot = r->c->rope.rot, T = r->s.T, hk = T * G * d;
    float *q = r->f, *y = q + r->s.q, *kr = y + r->s.y, *rms = kr + r->s.k, *gate = rms + r->s.rms, *k = gate + r->s.gate, *v = k + hk, *whole = v + hk;
    mla_status st = mla_tap_fetch(be, q, a->q_rot, r->s.q, err);
    if (st == MLA_OK) st = mla_tap_fetch(be, k, r->s.rms ? a->k_pre : a->k, hk, err);
    if (st == MLA_OK) st = mla_tap_fetch(be, v, a->v, hk, err);
    if (st == MLA_OK && r->s.k) st = mla_tap_fetch(be, whole, a->k_rot, hk, err);
    if (st == MLA_OK && r->s.gate) st = mla_tap_fetch_gate(be, gate, a, T, r->c->heads, d, err);
    if (st != MLA_OK) return st;
    features(y, r, k, v);
    if (r->s.rms) mla_inverse_rms(rms, k, T * G, d, r->c->rms_eps);
    for (size_t i = 0; r->s.k && i < T * G; i++) memcpy(kr + i * rot, whole + i * d, rot * sizeof *kr);
    r->odd = false;
    mla_par_for(r->o->pool, r->s.all, PIECE, round_values, r);
    return MLA_OK;
}

/* The same by the device. */
static mla_status pack_there(recorder *r, const mla_tap_attn *a, mla_err *err)
{
    mla_status st = mla_row_pack(r->o, &r->s, r->packed, a, r->rms, err);
    if (st == MLA_OK) st = r->o->be->ops->download(r->o->be, r->bits, r->packed, r->s.all * sizeof *r->bits, err);
    bool odd = false;
    for (size_t i = 0; i < r->s.all; i++) odd |= (r->bits[i] & 0x7f80) == 0x7f80;
    r->odd = odd;
    return st;
}

static mla_status on_attention(void *ctx, const mla_tap *tap, mla_err *err)
{
    recorder *r = ctx;
    size_t i = tap->layer;
    if (tap->point != MLA_TAP_ATTN || i >= r->c->layers || (r->store ? !mla_row_store_layer(r->store, i) : !r->out[i])) return MLA_OK;
    const mla_tap_attn *a = tap->attn;
    if (a->pos0 != 0 || tap->rows != r->s.T)
        return mla_fail(err, MLA_EINTERNAL, "refinement needs whole rows of %zu tokens, got %zu from %zu", r->s.T, tap->rows, a->pos0);
    mla_mem *to = r->store ? mla_at_bytes(mla_row_store_layer(r->store, i), (r->first + tap->seq) * r->s.all * sizeof *r->bits) : NULL;
    mla_status st = to ? mla_row_pack(r->o, &r->s, to, a, r->rms, err) : r->packed ? pack_there(r, a, err) : pack_here(r, a, err);
    if (st != MLA_OK) return mla_wrap(err, "layer %zu", i);
    if (to) return MLA_OK;
    if (r->odd) return mla_fail(err, MLA_EFORMAT, MLA_ROW_ODD, i);
    return mla_out_write(r->out[i], r->bits, r->s.all * sizeof *r->bits, err);
}

/* Files of the layers that have none, opened where `make` says so; how many there are. */
static mla_status missing(recorder *r, bool make, size_t *n, mla_err *err)
{
    mla_status st = MLA_OK;
    *n = 0;
    for (size_t i = 0; st == MLA_OK && i < r->c->layers; i++) {
        if (r->c->layer_kind[i] != MLA_LAYER_FULL || (r->o->n_prefix && i != r->o->only)) continue;
        char *path = mla_rows_path(r->o, i);
        uint64_t size = (uint64_t)r->n_rows * r->s.all * sizeof *r->bits;
        if (!path) st = mla_fail(err, MLA_ENOMEM, "path of layer %zu", i);
        else if (!is_whole(path, size)) {
            if (make) st = mla_out_open(&r->out[i], path, err);
            if (make && st == MLA_OK) st = mla_out_reserve(r->out[i], size, err);
            ++*n;
        }
        mla_free(path);
    }
    return st;
}

/* Memory of one row on its way; files unless the device keeps rows. */
static mla_status room(recorder *r, bool keep, mla_err *err)
{
    mla_backend *be = r->o->be;
    mla_err full;
    size_t G = r->c->kv_heads, hk = r->s.T * G * r->c->head_dim, n;
    mla_status st = MLA_OK;
    if (be->ops->fit) st = be->ops->alloc(be, &r->rms, r->s.T * G * 4, err);
    if (st != MLA_OK) return st;
    if (keep && be->ops->fit) {
        st = mla_row_store_new(&r->store, be, r->c, &r->s, r->n_rows, &full);
        if (st == MLA_OK) return st;
        if (st != MLA_ENOMEM) return mla_fail(err, st, "%s", full.msg);
        mla_info(r->o->log, "recorded rows go through files: %s", full.msg);
        st = MLA_OK;
    }
    if (be->ops->fit) st = be->ops->alloc(be, &r->packed, r->s.all * sizeof *r->bits, err);
    else r->f = mla_alloc_raw(r->s.all + 3 * hk, 1, sizeof *r->f);
    r->bits = mla_alloc_raw(r->s.all, 1, sizeof *r->bits);
    r->out = mla_alloc(r->c->layers, 1, sizeof *r->out);
    if (st == MLA_OK && (!r->bits || !r->out || (!r->packed && !r->f))) st = mla_fail(err, MLA_ENOMEM, "recording rows of %zu tokens", r->s.T);
    return st == MLA_OK ? missing(r, true, &n, err) : st;
}

static mla_status run(recorder *r, const int32_t *ids, bool keep, mla_err *err)
{
    enum { BATCH = 32 }; /* sequences together when layers are streamed, or operations only queued */
    size_t batch = r->o->stream_layers || r->o->be->ops->queues ? BATCH : 1, T = r->s.T;
    mla_rt *rt = NULL;
    mla_seq *seq[BATCH] = {0};
    mla_job job[BATCH];
    mla_rt_opts ro = {.precision = r->o->precision, .kv_dtype = MLA_F32, .stream_layers = r->o->stream_layers, .log = r->o->log};
    mla_status st = mla_rt_open(&rt, r->o->model, r->o->be, &ro, err);
    if (st == MLA_OK) st = room(r, keep, err);
    mla_progress prog = mla_progress_begin(r->o->log, "recording", (double)(r->n_rows * T), "tokens");
    for (size_t i = 0; st == MLA_OK && i < r->o->n_prefix; i++) st = mla_rt_set_factors(rt, r->o->prefix_layer[i], &r->o->prefix[i], err);
    for (size_t i = 0; st == MLA_OK && i < batch; i++) st = mla_seq_new(&seq[i], rt, T, err);
    for (; st == MLA_OK && r->first < r->n_rows; r->first += batch) {
        size_t nb = r->n_rows - r->first < batch ? r->n_rows - r->first : batch;
        for (size_t i = 0; i < nb; i++) {
            mla_seq_reset(seq[i]);
            job[i] = (mla_job){.seq = seq[i], .ids = ids + (r->first + i) * T, .T = T, .logits_from = T};
        }
        st = mla_rt_run(rt, job, nb, on_attention, r, err);
        mla_progress_add(&prog, (double)(nb * T));
    }
    if (st == MLA_OK && r->store) st = mla_row_store_check(r->store, err);
    if (st == MLA_OK) mla_progress_end(&prog);
    for (size_t i = 0; i < batch; i++) mla_seq_free(seq[i]);
    mla_rt_close(rt);
    return st;
}

mla_status mla_rows_record(const mla_rows_opts *o, const int32_t *ids, size_t n_rows, mla_row_store **store, mla_err *err)
{
    mla_backend *be = o->be;
    const mla_config *c = mla_model_config(o->model);
    recorder r = {.o = o, .c = c, .s = mla_row_shape_of(c, o->layout, o->row_tokens), .n_rows = n_rows};
    size_t n;
    mla_status st = missing(&r, false, &n, err);
    if (st == MLA_OK && n) st = run(&r, ids, store != NULL, err);
    for (size_t i = 0; r.out && i < c->layers; i++) {
        if (!r.out[i]) continue;
        if (st == MLA_OK) st = mla_out_commit(r.out[i], err);
        else mla_out_abort(r.out[i]);
    }
    if (r.packed) be->ops->free(be, r.packed);
    if (r.rms) be->ops->free(be, r.rms);
    mla_free(r.out);
    mla_free(r.f);
    mla_free(r.bits);
    if (st != MLA_OK) mla_row_store_free(r.store);
    else if (store) *store = r.store;
    return st;
}
