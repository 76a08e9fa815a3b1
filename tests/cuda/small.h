/* Under a checker test programs run few and small cases. */
#ifndef MLA_TESTS_CUDA_SMALL_H
#define MLA_TESTS_CUDA_SMALL_H
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* MLA_TEST_SMALL=n keeps every n-th case (1 or no number: every fourth), n:k those from the k-th on. 0: all. */
static inline int cut_small(void)
{
    const char *s = getenv("MLA_TEST_SMALL");
    const int n = s ? atoi(s) : 0;
    return !s ? 0 : n > 1 ? n : 4;
}
/* Whether the case with this running number is one of them. */
static inline bool cut_kept(int number) 
{
    const char *s = getenv("MLA_TEST_SMALL"), *first = s ? strchr(s, ':') : NULL;
    const int from = first ? atoi(first + 1) : 0;
    return !cut_small() || (number >= from && (number - from) % cut_small() == 0);
}
#endif
