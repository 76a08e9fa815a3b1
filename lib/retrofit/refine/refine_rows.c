/* Recording taps into one file per layer; opening a layer with its output Gram, rotation table and targets. */
#include "retrofit/refine/refine_rows.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "linalg/gemm.h"
#include "retrofit/stats/tap_host.h"
#include "runtime/runtime.h"
#include "tensor/fp.h"

/* Rotary keys stand beside the latent as they are. */
static bool beside(mla_layout l) { return l == MLA_LAYOUT_N || l == MLA_LAYOUT_P; }

static mla_row_shape shape_of(const mla_config *c, mla_layout layout, size_t T)
{
    size_t d = c->head_dim;
    mla_row_shape s = {.T = T, .q = T * c->heads * d, .y = T * c->kv_heads * (mla_layout_key_dims(c, layout) + d)};
    s.k = beside(layout) ? T * c->kv_heads * c->rope.rot : 0;
    s.rms = layout == MLA_LAYOUT_P ? T * c->kv_heads : 0;
    s.gate = c->attn_gate ? s.q : 0;
    s.all = s.q + s.y + s.k + s.rms + s.gate;
    return s;
}

size_t mla_rows_bytes(const mla_config *c, mla_layout layout, size_t row_tokens)
{
    return shape_of(c, layout, row_tokens).all * sizeof(uint16_t);
}

static char *path_of(const mla_rows_opts *o, size_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%05zu.rows", o->n_prefix ? "behind" : "refine", layer);
    return mla_path_join(o->dir, name);
}

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
    mla_out **out;     /* (c->layers); NULL where nothing is recorded */
    float *f;          /* q, k, k_rot, v, gate of one row */
    uint16_t *bits;    /* the row as stored */
    atomic_bool odd;   /* not all of it is finite */
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

/* x (T, G) = 1 / rms of keys k (T, G, d) before their norm. */
static void inverse_rms(float *x, const float *k, size_t n, size_t d, double eps)
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

static mla_status on_attention(void *ctx, const mla_tap *tap, mla_err *err)
{
    recorder *r = ctx;
    if (tap->point != MLA_TAP_ATTN || tap->layer >= r->c->layers || !r->out[tap->layer]) return MLA_OK;
    const mla_tap_attn *a = tap->attn;
    mla_backend *be = r->o->be;
    size_t G = r->c->kv_heads, d = r->c->head_dim, rot = r->c->rope.rot, T = r->s.T, hk = T * G * d;
    if (a->pos0 != 0 || tap->rows != T)
        return mla_fail(err, MLA_EINTERNAL, "refinement needs whole rows of %zu tokens, got %zu from %zu", T, tap->rows, a->pos0);
    float *q = r->f, *y = q + r->s.q, *kr = y + r->s.y, *rms = kr + r->s.k, *gate = rms + r->s.rms, *k = gate + r->s.gate, *v = k + hk, *whole = v + hk;
    mla_status st = mla_tap_fetch(be, q, a->q_rot, r->s.q, err);
    if (st == MLA_OK) st = mla_tap_fetch(be, k, r->s.rms ? a->k_pre : a->k, hk, err);
    if (st == MLA_OK) st = mla_tap_fetch(be, v, a->v, hk, err);
    if (st == MLA_OK && r->s.k) st = mla_tap_fetch(be, whole, a->k_rot, hk, err);
    if (st == MLA_OK && r->s.gate) st = mla_tap_fetch_gate(be, gate, a, T, r->c->heads, d, err);
    if (st != MLA_OK) return mla_wrap(err, "layer %zu", tap->layer);
    features(y, r, k, v);
    if (r->s.rms) inverse_rms(rms, k, T * G, d, r->c->rms_eps);
    for (size_t i = 0; r->s.k && i < T * G; i++) memcpy(kr + i * rot, whole + i * d, rot * sizeof *kr);
    r->odd = false;
    mla_par_for(r->o->pool, r->s.all, PIECE, round_values, r);
    if (r->odd) return mla_fail(err, MLA_EFORMAT, "layer %zu: an activation is not finite", tap->layer);
    return mla_out_write(r->out[tap->layer], r->bits, r->s.all * sizeof *r->bits, err);
}

static mla_status run(recorder *r, const int32_t *ids, size_t n_rows, mla_err *err)
{
    enum { BATCH = 32 }; /* sequences together when layers are streamed */
    size_t batch = r->o->stream_layers ? BATCH : 1, T = r->s.T;
    mla_rt *rt = NULL;
    mla_seq *seq[BATCH] = {0};
    mla_job job[BATCH];
    mla_rt_opts ro = {.precision = r->o->precision, .kv_dtype = MLA_F32, .stream_layers = r->o->stream_layers, .log = r->o->log};
    mla_progress prog = mla_progress_begin(r->o->log, "recording", (double)(n_rows * T), "tokens");
    mla_status st = mla_rt_open(&rt, r->o->model, r->o->be, &ro, err);
    for (size_t i = 0; st == MLA_OK && i < r->o->n_prefix; i++) st = mla_rt_set_factors(rt, r->o->prefix_layer[i], &r->o->prefix[i], err);
    for (size_t i = 0; st == MLA_OK && i < batch; i++) st = mla_seq_new(&seq[i], rt, T, err);
    for (size_t at = 0; st == MLA_OK && at < n_rows; at += batch) {
        size_t nb = n_rows - at < batch ? n_rows - at : batch;
        for (size_t i = 0; i < nb; i++) {
            mla_seq_reset(seq[i]);
            job[i] = (mla_job){.seq = seq[i], .ids = ids + (at + i) * T, .T = T, .logits_from = T};
        }
        st = mla_rt_run(rt, job, nb, on_attention, r, err);
        mla_progress_add(&prog, (double)(nb * T));
    }
    if (st == MLA_OK) mla_progress_end(&prog);
    for (size_t i = 0; i < batch; i++) mla_seq_free(seq[i]);
    mla_rt_close(rt);
    return st;
}

mla_status mla_rows_record(const mla_rows_opts *o, const int32_t *ids, size_t n_rows, mla_err *err)
{
    const mla_config *c = mla_model_config(o->model);
    recorder r = {.o = o, .c = c, .s = shape_of(c, o->layout, o->row_tokens)};
    size_t missing = 0, whole = 2 * r.s.T * c->kv_heads * c->head_dim + (r.s.k ? r.s.T * c->kv_heads * c->head_dim : 0);
    r.out = mla_alloc(c->layers, 1, sizeof *r.out);
    r.f = mla_alloc_raw(r.s.all + whole, 1, sizeof *r.f);
    r.bits = mla_alloc_raw(r.s.all, 1, sizeof *r.bits);
    mla_status st = r.out && r.f && r.bits ? MLA_OK : mla_fail(err, MLA_ENOMEM, "recording rows of %zu tokens", r.s.T);
    for (size_t i = 0; st == MLA_OK && i < c->layers; i++) {
        if (c->layer_kind[i] != MLA_LAYER_FULL || (o->n_prefix && i != o->only)) continue;
        char *path = path_of(o, i);
        uint64_t size = (uint64_t)n_rows * r.s.all * sizeof *r.bits;
        if (!path) st = mla_fail(err, MLA_ENOMEM, "path of layer %zu", i);
        else if (!is_whole(path, size)) {
            st = mla_out_open(&r.out[i], path, err);
            if (st == MLA_OK) st = mla_out_reserve(r.out[i], size, err);
            missing++;
        }
        mla_free(path);
    }
    if (st == MLA_OK && missing) st = run(&r, ids, n_rows, err);
    for (size_t i = 0; r.out && i < c->layers; i++) {
        if (!r.out[i]) continue;
        if (st == MLA_OK) st = mla_out_commit(r.out[i], err);
        else mla_out_abort(r.out[i]);
    }
    mla_free(r.out);
    mla_free(r.f);
    mla_free(r.bits);
    return st;
}

mla_status mla_rows_drop(const mla_rows_opts *o, size_t layer, mla_err *err)
{
    char *path = path_of(o, layer);
    mla_status st = path ? mla_dir_remove(path, err) : mla_fail(err, MLA_ENOMEM, "path of layer %zu", layer);
    mla_free(path);
    return st;
}

struct mla_rows {
    mla_local p;
    mla_row_shape s;
    size_t n_rows;
    mla_mapped file, behind;   /* behind: features behind a prefix, where they are followed */
    float *cos, *sin, *WW, *o; /* o (n_rows, T, H, d); WW and o NULL where losses are computed elsewhere */
    float *gain;               /* (d) layout P: of the keys' norm */
};

mla_status mla_rows_projection(float **W, size_t *out, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    mla_mat wo;
    mla_status st = mla_model_mat(o->model, MLA_W_O, layer, &wo, err);
    if (st != MLA_OK) return st;
    *out = wo.out;
    if (!(*W = mla_alloc_raw(wo.out, wo.in, sizeof **W))) return mla_fail(err, MLA_ENOMEM, "output projection of layer %zu", layer);
    if ((st = mla_mat_rows(&wo, 0, wo.out, *W, err)) == MLA_OK) return MLA_OK;
    mla_free(*W);
    *W = NULL;
    return st;
}

/* The rotation table and the sizes. */
static mla_status fill_problem(mla_rows *r, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    const mla_config *c = mla_model_config(o->model);
    size_t d = c->head_dim, T = r->s.T, half = c->rope.rot / 2, dk = mla_layout_key_dims(c, o->layout);
    double *inv = mla_alloc(half + 1, 1, sizeof *inv);
    r->cos = mla_alloc_raw(T, half, sizeof *r->cos);
    r->sin = mla_alloc_raw(T, half, sizeof *r->sin);
    mla_status st = inv && r->cos && r->sin ? MLA_OK : mla_fail(err, MLA_ENOMEM, "refinement of layer %zu", layer);
    if (st == MLA_OK && r->s.rms) st = mla_model_vec(o->model, MLA_W_K_NORM, layer, d, &r->gain, err);
    if (st == MLA_OK) {
        mla_rope_inv_freq(c, T, inv);
        mla_rope_table(inv, half, T, c->rope.attention_factor, r->cos, r->sin);
    }
    mla_free(inv);
    r->p = (mla_local){.layout = o->layout, .H = c->heads, .G = c->kv_heads, .d = d, .rot = c->rope.rot, .groups = o->groups,
                       .n = c->kv_heads / o->groups * (dk + d), .max_T = T, .scale = (float)mla_config_attn_scale(c), .cos = r->cos,
                       .sin = r->sin, .gain = r->gain ? r->gain + c->rope.rot : NULL};
    return st;
}

/* WW = W_O^T W_O. */
static mla_status fill_gram(mla_rows *r, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    size_t Hd = r->p.H * r->p.d, out;
    float *W = NULL;
    mla_status st = mla_rows_projection(&W, &out, o, layer, err);
    if (st != MLA_OK) return st;
    r->WW = mla_alloc_raw(Hd, Hd, sizeof *r->WW);
    if (!r->WW) st = mla_fail(err, MLA_ENOMEM, "refinement of layer %zu", layer);
    else mla_sgemm(&(mla_sgemm_args){.ta = true, .M = Hd, .N = Hd, .K = out, .alpha = 1, .a = W, .lda = Hd, .b = W, .ldb = Hd, .c = r->WW, .ldc = Hd});
    mla_free(W);
    r->p.WW = r->WW;
    return st;
}

typedef struct {
    mla_rows *r;
    mla_local_work **work;
    float *buf;        /* per worker */
} targets;

static void target_rows(void *ctx, size_t b, size_t e, size_t worker)
{
    targets *g = ctx;
    for (size_t i = b; i < e; i++) {
        mla_local_row row;
        mla_rows_get(g->r, i, g->buf + worker * mla_rows_scratch(g->r), &row);
        mla_rows_features(g->r, i, g->buf + worker * mla_rows_scratch(g->r) + g->r->s.q);
        mla_local_target(g->r->o + i * g->r->s.q, &g->r->p, g->work[worker], &row);
    }
}

static mla_status compute_targets(mla_rows *r, mla_pool *pool, mla_err *err)
{
    size_t threads = mla_pool_threads(pool);
    if (!(r->o = mla_alloc_raw(r->n_rows, r->s.q, sizeof *r->o))) return mla_fail(err, MLA_ENOMEM, "targets of %zu rows", r->n_rows);
    targets g = {.r = r, .work = mla_alloc(threads, 1, sizeof *g.work), .buf = mla_alloc_raw(threads, mla_rows_scratch(r), sizeof *g.buf)};
    mla_status st = g.work && g.buf ? MLA_OK : mla_fail(err, MLA_ENOMEM, "targets of %zu rows", r->n_rows);
    for (size_t i = 0; st == MLA_OK && i < threads; i++) st = mla_local_work_new(&g.work[i], &r->p, 1, 0, err);
    if (st == MLA_OK) mla_par_for(pool, r->n_rows, 1, target_rows, &g);
    for (size_t i = 0; g.work && i < threads; i++) mla_local_work_free(g.work[i]);
    mla_free(g.work);
    mla_free(g.buf);
    return st;
}

mla_status mla_rows_targets(mla_rows *r, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    mla_status st = r->WW ? MLA_OK : fill_gram(r, o, layer, err);
    return st == MLA_OK && !r->o ? compute_targets(r, o->pool, err) : st;
}

mla_status mla_rows_open(mla_rows **out, const mla_rows_opts *o, size_t layer, size_t n_rows, mla_err *err)
{
    mla_rows *r = mla_alloc(1, 1, sizeof *r);
    char *path = path_of(o, layer);
    mla_status st = r && path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "rows of layer %zu", layer);
    if (st == MLA_OK) {
        r->s = shape_of(mla_model_config(o->model), o->layout, o->row_tokens);
        r->n_rows = n_rows;
        st = mla_file_map(&r->file, path, err);
    }
    if (st == MLA_OK && r->file.size != n_rows * r->s.all * sizeof(uint16_t))
        st = mla_fail(err, MLA_EFORMAT, "%s: expected %zu rows, found %zu bytes", path, n_rows, r->file.size);
    if (st == MLA_OK) st = fill_problem(r, o, layer, err);
    mla_free(path);
    if (st == MLA_OK) *out = r;
    else mla_rows_close(r);
    return st;
}

void mla_rows_close(mla_rows *r)
{
    if (!r) return;
    mla_file_unmap(&r->file);
    mla_file_unmap(&r->behind);
    mla_free(r->cos);
    mla_free(r->sin);
    mla_free(r->WW);
    mla_free(r->o);
    mla_free(r->gain);
    mla_free(r);
}

mla_status mla_rows_follow(mla_rows *r, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    char *path = path_of(o, layer);
    mla_status st = path ? mla_file_map(&r->behind, path, err) : mla_fail(err, MLA_ENOMEM, "rows of layer %zu", layer);
    if (st == MLA_OK && r->behind.size != r->file.size)
        st = mla_fail(err, MLA_EFORMAT, "%s: expected %zu bytes, found %zu", path, r->file.size, r->behind.size);
    mla_free(path);
    return st;
}

static const uint16_t *bits_of(const mla_rows *r, const mla_mapped *m, size_t i)
{
    return (const uint16_t *)(const void *)(m->data + i * r->s.all * sizeof(uint16_t));
}

const mla_row_shape *mla_rows_shape(const mla_rows *r) { return &r->s; }
size_t mla_rows_count(const mla_rows *r) { return r->n_rows; }
const uint16_t *mla_rows_bits(const mla_rows *r, size_t i) { return bits_of(r, &r->file, i); }
const uint16_t *mla_rows_behind(const mla_rows *r, size_t i) { return r->behind.data ? bits_of(r, &r->behind, i) + r->s.q : NULL; }

/* y of row i as recorded in file m. */
static void features_of(float *y, const mla_rows *r, const mla_mapped *m, size_t i)
{
    const uint16_t *bits = bits_of(r, m, i) + r->s.q;
    for (size_t k = 0; k < r->s.y; k++) y[k] = mla_bf16_f32(bits[k]);
}

void mla_rows_features(const mla_rows *r, size_t i, float *y) { features_of(y, r, &r->file, i); }

const mla_local *mla_rows_problem(const mla_rows *r) { return &r->p; }
size_t mla_rows_scratch(const mla_rows *r) { return r->s.all; }

void mla_rows_get(const mla_rows *r, size_t i, float *buf, mla_local_row *out)
{
    const mla_row_shape *s = &r->s;
    const uint16_t *bits = mla_rows_bits(r, i);
    for (size_t k = 0; k < s->all; k++) buf[k] = mla_bf16_f32(bits[k]);
    float *y = buf + s->q, *kr = y + s->y, *rms = kr + s->k, *gate = rms + s->rms;
    if (r->behind.data) features_of(y, r, &r->behind, i);
    for (size_t k = 0; k < s->gate; k++) gate[k] = 1 / (1 + expf(-gate[k]));
    *out = (mla_local_row){.T = s->T, .q = buf, .y = y, .k_rot = s->k ? kr : NULL, .inv_rms = s->rms ? rms : NULL, .gamma = s->gate ? gate : NULL, .o = r->o ? r->o + i * s->q : NULL, .stride = 1};
}
