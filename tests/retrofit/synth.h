/* Synthetic layer statistics from a known random layer: every moment computed by its definition, token by token. */
#ifndef MLA_TESTS_SYNTH_H
#define MLA_TESTS_SYNTH_H
#include <stddef.h>

#include "retrofit/solve/solve.h"

/* Fills *l (allocated here; free with synth_free) with random positive moments of the given sizes; wo (D, H d). */
void synth_layer(mla_layer_stats *l, size_t H, size_t G, size_t d, size_t dk, float *wo, size_t D);
void synth_free(mla_layer_stats *l);

/* tr(Lambda (I - D E) C (I - D E)^T) by its definition, for n <= SYNTH_N. */
#define SYNTH_N 64
double synth_objective(const mla_solution *s, const mla_factors *f);
#endif
