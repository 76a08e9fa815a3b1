/* Trials of widths, one layer per piece of work. */
#include "retrofit/solve/width.h"

#include <math.h>

#include "retrofit/solve/absorbed.h"

enum { WIDTHS = 7, LAYERS = 8 };

typedef struct {
    const mla_solve_all_opts *o;
    double balance;
    size_t total, layers;            /* values per token; layers tried */
    double loss[LAYERS][WIDTHS];     /* share of the layer's energy; infinite: not possible */
    mla_err err[LAYERS];
} trial;

static size_t width_of(const trial *t, size_t k)
{
    const mla_layer_stats *l = t->o->fit->layer;
    size_t w = t->total * (k + 1) / (WIDTHS + 1) / 2 * 2, most = l->G * 2 * l->half;
    return w > most ? most : w;
}

static void try_widths(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    trial *t = ctx;
    for (size_t at = b; at < e; at++) {
        mla_recipe r = *t->o->recipe;
        mla_solve_all_opts o = *t->o;
        o.recipe = &r;
        t->err[at].status = MLA_OK;
        for (size_t k = 0; t->err[at].status == MLA_OK && k < WIDTHS; k++) {
            mla_solution s = {0};
            r.rotary_width = width_of(t, k);
            t->loss[at][k] = INFINITY;
            if (r.rotary_width < 2) continue;
            size_t rank = t->total - r.rotary_width;
            t->err[at].status = mla_solve_one(&s, &o, at * o.fit->layers / t->layers, t->balance, &t->err[at]);
            if (t->err[at].status == MLA_OK) /* a layer that nothing reaches counts for nothing */
                t->loss[at][k] = s.absorbed->energy > 0 ? mla_solution_tail(&s, rank > s.n ? s.n : rank) / s.absorbed->energy : 0;
            mla_solution_free(&s);
        }
    }
}

mla_status mla_choose_width(size_t *width, const mla_solve_all_opts *o, mla_err *err)
{
    mla_budget b = o->recipe->budget;
    double values, best = INFINITY;
    b.rotary = 0;
    mla_status st = mla_latent_budget(&values, mla_model_config(o->model), o->recipe->layout, b, err);
    if (st != MLA_OK) return st;
    if (!(values >= 4)) return mla_fail(err, MLA_EINVAL, "budget too small: %.0f values per token and layer for latent and rotary keys", values);
    trial t = {.o = o, .balance = o->recipe->balance > 0 ? o->recipe->balance : 1, .total = (size_t)values,
               .layers = o->fit->layers < LAYERS ? o->fit->layers : LAYERS};
    mla_par_for(o->pool, t.layers, 1, try_widths, &t);
    if ((st = mla_first_error(t.err, t.layers, err)) != MLA_OK) return st;
    *width = 0;
    for (size_t k = 0; k < WIDTHS; k++) {
        double sum = 0;
        for (size_t i = 0; i < t.layers; i++) sum += t.loss[i][k];
        if (sum < best) best = sum, *width = width_of(&t, k);
    }
    return *width ? MLA_OK : mla_fail(err, MLA_EINVAL, "budget too small for rotary keys beside a latent");
}
