/* Comparing what was computed with what was expected. Non-finite values are counted first; a comparison
 * passes only in positive form (err <= tol), so NaN never passes. Refuses to compile under fast-math. */
#ifndef MLA_TENSOR_COMPARE_H
#define MLA_TENSOR_COMPARE_H
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    size_t n;
    size_t nonfinite;   /* positions where either side is not finite */
    size_t worst;       /* index of the largest |got - want| */
    double max_abs;     /* largest |got - want| over finite positions */
    double max_want;    /* largest |want| */
    double rel_l2;      /* ||got - want|| / ||want||; the absolute norm when ||want|| == 0 */
} mla_cmp;

mla_cmp mla_compare(const float *got, const float *want, size_t n);
/* nonfinite == 0 and max_abs <= tol. tol = INFINITY asks only for finiteness. */
bool mla_cmp_ok(mla_cmp c, double tol);
size_t mla_count_nonfinite(const float *x, size_t n, size_t *first); /* first may be NULL */
#endif
