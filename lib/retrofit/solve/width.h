/* Layout absorbed-rope: how much of the budget is rotary. Eighths of the budget are tried on up to eight layers, spread evenly;
 * the width of least predicted loss (dropped rotations and the latent's tail, as a share of each layer's energy) is taken. */
#ifndef MLA_RETROFIT_WIDTH_H
#define MLA_RETROFIT_WIDTH_H
#include <stddef.h>

#include "base/err.h"
#include "retrofit/solve/solve_all.h"

/* o->recipe: layout absorbed-rope with keep or kv_bytes and no rotary width. */
MLA_CHECKED mla_status mla_choose_width(size_t *width, const mla_solve_all_opts *o, mla_err *err);
#endif
