/* Host copies of what an attention tap shows. */
#ifndef MLA_RETROFIT_TAP_HOST_H
#define MLA_RETROFIT_TAP_HOST_H
#include <stddef.h>

#include "backend/backend.h"
#include "base/err.h"
#include "runtime/runtime.h"

/* n f32 values. */
MLA_CHECKED mla_status mla_tap_fetch(mla_backend *be, float *dst, const mla_mem *src, size_t n, mla_err *err);
/* The gate as dense (T, H, d), whatever its strides. */
MLA_CHECKED mla_status mla_tap_fetch_gate(mla_backend *be, float *dst, const mla_tap_attn *a, size_t T, size_t H, size_t d, mla_err *err);
#endif
