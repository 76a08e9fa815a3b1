/* What the factors of a layer minimize: ours (solve.h), or a published method for comparison, as its papers and code define
 * it, inside the same layouts and without the losses it has elsewhere (no rotary approximation, no bf16 factors by force).
 *
 *   name           second moment C of the features y        metric Lambda          latent
 *   svd            W W^T, W = rows of W_K and W_V            I                      K and V apart, equal ranks
 *   joint-svd      W W^T                                     I                      joint        (MHA2MLA)
 *   cov-separate   E[y y^T] = W E[x x^T] W^T                 I                      K and V apart, equal ranks (CARE-U, SVD-LLM)
 *   balanced-pca   E[y y^T]                                  blockdiag(1/a I, I)    joint        (TransMLA)
 *   ours           token-weighted covariance                 queries and W_O        joint, mu exact
 *
 * a = E|k|^2 / E|v|^2 over the whole layer: TransMLA's ratio as its paper gives it, after which keys and values hold equal
 * energy (its code's ratio of mean column norms does 1-2 % worse on the bundled model). The moments of the published kinds are uncentred and count every token alike: statistics with plain weights.
 * W is the projection's row times the gain of k_norm where there is one; its biases become mu, which costs nothing.
 * Sources: design notes, algorithms 1.1, 2, 3.1, 4.2, 7.3. */
#ifndef MLA_RETROFIT_OBJECTIVE_H
#define MLA_RETROFIT_OBJECTIVE_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "model/model.h"
#include "retrofit/stats/stats.h"

typedef enum { MLA_OBJ_OURS, MLA_OBJ_SVD, MLA_OBJ_JOINT_SVD, MLA_OBJ_COV_SEPARATE, MLA_OBJ_BALANCED_PCA } mla_objective;

const char *mla_objective_name(mla_objective o);
bool mla_objective_parse(const char *s, mla_objective *out);
bool mla_objective_plain(mla_objective o);    /* reads statistics with plain token weights: all but ours */
bool mla_objective_separate(mla_objective o); /* K and V apart */
bool mla_objective_weights(mla_objective o);  /* C comes from the projections, not from tokens */

/* Effective projections of a layer: kv (n, in) in the order of the statistics' features, mu (n) their biases. */
typedef struct {
    size_t in;
    double *kv, *mu;
} mla_projections;
MLA_CHECKED mla_status mla_projections_read(mla_projections *out, const mla_model *m, const mla_layer_stats *shape, mla_err *err);
void mla_projections_free(mla_projections *p); /* zeroed struct is fine */

/* C (n, n), mu (n) of a published objective over all features of the layer, and the factor on the key part of its metric
 * (1 on values). p: needed when mla_objective_weights, else NULL. */
MLA_CHECKED mla_status mla_objective_moments(mla_objective o, const mla_layer_stats *l, const mla_projections *p, double *C, double *mu,
                                             double *key_weight, mla_err *err);
#endif
