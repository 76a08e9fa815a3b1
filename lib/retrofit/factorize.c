/* Layers are solved side by side, one thread each: the eigensolver itself stays single-threaded, so bits never depend
 * on the number of threads. */
#include "retrofit/factorize.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "retrofit/divisor.h"

typedef struct {
    const mla_model *m;
    const mla_recipe *r;
    const mla_stats *fit, *held;
    mla_solution *sol;
    mla_factorization *out;
    mla_err *err;            /* one per layer */
    const size_t *rank;
    mla_probe *probe;
    bool nested;
} work;

static void solve_one(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    work *w = ctx;
    for (size_t i = b; i < e; i++) {
        const mla_layer_stats *l = &w->fit->layer[i];
        mla_mat wo;
        mla_projections proj = {0};
        mla_solve_opts o = {.balance = w->r->balance, .groups = w->r->groups, .objective = w->r->objective, .proj = &proj};
        mla_status st = mla_model_mat(w->m, MLA_W_O, l->layer, &wo, &w->err[i]);
        float *W = st == MLA_OK ? mla_alloc_raw(wo.out, wo.in, sizeof *W) : NULL;
        if (st == MLA_OK && !W) st = mla_fail(&w->err[i], MLA_ENOMEM, "output projection of layer %zu", l->layer);
        if (st == MLA_OK) st = mla_mat_rows(&wo, 0, wo.out, W, &w->err[i]);
        if (st == MLA_OK && mla_objective_weights(o.objective)) st = mla_projections_read(&proj, w->m, l, &w->err[i]);
        if (st == MLA_OK) st = mla_solve_layer(&w->sol[i], l, w->r->layout, W, wo.out, &o, &w->err[i]);
        w->err[i].status = st;
        mla_free(W);
        mla_projections_free(&proj);
    }
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Loss of f over the loss of keeping only the mean, on the tokens of l. */
static mla_status share_lost(double *out, const mla_solution *s, const mla_factors *f, const mla_layer_stats *l, mla_err *err)
{
    mla_factors none = *f;
    double loss, all;
    none.r = 0;
    mla_status st = mla_solution_loss(&loss, s, f, l, err);
    if (st == MLA_OK) st = mla_solution_loss(&all, s, &none, l, err);
    if (st == MLA_OK) *out = all > 0 ? loss / all : 0;
    return st;
}

static mla_status held_out(work *w, size_t i)
{
    if (!w->held || !(w->held->layer[i].wsum > 0)) return MLA_OK;
    return share_lost(&w->out->result[i].held_out, &w->sol[i], &w->out->factors[i], &w->held->layer[i], &w->err[i]);
}

static mla_status one_result(work *w, size_t i)
{
    mla_solution *s = &w->sol[i];
    mla_layer_result *r = &w->out->result[i];
    mla_factors *f = &w->out->factors[i];
    mla_err *err = &w->err[i];
    size_t per = w->rank[i] / s->groups;
    mla_factors_free(f); /* of an earlier attempt */
    mla_free(r->spectrum);
    *r = (mla_layer_result){0};
    mla_status st = mla_solution_factors(f, s, per, !w->out->f32, err);
    if (st == MLA_OK && w->nested && !w->out->nested[i].sigma) st = mla_nested_of(&w->out->nested[i], s, per, true, err);
    if (st != MLA_OK) return st;
    double total = mla_solution_tail(s, 0), loss;
    *r = (mla_layer_result){.layer = s->layer, .rank = w->rank[i], .predicted = total > 0 ? mla_solution_tail(s, per) / total : 0, .held_out = -1,
                            .energy = total, .k_share = mla_solution_k_share(s, per), .floored = s->floored};
    r->n_spectrum = s->groups * s->n;
    r->spectrum = mla_alloc_raw(r->n_spectrum, 1, sizeof *r->spectrum);
    if (!r->spectrum) return mla_fail(err, MLA_ENOMEM, "spectrum of layer %zu", s->layer);
    memcpy(r->spectrum, s->sigma, r->n_spectrum * sizeof *r->spectrum);
    qsort(r->spectrum, r->n_spectrum, sizeof *r->spectrum, descending);
    if (mla_objective_weights(w->r->objective)) return share_lost(&r->exact, s, f, &w->fit->layer[i], err) == MLA_OK ? held_out(w, i) : err->status;
    if ((st = mla_solution_loss(&loss, s, f, &w->fit->layer[i], err)) != MLA_OK) return st;
    r->exact = loss > 0 && total > 0 ? loss / total : 0; /* no energy at all: a layer whose output nothing reaches */
    return held_out(w, i);
}

static void result_one(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    work *w = ctx;
    for (size_t i = b; i < e; i++) w->err[i].status = one_result(w, i);
}

static mla_status first_error(const work *w, size_t n, mla_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (w->err[i].status != MLA_OK) {
            *err = w->err[i];
            return err->status;
        }
    return MLA_OK;
}

/* Does bf16 lose more than 5 % on top of what the rank loses, in any layer? Measured with the factors as stored. */
static bool rounding_costs(const mla_factorization *f)
{
    for (size_t i = 0; i < f->layers; i++)
        if (!(f->result[i].exact <= 1.05 * f->result[i].predicted + 1e-5)) return true;
    return false;
}

static mla_status choose_ranks(size_t *rank, const work *w, size_t n, mla_err *err)
{
    size_t uniform;
    const mla_rank_set *set = &w->r->rank_set;
    size_t at; /* where all layers stand when ranks are uniform, and where sensitivities are measured */
    mla_status st = mla_rank_uniform(&uniform, mla_model_config(w->m), w->r->layout, w->r->groups, w->r->budget, err);
    if (st == MLA_OK) st = mla_rank_in_set(&at, set, uniform, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < n; i++) rank[i] = at;
    size_t min = mla_rank_min(uniform, w->r->groups);
    if (w->r->allocation == MLA_ALLOC_SPECTRUM)
        return set->n ? mla_rank_allocate_set(rank, w->sol, n, NULL, uniform * n, set, err)
                      : mla_rank_allocate(rank, w->sol, n, NULL, uniform * n, min, err);
    if (w->r->allocation != MLA_ALLOC_PROBE) return MLA_OK;
    if (!w->probe) return mla_fail(err, MLA_EINVAL, "allocation by probe needs held-out text");
    double *eta = mla_alloc(n, 1, sizeof *eta);
    if (!eta) return mla_fail(err, MLA_ENOMEM, "sensitivities of %zu layers", n);
    st = mla_probe_eta(w->probe, eta, w->sol, rank, n, err);
    if (st == MLA_OK)
        st = set->n ? mla_rank_allocate_set(rank, w->sol, n, eta, uniform * n, set, err) : mla_rank_allocate(rank, w->sol, n, eta, uniform * n, min, err);
    mla_free(eta);
    return st;
}

mla_status mla_factorize(mla_factorization *out, const mla_factorize_opts *o, mla_err *err)
{
    const mla_recipe *r = o->recipe;
    const mla_stats *fit = o->fit;
    size_t n = fit->layers;
    *out = (mla_factorization){.layers = n};
    size_t *rank = mla_alloc(n, 1, sizeof *rank);
    work w = {.m = o->model, .r = r, .fit = fit, .held = o->held, .out = out, .rank = rank, .probe = o->probe, .nested = o->nested};
    w.sol = mla_alloc(n, 1, sizeof *w.sol);
    w.err = mla_alloc(n, 1, sizeof *w.err);
    out->factors = mla_alloc(n, 1, sizeof *out->factors);
    out->result = mla_alloc(n, 1, sizeof *out->result);
    if (o->nested) out->nested = mla_alloc(n, 1, sizeof *out->nested);
    mla_status st = rank && w.sol && w.err && out->factors && out->result && (out->nested || !o->nested) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "factors of %zu layers", n);
    if (st == MLA_OK && fit->layout != r->layout)
        st = mla_fail(err, MLA_EINVAL, "the statistics are for layout %s, the recipe wants %s", mla_layout_name(fit->layout), mla_layout_name(r->layout));
    if (st == MLA_OK && o->held && (st = mla_stats_same_shape(fit, o->held, err)) != MLA_OK) st = mla_wrap(err, "held-out statistics");
    if (st == MLA_OK && fit->plain != mla_objective_plain(r->objective))
        st = mla_fail(err, MLA_EINVAL, "objective %s needs statistics with %s token weights (mla-retrofit stats --objective %s)",
                      mla_objective_name(r->objective), fit->plain ? "attention" : "plain", mla_objective_name(r->objective));
    if (st == MLA_OK) {
        mla_par_for(o->pool, n, 1, solve_one, &w);
        st = first_error(&w, n, err);
    }
    if (st == MLA_OK) st = choose_ranks(rank, &w, n, err);
    out->f32 = r->factors_dtype == MLA_FACTORS_F32;
    if (st == MLA_OK) {
        mla_par_for(o->pool, n, 1, result_one, &w);
        st = first_error(&w, n, err);
    }
    if (st == MLA_OK && r->factors_dtype == MLA_FACTORS_AUTO && rounding_costs(out)) {
        out->f32 = true;
        mla_par_for(o->pool, n, 1, result_one, &w);
        st = first_error(&w, n, err);
    }
    for (size_t i = 0; w.sol && i < n; i++) mla_solution_free(&w.sol[i]);
    mla_free(w.sol);
    mla_free(w.err);
    mla_free(rank);
    if (st != MLA_OK) mla_factorization_free(out);
    return st;
}

mla_status mla_factorize_identity(mla_factorization *out, const mla_model *m, const mla_recipe *r, mla_err *err)
{
    const mla_config *c = mla_model_config(m);
    size_t full = mla_config_full_layers(c), n;
    *out = (mla_factorization){0};
    mla_status st = mla_factors_dims(c, r->layout, r->groups, &n, err);
    out->factors = mla_alloc(full, 1, sizeof *out->factors);
    out->result = mla_alloc(full, 1, sizeof *out->result);
    if (st == MLA_OK && (!out->factors || !out->result)) st = mla_fail(err, MLA_ENOMEM, "factors of %zu layers", full);
    for (size_t l = 0; st == MLA_OK && l < c->layers; l++) {
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        mla_factors *f = &out->factors[out->layers];
        st = mla_factors_new(f, r->layout, r->groups, n, n, err);
        if (st != MLA_OK) break;
        mla_factors_identity(f);
        if (mla_layout_divisors(c, r->layout)) {
            st = mla_factors_centers(f, c->kv_heads, err);
            if (st == MLA_OK) st = mla_divisor_guess(m, l, f->center, err);
        }
        size_t keys = r->layout == MLA_LAYOUT_REBUILD ? c->head_dim : c->head_dim - c->rope.rot;
        out->result[out->layers++] = (mla_layer_result){.layer = l, .rank = n * r->groups, .held_out = -1,
                                                        .k_share = (double)keys / (double)(keys + c->head_dim)};
    }
    if (st != MLA_OK) mla_factorization_free(out);
    return st;
}

void mla_factorization_free(mla_factorization *f)
{
    for (size_t i = 0; i < f->layers; i++) {
        if (f->factors) mla_factors_free(&f->factors[i]);
        if (f->result) mla_free(f->result[i].spectrum);
        if (f->nested) mla_nested_free(&f->nested[i]);
    }
    mla_free(f->nested);
    mla_free(f->factors);
    mla_free(f->result);
    *f = (mla_factorization){0};
}

void mla_factorization_to_json(const mla_factorization *f, mla_jv *arr)
{
    for (size_t i = 0; i < f->layers; i++) {
        const mla_layer_result *r = &f->result[i];
        mla_jv *o = mla_jv_add_obj(arr);
        mla_jv_set_size(o, "layer", r->layer);
        mla_jv_set_size(o, "rank", r->rank);
        if (r->predicted >= 0) mla_jv_set_f64(o, "predicted_loss", r->predicted);
        if (r->exact >= 0) mla_jv_set_f64(o, "stored_loss", r->exact);
        if (r->held_out >= 0) mla_jv_set_f64(o, "held_out_loss", r->held_out);
        mla_jv_set_f64(o, "energy", r->energy);
        mla_jv_set_f64(o, "key_share", r->k_share);
        mla_jv_set_size(o, "metric_floor_hits", r->floored);
    }
}

/* A share in `width` columns and a percent sign; a dash where it was not measured. */
static void put_percent(mla_str *out, int width, double share)
{
    if (share >= 0) mla_str_printf(out, "%*.3g%% ", width, 100 * share);
    else mla_str_printf(out, "%*s ", width + 1, "-");
}

void mla_factorization_table(const mla_factorization *f, mla_str *out)
{
    mla_str_put(out, "layer   rank   predicted loss   as stored   held-out loss   keys' share\n");
    for (size_t i = 0; i < f->layers; i++) {
        const mla_layer_result *r = &f->result[i];
        mla_str_printf(out, "%5zu %6zu ", r->layer, r->rank);
        put_percent(out, 15, r->predicted);
        put_percent(out, 10, r->exact);
        put_percent(out, 14, r->held_out);
        if (r->predicted >= 0) mla_str_printf(out, "%12.1f%%\n", 100 * r->k_share);
        else mla_str_put(out, "           -\n");
    }
}
