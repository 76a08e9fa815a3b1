/* Error bounds of sums and dot products. */
#include "tensor/bound.h"

#include <math.h>

double mla_gamma(mla_dtype t, size_t k)
{
    double u = mla_dtype_eps(t) / 2, ku = (double)k * u;
    return ku < 1 ? ku / (1 - ku) : INFINITY;
}

double mla_gamma_prob(mla_dtype t, size_t k) { return 8 * sqrt((double)k) * mla_dtype_eps(t) / 2; }
