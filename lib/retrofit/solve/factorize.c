/* Balance, solutions, ranks, refinement, factors as stored and what they lose. */
#include "retrofit/solve/factorize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "retrofit/solve/balance.h"
#include "retrofit/stats/divisor.h"
#include "retrofit/refine/piece.h"
#include "retrofit/solve/rounds.h"
#include "retrofit/refine/sequential.h"
#include "retrofit/solve/shares.h"
#include "retrofit/solve/width.h"

typedef struct {
    const mla_model *m;
    const mla_recipe *r;
    const mla_stats *fit, *held;
    mla_solution *sol;
    mla_factorization *out;
    mla_err *err;            /* one per layer */
    const size_t *rank;
    bool nested;
    mla_factors *refined;    /* per layer, f32; r == 0: keep the closed form */
    mla_refined *local;
} work;

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
    bool moved = w->local[i].accepted;
    mla_status st = moved ? mla_refine_round(f, &w->refined[i], s, !w->out->f32, NULL, err) : mla_solution_factors(f, s, per, !w->out->f32, NULL, err);
    if (st == MLA_OK && w->nested && !w->out->nested[i].sigma) st = mla_nested_of(&w->out->nested[i], s, per, true, NULL, err);
    if (st != MLA_OK) return st;
    double total = mla_solution_tail(s, 0), loss;
    *r = (mla_layer_result){.layer = s->layer, .rank = w->rank[i], .rotary = f->w, .predicted = total > 0 ? mla_solution_tail(s, per) / total : 0, .held_out = -1,
                            .energy = total, .k_share = mla_solution_k_share(s, per), .floored = s->floored,
                            .refined = w->refined[i].r > 0, .local = w->local[i]};
    if (r->refined && w->out->f32) r->local.stored = moved ? r->local.after : r->local.before;
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

/* Does bf16 lose more than 5 % on top of what the rank loses, in any layer? Measured with the factors as stored. */
static bool rounding_costs(const mla_factorization *f)
{
    for (size_t i = 0; i < f->layers; i++) {
        const mla_layer_result *r = &f->result[i];
        double stored = r->local.accepted ? r->local.stored : r->exact, want = r->local.accepted ? r->local.after : r->predicted;
        if (!(stored <= 1.05 * want + 1e-5)) return true;
    }
    return false;
}

/* The factors of layer i as later layers get to see them: all earlier layers' (layer, f: scratch of i), then sequential.h. */
static mla_status follow(work *w, const mla_factorize_opts *o, size_t i, mla_factors *f, mla_sequential_result *res, mla_err *err)
{
    mla_factors *prefix = mla_alloc(i, 1, sizeof *prefix);
    size_t *layer = mla_alloc(i, 1, sizeof *layer), n = 0;
    mla_status st = prefix && layer ? MLA_OK : mla_fail(err, MLA_ENOMEM, "prefix of %zu layers", i);
    for (size_t k = 0; st == MLA_OK && k < i; k++)
        if (w->refined[k].r) prefix[n] = w->refined[k], layer[n++] = w->sol[k].layer; /* full rank: exact, nothing to set */
    if (st == MLA_OK && n) st = mla_refiner_follow(o->refiner, w->sol[i].layer, prefix, layer, n, err);
    if (st == MLA_OK && n) st = mla_sequential(o->refiner, &w->sol[i], &o->eigen, f, res, o->pool, err);
    mla_free(prefix);
    mla_free(layer);
    return st;
}

/* Steps from f, where any are to be taken; from the better of the two solutions where layers follow each other. */
static mla_status move(work *w, const mla_factorize_opts *o, size_t i, mla_factors *f, mla_refined *local, mla_progress *prog, mla_err *err)
{
    mla_sequential_result seq = {0};
    const mla_solution *s = &w->sol[i];
    *local = (mla_refined){.stored = -1};
    mla_status st = w->r->sequential && i ? follow(w, o, i, f, &seq, err) : MLA_OK;
    if (st == MLA_OK && w->r->refine_steps) st = mla_refine_layer(o->refiner, s, f, local, prog, err);
    else if (st == MLA_OK) st = mla_refine_measure(o->refiner, s->layer, f, &local->before, err), local->after = local->before;
    if (!seq.kept) return st;
    if (!local->accepted) local->after = seq.after;
    local->before = seq.before;
    local->accepted = true;
    return st;
}

/* One layer: from its piece of an earlier, killed build, or by steps. f: the closed form on entry. */
static mla_status refine_one(work *w, const mla_factorize_opts *o, size_t i, mla_factors *f, mla_progress *prog, mla_err *err)
{
    const mla_solution *s = &w->sol[i];
    mla_refined *local = &w->local[i];
    char name[64], *path = NULL;
    snprintf(name, sizeof name, "refined-%05zu.safetensors", s->layer);
    if (o->dir && !(path = mla_path_join(o->dir, name))) return mla_fail(err, MLA_ENOMEM, "path of layer %zu", s->layer);
    mla_status st = MLA_OK;
    if (path && mla_piece_read(path, f, local)) {
        prog->total -= (double)w->r->refine_steps;
    } else {
        mla_factors small = {0};
        st = move(w, o, i, f, local, prog, err);
        if (st == MLA_OK) st = local->accepted ? mla_refine_round(&small, f, s, true, o->pool, err) : mla_solution_factors(&small, s, f->r, true, o->pool, err);
        if (st == MLA_OK) st = mla_refine_measure(o->refiner, s->layer, &small, &local->stored, err);
        mla_factors_free(&small);
        if (st == MLA_OK && path) st = mla_piece_write(path, f, local, err);
    }
    mla_free(path);
    return st;
}

/* Layer by layer, in depth order; layers at full rank stay exact. */
static mla_status refine_all(work *w, const mla_factorize_opts *o, size_t n, mla_err *err)
{
    mla_progress prog = mla_progress_begin(o->log, "refinement", (double)(n * w->r->refine_steps), "steps");
    mla_status st = MLA_OK;
    size_t kept = 0, tried = 0;
    char text[96];
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        size_t per = w->rank[i] / w->sol[i].groups;
        if (per == w->sol[i].n) {
            prog.total -= (double)w->r->refine_steps;
            continue;
        }
        st = mla_solution_factors(&w->refined[i], &w->sol[i], per, false, NULL, err);
        if (st == MLA_OK) st = refine_one(w, o, i, &w->refined[i], &prog, err);
        tried++;
        kept += w->local[i].accepted;
    }
    if (st != MLA_OK) return st;
    mla_progress_end(&prog);
    if (kept) {
        snprintf(text, sizeof text, "%slocal, %zu steps, %zu of %zu layers", w->r->sequential ? "sequential, " : "", w->r->refine_steps, kept, n);
        if (!(w->out->refined = mla_strdup(text))) return mla_fail(err, MLA_ENOMEM, "refinement");
    }
    mla_info(o->log, "refinement: lower held-out error in %zu of %zu layers", kept, tried);
    return MLA_OK;
}

static bool shares_rotary(mla_layout l) { return l == MLA_LAYOUT_ABSORBED || l == MLA_LAYOUT_DEEPSEEK; }

mla_status mla_factorize(mla_factorization *out, const mla_factorize_opts *o, mla_err *err)
{
    const mla_recipe *r = o->recipe;
    const mla_stats *fit = o->fit;
    size_t n = fit->layers;
    *out = (mla_factorization){.layers = n};
    size_t *rank = mla_alloc(n, 1, sizeof *rank);
    work w = {.m = o->model, .r = r, .fit = fit, .held = o->held, .out = out, .rank = rank, .nested = o->nested};
    w.sol = mla_alloc(n, 1, sizeof *w.sol);
    w.err = mla_alloc(n, 1, sizeof *w.err);
    w.refined = mla_alloc(n, 1, sizeof *w.refined);
    w.local = mla_alloc(n, 1, sizeof *w.local);
    out->factors = mla_alloc(n, 1, sizeof *out->factors);
    out->result = mla_alloc(n, 1, sizeof *out->result);
    if (o->nested) out->nested = mla_alloc(n, 1, sizeof *out->nested);
    mla_status st = rank && w.sol && w.err && w.refined && w.local && out->factors && out->result && (out->nested || !o->nested)
                        ? MLA_OK : mla_fail(err, MLA_ENOMEM, "factors of %zu layers", n);
    if (st == MLA_OK && fit->layout != mla_stats_layout(r->layout))
        st = mla_fail(err, MLA_EINVAL, "the statistics are for layout %s, the recipe wants %s", mla_layout_name(fit->layout), mla_layout_name(r->layout));
    if (st == MLA_OK && o->held && (st = mla_stats_same_shape(fit, o->held, err)) != MLA_OK) st = mla_wrap(err, "held-out statistics");
    if (st == MLA_OK && fit->plain != mla_objective_plain(r->objective))
        st = mla_fail(err, MLA_EINVAL, "objective %s needs statistics with %s token weights (mla-retrofit stats --objective %s)",
                      mla_objective_name(r->objective), fit->plain ? "attention" : "plain", mla_objective_name(r->objective));
    if (st == MLA_OK && o->nested && shares_rotary(r->layout))
        st = mla_fail(err, MLA_EINVAL, "--nested keeps layouts n and rebuild only: solve layout %s at its own rank", mla_layout_name(r->layout));
    mla_recipe settled = *r; /* with the width that the statistics choose */
    bool shares = r->layout == MLA_LAYOUT_ABSORBED && !r->rotary_width && !r->balance_scan && (r->allocation == MLA_ALLOC_SPECTRUM || r->allocation == MLA_ALLOC_PROBE);
    size_t *width = mla_alloc(n, 1, sizeof *width);
    if (st == MLA_OK && !width) st = mla_fail(err, MLA_ENOMEM, "rotary widths of %zu layers", n);
    if (st == MLA_OK && r->layout == MLA_LAYOUT_ABSORBED && !r->rotary_width && !shares)
        st = mla_choose_width(&settled.rotary_width, &(mla_solve_all_opts){.model = o->model, .recipe = r, .fit = fit, .pool = o->pool, .eigen = o->eigen}, err);
    settled.budget.rotary = settled.rotary_width;
    w.r = r = &settled;
    out->freq_fold = r->freq_fold;
    out->deepseek = r->layout == MLA_LAYOUT_DEEPSEEK;
    out->rotary_width = r->rotary_width;
    mla_solve_all_opts so = {.model = o->model, .recipe = r, .fit = fit, .pool = o->pool, .eigen = o->eigen};
    mla_balance_opts bo = {.solve = so, .probe = o->probe, .dir = o->dir, .log = o->log};
    out->balance = r->balance;
    if (st == MLA_OK && r->balance_scan && !o->probe) st = mla_fail(err, MLA_EINVAL, "the scan of the balance needs held-out text: use build");
    if (st == MLA_OK && r->balance_scan) st = mla_balance_scan(&out->balance, w.sol, &bo, err);
    if (st == MLA_OK && !shares) st = mla_solve_all(w.sol, &so, out->balance, err);
    mla_rounds_opts ro = {.model = o->model, .recipe = r, .sol = w.sol, .layers = n, .probe = o->probe, .dir = o->dir};
    mla_shares_opts sh = {.solve = so, .balance = out->balance, .probe = o->probe, .dir = o->dir};
    if (st == MLA_OK) st = shares ? mla_choose_shares(width, rank, w.sol, &sh, err) : mla_choose_ranks(rank, &ro, err);
    for (size_t i = 0; st == MLA_OK && shares && i < n; i++)
        if (width[i] > out->rotary_width) out->rotary_width = width[i];
    out->shares = shares;
    if (st == MLA_OK && o->refiner) st = refine_all(&w, o, n, err);
    out->f32 = r->factors_dtype == MLA_FACTORS_F32 || r->layout == MLA_LAYOUT_DEEPSEEK; /* which merges them into its weights */
    if (st == MLA_OK) {
        mla_par_for(o->pool, n, 1, result_one, &w);
        st = mla_first_error(w.err, n, err);
    }
    if (st == MLA_OK && r->factors_dtype == MLA_FACTORS_AUTO && !out->f32 && rounding_costs(out)) {
        out->f32 = true;
        mla_par_for(o->pool, n, 1, result_one, &w);
        st = mla_first_error(w.err, n, err);
    }
    for (size_t i = 0; w.sol && i < n; i++) mla_solution_free(&w.sol[i]);
    for (size_t i = 0; w.refined && i < n; i++) mla_factors_free(&w.refined[i]);
    mla_free(w.sol);
    mla_free(w.err);
    mla_free(w.refined);
    mla_free(w.local);
    mla_free(rank);
    mla_free(width);
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
        bool shared = shares_rotary(r->layout);
        size_t keys = shared ? c->head_dim - c->rope.rot : mla_layout_key_dims(c, r->layout), slots = c->kv_heads * c->rope.rot;
        st = shared ? mla_factors_new_absorbed(f, c, slots, n - slots, err) : mla_factors_new(f, r->layout, r->groups, n, n, err);
        if (st != MLA_OK) break;
        mla_factors_identity(f);
        if (mla_layout_divisors(c, r->layout)) {
            st = mla_factors_centers(f, c->kv_heads, err);
            if (st == MLA_OK) st = mla_divisor_guess(m, l, f->center, err);
        }
        out->rotary_width = f->w;
        out->freq_fold = 1;
        out->result[out->layers++] = (mla_layer_result){.layer = l, .rank = f->r * r->groups, .rotary = f->w, .held_out = -1,
                                                        .k_share = (double)keys / (double)(keys + c->head_dim)};
    }
    if (st != MLA_OK) mla_factorization_free(out);
    return st;
}
