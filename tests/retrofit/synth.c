/* Random but consistent layer statistics for the solver's tests. */
#include "synth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"

static void random_psd(double *a, size_t n, size_t samples, unsigned seed, double decay)
{
    for (size_t s = 0; s < samples; s++) {
        double x[512];
        for (size_t i = 0; i < n; i++) x[i] = mla_rng_normal(seed, s * n + i) * exp(-decay * (double)i / (double)n);
        double mix = 0;
        for (size_t i = 0; i < n; i++) mix += x[i] / sqrt((double)n);
        for (size_t i = 0; i < n; i++) x[i] += 0.7 * mix;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) a[i * n + j] += x[i] * x[j];
    }
}

void synth_layer(mla_layer_stats *l, size_t H, size_t G, size_t d, size_t dk, float *wo, size_t D)
{
    size_t n = G * (dk + d);
    *l = (mla_layer_stats){.layer = 3, .H = H, .G = G, .d = d, .dk = dk, .n = n, .tokens = 1000, .wsum = 1000};
    l->shift = mla_alloc(n, 1, 8);
    l->sum = mla_alloc(n, 1, 8);
    l->C = mla_alloc(n, n, 8);
    l->M = mla_alloc(G, dk * dk, 8);
    l->kappa = mla_alloc(H, H, 8);
    l->GG = mla_alloc(0, 0, 8);
    l->Q = mla_alloc(0, 0, 8);
    l->turn = mla_alloc(0, 0, 8);
    if (!l->shift || !l->sum || !l->C || !l->M || !l->kappa || !l->GG) abort();
    for (size_t i = 0; i < n; i++) l->shift[i] = mla_rng_normal(11, i);
    random_psd(l->C, n, 1000, 1, 4);
    for (size_t g = 0; g < G; g++) random_psd(l->M + g * dk * dk, dk, 400, 20 + (unsigned)g, 2);
    for (size_t h = 0; h < H; h++)
        for (size_t k = 0; k < H; k++) l->kappa[h * H + k] = h == k ? 300 : 60;
    for (size_t i = 0; i < D * H * d; i++) wo[i] = (float)mla_rng_normal(5, i) * 0.2f;
}

void synth_free(mla_layer_stats *l)
{
    mla_free(l->shift);
    mla_free(l->sum);
    mla_free(l->C);
    mla_free(l->M);
    mla_free(l->kappa);
    mla_free(l->GG);
    mla_free(l->Q);
    mla_free(l->turn);
}

double synth_objective(const mla_solution *s, const mla_factors *f)
{
    double total = 0;
    size_t n = s->n, r = f->r;
    for (size_t a = 0; a < s->groups; a++) {
        static double Q[SYNTH_N][SYNTH_N], QC[SYNTH_N][SYNTH_N];
        const float *E = f->E + a * r * n, *Dd = f->D + a * n * r;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                Q[i][j] = i == j;
                for (size_t k = 0; k < r; k++) Q[i][j] -= (double)Dd[i * r + k] * E[k * n + j];
            }
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                QC[i][j] = 0;
                for (size_t k = 0; k < n; k++) QC[i][j] += Q[i][k] * s->C[(a * n + k) * n + j];
            }
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                for (size_t k = 0; k < n; k++) total += s->Lambda[(a * n + i) * n + j] * QC[j][k] * Q[i][k];
    }
    return total;
}
