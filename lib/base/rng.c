/* The one random-number function that needs libm. */
#include "base/rng.h"

#include <math.h>

double mla_rng_normal(uint64_t seed, uint64_t i)
{
    double u = 1.0 - mla_rng_unit(seed, 2 * i), v = mla_rng_unit(seed, 2 * i + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
