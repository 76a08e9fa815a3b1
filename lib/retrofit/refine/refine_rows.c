/* Opening a layer's recorded rows with its output Gram, rotation table and targets. */
#include "retrofit/refine/refine_rows.h"

#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "io/file.h"
#include "linalg/gemm.h"
#include "retrofit/refine/record.h"
#include "retrofit/refine/row_store.h"
#include "tensor/fp.h"

/* Rotary keys stand beside the latent as they are. */
static bool beside(mla_layout l) { return l == MLA_LAYOUT_N || l == MLA_LAYOUT_P; }

mla_row_shape mla_row_shape_of(const mla_config *c, mla_layout layout, size_t T)
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
    return mla_row_shape_of(c, layout, row_tokens).all * sizeof(uint16_t);
}

char *mla_rows_path(const mla_rows_opts *o, size_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%05zu.rows", o->n_prefix ? "behind" : "refine", layer);
    return mla_path_join(o->dir, name);
}

mla_status mla_rows_drop(const mla_rows_opts *o, size_t layer, mla_err *err)
{
    char *path = mla_rows_path(o, layer);
    mla_status st = path ? mla_dir_remove(path, err) : mla_fail(err, MLA_ENOMEM, "path of layer %zu", layer);
    mla_free(path);
    return st;
}

struct mla_rows {
    mla_local p;
    mla_row_shape s;
    size_t n_rows;
    mla_backend *be;
    mla_mem *there;            /* rows on a device, borrowed, and a copy that the host asked for; both NULL: in the file */
    uint16_t *copy;
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
    mla_status st = mla_rows_fetch(r, err);
    if (st == MLA_OK && !r->WW) st = fill_gram(r, o, layer, err);
    return st == MLA_OK && !r->o ? compute_targets(r, o->pool, err) : st;
}

static mla_status open_file(mla_rows *r, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    char *path = mla_rows_path(o, layer);
    size_t want = r->n_rows * r->s.all * sizeof(uint16_t);
    mla_status st = path ? mla_file_map(&r->file, path, err) : mla_fail(err, MLA_ENOMEM, "rows of layer %zu", layer);
    if (st == MLA_OK && r->file.size != want) st = mla_fail(err, MLA_EFORMAT, "%s: expected %zu rows, found %zu bytes", path, r->n_rows, r->file.size);
    mla_free(path);
    return st;
}

mla_status mla_rows_open(mla_rows **out, const mla_rows_opts *o, size_t layer, size_t n_rows, mla_err *err)
{
    mla_rows *r = mla_alloc(1, 1, sizeof *r);
    if (!r) return mla_fail(err, MLA_ENOMEM, "rows of layer %zu", layer);
    *r = (mla_rows){.s = mla_row_shape_of(mla_model_config(o->model), o->layout, o->row_tokens), .n_rows = n_rows, .be = o->be};
    if (o->store) r->there = mla_row_store_layer(o->store, layer);
    mla_status st = r->there ? MLA_OK : open_file(r, o, layer, err);
    if (st == MLA_OK) st = fill_problem(r, o, layer, err);
    if (st == MLA_OK) *out = r;
    else mla_rows_close(r);
    return st;
}

mla_mem *mla_rows_there(const mla_rows *r) { return r->there; }

mla_status mla_rows_fetch(mla_rows *r, mla_err *err)
{
    if (!r->there || r->copy) return MLA_OK;
    if (!(r->copy = mla_alloc_raw(r->n_rows, r->s.all, sizeof *r->copy))) return mla_fail(err, MLA_ENOMEM, "%zu recorded rows", r->n_rows);
    return r->be->ops->download(r->be, r->copy, r->there, r->n_rows * r->s.all * sizeof *r->copy, err);
}

void mla_rows_close(mla_rows *r)
{
    if (!r) return;
    mla_file_unmap(&r->file);
    mla_file_unmap(&r->behind);
    mla_free(r->copy);
    mla_free(r->cos);
    mla_free(r->sin);
    mla_free(r->WW);
    mla_free(r->o);
    mla_free(r->gain);
    mla_free(r);
}

mla_status mla_rows_follow(mla_rows *r, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    char *path = mla_rows_path(o, layer);
    mla_status st = path ? mla_file_map(&r->behind, path, err) : mla_fail(err, MLA_ENOMEM, "rows of layer %zu", layer);
    if (st == MLA_OK && r->behind.size != r->file.size)
        st = mla_fail(err, MLA_EFORMAT, "%s: expected %zu bytes, found %zu", path, r->file.size, r->behind.size);
    mla_free(path);
    return st;
}

static const uint16_t *bits_of(const mla_rows *r, const void *rows, size_t i) { return (const uint16_t *)rows + i * r->s.all; }
static const uint16_t *own(const mla_rows *r, size_t i) { return bits_of(r, r->copy ? (const void *)r->copy : r->file.data, i); }

const mla_row_shape *mla_rows_shape(const mla_rows *r) { return &r->s; }
size_t mla_rows_count(const mla_rows *r) { return r->n_rows; }
const uint16_t *mla_rows_bits(const mla_rows *r, size_t i) { return own(r, i); }
const uint16_t *mla_rows_behind(const mla_rows *r, size_t i) { return r->behind.data ? bits_of(r, r->behind.data, i) + r->s.q : NULL; }

/* y of a row as recorded. */
static void features_of(float *y, const mla_rows *r, const uint16_t *row)
{
    for (size_t k = 0; k < r->s.y; k++) y[k] = mla_bf16_f32(row[r->s.q + k]);
}

void mla_rows_features(const mla_rows *r, size_t i, float *y) { features_of(y, r, own(r, i)); }

const mla_local *mla_rows_problem(const mla_rows *r) { return &r->p; }
size_t mla_rows_scratch(const mla_rows *r) { return r->s.all; }

void mla_rows_get(const mla_rows *r, size_t i, float *buf, mla_local_row *out)
{
    const mla_row_shape *s = &r->s;
    const uint16_t *bits = mla_rows_bits(r, i);
    for (size_t k = 0; k < s->all; k++) buf[k] = mla_bf16_f32(bits[k]);
    float *y = buf + s->q, *kr = y + s->y, *rms = kr + s->k, *gate = rms + s->rms;
    if (r->behind.data) features_of(y, r, bits_of(r, r->behind.data, i));
    for (size_t k = 0; k < s->gate; k++) gate[k] = 1 / (1 + expf(-gate[k]));
    *out = (mla_local_row){.T = s->T, .q = buf, .y = y, .k_rot = s->k ? kr : NULL, .inv_rms = s->rms ? rms : NULL, .gamma = s->gate ? gate : NULL, .o = r->o ? r->o + i * s->q : NULL, .stride = 1};
}
