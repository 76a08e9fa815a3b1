/* Where a model parts from its base, layer by layer on the same text. Every layer of the model gets the base's own residual
 * stream, so an error is the layer's own and a fault names itself. Two kinds of figures:
 *
 *   mixer      output of the attention or delta net after its output projection: what compression costs
 *   queries, keys, values   after their norms, before rotation: a retrofit takes them from the base's weights, so they are
 *                           equal but for rounding, whatever the rank; layouts that do not compute them have none */
#ifndef MLA_VERIFY_LAYERS_H
#define MLA_VERIFY_LAYERS_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "runtime/runtime.h"

typedef enum { MLA_PART_MIXER, MLA_PART_Q, MLA_PART_K, MLA_PART_V, MLA_PARTS } mla_layer_part;
const char *mla_layer_part_name(mla_layer_part p); /* "mixer outputs", "queries", ... */

typedef struct { /* relative errors |model - base| / |base|, Frobenius over all tokens; NAN: not computed by both */
    double error[MLA_PARTS];
    double constant; /* share of the mixer error's energy that is the same for every token, |mu|^2 / mean |d|^2 with |mu|^2 from products of
                      * different rows: zero in the mean for residuals of centred features; a dropped mean shows here first (docs/gate.md
                      * derives its spread). NAN: no error at all, or less than two rows of text */
} mla_layer_errors;

/* out (layers of the model), over 8 rows of up to 64 tokens, each a sequence of its own, spread evenly over ids (n); one row when there
 * are less than 16 ids. Refuses models of other widths. */
MLA_CHECKED mla_status mla_layers_compare(mla_layer_errors *out, mla_rt *base, mla_rt *model, const int32_t *ids, size_t n, mla_err *err);
#endif
