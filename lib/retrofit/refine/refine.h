/* Local refinement: encoder, decoder and mean of one layer moved by first-order steps on the error of that layer's own
 * output (refine_local.h), inputs from the original model. No backpropagation through the model.
 *
 * Adam (adam.h), MLA_ADAM_SLOTS rows a step; the bytes do not depend on the number of threads. On a device that has the operations
 * (backend/fit.h) everything runs there, as long as its memory lasts (engine.h). A layer's refinement is kept only
 * if it lowers the loss on rows that no step has seen. At the end the latent gets the closed form's gauge again: unit
 * variance per coordinate, sorted by what each coordinate adds to the output, so that FP8 scales and prefixes keep working
 * (prefixes of a refined layer are usable, but only the full rank was refined). */
#ifndef MLA_RETROFIT_REFINE_H
#define MLA_RETROFIT_REFINE_H
#include <stdbool.h>
#include <stddef.h>

#include "retrofit/refine/refine_rows.h"
#include "retrofit/solve/solve.h"

#define MLA_REFINE_STRIDE 4 /* every 4th query of a row counts in a step, from a phase that changes */

typedef struct {
    mla_rows_opts rows;
    const int32_t *fit, *held; /* token ids, whole rows are used; without held, every 8th chosen row is held back */
    size_t n_fit, n_held;
    size_t tokens;             /* at most this many of fit, spread evenly */
    size_t steps;
    bool follows;              /* mla_refiner_follow will be called: rows go through files */
} mla_refine_opts;

typedef struct {               /* loss over energy on held-out rows; < 0: not measured */
    double before, after, stored;
    bool accepted;
} mla_refined;

typedef struct mla_refiner mla_refiner;
/* Records the activations (or finds them recorded). */
MLA_CHECKED mla_status mla_refiner_new(mla_refiner **out, const mla_refine_opts *o, mla_err *err);
void mla_refiner_free(mla_refiner *r); /* NULL is fine */

/* Layer `layer` is from now on measured and refined on features behind compressed earlier layers (prefix_layer, factors f), which
 * are recorded first; one layer at a time. */
MLA_CHECKED mla_status mla_refiner_follow(mla_refiner *r, size_t layer, const mla_factors *f, const size_t *prefix_layer, size_t n, mla_err *err);
/* The open rows of a layer: those to fit are [first, first + count). */
MLA_CHECKED mla_status mla_refiner_rows(mla_refiner *r, size_t layer, const mla_rows **rows, size_t *first, size_t *count, mla_err *err);
/* Refines f (from s, in f32) in place. prog counts steps. */
MLA_CHECKED mla_status mla_refine_layer(mla_refiner *r, const mla_solution *s, mla_factors *f, mla_refined *out, mla_progress *prog, mla_err *err);
/* Held-out loss over energy of any factors of a layer. */
MLA_CHECKED mla_status mla_refine_measure(mla_refiner *r, size_t layer, const mla_factors *f, double *out, mla_err *err);

/* E and D of f in the closed form's gauge (see above); the product D E is unchanged up to rounding. Left as they are
 * when a latent coordinate has no variance. pool NULL: one thread, the same bits. */
MLA_CHECKED mla_status mla_refine_gauge(mla_factors *f, const mla_solution *s, mla_pool *pool, const mla_eigen *eigen, mla_err *err);

/* A copy of f as it is stored. bf16: E is rounded, D is refitted so that D E keeps its effect on the fit's tokens as well
 * as it can (D' = D (E C E'^T) (E' C E'^T)^-1 for the rounded E'), then rounded, too. */
MLA_CHECKED mla_status mla_refine_round(mla_factors *out, const mla_factors *f, const mla_solution *s, bool bf16, mla_pool *pool, mla_err *err);
#endif
