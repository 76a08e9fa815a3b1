/* Error measures in fp64, positive-form acceptance. */
#include "tensor/compare.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "built with fast-math: NaN checks would be folded away"
#endif

mla_cmp mla_compare(const float *got, const float *want, size_t n)
{
    mla_cmp c = {.n = n};
    double num = 0, den = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i]) || !isfinite(want[i])) {
            c.nonfinite++;
            continue;
        }
        double d = fabs((double)got[i] - (double)want[i]), w = fabs((double)want[i]);
        if (d > c.max_abs) c.max_abs = d, c.worst = i;
        if (w > c.max_want) c.max_want = w;
        num += d * d;
        den += w * w;
    }
    c.rel_l2 = den > 0 ? sqrt(num / den) : sqrt(num);
    return c;
}

bool mla_cmp_ok(mla_cmp c, double tol) { return c.nonfinite == 0 && c.max_abs <= tol; }

size_t mla_count_nonfinite(const float *x, size_t n, size_t *first)
{
    enum { LANES = 32, BLOCK = 128 * LANES }; /* blocks without one, as most are, are seen by vector code */
    size_t k = 0;
    for (size_t at = 0, end; at < n; at = end) {
        uint32_t top[LANES] = {0}, u[LANES];
        bool odd = n - at < BLOCK;
        end = odd ? n : at + BLOCK;
        for (size_t i = at; !odd && i < end; i += LANES) {
            memcpy(u, x + i, sizeof u);
            for (size_t j = 0; j < LANES; j++) top[j] = (u[j] & 0x7fffffff) > top[j] ? u[j] & 0x7fffffff : top[j];
        }
        for (size_t j = 0; j < LANES; j++) odd |= top[j] >= 0x7f800000;
        for (size_t i = at; odd && i < end; i++)
            if (!isfinite(x[i]) && k++ == 0 && first) *first = i;
    }
    return k;
}
