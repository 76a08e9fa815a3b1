/* Adam over rows of one layer; acceptance on held-out rows. */
#include "retrofit/refine/refine.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "retrofit/refine/adam.h"
#include "retrofit/refine/fit_rows.h"

#define SHUFFLE 0x5eedu /* streams of random numbers */
#define PHASES 0xfa5eu

struct mla_refiner {
    mla_refine_opts o;
    size_t held, fit;  /* rows: held-out ones are recorded first */
    size_t open_layer; /* whose rows are open, if any */
    mla_rows *rows;
    int32_t *ids;      /* of all rows, for recording behind a prefix */
};

mla_status mla_refiner_new(mla_refiner **out, const mla_refine_opts *o, mla_err *err)
{
    mla_refiner *r = mla_alloc(1, 1, sizeof *r);
    if (!r) return mla_fail(err, MLA_ENOMEM, "refinement");
    r->o = *o;
    mla_fit_text text = {o->fit, o->held, o->n_fit, o->n_held, o->rows.row_tokens, o->tokens};
    mla_status st = mla_fit_rows(&r->ids, &r->held, &r->fit, &text, "refinement", err);
    if (st == MLA_OK) st = mla_rows_record(&o->rows, r->ids, r->held + r->fit, err);
    if (st == MLA_OK) *out = r;
    else mla_refiner_free(r);
    return st;
}

void mla_refiner_free(mla_refiner *r)
{
    if (!r) return;
    mla_rows_close(r->rows);
    mla_free(r->ids);
    mla_free(r);
}

static mla_status open_rows(mla_refiner *r, size_t layer, mla_err *err)
{
    if (r->rows && r->open_layer == layer) return MLA_OK;
    mla_rows_close(r->rows);
    r->rows = NULL;
    r->open_layer = layer;
    return mla_rows_open(&r->rows, &r->o.rows, layer, r->held + r->fit, err);
}

mla_status mla_refiner_follow(mla_refiner *r, size_t layer, const mla_factors *f, const size_t *prefix_layer, size_t n, mla_err *err)
{
    mla_rows_opts o = r->o.rows;
    o.prefix = f, o.prefix_layer = prefix_layer, o.n_prefix = n, o.only = layer;
    mla_rows_close(r->rows);
    r->rows = NULL;
    mla_status st = mla_rows_record(&o, r->ids, r->held + r->fit, err);
    if (st == MLA_OK) st = open_rows(r, layer, err);
    return st == MLA_OK ? mla_rows_follow(r->rows, &o, layer, err) : st;
}

mla_status mla_refiner_rows(mla_refiner *r, size_t layer, const mla_rows **rows, size_t *first, size_t *count, mla_err *err)
{
    mla_status st = open_rows(r, layer, err);
    *rows = r->rows;
    *first = r->held;
    *count = r->fit;
    return st;
}

/* Losses (and gradients) of some rows side by side, one slot each. */
typedef struct {
    const mla_rows *rows;
    mla_local_work **work; /* per worker */
    float *buf;            /* per worker */
    size_t threads, slots;
    const mla_factors *f;
    size_t *row, *phase;   /* (slots) which row, which of its queries */
    size_t stride;
    double *loss, *energy; /* (slots); energy NULL: not wanted */
    mla_factors *grad;     /* (slots); NULL: losses alone */
} batch;

static void batch_free(batch *b)
{
    for (size_t i = 0; b->work && i < b->threads; i++) mla_local_work_free(b->work[i]);
    for (size_t i = 0; b->grad && i < b->slots; i++) mla_factors_free(&b->grad[i]);
    mla_free(b->work);
    mla_free(b->buf);
    mla_free(b->row);
    mla_free(b->phase);
    mla_free(b->loss);
    mla_free(b->energy);
    mla_free(b->grad);
}

static mla_status batch_new(batch *b, mla_refiner *r, const mla_factors *f, size_t slots, bool grad, mla_err *err)
{
    const mla_local *p = mla_rows_problem(r->rows);
    *b = (batch){.rows = r->rows, .f = f, .threads = mla_pool_threads(r->o.rows.pool), .slots = slots, .stride = grad ? MLA_REFINE_STRIDE : 1};
    b->work = mla_alloc(b->threads, 1, sizeof *b->work);
    b->buf = mla_alloc_raw(b->threads, mla_rows_scratch(r->rows), sizeof *b->buf);
    b->row = mla_alloc(slots, 1, sizeof *b->row);
    b->phase = mla_alloc(slots, 1, sizeof *b->phase);
    b->loss = mla_alloc(slots, 1, sizeof *b->loss);
    b->energy = mla_alloc(slots, 1, sizeof *b->energy);
    b->grad = grad ? mla_alloc(slots, 1, sizeof *b->grad) : NULL;
    mla_status st = MLA_OK;
    if (!b->work || !b->buf || !b->row || !b->phase || !b->loss || !b->energy || (grad && !b->grad)) st = mla_fail(err, MLA_ENOMEM, "refinement: %zu rows a step", slots);
    for (size_t i = 0; st == MLA_OK && i < b->threads; i++) st = mla_local_work_new(&b->work[i], p, f->r, f->w, err);
    for (size_t i = 0; st == MLA_OK && grad && i < slots; i++) st = mla_factors_copy(&b->grad[i], f, err);
    if (st != MLA_OK) batch_free(b);
    return st;
}

static void batch_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    batch *b = ctx;
    const mla_local *p = mla_rows_problem(b->rows);
    for (size_t i = begin; i < end; i++) {
        mla_local_row row;
        mla_rows_get(b->rows, b->row[i], b->buf + worker * mla_rows_scratch(b->rows), &row);
        row.phase = b->phase[i];
        row.stride = b->stride;
        if (!b->grad) b->energy[i] = mla_local_energy(p, b->work[worker], &row);
        b->loss[i] = mla_local_loss(p, b->work[worker], &row, b->f, b->grad ? &b->grad[i] : NULL);
    }
}

mla_status mla_refine_measure(mla_refiner *r, size_t layer, const mla_factors *f, double *out, mla_err *err)
{
    batch b;
    mla_status st = open_rows(r, layer, err);
    if (st == MLA_OK) st = batch_new(&b, r, f, r->held, false, err);
    if (st != MLA_OK) return st;
    double loss = 0, energy = 0;
    for (size_t i = 0; i < r->held; i++) b.row[i] = i;
    mla_par_for(r->o.rows.pool, r->held, 1, batch_rows, &b);
    for (size_t i = 0; i < r->held; i++) loss += b.loss[i], energy += b.energy[i];
    batch_free(&b);
    *out = energy > 0 ? loss / energy : 0;
    return MLA_OK;
}

enum { PARTS = 5 }; /* E, D, mu; Er, Rq where there are any */

/* Rotary maps are zero but for the pairs of one frequency each, which alone move. */
static void parts_of(mla_adam_part p[PARTS], const mla_factors *f)
{
    p[0] = (mla_adam_part){.x = f->E, .n = f->groups * f->r * f->n};
    p[1] = (mla_adam_part){.x = f->D, .n = f->groups * f->r * f->nd};
    p[2] = (mla_adam_part){.x = f->mu, .n = f->groups * f->n};
    p[3] = (mla_adam_part){.x = f->Er, .n = f->w * f->n / 2, .sparse = true};
    p[4] = (mla_adam_part){.x = f->Rq, .n = f->w * f->n / 2, .sparse = true};
}

static const float *gradient(const void *ctx, size_t slot, size_t part)
{
    const batch *b = ctx;
    mla_adam_part p[PARTS];
    parts_of(p, &b->grad[slot]);
    return p[part].x;
}

/* A fixed random order of n rows, another for each pass. */
static void shuffle(size_t *order, size_t n, size_t pass)
{
    for (size_t i = 0; i < n; i++) order[i] = i;
    for (size_t i = n; i-- > 1;) {
        size_t j = mla_rng_below(SHUFFLE + pass, i, i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static mla_status descend(mla_refiner *r, mla_factors *f, mla_progress *prog, mla_err *err)
{
    batch b = {0};
    mla_adam_part p[PARTS];
    size_t slots = r->fit < MLA_ADAM_SLOTS ? r->fit : MLA_ADAM_SLOTS, at = 0, pass = 0;
    size_t *order = mla_alloc(r->fit, 1, sizeof *order);
    mla_status st = order ? MLA_OK : mla_fail(err, MLA_ENOMEM, "order of %zu rows", r->fit);
    if (st == MLA_OK) st = batch_new(&b, r, f, slots, true, err);
    parts_of(p, f);
    if (st == MLA_OK && (st = mla_adam_begin(p, PARTS, err)) != MLA_OK) batch_free(&b);
    if (st != MLA_OK) {
        mla_free(order);
        return st;
    }
    shuffle(order, r->fit, pass);
    for (size_t step = 0; step < r->o.steps; step++) {
        for (size_t i = 0; i < slots; i++, at++) {
            if (at == r->fit) shuffle(order, r->fit, ++pass), at = 0;
            b.row[i] = r->held + order[at];
            b.phase[i] = mla_rng_below(PHASES, step * slots + i, b.stride);
        }
        mla_par_for(r->o.rows.pool, slots, 1, batch_rows, &b);
        mla_adam_step(p, PARTS, step, r->o.steps, r->o.rows.pool, gradient, slots, &b);
        mla_progress_add(prog, 1);
    }
    mla_adam_end(p, PARTS);
    batch_free(&b);
    mla_free(order);
    return MLA_OK;
}

mla_status mla_refine_layer(mla_refiner *r, const mla_solution *s, mla_factors *f, mla_refined *out, mla_progress *prog, mla_err *err)
{
    mla_factors moved = {0};
    *out = (mla_refined){.stored = -1};
    mla_status st = mla_refine_measure(r, s->layer, f, &out->before, err);
    if (st == MLA_OK) st = mla_factors_copy(&moved, f, err);
    if (st == MLA_OK) st = descend(r, &moved, prog, err);
    if (st == MLA_OK) st = mla_refine_gauge(&moved, s, err);
    if (st == MLA_OK) st = mla_refine_measure(r, s->layer, &moved, &out->after, err);
    if (st == MLA_OK && out->after < out->before) { /* also false when not finite */
        mla_factors t = *f;
        *f = moved;
        moved = t;
        out->accepted = true;
    }
    mla_factors_free(&moved);
    return st == MLA_OK ? st : mla_wrap(err, "refinement of layer %zu", s->layer);
}
