/* Where a model parts from its base: every layer's mixer output (attention or delta net, after its output projection) on
 * the same text, relative to the base's. Errors travel to later layers, so the first layer that stands out is the one to
 * look at: a fault of one layer names itself. */
#ifndef MLA_VERIFY_LAYERS_H
#define MLA_VERIFY_LAYERS_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "runtime/runtime.h"

/* error (layers of the model): |model - base| / |base|, Frobenius over ids (n). Refuses models of other widths. */
MLA_CHECKED mla_status mla_layers_compare(double *error, mla_rt *base, mla_rt *model, const int32_t *ids, size_t n, mla_err *err);
#endif
