/* Loss curves of all layers and widths, the best shares of a budget, rounds of probing. */
#include "retrofit/solve/shares.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "retrofit/solve/absorbed.h"
#include "retrofit/refine/piece.h"
#include "retrofit/solve/width.h"

enum { STEPS = 8192 }; /* of the budget */

static double cost_at(const mla_share_curve *c, const mla_share_cost *u, size_t k, size_t v)
{
    size_t r = v - c->width[k] < c->n ? v - c->width[k] : c->n - 1;
    return (u ? u->rotary : 1) * c->lost[k] + (u ? u->latent : 1) * c->tail[k * c->n + r];
}

/* The best width of a curve at v values, or widths: none. */
static size_t best_width(const mla_share_curve *c, const mla_share_cost *u, size_t v)
{
    size_t best = c->widths;
    double least = INFINITY;
    for (size_t k = 0; k < c->widths; k++)
        if (v > c->width[k] && cost_at(c, u, k, v) < least) least = cost_at(c, u, k, v), best = k;
    return best;
}

/* The largest rank up to r that width k can have. */
static size_t useful(const mla_share_curve *c, size_t k, size_t r)
{
    if (r > c->n - 1) r = c->n - 1;
    while (r > 1 && !isfinite(c->tail[k * c->n + r])) r--;
    return r;
}

mla_status mla_share_out(size_t *width, size_t *rank, const mla_share_curve *curve, size_t layers, const mla_share_cost *cost, size_t budget,
                         mla_err *err)
{
    size_t unit = (budget + STEPS - 1) / STEPS, B = unit ? budget / unit : 0;
    double *both = mla_alloc(B + 1, 2, sizeof *both), *now = both, *next = both ? both + B + 1 : NULL, *least = mla_alloc(B + 1, 1, sizeof *least);
    uint16_t *took = mla_alloc(layers, B + 1, sizeof *took); /* units that layer l takes of b that are left */
    mla_status st = both && least && took ? MLA_OK : mla_fail(err, MLA_ENOMEM, "shares of %zu layers", layers);
    for (size_t l = layers; st == MLA_OK && l-- > 0;) { /* next: the best of the layers behind l */
        for (size_t v = 0; v <= B; v++) {
            const mla_share_cost *u = cost ? &cost[l] : NULL;
            size_t k = best_width(&curve[l], u, v * unit);
            least[v] = k < curve[l].widths ? cost_at(&curve[l], u, k, v * unit) : INFINITY;
        }
        for (size_t b = 0; b <= B; b++) {
            now[b] = INFINITY;
            for (size_t v = 0; v <= b; v++)
                if (least[v] + next[b - v] < now[b]) now[b] = least[v] + next[b - v], took[l * (B + 1) + b] = (uint16_t)v;
        }
        double *t = next;
        next = now;
        now = t;
    }
    if (st == MLA_OK && !isfinite(next[B])) st = mla_fail(err, MLA_EINVAL, "budget too small: %zu values over %zu layers for rotary keys beside latents", budget, layers);
    for (size_t l = 0, b = B; st == MLA_OK && l < layers; l++) {
        size_t v = took[l * (B + 1) + b], k = best_width(&curve[l], cost ? &cost[l] : NULL, v * unit);
        width[l] = curve[l].width[k];
        rank[l] = useful(&curve[l], k, v * unit - width[l]);
        b -= v;
    }
    mla_free(both);
    mla_free(least);
    mla_free(took);
    return st;
}

typedef struct {
    const mla_shares_opts *o;
    mla_share_curve *curve;
    mla_err *err;             /* (layers) */
} trials;

/* One layer at every width of the grid. */
static mla_status draw(mla_share_curve *c, const mla_shares_opts *o, size_t i, mla_err *err)
{
    const mla_layer_stats *l = &o->solve.fit->layer[i];
    size_t most = l->G * 2 * l->half, *width = mla_alloc(o->solve.fit->layers, 1, sizeof *width);
    mla_solve_all_opts so = o->solve;
    so.width = width;
    *c = (mla_share_curve){.n = l->n + 1};
    for (size_t k = 0; k < MLA_SHARES_WIDTHS; k++) {
        size_t w = k ? most * k / (MLA_SHARES_WIDTHS - 1) / 2 * 2 : 2;
        if (!c->widths || w > c->width[c->widths - 1]) c->width[c->widths++] = w;
    }
    c->tail = mla_alloc(c->widths, c->n, sizeof *c->tail);
    mla_status st = width && c->tail ? MLA_OK : mla_fail(err, MLA_ENOMEM, "shares of layer %zu", l->layer);
    for (size_t k = 0; st == MLA_OK && k < c->widths; k++) {
        mla_solution s = {0};
        width[i] = c->width[k];
        st = mla_solve_one(&s, &so, i, o->balance, err);
        if (st == MLA_OK) c->lost[k] = s.absorbed->lost;
        for (size_t r = 0; st == MLA_OK && r < c->n; r++)
            c->tail[k * c->n + r] = r && r <= l->n - width[i] ? mla_solution_tail(&s, r) - s.absorbed->lost : INFINITY;
        mla_solution_free(&s);
    }
    mla_free(width);
    return st;
}

static void draw_some(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    trials *t = ctx;
    for (size_t i = b; i < e; i++) t->err[i].status = draw(&t->curve[i], t->o, i, &t->err[i]);
}

static mla_status curves(trials *t, size_t n, mla_err *err)
{
    mla_par_for(t->o->solve.pool, n, 1, draw_some, t);
    return mla_first_error(t->err, n, err);
}

static mla_status kld_at(double *kld, mla_probe *p, const mla_solution *s, size_t r, mla_err *err)
{
    mla_factors f;
    mla_status st = mla_solution_factors(&f, s, r, false, NULL, err);
    if (st != MLA_OK) return st;
    st = mla_probe_kld(p, kld, &f, &s->layer, 1, err);
    mla_factors_free(&f);
    return st;
}

/* Both costs of one layer at (its width, rank). What cannot be told there (nothing lost) keeps its value. */
static mla_status measure(mla_share_cost *c, mla_probe *p, const mla_solution *s, size_t rank, mla_err *err)
{
    double lost = s->absorbed->lost, tail = mla_solution_tail(s, rank) - lost, whole = 0, part = 0;
    size_t all = s->n - s->absorbed->rot->w;
    mla_status st = lost > 0 ? kld_at(&part, p, s, all, err) : MLA_OK;
    if (st == MLA_OK && lost > 0 && part > 0) c->rotary = part / lost;
    if (st != MLA_OK || rank >= all || !(tail > 0)) return st;
    st = kld_at(&whole, p, s, rank, err);
    double rest = whole - c->rotary * lost;
    if (st == MLA_OK && whole > 0) c->latent = (rest > 0.1 * whole ? rest : 0.1 * whole) / tail;
    return st;
}

static mla_status measure_all(mla_share_cost *cost, const mla_shares_opts *o, const mla_solution *sol, const size_t *rank, size_t round, mla_err *err)
{
    size_t n = o->solve.fit->layers;
    char name[64], *path = NULL;
    snprintf(name, sizeof name, "shares-%zu.safetensors", round);
    if (o->dir && !(path = mla_path_join(o->dir, name))) return mla_fail(err, MLA_ENOMEM, "path of %s", name);
    mla_status st = MLA_OK;
    if (!path || !mla_piece_read_numbers(path, &cost->rotary, 2 * n)) {
        for (size_t i = 0; st == MLA_OK && i < n; i++) st = measure(&cost[i], o->probe, &sol[i], rank[i], err);
        if (st == MLA_OK && path) st = mla_piece_write_numbers(path, &cost->rotary, 2 * n, err);
    }
    mla_free(path);
    return st;
}

mla_status mla_choose_shares(size_t *width, size_t *rank, mla_solution *sol, const mla_shares_opts *o, mla_err *err)
{
    const mla_recipe *r = o->solve.recipe;
    size_t n = o->solve.fit->layers, even = 0;
    double values = 0;
    mla_share_cost *cost = mla_alloc(n, 1, sizeof *cost);
    trials t = {.o = o, .curve = mla_alloc(n, 1, sizeof *t.curve), .err = mla_alloc(n, 1, sizeof *t.err)};
    mla_solve_all_opts so = o->solve;
    bool probe = r->allocation == MLA_ALLOC_PROBE;
    so.width = width;
    mla_status st = cost && t.curve && t.err ? MLA_OK : mla_fail(err, MLA_ENOMEM, "shares of %zu layers", n);
    if (st == MLA_OK && probe && !o->probe) st = mla_fail(err, MLA_EINVAL, "allocation by probe needs held-out text");
    if (st == MLA_OK) st = mla_latent_budget(&values, mla_model_config(o->solve.model), r->layout, r->budget, err); /* rotary ones included: none is set */
    if (st == MLA_OK) st = mla_choose_width(&even, &o->solve, err);
    if (st == MLA_OK) st = curves(&t, n, err);
    for (size_t i = 0; st == MLA_OK && i < n; i++) { /* where probing starts: the same shares everywhere */
        size_t most = o->solve.fit->layer[i].n;
        width[i] = even;
        rank[i] = ((size_t)values < most ? (size_t)values : most) - even;
        cost[i] = (mla_share_cost){1, 1};
    }
    for (size_t round = 0; st == MLA_OK && round < (probe ? r->allocation_rounds : 1); round++) {
        if (probe) st = mla_solve_all(sol, &so, o->balance, err);
        if (st == MLA_OK && probe) st = measure_all(cost, o, sol, rank, round, err);
        if (st == MLA_OK) st = mla_share_out(width, rank, t.curve, n, cost, (size_t)values * n, err);
    }
    if (st == MLA_OK) st = mla_solve_all(sol, &so, o->balance, err);
    for (size_t i = 0; t.curve && i < n; i++) mla_free(t.curve[i].tail);
    mla_free(t.curve);
    mla_free(t.err);
    mla_free(cost);
    return st;
}
