/* One layer per piece of work; the first error in depth order is the one that is told. */
#include "retrofit/solve/solve_all.h"

#include "base/alloc.h"
#include "retrofit/solve/absorbed.h"

typedef struct {
    const mla_solve_all_opts *o;
    double balance;
    mla_solution *sol;
    mla_err *err;            /* one per layer */
} work;

mla_status mla_solve_one(mla_solution *s, const mla_solve_all_opts *a, size_t i, double balance, mla_err *err)
{
    const mla_layer_stats *l = &a->fit->layer[i];
    const mla_recipe *r = a->recipe;
    bool shared = r->layout == MLA_LAYOUT_ABSORBED || r->layout == MLA_LAYOUT_DEEPSEEK;
    mla_mat wo;
    mla_projections proj = {0};
    mla_solve_opts o = {.balance = balance, .groups = r->groups, .objective = r->objective, .proj = &proj, .eigen = a->eigen};
    mla_rotary_opts ro = {.width = a->width ? a->width[i] : r->rotary_width, .fold = r->freq_fold, .even_all = r->layout == MLA_LAYOUT_DEEPSEEK,
                          .gain = mla_model_config(a->model)->rope.attention_factor};
    mla_status st = mla_model_mat(a->model, MLA_W_O, l->layer, &wo, err);
    float *W = st == MLA_OK ? mla_alloc_raw(wo.out, wo.in, sizeof *W) : NULL;
    if (st == MLA_OK && !W) st = mla_fail(err, MLA_ENOMEM, "output projection of layer %zu", l->layer);
    if (st == MLA_OK) st = mla_mat_rows(&wo, 0, wo.out, W, err);
    if (st == MLA_OK && mla_objective_weights(o.objective)) st = mla_projections_read(&proj, a->model, l, err);
    if (st == MLA_OK) st = shared ? mla_solve_absorbed(s, l, W, wo.out, &o, &ro, err) : mla_solve_layer(s, l, r->layout, W, wo.out, &o, err);
    mla_free(W);
    mla_projections_free(&proj);
    return st;
}

static void solve_some(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    work *w = ctx;
    for (size_t i = b; i < e; i++) w->err[i].status = mla_solve_one(&w->sol[i], w->o, i, w->balance, &w->err[i]);
}

mla_status mla_solve_all(mla_solution *sol, const mla_solve_all_opts *o, double balance, mla_err *err)
{
    size_t n = o->fit->layers;
    for (size_t i = 0; i < n; i++) mla_solution_free(&sol[i]);
    work w = {.o = o, .balance = balance, .sol = sol, .err = mla_alloc(n, 1, sizeof *w.err)};
    if (!w.err) return mla_fail(err, MLA_ENOMEM, "solutions of %zu layers", n);
    mla_par_for(o->pool, n, 1, solve_some, &w);
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < n; i++)
        if ((st = w.err[i].status) != MLA_OK) *err = w.err[i];
    mla_free(w.err);
    return st;
}
