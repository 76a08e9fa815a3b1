/* Losses, gradients and steps on a device: a layer's rows as the device keeps them, or one upload, then nothing but losses and finished factors crosses. */
#include "base/alloc.h"
#include "retrofit/refine/device.h"
#include "retrofit/refine/engine.h"

typedef struct {
    mla_engine base;
    mla_dev_local *d;
    mla_factors *f;                /* of steps */
    size_t slots, stride;
    double rate[MLA_FACTOR_PARTS];
} device;

static void device_close(mla_engine *engine)
{
    device *e = (device *)engine;
    mla_dev_local_free(e->d);
    mla_free(e);
}

static mla_status fill(device *e, const mla_rows *rows, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    size_t n = mla_rows_count(rows), out;
    float *W = NULL;
    mla_mem *there = mla_rows_there(rows);
    mla_status st = mla_dev_local_new(&e->d, o->be, mla_rows_problem(rows), mla_rows_shape(rows), n, MLA_FIT_PARTS, there, err);
    for (size_t i = 0; st == MLA_OK && !there && i < n; i++) st = mla_dev_local_row(e->d, i, mla_rows_bits(rows, i), err);
    if (st == MLA_OK) st = mla_rows_projection(&W, &out, o, layer, err);
    if (st == MLA_OK) st = mla_dev_local_targets(e->d, W, out, err);
    mla_free(W);
    for (size_t i = 0; st == MLA_OK && i < n && mla_rows_behind(rows, i); i++) st = mla_dev_local_features(e->d, i, mla_rows_behind(rows, i), err);
    return st;
}

static mla_status device_open(mla_engine **out, mla_rows *rows, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    device *e = mla_alloc(1, 1, sizeof *e);
    if (!e) return mla_fail(err, MLA_ENOMEM, "refinement");
    e->base.ops = &mla_engine_device;
    mla_status st = fill(e, rows, o, layer, err);
    if (st == MLA_OK) *out = &e->base;
    else device_close(&e->base);
    return st;
}

static mla_status device_measure(mla_engine *engine, const mla_factors *f, size_t n, double *loss, double *energy, mla_err *err)
{
    device *e = (device *)engine;
    mla_status st = mla_dev_local_put(e->d, f, err);
    *loss = *energy = 0;
    for (size_t i = 0; st == MLA_OK && i < n; i += MLA_FIT_PARTS) {
        size_t row[MLA_FIT_PARTS];
        double l[MLA_FIT_PARTS], w[MLA_FIT_PARTS];
        mla_dev_rows s = {.row = row, .n = n - i < MLA_FIT_PARTS ? n - i : MLA_FIT_PARTS, .stride = 1};
        for (size_t k = 0; k < s.n; k++) row[k] = i + k;
        st = mla_dev_local_energy(e->d, &s, w, err);
        if (st == MLA_OK) st = mla_dev_local_loss(e->d, &s, l, false, err);
        for (size_t k = 0; st == MLA_OK && k < s.n; k++) *loss += l[k], *energy += w[k];
    }
    return st;
}

static mla_status device_begin(mla_engine *engine, mla_factors *f, size_t slots, size_t stride, mla_err *err)
{
    device *e = (device *)engine;
    mla_adam_part p[MLA_FACTOR_PARTS];
    mla_factor_parts(p, f);
    for (size_t k = 0; k < MLA_FACTOR_PARTS; k++) e->rate[k] = mla_adam_rate(&p[k]);
    e->f = f, e->slots = slots, e->stride = stride;
    return mla_dev_local_put(e->d, f, err);
}

static mla_status device_step(mla_engine *engine, const size_t *row, const size_t *phase, size_t step, size_t steps, mla_err *err)
{
    device *e = (device *)engine;
    mla_dev_rows s = {.row = row, .phase = phase, .n = e->slots, .stride = e->stride};
    mla_status st = mla_dev_local_loss(e->d, &s, NULL, true, err);
    return st == MLA_OK ? mla_dev_local_move(e->d, e->rate, step, steps, err) : st;
}

static mla_status device_end(mla_engine *engine, mla_err *err)
{
    device *e = (device *)engine;
    return mla_dev_local_take(e->d, e->f, err);
}

const mla_engine_ops mla_engine_device = {device_open, device_close, device_measure, device_begin, device_step, device_end};
