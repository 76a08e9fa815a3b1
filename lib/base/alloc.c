/* Checked, aligned allocation with a failure switch for tests. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/ckd.h"

static atomic_long fail_after = -1;

static int must_fail(void)
{
    long k = atomic_load_explicit(&fail_after, memory_order_relaxed);
    if (k < 0) return 0;
    return atomic_fetch_sub(&fail_after, 1) == 0;
}

long mla_alloc_fail_after(long k) { return atomic_exchange(&fail_after, k); }

void *mla_alloc_raw(size_t a, size_t b, size_t size)
{
    size_t n, bytes;
    if (!mla_mul(&n, a, b) || !mla_mul(&n, n, size) || !mla_add(&bytes, n, 63) || must_fail()) return NULL;
    bytes &= ~(size_t)63;
    return aligned_alloc(64, bytes ? bytes : 64);
}

void *mla_alloc(size_t a, size_t b, size_t size)
{
    void *p = mla_alloc_raw(a, b, size);
    if (p) memset(p, 0, a * b * size);
    return p;
}

void *mla_realloc(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!mla_mul(&bytes, n, size) || must_fail()) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

char *mla_strndup(const char *s, size_t n)
{
    size_t bytes;
    if (!mla_add(&bytes, n, 1)) return NULL;
    char *d = mla_realloc(NULL, bytes, 1);
    if (!d) return NULL;
    memcpy(d, s, n);
    d[n] = 0;
    return d;
}

char *mla_strdup(const char *s) { return mla_strndup(s, strlen(s)); }

void mla_free(void *p) { free(p); }
