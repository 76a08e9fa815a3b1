/* The value metric's roots and the keys' gains, layer by layer. */
#include "retrofit/stats/settle.h"

#include "base/alloc.h"
#include "retrofit/solve/metric.h"

mla_status mla_settle_roots(double **R, const mla_model *m, const mla_stats *s, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < s->layers; i++) {
        const mla_layer_stats *l = &s->layer[i];
        size_t blocks, dim, Hd = l->H * l->d;
        mla_metric_blocks(l->H, l->G, l->d, &blocks, &dim);
        mla_mat wo;
        if ((st = mla_model_mat(m, MLA_W_O, l->layer, &wo, err)) != MLA_OK) return st;
        float *W = mla_alloc_raw(wo.out, Hd, sizeof *W);
        double *F = mla_alloc(blocks, dim * dim, sizeof *F);
        R[i] = mla_alloc(l->H, l->d * l->d, sizeof(double));
        if (!W || !F || !R[i]) st = mla_fail(err, MLA_ENOMEM, "value metric of layer %zu", l->layer);
        if (st == MLA_OK) st = mla_mat_rows(&wo, 0, wo.out, W, err);
        if (st == MLA_OK) st = mla_metric_wo_gram(F, W, wo.out, l, err);
        if (st == MLA_OK) {
            mla_metric_gate(F, l);
            st = mla_metric_roots(R[i], F, l, err);
        }
        mla_free(W);
        mla_free(F);
    }
    return st;
}

mla_status mla_settle_gains(float **gain, const mla_model *m, const mla_stats *s, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < s->layers; i++) st = mla_model_vec(m, MLA_W_K_NORM, s->layer[i].layer, s->layer[i].d, &gain[i], err);
    return st;
}
