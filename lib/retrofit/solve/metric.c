/* Gram of the output projection, gate moments and their square roots. */
#include "retrofit/solve/metric.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/eigh.h"
#include "linalg/gemm.h"

#define FULL_MAX 2048 /* above this, (H d)^2 blocks across KV groups cost more than they carry */

void mla_metric_blocks(size_t H, size_t G, size_t d, size_t *blocks, size_t *dim)
{
    bool full = H * d <= FULL_MAX;
    *blocks = full ? 1 : G;
    *dim = full ? H * d : H / G * d;
}

enum { ROWS = 256 };

/* F (dim, dim) += the Gram of columns [at, at + dim) of wo (D, ld), in panels of ROWS widened into x (ROWS, dim). */
static void add_gram(double *F, double *x, const float *wo, size_t D, size_t ld, size_t at, size_t dim)
{
    for (size_t r0 = 0; r0 < D; r0 += ROWS) {
        size_t n = D - r0 < ROWS ? D - r0 : ROWS;
        for (size_t r = 0; r < n; r++)
            for (size_t i = 0; i < dim; i++) x[r * dim + i] = wo[(r0 + r) * ld + at + i];
        mla_dgemm(&(mla_dgemm_args){.ta = true, .M = dim, .N = dim, .K = n, .alpha = 1, .a = x, .lda = dim, .b = x, .ldb = dim, .beta = 1, .c = F, .ldc = dim});
    }
}

mla_status mla_metric_wo_gram(double *WW, const float *wo, size_t D, const mla_layer_stats *l, mla_err *err)
{
    size_t blocks, dim;
    mla_metric_blocks(l->H, l->G, l->d, &blocks, &dim);
    memset(WW, 0, blocks * dim * dim * sizeof *WW);
    double *x = mla_alloc_raw(ROWS, dim, sizeof *x);
    if (!x) return mla_fail(err, MLA_ENOMEM, "Gram of the output projection, %zu dims", dim);
    for (size_t b = 0; b < blocks; b++) add_gram(WW + b * dim * dim, x, wo, D, l->H * l->d, b * dim, dim);
    mla_free(x);
    return MLA_OK;
}

void mla_metric_gate(double *WW, const mla_layer_stats *l)
{
    if (!l->gate_blocks || l->tokens <= 0) return;
    size_t n = l->gate_blocks * l->gate_dim * l->gate_dim;
    for (size_t i = 0; i < n; i++) WW[i] *= l->GG[i] / l->tokens;
}

void mla_metric_value(double *L, const double *F, const mla_layer_stats *l)
{
    size_t blocks, dim, m = l->H / l->G, d = l->d, ld = l->G * d;
    mla_metric_blocks(l->H, l->G, d, &blocks, &dim);
    memset(L, 0, ld * ld * sizeof *L);
    size_t per = l->H / blocks; /* heads per block */
    for (size_t h = 0; h < l->H; h++)
        for (size_t k = 0; k < l->H; k++) {
            if (h / per != k / per) continue;
            const double *Fb = F + (h / per) * dim * dim + (h % per) * d * dim + (k % per) * d;
            double kap = l->kappa[h * l->H + k] / l->tokens;
            double *Lb = L + h / m * d * ld + k / m * d;
            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < d; j++) Lb[i * ld + j] += kap * Fb[i * dim + j];
        }
}

/* The gate moments' share of head h's own block. */
static void gate_head(double *F, size_t h, const mla_layer_stats *l)
{
    if (!l->gate_blocks || l->tokens <= 0) return;
    size_t d = l->d, dim = l->gate_dim, per = dim / d;
    const double *GG = l->GG + h / per * dim * dim + h % per * (d * dim + d);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) F[i * d + j] *= GG[i * dim + j] / l->tokens;
}

mla_status mla_metric_root(double *R, const float *wo, size_t D, size_t h, const mla_layer_stats *l, mla_err *err)
{
    size_t d = l->d;
    double *a = mla_alloc(d, d, sizeof *a), *x = mla_alloc_raw(ROWS, d, sizeof *x), *w = mla_alloc(d, 1, sizeof *w);
    mla_status st = a && x && w ? MLA_OK : mla_fail(err, MLA_ENOMEM, "value metric of %zu dims", d);
    if (st == MLA_OK) {
        add_gram(a, x, wo, D, l->H * d, h * d, d);
        gate_head(a, h, l);
        st = mla_eigh(a, w, d, err);
    }
    memset(R, 0, d * d * sizeof *R);
    for (size_t k = 0; st == MLA_OK && k < d; k++) {
        double s = w[k] > 0 ? sqrt(w[k]) : 0;
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++) R[i * d + j] += s * a[k * d + i] * a[k * d + j];
    }
    mla_free(a);
    mla_free(x);
    mla_free(w);
    return st == MLA_OK ? st : mla_wrap(err, "value metric of head %zu", h);
}
