/* The local problem of refine_local.h on a device that has the operations of backend/fit.h: rows as recorded, targets, factors,
 * gradients and moments stay there, several rows go through every step side by side, and gradients are sums over them.
 * f32 products, the same bits every run; the reference is refine_local.c. Every layout that is refined there is refined here. */
#ifndef MLA_RETROFIT_REFINE_DEVICE_H
#define MLA_RETROFIT_REFINE_DEVICE_H
#include <stdbool.h>

#include "backend/fit.h"
#include "retrofit/refine/refine_rows.h"

typedef struct mla_dev_local mla_dev_local;

typedef struct {              /* n rows (at most the slots), of which queries phase, phase + stride, ... count; phase NULL: 0 */
    const size_t *row, *phase;
    size_t n, stride;
} mla_dev_rows;

/* Room for n_rows rows, `slots` of them (at most MLA_FIT_PARTS) at a time. p: arrays are read here only; its WW is not. rows: (n_rows, s->all)
 * bf16 on the device, borrowed, only read; NULL: room for them, which mla_dev_local_row fills. */
MLA_CHECKED mla_status mla_dev_local_new(mla_dev_local **out, mla_backend *be, const mla_local *p, const mla_row_shape *s, size_t n_rows, size_t slots,
                                         mla_mem *rows, mla_err *err);
void mla_dev_local_free(mla_dev_local *d); /* NULL is fine */

/* Row i as recorded (s->all numbers of bf16). */
MLA_CHECKED mla_status mla_dev_local_row(mla_dev_local *d, size_t i, const uint16_t *bits, mla_err *err);
/* Once all rows are there: their targets, and the Gram of the output projection W (out, H d). */
MLA_CHECKED mla_status mla_dev_local_targets(mla_dev_local *d, const float *W, size_t out, mla_err *err);
/* From now on the features of row i are these (s->y numbers of bf16). */
MLA_CHECKED mla_status mla_dev_local_features(mla_dev_local *d, size_t i, const uint16_t *y, mla_err *err);

/* Factors there and back; moments begin at 0. */
MLA_CHECKED mla_status mla_dev_local_put(mla_dev_local *d, const mla_factors *f, mla_err *err);
MLA_CHECKED mla_status mla_dev_local_take(mla_dev_local *d, mla_factors *f, mla_err *err);

/* sum_t |W_O (gamma o o_t)|^2 of each row. */
MLA_CHECKED mla_status mla_dev_local_energy(mla_dev_local *d, const mla_dev_rows *rows, double *energy, mla_err *err);
/* The loss of each row; loss NULL: not wanted. grad: their derivative is formed, too. */
MLA_CHECKED mla_status mla_dev_local_loss(mla_dev_local *d, const mla_dev_rows *rows, double *loss, bool grad, mla_err *err);
/* That derivative, in the shapes of the factors. */
MLA_CHECKED mla_status mla_dev_local_gradient(mla_dev_local *d, mla_factors *grad, mla_err *err);
/* Step `step` of `steps` by that derivative; rate: of E, D, mu, Er, Rq (adam.h). */
MLA_CHECKED mla_status mla_dev_local_move(mla_dev_local *d, const double rate[5], size_t step, size_t steps, mla_err *err);
#endif
