/* Closed-form factors with one part of the objective taken away at a time, for bench_quality to measure.
 *
 * usage: bench_ablation BASE STATS PLAIN_STATS keep OUT_PREFIX
 * STATS: mla-retrofit stats, PLAIN_STATS: the same with --objective svd (every token weighs 1). Layout n or rebuild, one rank for
 * all layers, f32. Writes OUT_PREFIX.NAME.safetensors and prints NAME and what was taken away, one line each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lab.h"
#include "linalg/gemm.h"
#include "retrofit/build/graft.h"
#include "retrofit/solve/ranks.h"
#include "retrofit/build/recipe.h"
#include "retrofit/stats/stats_file.h"
#include "tensor/fp.h"

typedef enum { WHOLE, TOKENS, MEAN, KAPPA, GATE, KEYS, VALUES, METRIC, BF16, NO_REFIT, VARIANTS } variant;
static const char *const NAME[VARIANTS] = {"whole", "tokens", "mean", "kappa", "gate", "keys", "values", "metric", "bf16", "no-refit"};
static const char *const WHAT[VARIANTS] = {
    "closed form, f32", "every token weighs the same", "no mean: moments about zero", "kappa on the diagonal only: heads attend apart",
    "no gate in the values' metric", "keys: no query metric (a multiple of I per head)", "values: no W_O metric (a multiple of I)",
    "neither metric (one multiple of I for keys, one for values)", "bf16", "bf16, the decoder not refitted to the rounded encoder"};

/* Features [b, e) of Lambda (n, n) := their mean diagonal times I. */
static void flatten(double *Lambda, size_t n, size_t b, size_t e)
{
    double mean = 0;
    for (size_t i = b; i < e; i++) mean += Lambda[i * n + i] / (double)(e - b);
    for (size_t i = b; i < e; i++)
        for (size_t j = b; j < e; j++) Lambda[i * n + j] = i == j ? mean : 0;
}

/* Edits of the statistics: l is a copy that shares its arrays, so they are replaced and not written to. */
static void edit_stats(mla_layer_stats *l, const mla_layer_stats *plain, double *kappa, variant v)
{
    if (v == TOKENS) l->shift = plain->shift, l->sum = plain->sum, l->C = plain->C, l->wsum = plain->wsum;
    if (v == GATE) l->gate_blocks = 0;
    if (v != KAPPA) return;
    for (size_t i = 0; i < l->H * l->H; i++) kappa[i] = i / l->H == i % l->H ? l->kappa[i] : 0;
    l->kappa = kappa;
}

/* Edits of the problem. */
static void edit_problem(mla_solution *s, const mla_layer_stats *l, variant v)
{
    size_t n = s->n;
    for (size_t a = 0; a < s->groups; a++) {
        double *L = s->Lambda + a * n * n, *C = s->C + a * n * n, *mu = s->mu + a * n;
        if (v == KEYS) for (size_t k = 0; k < s->keys; k += l->dk) flatten(L, n, k, k + l->dk);
        if (v == METRIC) flatten(L, n, 0, s->keys);
        if (v == VALUES || v == METRIC) flatten(L, n, s->keys, n);
        for (size_t i = 0; v == MEAN && i < n * n; i++) C[i] += mu[i / n] * mu[i % n];
        if (v == MEAN) memset(mu, 0, n * sizeof *mu);
    }
}

static void one(mla_factors *f, const mla_model *m, const mla_recipe *r, const mla_layer_stats *of, const mla_layer_stats *plain, size_t rank, variant v)
{
    static const mla_eigen host = {0};
    mla_err err = {0};
    mla_layer_stats l = *of;
    mla_solution s, t;
    mla_mat wo;
    lab_must(mla_model_mat(m, MLA_W_O, l.layer, &wo, &err), &err);
    float *W = mla_alloc_raw(wo.out, wo.in, sizeof *W);
    double *kappa = mla_alloc(l.H, l.H, sizeof *kappa);
    if (!W || !kappa) lab_must(mla_fail(&err, MLA_ENOMEM, "layer %zu", l.layer), &err);
    lab_must(mla_mat_rows(&wo, 0, wo.out, W, &err), &err);
    edit_stats(&l, plain, kappa, v);
    lab_must(mla_solve_layer(&s, &l, r->layout, W, wo.out, &(mla_solve_opts){.balance = r->balance, .groups = r->groups}, &err), &err);
    edit_problem(&s, &l, v);
    lab_must(mla_solution_of(&t, &s, s.C, &host, NULL, &err), &err);
    lab_must(mla_solution_factors(f, &t, rank / r->groups, v == BF16, NULL, &err), &err);
    for (size_t i = 0; v == NO_REFIT && i < f->groups * f->r * f->n; i++) {
        f->E[i] = mla_bf16_f32(mla_f32_bf16(f->E[i]));
        f->D[i] = mla_bf16_f32(mla_f32_bf16(f->D[i]));
    }
    mla_solution_free(&s);
    mla_solution_free(&t);
    mla_free(W);
    mla_free(kappa);
}

int main(int argc, char **argv)
{
    mla_blas_settle(argv);
    if (argc != 6) {
        fprintf(stderr, "usage: bench_ablation BASE STATS PLAIN_STATS keep OUT_PREFIX\n");
        return 2;
    }
    mla_err err = {0};
    mla_model *m;
    mla_stats st, plain;
    size_t rank;
    mla_recipe r = mla_recipe_default();
    lab_must(mla_model_open(&m, argv[1], &err), &err);
    lab_must(mla_stats_read(&st, argv[2], &err), &err);
    lab_must(mla_stats_read(&plain, argv[3], &err), &err);
    bool fit = !st.plain && plain.plain && st.layout == plain.layout && st.layers == plain.layers && (!st.layers || st.layer[0].n == plain.layer[0].n);
    if (!fit) lab_must(mla_fail(&err, MLA_EINVAL, "%s and %s: expected attention and plain weights of one model and layout", argv[2], argv[3]), &err);
    r.layout = st.layout;
    r.budget.keep = strtod(argv[4], NULL);
    lab_must(mla_recipe_resolve(&r, mla_model_config(m), &err), &err);
    lab_must(mla_rank_uniform(&rank, mla_model_config(m), r.layout, r.groups, r.budget, &err), &err);
    mla_factorization f = {.layers = st.layers, .f32 = true, .factors = mla_alloc(st.layers, 1, sizeof *f.factors),
                           .result = mla_alloc(st.layers, 1, sizeof *f.result)};
    if (!f.factors || !f.result) lab_must(mla_fail(&err, MLA_ENOMEM, "%zu layers", st.layers), &err);
    for (variant v = WHOLE; v < VARIANTS; v++) {
        char path[4096];
        unsigned char digest[32];
        snprintf(path, sizeof path, "%s.%s.safetensors", argv[5], NAME[v]);
        for (size_t i = 0; i < st.layers; i++) {
            mla_factors_free(&f.factors[i]);
            one(&f.factors[i], m, &r, &st.layer[i], &plain.layer[i], rank, v);
            f.result[i].layer = st.layer[i].layer;
        }
        lab_must(mla_factors_write(path, m, &f, digest, &err), &err);
        printf("%s %s\n", NAME[v], WHAT[v]);
    }
    mla_factorization_free(&f);
    mla_stats_free(&st);
    mla_stats_free(&plain);
    mla_model_close(m);
    return 0;
}
