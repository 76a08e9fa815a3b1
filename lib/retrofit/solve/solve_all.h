/* Solutions of all layers, side by side, one thread each: the eigensolver itself stays single-threaded, so bits never
 * depend on the number of threads. Eigenproblems that a device solves take turns there. */
#ifndef MLA_RETROFIT_SOLVE_ALL_H
#define MLA_RETROFIT_SOLVE_ALL_H
#include "base/par.h"
#include "model/model.h"
#include "retrofit/build/recipe.h"
#include "retrofit/solve/solve.h"

typedef struct {
    const mla_model *model;
    const mla_recipe *recipe;  /* resolved; its balance is not read */
    const mla_stats *fit;
    const size_t *width;       /* (layers) absorbed-rope: rotary width of each; NULL: the recipe's in all */
    mla_pool *pool;
    mla_eigen eigen;
} mla_solve_all_opts;
/* sol (fit->layers), zeroed or solved before (then freed first). */
MLA_CHECKED mla_status mla_solve_all(mla_solution *sol, const mla_solve_all_opts *o, double balance, mla_err *err);
/* Layer i of the statistics alone. */
MLA_CHECKED mla_status mla_solve_one(mla_solution *s, const mla_solve_all_opts *o, size_t i, double balance, mla_err *err);
#endif
