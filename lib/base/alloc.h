/* Checked allocation. Sizes are products of counts, multiplied without wrapping; memory is 64-byte aligned.
 *
 * Tests make allocation k fail with mla_alloc_fail_after (the one process-wide switch of the toolkit). */
#ifndef MLA_BASE_ALLOC_H
#define MLA_BASE_ALLOC_H
#include <stddef.h>

/* a * b * size bytes, zeroed, 64-byte aligned. NULL when the product overflows or memory is out.
 * A zero product gives a valid pointer. Free with mla_free. */
void *mla_alloc(size_t a, size_t b, size_t size);

/* As mla_alloc, not zeroed: for large scratch that is written before it is read. */
void *mla_alloc_raw(size_t a, size_t b, size_t size);

/* Grows or shrinks p (from plain mla_realloc or NULL) to n * size bytes; content kept; NULL leaves p valid.
 * Blocks from mla_realloc are freed with mla_free, too. Alignment is that of malloc. */
void *mla_realloc(void *p, size_t n, size_t size);

/* A copy of s[0..n) with a closing NUL; mla_strdup for a C string. Caller frees. */
char *mla_strndup(const char *s, size_t n);
char *mla_strdup(const char *s);

void mla_free(void *p); /* NULL is fine */

/* The (k+1)-th allocation from now on fails, once; k < 0 switches it off. Returns what was left of the count before: below 0
 * when the failure has come, or was never asked for. For tests. */
long mla_alloc_fail_after(long k);
#endif
