/* Losses, gradients and steps on the host: rows side by side, one per thread. */
#include "retrofit/refine/engine.h"

#include "base/alloc.h"

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

/* stride 0: losses alone, of all queries. */
static mla_status batch_new(batch *b, const mla_rows *rows, mla_pool *pool, const mla_factors *f, size_t slots, size_t stride, mla_err *err)
{
    const mla_local *p = mla_rows_problem(rows);
    bool grad = stride > 0;
    *b = (batch){.rows = rows, .f = f, .threads = mla_pool_threads(pool), .slots = slots, .stride = grad ? stride : 1};
    b->work = mla_alloc(b->threads, 1, sizeof *b->work);
    b->buf = mla_alloc_raw(b->threads, mla_rows_scratch(rows), sizeof *b->buf);
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

/* Rotary maps are zero but for the pairs of one frequency each, which alone move. */
void mla_factor_parts(mla_adam_part p[MLA_FACTOR_PARTS], const mla_factors *f)
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
    mla_adam_part p[MLA_FACTOR_PARTS];
    mla_factor_parts(p, &b->grad[slot]);
    return p[part].x;
}

typedef struct {
    mla_engine base;
    const mla_rows *rows;
    mla_pool *pool;
    batch b;                            /* of steps */
    mla_adam_part part[MLA_FACTOR_PARTS];
} host;

static mla_status host_open(mla_engine **out, mla_rows *rows, const mla_rows_opts *o, size_t layer, mla_err *err)
{
    mla_status st = mla_rows_targets(rows, o, layer, err);
    if (st != MLA_OK) return st;
    host *e = mla_alloc(1, 1, sizeof *e);
    if (!e) return mla_fail(err, MLA_ENOMEM, "refinement");
    *e = (host){.base.ops = &mla_engine_host, .rows = rows, .pool = o->pool};
    *out = &e->base;
    return MLA_OK;
}

static void host_close(mla_engine *e) { mla_free(e); }

static mla_status host_measure(mla_engine *engine, const mla_factors *f, size_t n, double *loss, double *energy, mla_err *err)
{
    host *e = (host *)engine;
    batch b;
    mla_status st = batch_new(&b, e->rows, e->pool, f, n, 0, err);
    if (st != MLA_OK) return st;
    *loss = *energy = 0;
    for (size_t i = 0; i < n; i++) b.row[i] = i;
    mla_par_for(e->pool, n, 1, batch_rows, &b);
    for (size_t i = 0; i < n; i++) *loss += b.loss[i], *energy += b.energy[i];
    batch_free(&b);
    return MLA_OK;
}

static mla_status host_begin(mla_engine *engine, mla_factors *f, size_t slots, size_t stride, mla_err *err)
{
    host *e = (host *)engine;
    mla_status st = batch_new(&e->b, e->rows, e->pool, f, slots, stride, err);
    if (st != MLA_OK) return st;
    mla_factor_parts(e->part, f);
    if ((st = mla_adam_begin(e->part, MLA_FACTOR_PARTS, err)) != MLA_OK) batch_free(&e->b);
    return st;
}

static mla_status host_step(mla_engine *engine, const size_t *row, const size_t *phase, size_t step, size_t steps, mla_err *err)
{
    (void)err;
    host *e = (host *)engine;
    for (size_t i = 0; i < e->b.slots; i++) e->b.row[i] = row[i], e->b.phase[i] = phase[i];
    mla_par_for(e->pool, e->b.slots, 1, batch_rows, &e->b);
    mla_adam_step(e->part, MLA_FACTOR_PARTS, step, steps, e->pool, gradient, e->b.slots, &e->b);
    return MLA_OK;
}

static mla_status host_end(mla_engine *engine, mla_err *err)
{
    (void)err;
    host *e = (host *)engine;
    mla_adam_end(e->part, MLA_FACTOR_PARTS);
    batch_free(&e->b);
    return MLA_OK;
}

const mla_engine_ops mla_engine_host = {host_open, host_close, host_measure, host_begin, host_step, host_end};
