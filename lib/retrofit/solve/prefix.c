/* Ranks asked for, checked against what a factors file can serve, and the prefixes taken. */
#include "retrofit/solve/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static bool has_budget(const mla_recipe *r) { return r->budget.keep > 0 || r->budget.rank || r->budget.kv_bytes; }

/* Spectra as the allocator wants them. */
static mla_status allocate(size_t *rank, const mla_factor_source *src, size_t uniform, const mla_rank_set *set, mla_err *err)
{
    mla_solution *s = mla_alloc(src->layers, 1, sizeof *s);
    if (!s) return mla_fail(err, MLA_ENOMEM, "ranks of %zu layers", src->layers);
    size_t groups = src->layer[0].f.groups;
    for (size_t i = 0; i < src->layers; i++)
        s[i] = (mla_solution){.groups = src->layer[i].f.groups, .n = src->layer[i].f.n, .sigma = src->layer[i].sigma};
    mla_status st = set->n ? mla_rank_allocate_set(rank, s, src->layers, NULL, uniform * src->layers, set, err)
                           : mla_rank_allocate(rank, s, src->layers, NULL, uniform * src->layers, mla_rank_min(uniform, groups), err);
    mla_free(s);
    return st;
}

static mla_status choose(size_t *rank, const mla_factor_source *src, const mla_config *c, const mla_prefix_opts *o, mla_err *err)
{
    const mla_factors *f = &src->layer[0].f;
    size_t uniform, at;
    if (o->rank) {
        if (o->n_rank != src->layers)
            return mla_fail(err, MLA_EINVAL, "--ranks: %zu given, the model has %zu full-attention layers", o->n_rank, src->layers);
        memcpy(rank, o->rank, o->n_rank * sizeof *rank);
        return MLA_OK;
    }
    for (size_t i = 0; i < src->layers; i++) rank[i] = src->layer[i].f.groups * src->layer[i].f.r;
    if (!has_budget(o->recipe)) return MLA_OK;
    mla_budget b = o->recipe->budget;
    b.rotary = f->w;
    mla_layout layout = o->recipe->layout == MLA_LAYOUT_DEEPSEEK ? MLA_LAYOUT_DEEPSEEK : f->layout; /* which spends a value on its constant */
    mla_status st = mla_rank_uniform(&uniform, c, layout, f->groups, b, err);
    if (st == MLA_OK) st = mla_rank_in_set(&at, &o->recipe->rank_set, uniform, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < src->layers; i++) rank[i] = at;
    if (o->recipe->allocation == MLA_ALLOC_UNIFORM || o->recipe->allocation == MLA_ALLOC_AUTO || uniform == f->groups * f->n) return MLA_OK;
    if (o->recipe->allocation != MLA_ALLOC_SPECTRUM)
        return mla_fail(err, MLA_EINVAL, "--allocation probe runs the model over text: use build, or give the ranks it chose with --ranks");
    if (!src->nested) return mla_fail(err, MLA_EINVAL, "--allocation spectrum needs the spectra: solve the factors with --nested");
    return allocate(rank, src, uniform, &o->recipe->rank_set, err);
}

static bool is_identity(const mla_factors *f)
{
    for (size_t a = 0; a < f->groups; a++)
        for (size_t i = 0; i < f->r; i++)
            for (size_t j = 0; j < f->n; j++)
                if (f->E[(a * f->r + i) * f->n + j] != (i == j)) return false;
    return true;
}

static mla_status check(const mla_factor_source *src, size_t i, size_t rank, mla_err *err)
{
    const mla_nested *ne = &src->layer[i];
    size_t g = ne->f.groups, own = g * ne->f.r, full = g * ne->f.n;
    if (rank == 0 || rank % g || (rank > own && (!src->nested || rank != full)))
        return mla_fail(err, MLA_EINVAL, "layer %zu: rank %zu, the factors serve multiples of %zu up to %zu", ne->layer, rank, g, own);
    if (rank == own) return MLA_OK;
    if (src->refined)
        return mla_fail(err, MLA_EINVAL, "layer %zu: the factors were refined after solving (%s) and are exact at their own rank %zu only, not at %zu: "
                        "solve and refine at that rank", ne->layer, src->refined, own, rank);
    if (!src->nested && ne->f.r == ne->f.n && is_identity(&ne->f))
        return mla_fail(err, MLA_EINVAL, "layer %zu: the factors are the identity of full rank, whose directions have no order: solve with --nested", ne->layer);
    return MLA_OK;
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* What the spectrum says of these ranks. */
static mla_status describe(mla_layer_result *r, const mla_nested *ne, size_t per, mla_err *err)
{
    if (!ne->sigma) return MLA_OK;
    double total = mla_nested_tail(ne, 0);
    r->energy = total;
    r->predicted = total > 0 ? mla_nested_tail(ne, per) / total : 0;
    r->k_share = per == ne->f.n ? (double)ne->keys / (double)ne->f.n : mla_nested_k_share(ne, per);
    r->n_spectrum = ne->f.groups * ne->f.n;
    r->spectrum = mla_alloc_raw(r->n_spectrum, 1, sizeof *r->spectrum);
    if (!r->spectrum) return mla_fail(err, MLA_ENOMEM, "spectrum of layer %zu", ne->layer);
    memcpy(r->spectrum, ne->sigma, r->n_spectrum * sizeof *r->spectrum);
    qsort(r->spectrum, r->n_spectrum, sizeof *r->spectrum, descending);
    return MLA_OK;
}

static mla_status take(mla_factors *f, const mla_factor_source *src, const mla_config *c, size_t i, size_t per, mla_err *err)
{
    const mla_nested *ne = &src->layer[i];
    if (src->nested) return mla_nested_factors(f, ne, per, !src->f32, NULL, err);
    mla_status st = ne->f.w ? mla_factors_new_absorbed(f, c, ne->f.w, per, err) : mla_nested_new(f, ne, per, err);
    if (st == MLA_OK) mla_nested_cut(f, ne);
    return st;
}

/* Width (the largest of all layers) and folding (the same in all) of the rotary slots. */
static mla_status note_slots(mla_factorization *out, const mla_factors *f, size_t rot, mla_err *err)
{
    size_t fold, *freq = mla_alloc(f->w / 2, 1, sizeof *freq);
    mla_status st = freq ? mla_factors_slots(freq, &fold, f, rot, err) : mla_fail(err, MLA_ENOMEM, "%zu rotary slots", f->w / 2);
    mla_free(freq);
    if (st != MLA_OK) return st;
    if (fold > out->freq_fold) out->freq_fold = fold;
    if (f->w > out->rotary_width) out->rotary_width = f->w;
    return MLA_OK;
}

mla_status mla_prefix(mla_factorization *out, const mla_factor_source *src, const mla_config *c, const mla_prefix_opts *o, mla_str *note, mla_err *err)
{
    size_t n = src->layers, cut = 0;
    *out = (mla_factorization){.f32 = src->f32};
    size_t *rank = mla_alloc(n, 1, sizeof *rank);
    out->factors = mla_alloc(n, 1, sizeof *out->factors);
    out->result = mla_alloc(n, 1, sizeof *out->result);
    mla_status st = rank && out->factors && out->result ? MLA_OK : mla_fail(err, MLA_ENOMEM, "factors of %zu layers", n);
    if (st == MLA_OK) st = choose(rank, src, c, o, err);
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        size_t g = src->layer[i].f.groups;
        if ((st = check(src, i, rank[i], err)) != MLA_OK) break;
        out->layers = i + 1;
        out->result[i] = (mla_layer_result){.layer = src->layer[i].layer, .rank = rank[i], .rotary = src->layer[i].f.w, .predicted = -1, .held_out = -1, .exact = -1};
        cut += rank[i] < g * src->layer[i].f.r;
        st = take(&out->factors[i], src, c, i, rank[i] / g, err);
        if (st == MLA_OK && out->factors[i].w) st = note_slots(out, &out->factors[i], c->rope.rot, err);
        if (st == MLA_OK) st = describe(&out->result[i], &src->layer[i], rank[i] / g, err);
    }
    if (st == MLA_OK && cut && !src->nested && !src->f32)
        mla_str_printf(note, "%zu of %zu layers cut below the rank of bf16 factors: encoders are those of that rank, decoders keep the fit of the larger "
                       "one; factors solved with --nested give the bytes of a build at that rank", cut, n);
    mla_free(rank);
    if (st != MLA_OK) mla_factorization_free(out);
    return st;
}
