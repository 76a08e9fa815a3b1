/* How far an attention output moved. */
#include <math.h>

#include "backend/cpu/cpu.h"

/* sum + (s (y - x))^2 over d values, s = 1 / inv */
static double row_change(double sum, const float *x, const float *y, const double *inv, size_t d)
{
    for (size_t j = 0; j < d; j++) {
        double e = (double)y[j] - x[j];
        if (inv) e /= inv[j];
        sum += e * e;
    }
    return sum;
}

/* One running sum: it bears no threads. Rows of a corpus run side by side instead, each on one. Exponentials are most of the
 * time where a.inv does not keep them. */
mla_status mla_cpu_gated_change(mla_backend *be, const mla_change_args *a, mla_err *err)
{
    enum { PART = 64 };
    double part[PART] = {0}, sum = *(const double *)(const void *)a->sum;
    (void)be, (void)err;
    for (size_t th = 0; th < a->T * a->H; th++) {
        const float *g = a->gate ? mla_cf32p(a->gate) + th / a->H * a->gate_ld + th % a->H * a->gate_h : NULL;
        for (size_t j = 0; j < a->d; j += PART) {
            size_t at = th * a->d + j, n = a->d - j < PART ? a->d - j : PART;
            double *inv = a->inv ? (double *)(void *)a->inv + at : part;
            for (size_t i = 0; g && !(a->inv && a->inv_set) && i < n; i++) inv[i] = 1 + exp(-(double)g[j + i]);
            sum = row_change(sum, mla_cf32p(a->a) + at, mla_cf32p(a->b) + at, g ? inv : NULL, n);
        }
    }
    *(double *)(void *)a->sum = sum;
    return MLA_OK;
}
