/* What a build would do, from headers alone: ranks, cached values and bytes per token, factor sizes, memory and disk.
 * It refuses whatever build would refuse at reading. */
#ifndef MLA_RETROFIT_PLAN_H
#define MLA_RETROFIT_PLAN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/json.h"
#include "model/model.h"
#include "retrofit/build/recipe.h"

#define MLA_PLAN_PRICES 17

typedef struct { /* one way to spend the planned values per token and layer */
    mla_layout layout;
    size_t keys;                        /* shared rotary keys per frequency; 0: exact ones of every KV head */
    size_t rotary, latent;
} mla_plan_price;

typedef struct {
    size_t full_layers, linear_layers;
    size_t rank, features, groups;      /* latent values per token and layer, lossless count (0: none is), groups */
    size_t rotary_values, divisors;     /* cached beside the latent, per token and layer */
    size_t base_values, cached_values;  /* per token and layer */
    bool shares;                        /* absorbed-rope: rank and rotary values are of no layer, only their sum on average is */
    uint64_t base_kv_bytes, kv_bytes;   /* per token over all layers, bf16 */
    uint64_t factor_bytes;              /* added weights */
    uint64_t base_bytes;                /* stored weights of the base */
    uint64_t stats_bytes;               /* fp64 sums in memory while building */
    uint64_t peak_bytes;                /* estimate: weights as held + sums + activations of a row */
    uint64_t work_bytes;                /* on disk while building: activations recorded for refinement */
    uint64_t disk_new_bytes;            /* when shards can be linked */
    mla_plan_price price[MLA_PLAN_PRICES]; /* models with partial rotation: layouts n, exact and with shared rotary keys, and shared-rotary at the same bytes */
    size_t n_price;
    double forward_flops;               /* of the calibration pass */
} mla_plan;

MLA_CHECKED mla_status mla_plan_make(mla_plan *out, const mla_model *m, const mla_recipe *r /* resolved */, mla_err *err);
void mla_plan_to_json(const mla_plan *p, const mla_recipe *r, mla_jv *obj);
void mla_plan_table(const mla_plan *p, const mla_recipe *r, mla_str *out);
#endif
