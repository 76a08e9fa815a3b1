/* Budgets to ranks; greedy allocation on the spectra. */
#include "retrofit/ranks.h"

#include <math.h>

mla_status mla_rank_uniform(size_t *out, const mla_config *c, mla_layout layout, size_t groups, mla_budget b, mla_err *err)
{
    size_t n, layers = mla_config_full_layers(c);
    mla_status st = mla_factors_dims(c, layout, groups, &n, err);
    if (st != MLA_OK) return st;
    double base = 2.0 * (double)c->kv_heads * (double)c->head_dim;
    double rotary = layout == MLA_LAYOUT_N ? (double)(c->kv_heads * c->rope.rot) : 0;
    int given = (b.keep > 0) + (b.rank > 0) + (b.kv_bytes > 0);
    if (given != 1) return mla_fail(err, MLA_EINVAL, "give exactly one of --keep, --rank and --kv-bytes");
    double values; /* latent values per token and layer */
    if (b.rank) values = (double)b.rank;
    else if (b.kv_bytes) values = (double)b.kv_bytes / 2 / (double)layers - rotary;
    else {
        if (b.keep > 1) return mla_fail(err, MLA_EINVAL, "--keep %g: a fraction in (0, 1]", b.keep);
        values = floor(b.keep * base + 1e-9) - rotary;
    }
    double full = (double)(n * groups);
    if (b.rank && values > full) return mla_fail(err, MLA_EINVAL, "--rank %zu: the lossless rank of this layout is %.0f", b.rank, full);
    if (values > full) values = full;
    if (values < (double)groups)
        return mla_fail(err, MLA_EINVAL, "budget too small: %.0f latent values per token beside %.0f rotary values, at least %zu needed",
                        values, rotary, groups);
    *out = (size_t)values / groups * groups;
    if (b.rank && *out != b.rank) return mla_fail(err, MLA_EINVAL, "--rank %zu: not a multiple of %zu groups", b.rank, groups);
    return MLA_OK;
}

size_t mla_rank_min(size_t uniform, size_t groups) { return uniform < 4 * groups ? groups : 4 * groups; }

/* Loss that value r + 1 of every group of this layer removes. */
static double step_gain(const mla_solution *s, size_t r)
{
    double g = 0;
    for (size_t a = 0; a < s->groups; a++) g += s->sigma[a * s->n + r];
    return g;
}

mla_status mla_rank_allocate(size_t *rank, const mla_solution *s, size_t layers, const double *eta, size_t budget, size_t min, mla_err *err)
{
    size_t used = 0;
    for (size_t i = 0; i < layers; i++) {
        rank[i] = (min + s[i].groups - 1) / s[i].groups * s[i].groups;
        if (rank[i] > s[i].n * s[i].groups) rank[i] = s[i].n * s[i].groups;
        used += rank[i];
    }
    if (used > budget) return mla_fail(err, MLA_EINVAL, "budget of %zu latent values cannot give every of %zu layers %zu", budget, layers, min);
    for (;;) {
        size_t best = layers;
        double top = -1;
        for (size_t i = 0; i < layers; i++) {
            size_t r = rank[i] / s[i].groups;
            if (r >= s[i].n || used + s[i].groups > budget) continue;
            double g = (eta ? eta[i] : 1) * step_gain(&s[i], r) / (double)s[i].groups;
            if (g > top) top = g, best = i;
        }
        if (best == layers) return MLA_OK;
        rank[best] += s[best].groups;
        used += s[best].groups;
    }
}
