/* What the C tests on a GPU share: counted checks, and calls that must work for a test to mean anything. */
#ifndef MLA_TESTS_CUDA_TELL_H
#define MLA_TESTS_CUDA_TELL_H
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "small.h"

static int passed, failed;
static mla_err err;

/* part: "" where `what` says it all */
static inline void check_part(bool ok, const char *name, const char *what, const char *part)
{
    ok ? passed++ : failed++;
    if (!ok) printf("FAIL %s: %s%s%s\n", name, what, *part ? " " : "", part);
}
static inline void check(bool ok, const char *name, const char *what) { check_part(ok, name, what, ""); }
static inline void must(mla_status st, const char *what)
{
    if (st == MLA_OK) return;
    fprintf(stderr, "%s: %s\n", what, err.msg);
    exit(3);
}
#endif
