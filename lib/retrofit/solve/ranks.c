/* Budgets to ranks; greedy allocation on the spectra. */
#include "retrofit/solve/ranks.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"

size_t mla_rotary_values(const mla_config *c, mla_layout layout, size_t chosen)
{
    if (layout == MLA_LAYOUT_ABSORBED || layout == MLA_LAYOUT_DEEPSEEK) return chosen;
    return mla_layout_rotary(c, layout) + mla_layout_divisors(c, layout); /* and divisors: beside the latent */
}

/* Latent values beside `rotary` others (divisors counted), before any rounding or limit. */
static mla_status budget_of(double *values, const mla_config *c, double rotary, mla_budget b, mla_err *err)
{
    double base = 2.0 * (double)c->kv_heads * (double)c->head_dim;
    int given = (b.keep > 0) + (b.rank > 0) + (b.kv_bytes > 0);
    if (given != 1) return mla_fail(err, MLA_EINVAL, "give exactly one of --keep, --rank and --kv-bytes");
    if (b.keep > 1) return mla_fail(err, MLA_EINVAL, "--keep %g: a fraction in (0, 1]", b.keep);
    if (b.rank) *values = (double)b.rank;
    else if (b.kv_bytes) *values = (double)b.kv_bytes / 2 / (double)mla_config_full_layers(c) - rotary;
    else *values = floor(b.keep * base + 1e-9) - rotary;
    return MLA_OK;
}

mla_status mla_latent_budget(double *values, const mla_config *c, mla_layout layout, mla_budget b, mla_err *err)
{
    mla_status st = budget_of(values, c, (double)mla_rotary_values(c, layout, b.rotary), b, err);
    if (st == MLA_OK && layout == MLA_LAYOUT_DEEPSEEK) *values -= 1; /* the constant coordinate */
    return st;
}

/* `values` as a rank: at most `full`, a multiple of groups. */
static mla_status rank_of(size_t *out, double values, double rotary, double full, size_t groups, mla_budget b, mla_err *err)
{
    if (b.rank && values > full) return mla_fail(err, MLA_EINVAL, "--rank %zu: the lossless rank of this layout is %.0f", b.rank, full);
    if (values > full) values = full;
    if (values < (double)groups)
        return mla_fail(err, MLA_EINVAL, "budget too small: %.0f latent values per token beside %.0f others, at least %zu needed",
                        values, rotary, groups);
    *out = (size_t)values / groups * groups;
    if (b.rank && *out != (size_t)values) return mla_fail(err, MLA_EINVAL, "--rank %zu: not a multiple of %zu groups", b.rank, groups);
    return MLA_OK;
}

mla_status mla_rank_uniform(size_t *out, const mla_config *c, mla_layout layout, size_t groups, mla_budget b, mla_err *err)
{
    size_t n;
    double values, rotary = (double)mla_rotary_values(c, layout, b.rotary);
    bool slots = layout == MLA_LAYOUT_ABSORBED || layout == MLA_LAYOUT_DEEPSEEK; /* take as many dims out of the keys as they cache */
    mla_status st = mla_factors_dims(c, layout, groups, &n, err);
    if (st == MLA_OK && !slots && b.keep == 1 && !b.rank && !b.kv_bytes) b = (mla_budget){.rank = n * groups}; /* lossless, divisors or not */
    if (st == MLA_OK) st = mla_latent_budget(&values, c, layout, b, err);
    return st == MLA_OK ? rank_of(out, values, rotary, (double)(n * groups) - (slots ? rotary : 0), groups, b, err) : st;
}

mla_status mla_shared_rank(size_t *out, const mla_config *c, size_t R, mla_budget b, mla_err *err)
{
    size_t most = 2 * c->kv_heads * c->head_dim;
    double values, rotary = (double)(R * c->rope.rot);
    if (most > c->hidden) most = c->hidden;
    if (b.rank > most) return mla_fail(err, MLA_EINVAL, "--rank %zu: layout shared-rotary has use for at most %zu latent values here", b.rank, most);
    mla_status st = budget_of(&values, c, rotary, b, err);
    return st == MLA_OK ? rank_of(out, values, rotary, (double)most, 1, b, err) : st;
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

mla_status mla_rank_set_default(mla_rank_set *out, const mla_config *c, mla_layout layout, size_t groups, mla_err *err)
{
    static const size_t OF1792[] = {256, 768, 1792};
    size_t n;
    *out = (mla_rank_set){0};
    mla_status st = mla_factors_dims(c, layout, groups, &n, err);
    for (size_t i = 0; st == MLA_OK && i < sizeof OF1792 / sizeof *OF1792; i++) {
        size_t r = n * OF1792[i] / 1792 * groups; /* n per group, n < 2^30: no overflow */
        if (r && (!out->n || r > out->rank[out->n - 1])) out->rank[out->n++] = r;
    }
    return st;
}

mla_status mla_rank_set_check(const mla_rank_set *set, const mla_config *c, mla_layout layout, size_t groups, mla_err *err)
{
    size_t n;
    mla_status st = mla_factors_dims(c, layout, groups, &n, err);
    for (size_t i = 0; st == MLA_OK && i < set->n; i++)
        if (!set->rank[i] || set->rank[i] % groups || set->rank[i] > n * groups || (i && set->rank[i] <= set->rank[i - 1]))
            st = mla_fail(err, MLA_EINVAL, "rank_set: %zu: expected ascending multiples of %zu groups up to the lossless rank %zu", set->rank[i], groups, n * groups);
    return st;
}

mla_status mla_rank_in_set(size_t *out, const mla_rank_set *set, size_t rank, mla_err *err)
{
    *out = rank;
    if (!set->n) return MLA_OK;
    for (size_t i = set->n; i-- > 0;)
        if (set->rank[i] <= rank) {
            *out = set->rank[i];
            return MLA_OK;
        }
    return mla_fail(err, MLA_EINVAL, "budget too small: %zu latent values per token and layer, the smallest rank of the set is %zu", rank, set->rank[0]);
}

static size_t gcd(size_t a, size_t b)
{
    while (b) {
        size_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* best[l][b]: least loss of layers l.. with b units left; choice[l][b]: the member that layer l takes for it. */
mla_status mla_rank_allocate_set(size_t *rank, const mla_solution *s, size_t layers, const double *eta, size_t budget, const mla_rank_set *set,
                                 mla_err *err)
{
    size_t unit = 0, cells;
    for (size_t i = 0; i < set->n; i++) unit = gcd(set->rank[i], unit);
    if (!unit || layers * set->rank[0] > budget)
        return mla_fail(err, MLA_EINVAL, "budget of %zu latent values cannot give every of %zu layers the smallest rank of the set, %zu", budget, layers,
                        set->n ? set->rank[0] : 0);
    size_t B = budget / unit;
    if (!mla_mul(&cells, B + 1, layers)) return mla_fail(err, MLA_ENOMEM, "ranks of %zu layers", layers);
    unsigned char *choice = mla_alloc(cells, 1, 1);
    double *best = mla_alloc(B + 1, 2, sizeof *best); /* zero: nothing left to lose */
    if (!choice || !best) {
        mla_free(choice);
        mla_free(best);
        return mla_fail(err, MLA_ENOMEM, "ranks of %zu layers", layers);
    }
    double *next = best, *now = best + B + 1;
    for (size_t l = layers; l-- > 0;) {
        for (size_t b = 0; b <= B; b++) {
            now[b] = INFINITY;
            for (size_t i = 0; i < set->n && set->rank[i] / unit <= b; i++) {
                double v = (eta ? eta[l] : 1) * mla_solution_tail(&s[l], set->rank[i] / s[l].groups) + next[b - set->rank[i] / unit];
                if (v < now[b]) now[b] = v, choice[l * (B + 1) + b] = (unsigned char)i;
            }
        }
        double *t = next;
        next = now;
        now = t;
    }
    for (size_t l = 0, b = B; l < layers; l++) {
        rank[l] = set->rank[choice[l * (B + 1) + b]];
        b -= rank[l] / unit;
    }
    mla_free(choice);
    mla_free(best);
    return MLA_OK;
}
