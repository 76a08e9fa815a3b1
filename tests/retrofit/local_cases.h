/* The local problem on a device against the host's, on drawn rows as they are recorded: losses, energies and every gradient, in all
 * layouts, gated and not, with all queries and with every stride-th from a phase. Sizes are odd on purpose. */
#ifndef TESTS_RETROFIT_LOCAL_CASES_H
#define TESTS_RETROFIT_LOCAL_CASES_H
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "io/file.h"
#include "retrofit/refine/device.h"
#include "retrofit/refine/refine.h"
#include "retrofit/refine/row_store.h"
#include "tensor/fp.h"

typedef struct {
    const char *name;
    mla_layout layout;
    size_t H, G, d, rot, groups, T, r, w, stride;
    bool gated;
} local_case;

static const local_case LOCAL_CASE[] = {
    {"n, gated, all queries", MLA_LAYOUT_N, 6, 2, 12, 4, 1, 13, 5, 0, 1, true},
    {"n, two groups, every 3rd", MLA_LAYOUT_N, 6, 2, 12, 4, 2, 71, 7, 0, 3, false},
    {"n, longer, gated, every 4th", MLA_LAYOUT_N, 8, 2, 64, 16, 1, 131, 61, 0, 4, true},
    {"rebuild, all queries", MLA_LAYOUT_REBUILD, 4, 4, 10, 10, 1, 33, 9, 0, 1, false},
    {"rebuild, three groups, gated, every 4th", MLA_LAYOUT_REBUILD, 9, 3, 14, 14, 3, 70, 6, 0, 4, true},
    {"p, gated, every 2nd", MLA_LAYOUT_P, 6, 3, 12, 4, 1, 29, 8, 0, 2, true},
    {"p, two groups, every 4th", MLA_LAYOUT_P, 6, 2, 12, 6, 2, 67, 5, 0, 4, false},
    {"absorbed-rope, gated, all queries", MLA_LAYOUT_ABSORBED, 6, 2, 12, 12, 1, 31, 11, 6, 1, true},
    {"absorbed-rope, every 3rd", MLA_LAYOUT_ABSORBED, 6, 3, 10, 4, 1, 66, 9, 8, 3, false},
};
enum { LOCAL_CASES = sizeof LOCAL_CASE / sizeof *LOCAL_CASE, LOCAL_ROWS = 5, LOCAL_SLOTS = 3, LOCAL_OUT = 37 };

/* Told of every comparison: what differs, by how much of its norm, what is allowed. */
typedef void local_tell(const char *name, const char *what, double got, double allowed);

typedef struct {
    const local_case *k;
    mla_local p;
    mla_row_shape s;
    mla_factors f;
    float *cos, *sin, *W, *WW, *gain;
    uint16_t *bits;  /* (LOCAL_ROWS, s.all) */
    float *f32, *o;  /* one row as the host sees it, its target */
} local_lab;

static void local_draw(float *x, size_t n, unsigned seed, double scale)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * mla_rng_normal(seed, i));
}

/* Random maps of w/2 slots that commute with the rotation: slot s turns with frequency s mod half. */
static void local_maps(mla_factors *f, const mla_local *p)
{
    size_t half = p->rot / 2, gd = p->G * p->d, w = f->w;
    for (size_t s = 0; s < w / 2; s++)
        for (size_t g = 0; g < p->G; g++) {
            size_t x = s % half, y = x + half, n = 4 * (s * p->G + g);
            float *e = f->Er + s * gd + g * p->d, *ei = e + w / 2 * gd, *q = f->Rq + (g * w + s) * p->d, *qi = q + w / 2 * p->d;
            e[x] = ei[y] = (float)mla_rng_normal(21, n), ei[x] = (float)mla_rng_normal(21, n + 1), e[y] = -ei[x];
            if (s == 1 && g == 1) continue; /* its gradient is 0: nothing turns with this frequency there */
            q[x] = qi[y] = (float)mla_rng_normal(21, n + 2), qi[x] = (float)mla_rng_normal(21, n + 3), q[y] = -qi[x];
        }
}

static mla_status local_new(local_lab *l, const local_case *k, mla_err *err)
{
    bool beside = k->layout == MLA_LAYOUT_N || k->layout == MLA_LAYOUT_P;
    size_t dk = beside ? k->d - k->rot : k->d, n = k->G / k->groups * (dk + k->d), Hd = k->H * k->d, half = k->rot / 2;
    *l = (local_lab){.k = k, .s = {.T = k->T, .q = k->T * Hd, .y = k->T * k->groups * n}};
    l->s.k = beside ? k->T * k->G * k->rot : 0, l->s.rms = k->layout == MLA_LAYOUT_P ? k->T * k->G : 0, l->s.gate = k->gated ? l->s.q : 0;
    l->s.all = l->s.q + l->s.y + l->s.k + l->s.rms + l->s.gate;
    l->cos = mla_alloc(2 * k->T, half, sizeof(float)), l->sin = l->cos ? l->cos + k->T * half : NULL;
    l->W = mla_alloc(LOCAL_OUT + Hd, Hd, sizeof(float)), l->WW = l->W ? l->W + LOCAL_OUT * Hd : NULL;
    l->gain = mla_alloc(k->d, 1, sizeof(float));
    l->bits = mla_alloc(LOCAL_ROWS, l->s.all, sizeof(uint16_t));
    l->f32 = mla_alloc(l->s.all + l->s.q, 1, sizeof(float)), l->o = l->f32 ? l->f32 + l->s.all : NULL;
    if (!l->cos || !l->W || !l->gain || !l->bits || !l->f32) return mla_fail(err, MLA_ENOMEM, "case");
    for (size_t i = 0; i < k->T * half; i++) { /* 1.1: an attention factor */
        double angle = (double)(i / half) / (double)(i % half + 1);
        l->cos[i] = (float)(1.1 * cos(angle)), l->sin[i] = (float)(1.1 * sin(angle));
    }
    local_draw(l->W, LOCAL_OUT * Hd, 1, 1 / sqrt((double)Hd));
    for (size_t i = 0; i < Hd * Hd; i++) {
        double s = 0;
        for (size_t j = 0; j < LOCAL_OUT; j++) s += (double)l->W[j * Hd + i / Hd] * l->W[j * Hd + i % Hd];
        l->WW[i] = (float)s;
    }
    for (size_t i = 0; i < k->d; i++) l->gain[i] = (float)(0.5 + mla_rng_unit(16, i));
    for (size_t i = 0; i < LOCAL_ROWS * l->s.all; i++) l->bits[i] = mla_f32_bf16((float)mla_rng_normal(2, i));
    for (size_t i = 0; i < LOCAL_ROWS; i++) /* divisors are positive */
        for (size_t j = 0; j < l->s.rms; j++) l->bits[i * l->s.all + l->s.q + l->s.y + l->s.k + j] = mla_f32_bf16((float)(0.5 + mla_rng_unit(15, i * l->s.rms + j)));
    l->p = (mla_local){.layout = k->layout, .H = k->H, .G = k->G, .d = k->d, .rot = k->rot, .groups = k->groups, .n = n, .max_T = k->T,
                       .scale = (float)(1.5 / sqrt((double)k->d)), .cos = l->cos, .sin = l->sin, .WW = l->WW, .gain = l->s.rms ? l->gain : NULL};
    mla_config c = {.heads = k->H, .kv_heads = k->G, .head_dim = k->d};
    mla_status st = k->w ? mla_factors_new_absorbed(&l->f, &c, k->w, k->r, err) : mla_factors_new(&l->f, k->layout, k->groups, n, k->r, err);
    if (st != MLA_OK) return st;
    local_draw(l->f.E, k->groups * k->r * n, 6, 0.8 / sqrt((double)k->r));
    local_draw(l->f.D, k->groups * k->r * l->f.nd, 7, 0.8 / sqrt((double)n));
    local_draw(l->f.mu, k->groups * n, 8, 0.3);
    if (k->w) local_maps(&l->f, &l->p);
    return MLA_OK;
}

static void local_free(local_lab *l)
{
    mla_factors_free(&l->f);
    mla_free(l->cos), mla_free(l->W), mla_free(l->gain), mla_free(l->bits), mla_free(l->f32);
}

/* Row i as the host sees it, without its target. */
static mla_local_row local_row(local_lab *l, size_t i)
{
    const mla_row_shape *s = &l->s;
    float *y = l->f32 + s->q, *k = y + s->y, *rms = k + s->k, *gate = rms + s->rms;
    for (size_t j = 0; j < s->all; j++) l->f32[j] = mla_bf16_f32(l->bits[i * s->all + j]);
    for (size_t j = 0; j < s->gate; j++) gate[j] = 1 / (1 + expf(-gate[j]));
    return (mla_local_row){.T = s->T, .q = l->f32, .y = y, .k_rot = s->k ? k : NULL, .inv_rms = s->rms ? rms : NULL, .gamma = s->gate ? gate : NULL, .o = l->o, .stride = 1};
}

/* Norm of a - b over that of b; infinite when a is not finite. */
static double local_apart(const float *a, const double *b, size_t n)
{
    double d2 = 0, b2 = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i])) return INFINITY;
        d2 += (a[i] - b[i]) * (a[i] - b[i]), b2 += b[i] * b[i];
    }
    return b2 > 0 ? sqrt(d2 / b2) : INFINITY;
}

/* Both are chains of ten fp32 products and one softmax; a sum of n terms rounds n times at most, the longest run over all tokens of a
 * step or all outputs of the heads. */
static double local_allowed(const local_lab *l)
{
    size_t tokens = LOCAL_SLOTS * l->s.T, width = l->p.H * l->p.d, n = tokens > width ? tokens : width;
    return 2 * 10 * (double)(n > l->f.nd ? n : l->f.nd) * ldexp(1, -24);
}

static mla_status local_run(mla_backend *be, const local_case *k, local_tell *tell, mla_err *err)
{
    static const size_t ROW[LOCAL_SLOTS] = {4, 1, 3};
    static const char *const PART[5] = {"gradient of E", "gradient of D", "gradient of mu", "gradient of Er", "gradient of Rq"};
    local_lab l;
    mla_factors grad = {0}, got = {0}, again = {0};
    mla_local_work *work = NULL;
    mla_dev_local *d = NULL;
    double loss[LOCAL_SLOTS], energy[LOCAL_SLOTS];
    mla_status st = local_new(&l, k, err);
    size_t gd = k->w * k->G * k->d, phase[LOCAL_SLOTS], count[5] = {k->groups * k->r * l.p.n, k->groups * k->r * l.f.nd, k->groups * l.p.n, gd, gd}, all = 0;
    for (size_t i = 0; i < 5; i++) all += count[i];
    double *sum = mla_alloc(all, 1, sizeof *sum);
    if (st == MLA_OK && !sum) st = mla_fail(err, MLA_ENOMEM, "case");
    if (st == MLA_OK) st = mla_factors_copy(&grad, &l.f, err);
    if (st == MLA_OK) st = mla_factors_copy(&got, &l.f, err);
    if (st == MLA_OK) st = mla_factors_copy(&again, &l.f, err);
    if (st == MLA_OK) st = mla_local_work_new(&work, &l.p, k->r, k->w, err);
    if (st == MLA_OK) st = mla_dev_local_new(&d, be, &l.p, &l.s, LOCAL_ROWS, LOCAL_SLOTS, NULL, err);
    for (size_t i = 0; st == MLA_OK && i < LOCAL_ROWS; i++) st = mla_dev_local_row(d, i, l.bits + i * l.s.all, err);
    if (st == MLA_OK) st = mla_dev_local_targets(d, l.W, LOCAL_OUT, err);
    if (st == MLA_OK) st = mla_dev_local_features(d, ROW[1], l.bits + l.s.q, err); /* those of row 0: the target stays */
    for (size_t i = 0; i < LOCAL_SLOTS; i++) phase[i] = i % k->stride;
    mla_dev_rows rows = {ROW, phase, LOCAL_SLOTS, k->stride};
    if (st == MLA_OK) st = mla_dev_local_put(d, &l.f, err);
    if (st == MLA_OK) st = mla_dev_local_energy(d, &rows, energy, err);
    if (st == MLA_OK) st = mla_dev_local_loss(d, &rows, loss, true, err);
    if (st == MLA_OK) st = mla_dev_local_gradient(d, &got, err);
    if (st == MLA_OK) st = mla_dev_local_loss(d, &rows, NULL, true, err);
    if (st == MLA_OK) st = mla_dev_local_gradient(d, &again, err);
    const float *const part[5] = {grad.E, grad.D, grad.mu, grad.Er, grad.Rq}, *const dev[5] = {got.E, got.D, got.mu, got.Er, got.Rq},
                *const twice[5] = {again.E, again.D, again.mu, again.Er, again.Rq};
    for (size_t i = 0; st == MLA_OK && i < LOCAL_SLOTS; i++) {
        mla_local_row row = local_row(&l, ROW[i]);
        mla_local_target(l.o, &l.p, work, &row);
        for (size_t j = 0; i == 1 && j < l.s.y; j++) l.f32[l.s.q + j] = mla_bf16_f32(l.bits[l.s.q + j]);
        row.phase = phase[i], row.stride = k->stride;
        double e = mla_local_energy(&l.p, work, &row), want = mla_local_loss(&l.p, work, &row, &l.f, &grad), allowed = local_allowed(&l);
        tell(k->name, "energy", fabs(energy[i] - e) / e, allowed);
        tell(k->name, "loss", fabs(loss[i] - want) / want, allowed);
        for (size_t j = 0, at = 0; j < 5; at += count[j++])
            for (size_t m = 0; m < count[j]; m++) sum[at + m] += part[j][m];
    }
    for (size_t j = 0, at = 0; st == MLA_OK && j < (k->w ? 5 : 3); at += count[j++]) {
        tell(k->name, PART[j], local_apart(dev[j], sum + at, count[j]), local_allowed(&l));
        tell(k->name, "bits of a second run", memcmp(dev[j], twice[j], count[j] * sizeof(float)) ? 1 : 0, 0);
    }
    mla_dev_local_free(d);
    mla_local_work_free(work);
    mla_factors_free(&grad), mla_factors_free(&got), mla_factors_free(&again);
    mla_free(sum);
    local_free(&l);
    return st;
}

/* Refines layer 5 of the tiny hybrid from wrong factors of rank 40 on few rows; those that no device keeps are recorded in dir once. */
static mla_status local_refine(mla_backend *be, const mla_model *m, mla_pool *pool, const char *dir, mla_factors *f, mla_refined *out, mla_err *err)
{
    enum { ROW = 47, ROWS = 12, N = 224, R = 40, STEPS = 24 };
    int32_t ids[ROWS * ROW];
    for (size_t i = 0; i < ROWS * ROW; i++) ids[i] = (int32_t)mla_rng_below(77, i, 2048);
    mla_refine_opts o = {.rows = {.model = m, .be = be, .pool = pool, .layout = MLA_LAYOUT_N, .groups = 1, .row_tokens = ROW, .dir = dir},
                         .fit = ids, .n_fit = ROWS * ROW, .tokens = ROWS * ROW, .steps = STEPS};
    mla_refiner *r = NULL;
    double *C = mla_alloc(2 * N, N, sizeof *C); /* zero: the gauge is left alone */
    mla_solution s = {.layer = 5, .groups = 1, .n = N, .C = C, .Lambda = C ? C + N * N : NULL};
    mla_status st = C ? mla_refiner_new(&r, &o, err) : mla_fail(err, MLA_ENOMEM, "solution");
    if (st == MLA_OK) st = mla_factors_new(f, MLA_LAYOUT_N, 1, N, R, err);
    for (size_t i = 0; st == MLA_OK && i < R; i++) f->E[i * N + 5 * i] = f->D[5 * i * R + i] = 1;
    mla_progress prog = mla_progress_begin(NULL, "steps", STEPS, "steps");
    if (st == MLA_OK) st = mla_refine_layer(r, &s, f, out, &prog, err);
    mla_refiner_free(r);
    mla_free(C);
    return st;
}

static const struct {
    mla_layout layout;
    size_t groups;
} RECORD_CASE[] = {{MLA_LAYOUT_N, 1}, {MLA_LAYOUT_N, 2}, {MLA_LAYOUT_REBUILD, 4}, {MLA_LAYOUT_P, 2}, {MLA_LAYOUT_ABSORBED, 1}};
#define RECORD_CASES (sizeof RECORD_CASE / sizeof *RECORD_CASE)

/* Rows that a device keeps, rows that it packs for files, and rows that the host packs of its taps: the same bits. */
static mla_status local_record(mla_backend *be, const mla_model *m, mla_pool *pool, const char *dir, mla_layout layout, size_t groups, local_tell *tell, mla_err *err)
{
    enum { ROW = 47, ROWS = 3 };
    const mla_backend_ops *own = be->ops;
    mla_backend_ops host = *own;
    int32_t ids[ROWS * ROW];
    mla_row_store *store = NULL;
    mla_rows *r[3] = {0};
    char *path[2] = {0};
    mla_status st = MLA_OK;
    host.fit = NULL;
    for (size_t i = 0; i < ROWS * ROW; i++) ids[i] = (int32_t)mla_rng_below(78, i, 2048);
    for (size_t i = 0; st == MLA_OK && i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "%zu-%d-%zu", i, (int)layout, groups);
        mla_rows_opts o = {.model = m, .be = be, .pool = pool, .layout = layout, .groups = groups, .row_tokens = ROW};
        if (i && !(path[i - 1] = mla_path_join(dir, name))) return mla_fail(err, MLA_ENOMEM, "path");
        if (i) st = mla_dir_make(path[i - 1], err), o.dir = path[i - 1];
        else o.dir = dir;
        if (i == 2) be->ops = &host;
        if (st == MLA_OK) st = mla_rows_record(&o, ids, ROWS, i ? NULL : &store, err);
        be->ops = own;
        if (!i) tell("recorded rows", "kept in files", st == MLA_OK && !store ? 1 : 0, 0);
        o.store = i ? NULL : store;
        if (st == MLA_OK) st = mla_rows_open(&r[i], &o, 5, ROWS, err);
        if (st == MLA_OK) st = mla_rows_fetch(r[i], err);
        if (st == MLA_OK && i) tell("recorded rows", "bits", memcmp(mla_rows_bits(r[0], 0), mla_rows_bits(r[i], 0), ROWS * mla_rows_shape(r[0])->all * 2) ? 1 : 0, 0);
    }
    for (size_t i = 0; i < 3; i++) mla_rows_close(r[i]);
    mla_row_store_free(store);
    mla_free(path[0]), mla_free(path[1]);
    return st;
}

/* The same refinement there (twice) and by the host with the rows recorded there. Losses of given factors differ by rounding alone; those
 * reached differ by what rounding makes of 24 steps whose size does not fall with the gradient (Adam), a thousandth. */
static mla_status local_refine_both(mla_backend *be, const mla_model *m, mla_pool *pool, const char *dir, local_tell *tell, mla_err *err)
{
    const mla_backend_ops *own = be->ops;
    mla_backend_ops host = *own;
    mla_factors f[3] = {{0}};
    mla_refined r[3] = {{0}};
    host.fit = NULL;
    mla_status st = local_refine(be, m, pool, dir, &f[0], &r[0], err);
    if (st == MLA_OK) st = local_refine(be, m, pool, dir, &f[1], &r[1], err);
    be->ops = &host;
    if (st == MLA_OK) st = local_refine(be, m, pool, dir, &f[2], &r[2], err);
    be->ops = own;
    if (st == MLA_OK) {
        tell("refinement", "loss before", fabs(r[0].before - r[2].before) / r[2].before, 2e-4);
        tell("refinement", "loss reached", fabs(r[0].after - r[2].after) / r[2].after, 1e-3);
        tell("refinement", "part of the loss left", r[0].accepted ? r[0].after / r[0].before : 1, 0.99);
        size_t n = f[0].r * f[0].n;
        tell("refinement", "bits of a second run", memcmp(f[0].E, f[1].E, n * 4) || memcmp(f[0].D, f[1].D, n * 4) || memcmp(f[0].mu, f[1].mu, f[0].n * 4) ? 1 : 0, 0);
    }
    for (size_t i = 0; i < 3; i++) mla_factors_free(&f[i]);
    return st;
}
#endif
