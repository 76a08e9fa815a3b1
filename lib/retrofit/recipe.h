/* A recipe: every choice that decides the bytes of a build, as JSON (configs/README.md explains each field).
 * The command line overrides fields; the receipt records the recipe as it was used. */
#ifndef MLA_RETROFIT_RECIPE_H
#define MLA_RETROFIT_RECIPE_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "io/json.h"
#include "model/config.h"
#include "retrofit/ranks.h"

#define MLA_RECIPE_SCHEMA "mla-recipe/1"

typedef enum { MLA_ALLOC_UNIFORM, MLA_ALLOC_SPECTRUM } mla_allocation;

typedef struct {
    mla_layout layout;          /* MLA_LAYOUT_NONE: N where RoPE is partial, rebuild otherwise */
    size_t groups;
    mla_budget budget;
    size_t calibration_tokens;  /* at most; the corpus may hold fewer */
    size_t row_tokens;
    double balance;             /* 0: the default of the layout */
    bool f32_factors;
    mla_allocation allocation;
} mla_recipe;

mla_recipe mla_recipe_default(void);
/* Reads over *r: fields present replace, unknown fields are refused by name. */
MLA_CHECKED mla_status mla_recipe_read(mla_recipe *r, const char *path, mla_err *err);
/* Settles what depends on the model: layout, balance; refuses what the model cannot have, with the reason. */
MLA_CHECKED mla_status mla_recipe_resolve(mla_recipe *r, const mla_config *c, mla_err *err);
void mla_recipe_to_json(const mla_recipe *r, mla_jv *obj);
const char *mla_layout_name(mla_layout l);                    /* "n", "rebuild" */
bool mla_layout_parse(const char *s, mla_layout *out);        /* also "auto" = MLA_LAYOUT_NONE */
#endif
