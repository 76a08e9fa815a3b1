/* Budget -> uniform rank -> ranks per layer. */
#include "retrofit/solve/rounds.h"

#include <stdio.h>

#include "base/alloc.h"
#include "io/file.h"
#include "retrofit/refine/piece.h"

/* Sensitivities at `rank`: from the piece of an earlier, killed build, or measured and kept. */
static mla_status sensitivities(double *eta, const mla_rounds_opts *o, const size_t *rank, size_t round, mla_err *err)
{
    char name[64], *path = NULL;
    snprintf(name, sizeof name, "sensitivity-%zu.safetensors", round);
    if (o->dir && !(path = mla_path_join(o->dir, name))) return mla_fail(err, MLA_ENOMEM, "path of %s", name);
    mla_status st = MLA_OK;
    if (!path || !mla_piece_read_numbers(path, eta, o->layers)) {
        st = mla_probe_eta(o->probe, eta, o->sol, rank, o->layers, err);
        if (st == MLA_OK && path) st = mla_piece_write_numbers(path, eta, o->layers, err);
    }
    mla_free(path);
    return st;
}

static mla_status allocate(size_t *rank, const mla_rounds_opts *o, const double *eta, size_t uniform, mla_err *err)
{
    size_t n = o->layers;
    const mla_rank_set *set = &o->recipe->rank_set;
    if (set->n) return mla_rank_allocate_set(rank, o->sol, n, eta, uniform * n, set, err);
    return mla_rank_allocate(rank, o->sol, n, eta, uniform * n, mla_rank_min(uniform, o->recipe->groups), err);
}

mla_status mla_choose_ranks(size_t *rank, const mla_rounds_opts *o, mla_err *err)
{
    const mla_recipe *r = o->recipe;
    const mla_rank_set *set = &r->rank_set;
    size_t uniform, at, n = o->layers; /* at: where all layers stand when ranks are uniform, and where probing starts */
    mla_status st = mla_rank_uniform(&uniform, mla_model_config(o->model), r->layout, r->groups, r->budget, err);
    if (st == MLA_OK) st = mla_rank_in_set(&at, set, uniform, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < n; i++) rank[i] = at;
    if (r->allocation == MLA_ALLOC_SPECTRUM) return allocate(rank, o, NULL, uniform, err);
    if (r->allocation != MLA_ALLOC_PROBE) return MLA_OK;
    if (!o->probe) return mla_fail(err, MLA_EINVAL, "allocation by probe needs held-out text");
    double *eta = mla_alloc(n, 1, sizeof *eta);
    if (!eta) return mla_fail(err, MLA_ENOMEM, "sensitivities of %zu layers", n);
    for (size_t round = 0; st == MLA_OK && round < r->allocation_rounds; round++) {
        st = sensitivities(eta, o, rank, round, err);
        if (st == MLA_OK) st = allocate(rank, o, eta, uniform, err);
    }
    mla_free(eta);
    return st;
}
