/* Attention moments on a device that computes them (backend.h, moments): sums of every layer stay there while rows run and
 * come back once. Inside the statistics only. */
#ifndef MLA_RETROFIT_STATS_DEVICE_H
#define MLA_RETROFIT_STATS_DEVICE_H
#include "retrofit/stats/moments.h"
#include "runtime/runtime.h"

typedef struct mla_dev_moments mla_dev_moments;
/* For `layers` layers shaped like *shape and rows of up to max_T tokens. */
MLA_CHECKED mla_status mla_dev_moments_new(mla_dev_moments **out, mla_backend *be, size_t layers, const mla_layer_stats *shape, size_t max_T,
                                           const mla_moment_opts *o, mla_err *err);
void mla_dev_moments_free(mla_dev_moments *m); /* NULL is fine */

/* Adds the moments of row a (T tokens) to layer i's sums; R (H, d, d): roots of the value metric, NULL: gate moments alone.
 * gain (dk) and inv2 (T, G) on the host as in moments.h. w (f64 (T)) on the device is set. */
MLA_CHECKED mla_status mla_dev_moments_add(mla_dev_moments *m, size_t i, const mla_tap_attn *a, size_t T, const double *R, const float *gain,
                                           const float *inv2, mla_mem *w, mla_err *err);
/* y (T, n) = the features of k and v (T, G, d): keys' latent dims of all KV heads, then all values. */
MLA_CHECKED mla_status mla_dev_features(mla_dev_moments *m, mla_mem *y, const mla_mem *k, const mla_mem *v, size_t T, mla_err *err);
/* Layer i's sums, if there are any, are added to l and end. */
MLA_CHECKED mla_status mla_dev_moments_take(mla_dev_moments *m, size_t i, mla_layer_stats *l, mla_err *err);
#endif
