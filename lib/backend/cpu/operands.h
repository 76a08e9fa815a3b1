/* Under AddressSanitizer a product looks at the memory of its operands once, as a whole, and its loops, whose every index lies within them,
 * run without a look at each access: these were most of the sanitizer build's time. tests/backend/test_edges.c puts every operand against an
 * inaccessible page, and a look that finds too little memory. Elsewhere nothing is looked at. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_OPERANDS_H
#define MLA_BACKEND_CPU_OPERANDS_H
#include "backend/cpu/kernels.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define MLA_LOOKED_AT __attribute__((no_sanitize("address"))) /* and on all that is inlined: scopes marked there would be left by none */

__attribute__((noinline, unused)) static void mla_look(const void *p, size_t bytes)
{
    const volatile char *bad = __asan_region_is_poisoned((void *)(uintptr_t)p, bytes);
    if (bad) (void)*bad; /* AddressSanitizer's own report ends the program here */
}

/* a_words: 4-byte elements of A a step */
__attribute__((noinline, unused)) static void mla_look_tile(size_t m, const mla_tile *t, size_t a_words)
{
    for (size_t i = 0; i < m; i++) {
        mla_look((const uint32_t *)t->a + i * MLA_LDA, t->k * a_words * sizeof(uint32_t));
        mla_look(t->c + i * t->ldc, MLA_NR * sizeof *t->c);
    }
    mla_look(t->b, t->k * MLA_NR * sizeof(uint32_t));
    if (t->alpha) mla_look(t->alpha, m * sizeof *t->alpha);
}
#else
#define MLA_LOOKED_AT
#define mla_look_tile(m, t, a_words) ((void)0)
#endif
#endif
