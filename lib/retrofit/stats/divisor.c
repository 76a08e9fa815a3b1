/* Root mean squares of keys before their norm. */
#include "retrofit/stats/divisor.h"

#include <math.h>

#include "base/alloc.h"

void mla_divisor_add(mla_layer_stats *l, float *inv2, const float *k, size_t T, double eps)
{
    for (size_t t = 0; t < T; t++)
        for (size_t g = 0; g < l->G; g++) {
            const float *x = k + (t * l->G + g) * l->d;
            double sum = 0;
            for (size_t i = 0; i < l->d; i++) sum += (double)x[i] * x[i];
            double ms = sum / (double)l->d + eps;
            inv2[t * l->G + g] = (float)(1 / ms);
            l->divisor[g] += 0.5 * log2(ms);
        }
}

void mla_divisor_centers(const mla_layer_stats *l, float *center)
{
    for (size_t g = 0; g < l->G; g++) center[g] = (float)exp2(l->divisor[g] / l->tokens);
}

mla_status mla_divisor_guess(const mla_model *m, size_t layer, float *center, mla_err *err)
{
    const mla_config *c = mla_model_config(m);
    size_t D = c->hidden, d = c->head_dim;
    mla_mat wk;
    float *gain = NULL, *row = mla_alloc_raw(D, 1, sizeof *row);
    mla_status st = row ? mla_model_vec(m, MLA_W_INPUT_NORM, layer, D, &gain, err) : mla_fail(err, MLA_ENOMEM, "divisors of layer %zu", layer);
    if (st == MLA_OK) st = mla_model_mat(m, MLA_W_K, layer, &wk, err);
    for (size_t g = 0; st == MLA_OK && g < c->kv_heads; g++) {
        double sum = 0;
        for (size_t i = 0; st == MLA_OK && i < d; i++) {
            st = mla_mat_rows(&wk, g * d + i, 1, row, err);
            for (size_t j = 0; st == MLA_OK && j < D; j++) sum += (double)row[j] * gain[j] * ((double)row[j] * gain[j]);
        }
        center[g] = (float)sqrt(sum / (double)d);
        if (!(center[g] > 0)) center[g] = 1; /* a dead head */
    }
    mla_free(gain);
    mla_free(row);
    return st;
}
