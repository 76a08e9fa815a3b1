/* Folding: KV scales moved into the weights around the cache, so that an FP8 cache at scale 1.0 is right. The only way into an
 * engine that loads no scale for its layers (vLLM 0.33 and latents; docs/format-kv-scales.md).
 *
 * A part of the cache with scale s is divided by p = 2^ceil(log2 s) >= s on its way in and multiplied on its way out:
 *   values             v_proj / p              o_proj * p
 *   normalised keys    k_norm gain / p         q_norm gain * p      (a retrofit's rotary keys: the rotated dims alone)
 *   plain keys         k_proj / p              q_proj * p
 *   latent             encoder / p             decoder * p
 * Exact in real arithmetic, and in every float format, since p is a power of two. Not so gains stored as 1 + w: a gain of 1/32 would
 * be kept as -0.97, with two digits left. Keys under such a norm are cached as they are, p = 1, wherever that saturates nothing
 * (s <= 1: normalised keys cannot exceed sqrt(d) max|gain|, far below 448): a float format loses nothing by room above. */
#ifndef MLA_CALIBRATE_FOLD_H
#define MLA_CALIBRATE_FOLD_H
#include "base/err.h"
#include "base/log.h"
#include "model/model.h"

typedef struct {
    size_t layers, tensors; /* folded */
    size_t rewritten;       /* weight files; the others are linked */
    size_t rounded;         /* values that are not exactly the old ones times a power of two */
    double worst;           /* largest relative change by rounding */
} mla_fold_sum;

/* m: a calibrated folder. Writes the new folder out: weight files with folded tensors rewritten, the others linked, no scales,
 * config.json with "mla_kv_scales" {folded: true}, a receipt where m has one. out appears when it is whole. Refused by name: a layer
 * without scales, a quantized matrix that would have to change, layout p, a value that leaves its format. */
MLA_CHECKED mla_status mla_fold(const mla_model *m, const char *out, mla_log *log, mla_fold_sum *sum, mla_err *err);
#endif
