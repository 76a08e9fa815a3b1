/* Tolerances derived from the arithmetic, never tuned (Higham, Accuracy and Stability, section 3.1).
 *
 * A dot product of length k in precision eps has |error| <= gamma_k * sum|a_i b_i|, gamma_k = k u / (1 - k u),
 * u = eps / 2. The statistical form replaces k by sqrt(k) with a constant factor that covers the tail. */
#ifndef MLA_TENSOR_BOUND_H
#define MLA_TENSOR_BOUND_H
#include <stddef.h>

#include "tensor/dtype.h"

double mla_gamma(mla_dtype t, size_t k);      /* worst case k u / (1 - k u) */
double mla_gamma_prob(mla_dtype t, size_t k); /* 8 sqrt(k) u: exceeded with probability < 1e-13 per element under
                                                 mean-zero independent roundings (Higham and Mary 2019, lambda = 8) */
#endif
