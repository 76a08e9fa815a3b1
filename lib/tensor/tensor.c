/* Text and shape helpers of tensor views. */
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

size_t mla_tensor_numel(const mla_tensor *t)
{
    size_t n = 1;
    for (size_t i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

const char *mla_shape_text(const size_t *shape, size_t ndim, char *buf, size_t cap)
{
    size_t at = (size_t)snprintf(buf, cap, "[");
    for (size_t i = 0; i < ndim && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, i ? ", %zu" : "%zu", shape[i]);
    if (at < cap) snprintf(buf + at, cap - at, "]");
    return buf;
}

const char *mla_tensor_text(const mla_tensor *t, char *buf, size_t cap)
{
    int n = snprintf(buf, cap, "%s ", mla_dtype_name(t->dtype));
    if (n > 0 && (size_t)n < cap) mla_shape_text(t->shape, t->ndim, buf + n, cap - (size_t)n);
    return buf;
}

bool mla_shape_is(const mla_tensor *t, size_t ndim, const size_t *shape)
{
    return t->ndim == ndim && memcmp(t->shape, shape, ndim * sizeof *shape) == 0;
}
