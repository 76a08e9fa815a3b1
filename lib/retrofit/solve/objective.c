/* Names of the objectives and the moments of the published ones. */
#include "retrofit/solve/objective.h"

#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"

static const struct {
    const char *name;
    bool plain, separate, weights;
} KIND[] = {
    [MLA_OBJ_OURS] = {"ours", false, false, false},
    [MLA_OBJ_SVD] = {"svd", true, true, true},
    [MLA_OBJ_JOINT_SVD] = {"joint-svd", true, false, true},
    [MLA_OBJ_COV_SEPARATE] = {"cov-separate", true, true, false},
    [MLA_OBJ_BALANCED_PCA] = {"balanced-pca", true, false, false},
};
enum { KINDS = sizeof KIND / sizeof *KIND };

const char *mla_objective_name(mla_objective o) { return KIND[o].name; }
bool mla_objective_plain(mla_objective o) { return KIND[o].plain; }
bool mla_objective_separate(mla_objective o) { return KIND[o].separate; }
bool mla_objective_weights(mla_objective o) { return KIND[o].weights; }

bool mla_objective_parse(const char *s, mla_objective *out)
{
    for (size_t i = 0; i < KINDS; i++)
        if (!strcmp(s, KIND[i].name)) {
            *out = (mla_objective)i;
            return true;
        }
    return false;
}

void mla_projections_free(mla_projections *p)
{
    mla_free(p->kv);
    mla_free(p->mu);
    *p = (mla_projections){0};
}

/* Rows of one projection to rows row0.. of kv: per KV head the last `used` of d, times the gain of their dim. */
static mla_status read_rows(mla_projections *p, const mla_model *m, mla_wkind kind, const mla_layer_stats *l, size_t row0, size_t used,
                            const float *gain, mla_err *err)
{
    mla_mat w;
    mla_status st = mla_model_mat(m, kind, l->layer, &w, err);
    if (st != MLA_OK) return st;
    float *row = mla_alloc_raw(w.in, 1, sizeof *row);
    if (!row) return mla_fail(err, MLA_ENOMEM, "row of %zu weights", w.in);
    for (size_t g = 0; st == MLA_OK && g < l->G; g++)
        for (size_t i = 0; st == MLA_OK && i < used; i++) {
            size_t dim = l->d - used + i;
            st = mla_mat_rows(&w, g * l->d + dim, 1, row, err);
            double *to = p->kv + (row0 + g * used + i) * w.in, s = gain ? gain[dim] : 1;
            for (size_t j = 0; st == MLA_OK && j < w.in; j++) to[j] = s * row[j];
        }
    mla_free(row);
    return st;
}

static mla_status read_bias(mla_projections *p, const mla_model *m, mla_wkind kind, const mla_layer_stats *l, size_t row0, size_t used, mla_err *err)
{
    float *b = NULL;
    if (!mla_model_has(m, kind, l->layer)) return MLA_OK;
    mla_status st = mla_model_vec(m, kind, l->layer, l->G * l->d, &b, err);
    for (size_t g = 0; st == MLA_OK && g < l->G; g++)
        for (size_t i = 0; i < used; i++) p->mu[row0 + g * used + i] = b[g * l->d + l->d - used + i];
    mla_free(b);
    return st;
}

mla_status mla_projections_read(mla_projections *p, const mla_model *m, const mla_layer_stats *l, mla_err *err)
{
    mla_mat w;
    float *gain = NULL;
    *p = (mla_projections){0};
    mla_status st = mla_model_mat(m, MLA_W_K, l->layer, &w, err);
    if (st != MLA_OK) return st;
    p->in = w.in;
    p->kv = mla_alloc(l->n, w.in, sizeof *p->kv);
    p->mu = mla_alloc(l->n, 1, sizeof *p->mu);
    if (!p->kv || !p->mu) st = mla_fail(err, MLA_ENOMEM, "projections of layer %zu", l->layer);
    bool norm = mla_model_has(m, MLA_W_K_NORM, l->layer);
    if (st == MLA_OK && norm) st = mla_model_vec(m, MLA_W_K_NORM, l->layer, l->d, &gain, err);
    if (st == MLA_OK) st = read_rows(p, m, MLA_W_K, l, 0, l->dk, gain, err);
    if (st == MLA_OK) st = read_rows(p, m, MLA_W_V, l, l->G * l->dk, l->d, NULL, err);
    if (st == MLA_OK && !norm) st = read_bias(p, m, MLA_W_K_BIAS, l, 0, l->dk, err); /* a bias before a norm is no constant */
    if (st == MLA_OK) st = read_bias(p, m, MLA_W_V_BIAS, l, l->G * l->dk, l->d, err);
    mla_free(gain);
    if (st != MLA_OK) mla_projections_free(p);
    return st;
}

mla_status mla_objective_moments(mla_objective o, const mla_layer_stats *l, const mla_projections *p, double *C, double *mu, double *key_weight,
                                 mla_err *err)
{
    size_t n = l->n, keys = l->G * l->dk;
    *key_weight = 1;
    if (mla_objective_weights(o)) {
        mla_dgemm(&(mla_dgemm_args){.tb = true, .M = n, .N = n, .K = p->in, .alpha = 1, .a = p->kv, .lda = p->in, .b = p->kv, .ldb = p->in,
                                    .c = C, .ldc = n});
        memcpy(mu, p->mu, n * sizeof *mu);
    } else {
        mla_stats_cov(l, C);
        mla_stats_mean(l, mu);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) C[i * n + j] += mu[i] * mu[j];
        memset(mu, 0, n * sizeof *mu);
    }
    if (o != MLA_OBJ_BALANCED_PCA) return MLA_OK;
    double k = 0, v = 0;
    for (size_t i = 0; i < n; i++) *(i < keys ? &k : &v) += C[i * n + i];
    if (!(k > 0) || !(v > 0)) return mla_fail(err, MLA_EFORMAT, "balanced PCA: mean squared norms of keys and values are %g and %g", k, v);
    *key_weight = v / k;
    return MLA_OK;
}
