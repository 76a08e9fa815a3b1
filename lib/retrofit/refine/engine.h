/* Where losses and steps of one layer's local refinement are computed: on the host, a row per thread (engine_host.c), or on a device
 * that has the operations of backend/fit.h (engine_device.c). Inside the refinement only (refine.c). */
#ifndef MLA_RETROFIT_REFINE_ENGINE_H
#define MLA_RETROFIT_REFINE_ENGINE_H
#include "retrofit/refine/adam.h"
#include "retrofit/refine/refine_rows.h"

typedef struct mla_engine mla_engine;
typedef struct {
    /* For opened rows, features followed included; they stay while the engine does. */
    mla_status (*open)(mla_engine **out, mla_rows *rows, const mla_rows_opts *o, size_t layer, mla_err *err);
    void (*close)(mla_engine *);
    /* Sums of loss and energy of f over rows [0, n), all queries. */
    mla_status (*measure)(mla_engine *, const mla_factors *f, size_t n, double *loss, double *energy, mla_err *err);
    /* Adam over f, `slots` rows a step, every stride-th query of them from a phase on. f is moved in place, at `end` at the latest,
     * which follows every begin that worked. */
    mla_status (*begin)(mla_engine *, mla_factors *f, size_t slots, size_t stride, mla_err *err);
    mla_status (*step)(mla_engine *, const size_t *row, const size_t *phase, size_t step, size_t steps, mla_err *err);
    mla_status (*end)(mla_engine *, mla_err *err);
} mla_engine_ops;
struct mla_engine {
    const mla_engine_ops *ops; /* first member of every engine's own struct */
};

extern const mla_engine_ops mla_engine_host, mla_engine_device;

enum { MLA_FACTOR_PARTS = 5 };/* E, D, mu; Er, Rq where there are any */
void mla_factor_parts(mla_adam_part p[MLA_FACTOR_PARTS], const mla_factors *f);
#endif
