/* A recipe: every choice that decides the bytes of a build, as JSON (configs/README.md explains each field).
 * The command line overrides fields; the receipt records the recipe as it was used. */
#ifndef MLA_RETROFIT_RECIPE_H
#define MLA_RETROFIT_RECIPE_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "io/json.h"
#include "model/config.h"
#include "retrofit/solve/objective.h"
#include "retrofit/solve/ranks.h"

#define MLA_RECIPE_SCHEMA "mla-recipe/1"

typedef enum {
    MLA_FACTORS_AUTO,   /* bf16 where rounding costs nothing that can be measured, f32 otherwise */
    MLA_FACTORS_BF16,
    MLA_FACTORS_F32
} mla_factors_dtype;

typedef enum {
    MLA_ALLOC_AUTO,     /* probe where there is held-out text, uniform otherwise */
    MLA_ALLOC_UNIFORM,  /* one rank for all layers */
    MLA_ALLOC_SPECTRUM, /* by the spectra alone, all layers' errors counting alike */
    MLA_ALLOC_PROBE     /* by the spectra and each layer's measured sensitivity (probe.h) */
} mla_allocation;

typedef struct {
    mla_layout layout;          /* MLA_LAYOUT_NONE: N where RoPE is partial, rebuild otherwise */
    size_t groups;
    mla_budget budget;
    size_t calibration_tokens;  /* at most; the corpus may hold fewer */
    size_t row_tokens;
    mla_objective objective;
    double balance;             /* 0: the default of the layout */
    bool balance_scan;          /* choose it on held-out text (balance.h) */
    size_t rotary_width;        /* absorbed-rope, deepseek: rotary values per token; 0: from the statistics, or one key per frequency */
    size_t freq_fold;           /* absorbed-rope, deepseek: neighbouring frequencies that turn as one; 1: none */
    mla_factors_dtype factors_dtype;
    mla_allocation allocation;
    mla_rank_set rank_set;      /* ranks that layers may have; empty: any (layout P: its default set once resolved) */
    bool old_names;             /* architecture and config keys in the older spelling */
    size_t allocation_rounds;   /* of probing, each at the ranks of the one before */
    size_t refine_steps;        /* of local refinement per layer; 0 = none */
    size_t refine_tokens;       /* at most, recorded for it */
    bool sequential;            /* layers fitted to the output of compressed earlier ones (sequential.h) */
    size_t rotary_keys;         /* layout shared-rotary: R shared rotary keys per frequency; 0 = 1 */
} mla_recipe;

mla_recipe mla_recipe_default(void);
/* Reads over *r: fields present replace, unknown fields are refused by name. */
MLA_CHECKED mla_status mla_recipe_read(mla_recipe *r, const char *path, mla_err *err);
/* Settles what depends on the model: layout, balance; refuses what the model cannot have, with the reason. */
MLA_CHECKED mla_status mla_recipe_resolve(mla_recipe *r, const mla_config *c, mla_err *err);
/* MLA_EINVAL with the reason when the model, or a choice of the recipe, has no place in a stock DeepSeek model. */
MLA_CHECKED mla_status mla_recipe_deepseek(const mla_recipe *r, const mla_config *c, mla_err *err);
/* The part of resolving that layout and groups decide: balance, rank set. */
MLA_CHECKED mla_status mla_recipe_settle(mla_recipe *r, const mla_config *c, mla_err *err);
/* Values per token and layer under the recipe's budget and rank set: of every layer, or on average where ranks are spread. */
MLA_CHECKED mla_status mla_recipe_rank(size_t *out, const mla_recipe *r, const mla_config *c, mla_err *err);
/* Default balance of a layout. */
double mla_recipe_balance(mla_layout layout);
/* The quick build: one rank for all layers, no refinement. */
void mla_recipe_fast(mla_recipe *r);
void mla_recipe_to_json(const mla_recipe *r, mla_jv *obj);
bool mla_recipe_layout(const char *s, mla_layout *out);       /* a layout's name, or "auto" = MLA_LAYOUT_NONE */
bool mla_factors_dtype_parse(const char *s, mla_factors_dtype *out); /* "auto", "bfloat16", "float32" */
bool mla_allocation_parse(const char *s, mla_allocation *out); /* "auto", "uniform", "spectrum", "probe" */
#endif
