/* A borrowed, read-only view of a stored tensor: where its bytes are, never who owns them.
 * Row-major, little-endian. The view dies with the file mapping it came from. */
#ifndef MLA_TENSOR_TENSOR_H
#define MLA_TENSOR_TENSOR_H
#include <stdbool.h>
#include <stddef.h>

#include "tensor/dtype.h"
#ifdef __cplusplus
extern "C" {
#endif

#define MLA_MAX_DIMS 8

typedef struct {
    const char *name; /* borrowed from the container */
    mla_dtype dtype;
    size_t ndim;
    size_t shape[MLA_MAX_DIMS];
    const void *data;
    size_t nbytes; /* == product(shape) * bits / 8, checked by whoever built the view */
} mla_tensor;

size_t mla_tensor_numel(const mla_tensor *t); /* 1 for a scalar; the product was checked at read */
/* "BF16 [128, 256]" into buf; returns buf. */
const char *mla_tensor_text(const mla_tensor *t, char *buf, size_t cap);
/* "[128, 256]" */
const char *mla_shape_text(const size_t *shape, size_t ndim, char *buf, size_t cap);
bool mla_shape_is(const mla_tensor *t, size_t ndim, const size_t *shape);

#ifdef __cplusplus
}
#endif
#endif
