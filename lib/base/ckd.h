/* Checked size arithmetic: the one place where sizes from files are multiplied and added.
 * Each returns true and stores the exact result, or returns false when it does not fit. */
#ifndef MLA_BASE_CKD_H
#define MLA_BASE_CKD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool mla_mul(size_t *out, size_t a, size_t b) { return !__builtin_mul_overflow(a, b, out); }
static inline bool mla_add(size_t *out, size_t a, size_t b) { return !__builtin_add_overflow(a, b, out); }
static inline bool mla_mul64(uint64_t *out, uint64_t a, uint64_t b) { return !__builtin_mul_overflow(a, b, out); }
static inline bool mla_add64(uint64_t *out, uint64_t a, uint64_t b) { return !__builtin_add_overflow(a, b, out); }

/* *out = v rounded up to a multiple of align (a power of two); false when that wraps. */
static inline bool mla_align_up64(uint64_t *out, uint64_t v, uint64_t align)
{
    uint64_t t;
    if (!mla_add64(&t, v, align - 1)) return false;
    *out = t & ~(align - 1);
    return true;
}
#endif
