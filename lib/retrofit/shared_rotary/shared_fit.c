/* Record, solve, refine, layer by layer. */
#include "retrofit/shared_rotary/shared_fit.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "linalg/gemm.h"
#include "retrofit/refine/adam.h"
#include "retrofit/refine/fit_rows.h"
#include "retrofit/solve/ranks.h"
#include "retrofit/shared_rotary/shared_local.h"
#include "retrofit/shared_rotary/shared_solve.h"

#define SHUFFLE 0x5a4edu
#define MASS_ROWS 16 /* rows whose attention by distance is measured */

typedef struct {
    const mla_shared_fit_opts *o;
    const mla_config *c;
    size_t held, fit;           /* rows; held-out ones are recorded first */
    double *inv_freq;
    float *cos, *sin, *WW;
    mla_shared_problem p;
    mla_shared_rows *rows;      /* of the layer at hand */
    mla_progress prog;
} fitter;

/* One slot per row of a step: loss and gradient. */
typedef struct {
    const fitter *f;
    const mla_shared *s;
    size_t slots, threads;
    size_t *row;
    double *loss, *energy;
    mla_shared *grad;           /* (slots); NULL: losses alone */
    mla_shared_work **work;     /* per worker */
    float *buf;
} batch;

static void batch_free(batch *b)
{
    for (size_t i = 0; b->work && i < b->threads; i++) mla_shared_work_free(b->work[i]);
    for (size_t i = 0; b->grad && i < b->slots; i++) mla_shared_free(&b->grad[i]);
    mla_free(b->row);
    mla_free(b->loss);
    mla_free(b->energy);
    mla_free(b->grad);
    mla_free(b->work);
    mla_free(b->buf);
}

static mla_status batch_new(batch *b, const fitter *f, const mla_shared *s, size_t slots, bool grad, mla_err *err)
{
    *b = (batch){.f = f, .s = s, .slots = slots, .threads = mla_pool_threads(f->o->pool)};
    b->row = mla_alloc(slots, 1, sizeof *b->row);
    b->loss = mla_alloc(slots, 1, sizeof *b->loss);
    b->energy = mla_alloc(slots, 1, sizeof *b->energy);
    b->grad = grad ? mla_alloc(slots, 1, sizeof *b->grad) : NULL;
    b->work = mla_alloc(b->threads, 1, sizeof *b->work);
    b->buf = mla_alloc_raw(b->threads, mla_shared_row_floats(f->rows), sizeof *b->buf);
    mla_status st = b->row && b->loss && b->energy && (!grad || b->grad) && b->work && b->buf ? MLA_OK : mla_fail(err, MLA_ENOMEM, "refinement: %zu rows a step", slots);
    for (size_t i = 0; st == MLA_OK && i < b->threads; i++) st = mla_shared_work_new(&b->work[i], &f->p, s, err);
    for (size_t i = 0; st == MLA_OK && grad && i < slots; i++) st = mla_shared_new(&b->grad[i], f->c, s->r, s->R, err);
    if (st != MLA_OK) batch_free(b);
    return st;
}

static void batch_run(void *ctx, size_t begin, size_t end, size_t worker)
{
    batch *b = ctx;
    float *buf = b->buf + worker * mla_shared_row_floats(b->f->rows);
    for (size_t i = begin; i < end; i++) {
        mla_shared_row row;
        mla_shared_rows_get(b->f->rows, b->row[i], buf, &row);
        b->loss[i] = mla_shared_loss(&b->f->p, b->work[worker], &row, b->s, b->grad ? NULL : &b->energy[i], b->grad ? &b->grad[i] : NULL);
    }
}

/* Loss over energy on the held-out rows. */
static mla_status measure(const fitter *f, const mla_shared *s, double *out, mla_err *err)
{
    batch b;
    mla_status st = batch_new(&b, f, s, f->held, false, err);
    if (st != MLA_OK) return st;
    double loss = 0, energy = 0;
    for (size_t i = 0; i < f->held; i++) b.row[i] = i;
    mla_par_for(f->o->pool, f->held, 1, batch_run, &b);
    for (size_t i = 0; i < f->held; i++) loss += b.loss[i], energy += b.energy[i];
    batch_free(&b);
    *out = energy > 0 ? loss / energy : 0;
    return isfinite(*out) ? MLA_OK : mla_fail(err, MLA_EFORMAT, "the loss on held-out rows is not finite");
}

/* Part k of a layer's maps, which lie one after the other behind E. */
static const float *part_of(const mla_shared *s, size_t k)
{
    size_t at = 0;
    for (size_t i = 0; i < k; i++) at += mla_shared_part(s, i);
    return s->E + at;
}

static const float *gradient(const void *ctx, size_t slot, size_t part)
{
    return part_of(&((const batch *)ctx)->grad[slot], part);
}

static mla_status descend(fitter *f, mla_shared *s, mla_err *err)
{
    size_t steps = f->o->recipe->refine_steps;
    mla_adam_part p[MLA_SHARED_PARTS];
    batch b;
    mla_status st = batch_new(&b, f, s, f->fit < MLA_ADAM_SLOTS ? f->fit : MLA_ADAM_SLOTS, true, err);
    if (st != MLA_OK) return st;
    float *x = s->E;
    for (size_t k = 0; k < MLA_SHARED_PARTS; x += p[k++].n) p[k] = (mla_adam_part){.x = x, .n = mla_shared_part(s, k)};
    st = mla_adam_begin(p, MLA_SHARED_PARTS, err);
    for (size_t t = 0; st == MLA_OK && t < steps; t++) {
        for (size_t i = 0; i < b.slots; i++) b.row[i] = f->held + mla_rng_below(SHUFFLE, t * b.slots + i, f->fit);
        mla_par_for(f->o->pool, b.slots, 1, batch_run, &b);
        mla_adam_step(p, MLA_SHARED_PARTS, t, steps, f->o->pool, gradient, b.slots, &b);
        mla_progress_add(&f->prog, 1);
    }
    if (st == MLA_OK) mla_adam_end(p, MLA_SHARED_PARTS);
    batch_free(&b);
    return st;
}

static mla_status output_gram(fitter *f, size_t layer, mla_err *err)
{
    size_t Hd = f->c->heads * f->c->head_dim;
    mla_mat wo;
    mla_status st = mla_model_mat(f->o->rows.model, MLA_W_O, layer, &wo, err);
    float *W = st == MLA_OK ? mla_alloc_raw(wo.out, Hd, sizeof *W) : NULL;
    if (st == MLA_OK && !W) st = mla_fail(err, MLA_ENOMEM, "output projection of layer %zu", layer);
    if (st == MLA_OK) st = mla_mat_rows(&wo, 0, wo.out, W, err);
    if (st == MLA_OK)
        mla_sgemm(&(mla_sgemm_args){.ta = true, .M = Hd, .N = Hd, .K = wo.out, .alpha = 1, .a = W, .lda = Hd, .b = W, .ldb = Hd, .c = f->WW, .ldc = Hd});
    mla_free(W);
    return st;
}

static mla_status moments(fitter *f, mla_shared_moments *m, mla_err *err)
{
    float *buf = mla_alloc_raw(mla_shared_row_floats(f->rows), 1, sizeof *buf);
    mla_status st = buf ? mla_shared_moments_new(m, f->c, f->p.max_T, err) : mla_fail(err, MLA_ENOMEM, "row");
    for (size_t i = 0; st == MLA_OK && i < f->fit; i++) {
        mla_shared_row row;
        mla_shared_rows_get(f->rows, f->held + i, buf, &row);
        st = mla_shared_moments_add(m, &row, &f->p, i < MASS_ROWS, f->o->pool, err);
    }
    mla_free(buf);
    return st;
}

static mla_status refine(fitter *f, mla_shared *s, mla_shared_result *res, mla_err *err)
{
    mla_shared moved;
    mla_status st = mla_shared_copy(&moved, s, err);
    if (st != MLA_OK) return st;
    st = descend(f, &moved, err);
    if (st == MLA_OK) st = measure(f, &moved, &res->refined, err);
    res->accepted = st == MLA_OK && res->refined < res->closed;
    if (res->accepted) memcpy(s->E, moved.E, mla_shared_floats(s) * sizeof *s->E);
    mla_shared_free(&moved);
    return st;
}

static mla_status fit_layer(fitter *f, size_t layer, mla_shared *s, mla_shared_result *res, double *energy, mla_err *err)
{
    mla_shared_moments m = {0};
    *res = (mla_shared_result){.layer = layer, .refined = -1};
    mla_status st = mla_shared_rows_open(&f->rows, &f->o->rows, layer, f->held + f->fit, err);
    double *buf = mla_alloc_raw(f->c->hidden, 1, sizeof *buf);
    if (st == MLA_OK && !buf) st = mla_fail(err, MLA_ENOMEM, "layer %zu", layer);
    if (st == MLA_OK) st = output_gram(f, layer, err);
    if (st == MLA_OK) st = moments(f, &m, err);
    mla_shared_solve_opts so = {.balance = f->o->recipe->balance, .inv_freq = f->inv_freq, .wo_gram = f->WW};
    if (st == MLA_OK) st = mla_shared_solve(s, &m, &so, energy, err);
    if (st == MLA_OK) res->kept = energy[s->R - 1];
    if (st == MLA_OK) st = measure(f, s, &res->closed, err);
    if (st == MLA_OK && f->o->recipe->refine_steps) st = refine(f, s, res, err);
    if (st == MLA_OK) mla_shared_gauge(s, &m, buf);
    mla_shared_moments_free(&m);
    mla_shared_rows_close(f->rows);
    f->rows = NULL;
    mla_free(buf);
    return st == MLA_OK ? st : mla_wrap(err, "layer %zu", layer);
}

static mla_status record(fitter *f, mla_err *err)
{
    const mla_shared_fit_opts *o = f->o;
    mla_fit_text text = {o->fit, o->held, o->n_fit, o->n_held, o->rows.row_tokens, SIZE_MAX};
    int32_t *ids;
    mla_status st = mla_fit_rows(&ids, &f->held, &f->fit, &text, "layout shared-rotary", err);
    if (st != MLA_OK) return st;
    st = mla_shared_record(&o->rows, ids, f->held + f->fit, err);
    mla_free(ids);
    return st;
}

static mla_status tables(fitter *f, mla_err *err)
{
    const mla_config *c = f->c;
    size_t T = f->o->rows.row_tokens, half = c->rope.rot / 2, Hd = c->heads * c->head_dim;
    f->inv_freq = mla_alloc(half, 1, sizeof *f->inv_freq);
    f->cos = mla_alloc(T, half, sizeof *f->cos);
    f->sin = mla_alloc(T, half, sizeof *f->sin);
    f->WW = mla_alloc(Hd, Hd, sizeof *f->WW);
    if (!f->inv_freq || !f->cos || !f->sin || !f->WW) return mla_fail(err, MLA_ENOMEM, "rows of %zu tokens, %zu heads", T, c->heads);
    mla_rope_inv_freq(c, T, f->inv_freq);
    mla_rope_table(f->inv_freq, half, T, 1, f->cos, f->sin);
    f->p = (mla_shared_problem){.G = c->kv_heads, .max_T = T, .scale = (float)mla_config_attn_scale(c), .cos = f->cos, .sin = f->sin, .WW = f->WW};
    return MLA_OK;
}

mla_status mla_shared_fit_all(mla_shared_fit *out, const mla_shared_fit_opts *o, mla_err *err)
{
    const mla_config *c = mla_model_config(o->rows.model);
    fitter f = {.o = o, .c = c};
    size_t full = mla_config_full_layers(c);
    *out = (mla_shared_fit){.layers = full, .keys = o->recipe->rotary_keys, .heads = c->kv_heads};
    mla_status st = mla_shared_rank(&out->rank, c, out->keys, o->recipe->budget, err);
    out->factors = mla_alloc(full, 1, sizeof *out->factors);
    out->result = mla_alloc(full, 1, sizeof *out->result);
    out->energy = mla_alloc(full, c->kv_heads, sizeof *out->energy);
    if (st == MLA_OK && (!out->factors || !out->result || !out->energy)) st = mla_fail(err, MLA_ENOMEM, "factors of %zu layers", full);
    if (st == MLA_OK) st = tables(&f, err);
    if (st == MLA_OK) st = record(&f, err);
    f.prog = mla_progress_begin(o->rows.log, "fitting", (double)(full * o->recipe->refine_steps), "steps");
    for (size_t l = 0, i = 0; st == MLA_OK && l < c->layers; l++) {
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        st = mla_shared_new(&out->factors[i], c, out->rank, out->keys, err);
        if (st == MLA_OK) st = fit_layer(&f, l, &out->factors[i], &out->result[i], out->energy + i * c->kv_heads, err);
        i++;
    }
    if (st == MLA_OK) mla_progress_end(&f.prog);
    mla_free(f.inv_freq);
    mla_free(f.cos);
    mla_free(f.sin);
    mla_free(f.WW);
    if (st != MLA_OK) mla_shared_fit_free(out);
    return st;
}

void mla_shared_fit_free(mla_shared_fit *f)
{
    for (size_t i = 0; f->factors && i < f->layers; i++) mla_shared_free(&f->factors[i]);
    mla_free(f->factors);
    mla_free(f->result);
    mla_free(f->energy);
    *f = (mla_shared_fit){0};
}

void mla_shared_fit_to_json(const mla_shared_fit *f, mla_jv *arr)
{
    for (size_t i = 0; i < f->layers; i++) {
        const mla_shared_result *r = &f->result[i];
        mla_jv *o = mla_jv_add_obj(arr);
        mla_jv_set_size(o, "layer", r->layer);
        mla_jv_set_size(o, "rank", f->rank);
        mla_jv_set_size(o, "rotary_keys", f->keys);
        mla_jv *e = mla_jv_set_arr(o, "rotary_energy_kept_by_keys");
        for (size_t g = 0; g < f->heads; g++) mla_jv_add_f64(e, f->energy[i * f->heads + g]);
        mla_jv_set_f64(o, "closed_form_loss", r->closed);
        if (r->refined >= 0) mla_jv_set_f64(o, "refined_loss", r->refined);
    }
}

void mla_shared_fit_table(const mla_shared_fit *f, mla_str *out)
{
    mla_str_put(out, "layer   rank   rotary energy kept   loss on held-out rows: closed form   refined\n");
    for (size_t i = 0; i < f->layers; i++) {
        const mla_shared_result *r = &f->result[i];
        mla_str_printf(out, "%5zu %6zu %19.1f%% %34.3g%% ", r->layer, f->rank, 100 * r->kept, 100 * r->closed);
        if (r->refined < 0) mla_str_put(out, "        -\n");
        else mla_str_printf(out, "%8.3g%%%s\n", 100 * r->refined, r->accepted ? "" : " (not kept)");
    }
    mla_str_put(out, "rotary energy lost with 1, 2, .. shared keys per frequency, mean over layers:");
    for (size_t g = 0; g < f->heads; g++) {
        double lost = 0;
        for (size_t i = 0; i < f->layers; i++) lost += (1 - f->energy[i * f->heads + g]) / (double)f->layers;
        mla_str_printf(out, " %.3g%%", 100 * (lost > 1e-12 ? lost : 0));
    }
    mla_str_put(out, "\n");
}
