/* Adam over rows of one layer; acceptance on held-out rows. */
#include "retrofit/refine/refine.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "retrofit/refine/engine.h"
#include "retrofit/refine/fit_rows.h"
#include "retrofit/refine/row_store.h"

#define SHUFFLE 0x5eedu /* streams of random numbers */
#define PHASES 0xfa5eu

struct mla_refiner {
    mla_refine_opts o;
    size_t held, fit;  /* rows: held-out ones are recorded first */
    size_t open_layer; /* whose rows are open, if any */
    mla_rows *rows;
    const mla_engine_ops *where;
    mla_engine *engine;/* of the open rows; NULL: not yet */
    int32_t *ids;      /* of all rows, for recording behind a prefix */
    mla_row_store *store; /* NULL: rows are in files */
};

mla_status mla_refiner_new(mla_refiner **out, const mla_refine_opts *o, mla_err *err)
{
    mla_refiner *r = mla_alloc(1, 1, sizeof *r);
    if (!r) return mla_fail(err, MLA_ENOMEM, "refinement");
    r->o = *o;
    r->where = o->rows.be->ops->fit ? &mla_engine_device : &mla_engine_host;
    mla_fit_text text = {o->fit, o->held, o->n_fit, o->n_held, o->rows.row_tokens, o->tokens};
    mla_status st = mla_fit_rows(&r->ids, &r->held, &r->fit, &text, "refinement", err);
    bool keep = r->where == &mla_engine_device && !o->follows;
    if (st == MLA_OK) st = mla_rows_record(&o->rows, r->ids, r->held + r->fit, keep ? &r->store : NULL, err);
    r->o.rows.store = r->store;
    if (st == MLA_OK) *out = r;
    else mla_refiner_free(r);
    return st;
}

static void close_rows(mla_refiner *r)
{
    if (r->engine) r->engine->ops->close(r->engine);
    r->engine = NULL;
    mla_rows_close(r->rows);
    r->rows = NULL;
}

void mla_refiner_free(mla_refiner *r)
{
    if (!r) return;
    close_rows(r);
    mla_row_store_free(r->store);
    mla_free(r->ids);
    mla_free(r);
}

static mla_status open_rows(mla_refiner *r, size_t layer, mla_err *err)
{
    if (r->rows && r->open_layer == layer) return MLA_OK;
    close_rows(r);
    r->open_layer = layer;
    return mla_rows_open(&r->rows, &r->o.rows, layer, r->held + r->fit, err);
}

static mla_status open_engine(mla_refiner *r, size_t layer, mla_err *err)
{
    mla_status st = open_rows(r, layer, err);
    return st == MLA_OK && !r->engine ? r->where->open(&r->engine, r->rows, &r->o.rows, layer, err) : st;
}

mla_status mla_refiner_follow(mla_refiner *r, size_t layer, const mla_factors *f, const size_t *prefix_layer, size_t n, mla_err *err)
{
    mla_rows_opts o = r->o.rows;
    o.prefix = f, o.prefix_layer = prefix_layer, o.n_prefix = n, o.only = layer;
    close_rows(r);
    mla_status st = mla_rows_record(&o, r->ids, r->held + r->fit, NULL, err);
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

mla_status mla_refine_measure(mla_refiner *r, size_t layer, const mla_factors *f, double *out, mla_err *err)
{
    double loss, energy;
    mla_status st = open_engine(r, layer, err);
    if (st == MLA_OK) st = r->engine->ops->measure(r->engine, f, r->held, &loss, &energy, err);
    if (st == MLA_ENOMEM && r->where != &mla_engine_host) { /* a layer begins with a measurement: what fits now fits in its steps */
        mla_warn(r->o.rows.log, "%s; layers are refined on the host from here on", err->msg);
        if (r->engine) r->engine->ops->close(r->engine);
        r->engine = NULL;
        r->where = &mla_engine_host;
        return mla_refine_measure(r, layer, f, out, err);
    }
    if (st == MLA_OK) *out = energy > 0 ? loss / energy : 0;
    return st;
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
    size_t slots = r->fit < MLA_ADAM_SLOTS ? r->fit : MLA_ADAM_SLOTS, at = 0, pass = 0, row[MLA_ADAM_SLOTS], phase[MLA_ADAM_SLOTS];
    size_t *order = mla_alloc(r->fit, 1, sizeof *order);
    mla_err why;
    mla_status st = order ? MLA_OK : mla_fail(err, MLA_ENOMEM, "order of %zu rows", r->fit);
    if (st == MLA_OK) st = r->engine->ops->begin(r->engine, f, slots, MLA_REFINE_STRIDE, err);
    if (st != MLA_OK) {
        mla_free(order);
        return st;
    }
    shuffle(order, r->fit, pass);
    for (size_t step = 0; st == MLA_OK && step < r->o.steps; step++) {
        for (size_t i = 0; i < slots; i++, at++) {
            if (at == r->fit) shuffle(order, r->fit, ++pass), at = 0;
            row[i] = r->held + order[at];
            phase[i] = mla_rng_below(PHASES, step * slots + i, MLA_REFINE_STRIDE);
        }
        st = r->engine->ops->step(r->engine, row, phase, step, r->o.steps, err);
        mla_progress_add(prog, 1);
    }
    mla_status ended = r->engine->ops->end(r->engine, st == MLA_OK ? err : &why);
    mla_free(order);
    return st == MLA_OK ? ended : st;
}

mla_status mla_refine_layer(mla_refiner *r, const mla_solution *s, mla_factors *f, mla_refined *out, mla_progress *prog, mla_err *err)
{
    mla_factors moved = {0};
    *out = (mla_refined){.stored = -1};
    mla_status st = mla_refine_measure(r, s->layer, f, &out->before, err);
    if (st == MLA_OK) st = mla_factors_copy(&moved, f, err);
    if (st == MLA_OK) st = descend(r, &moved, prog, err);
    if (st == MLA_OK) st = mla_refine_gauge(&moved, s, r->o.rows.pool, &(mla_eigen){r->o.rows.be, r->o.rows.log}, err);
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
