/* Adam (Kingma and Ba, arXiv 1412.6980) over the parts of one layer's maps, with the sum of several rows' gradients.
 *
 * beta 0.9 and 0.999, no epsilon (a parameter whose gradients were all zero stays); the step size of a part is 0.01 x the mean
 * magnitude it starts with, falling linearly to 0. Gradients are summed in slot order, element by element, so that the
 * bytes do not depend on the number of threads. */
#ifndef MLA_RETROFIT_ADAM_H
#define MLA_RETROFIT_ADAM_H
#include <stdbool.h>
#include <stddef.h>

#include "base/par.h"

#define MLA_ADAM_SLOTS 8 /* gradients a step, at most */

typedef struct {
    float *x;     /* (n) the parameters; the caller's */
    size_t n;
    bool sparse;  /* only what is not zero moves: the mean magnitude is that of those */
    float *m, *v; /* (n) moments; from mla_adam_begin */
    double rate;
} mla_adam_part;

typedef struct { /* of one step: learning rate; 1 - beta^t of both moments */
    double rate, fix1, fix2;
} mla_adam_pace;
/* The step size that a part begins with, from its x, n and sparse; what step `step` of `steps`, from 0, makes of it. */
double mla_adam_rate(const mla_adam_part *p);
mla_adam_pace mla_adam_pace_at(double rate, size_t step, size_t steps);

/* Gradient of part `part` in slot `slot`, (n) floats. */
typedef const float *mla_adam_grad(const void *ctx, size_t slot, size_t part);

/* Takes x, n and sparse of every part; moments and rates are set. ENOMEM: nothing is held. */
MLA_CHECKED mla_status mla_adam_begin(mla_adam_part *p, size_t parts, mla_err *err);
void mla_adam_end(mla_adam_part *p, size_t parts); /* frees the moments */
/* Step `step` of `steps`, from 0. */
void mla_adam_step(mla_adam_part *p, size_t parts, size_t step, size_t steps, mla_pool *pool, mla_adam_grad *grad, size_t slots, const void *ctx);
#endif
