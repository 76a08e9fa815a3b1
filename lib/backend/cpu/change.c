/* How far an attention output moved. */
#include <math.h>

#include "backend/cpu/cpu.h"

/* One running sum: it bears no threads. Rows of a corpus run side by side instead, each on one. */
mla_status mla_cpu_gated_change(mla_backend *be, const mla_change_args *a, mla_err *err)
{
    const float *x = mla_cf32p(a->a), *y = mla_cf32p(a->b), *gate = a->gate ? mla_cf32p(a->gate) : NULL;
    double sum = *(const double *)(const void *)a->sum;
    (void)be, (void)err;
    for (size_t th = 0; th < a->T * a->H; th++, x += a->d, y += a->d) {
        const float *g = gate ? gate + th / a->H * a->gate_ld + th % a->H * a->gate_h : NULL;
        for (size_t j = 0; j < a->d; j++) {
            double e = (double)y[j] - x[j];
            if (g) e /= 1 + exp(-(double)g[j]);
            sum += e * e;
        }
    }
    *(double *)(void *)a->sum = sum;
    return MLA_OK;
}
