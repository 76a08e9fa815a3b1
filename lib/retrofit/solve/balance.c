/* Trials one after the other, each kept when it is done. */
#include "retrofit/solve/balance.h"

#include <stdio.h>

#include "base/alloc.h"
#include "io/file.h"
#include "retrofit/refine/piece.h"

static mla_status trial(double *kld, mla_solution *sol, const mla_balance_opts *o, double balance, size_t rank, mla_err *err)
{
    size_t n = o->solve.fit->layers;
    mla_factors *f = mla_alloc(n, 1, sizeof *f);
    size_t *layer = mla_alloc(n, 1, sizeof *layer);
    mla_status st = f && layer ? mla_solve_all(sol, &o->solve, balance, err) : mla_fail(err, MLA_ENOMEM, "factors of %zu layers", n);
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        layer[i] = sol[i].layer;
        st = mla_solution_factors(&f[i], &sol[i], rank / sol[i].groups, false, NULL, err);
    }
    if (st == MLA_OK) st = mla_probe_kld(o->probe, kld, f, layer, n, err);
    for (size_t i = 0; f && i < n; i++) mla_factors_free(&f[i]);
    mla_free(f);
    mla_free(layer);
    return st;
}

mla_status mla_balance_scan(double *balance, mla_solution *sol, const mla_balance_opts *o, mla_err *err)
{
    const mla_recipe *r = o->solve.recipe;
    double best = 0, base = mla_recipe_balance(r->layout);
    size_t rank;
    mla_progress prog = mla_progress_begin(o->log, "balance", MLA_BALANCE_TRIALS, "trials");
    mla_status st = mla_rank_uniform(&rank, mla_model_config(o->solve.model), r->layout, r->groups, r->budget, err);
    if (st == MLA_OK) st = mla_rank_in_set(&rank, &r->rank_set, rank, err);
    for (size_t k = 0; st == MLA_OK && k < MLA_BALANCE_TRIALS; k++) {
        double b = base * 0.25 * (double)(1u << k), kld;
        char name[64], *path = NULL;
        snprintf(name, sizeof name, "balance-%zu.safetensors", k);
        if (o->dir && !(path = mla_path_join(o->dir, name))) st = mla_fail(err, MLA_ENOMEM, "path of %s", name);
        if (st == MLA_OK && !(path && mla_piece_read_numbers(path, &kld, 1))) {
            st = trial(&kld, sol, o, b, rank, err);
            if (st == MLA_OK && path) st = mla_piece_write_numbers(path, &kld, 1, err);
        }
        mla_free(path);
        if (st != MLA_OK) break;
        mla_info(o->log, "balance %g: KLD %.5f", b, kld);
        if (k == 0 || kld < best) best = kld, *balance = b;
        mla_progress_add(&prog, 1);
    }
    if (st == MLA_OK) mla_progress_end(&prog);
    return st;
}
