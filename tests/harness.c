/* Test runner: one line per layer, skips counted, strict mode. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"

static size_t *skipped; /* shared with the forked tests */

static size_t *skip_counter(void)
{
    if (!skipped) {
        void *p = mmap(NULL, sizeof *skipped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) abort();
        skipped = p;
    }
    return skipped;
}

void mla_test_skip(const char *what, const char *why, size_t cases)
{
    const char *strict = getenv("MLA_STRICT");
    ck_assert_msg(!(strict && !strcmp(strict, "1")), "MLA_STRICT=1 and skipped %s: %s", what, why);
    fprintf(stderr, "SKIP %s: %s (%zu)\n", what, why, cases);
    *skip_counter() += cases;
}

#ifndef __SANITIZE_ADDRESS__
int mla_marked;

void mla_mark(int place, const char *file, int line)
{
    mla_marked = place;
    (_mark_point)(file, line);
}
#endif

/* Of layer linalg; tests of the layers before it have none. */
__attribute__((weak)) void mla_blas_settle(char *const argv[]);

int mla_test_main(const char *layer, const mla_suite_fn *suites, size_t n)
{
    char *const self[] = {(char[]){"test"}, NULL};
    if (mla_blas_settle) mla_blas_settle(self);
    skip_counter();
    setenv("CK_DEFAULT_TIMEOUT", "600", 0);
    SRunner *r = srunner_create(n ? suites[0]() : suite_create(layer));
    for (size_t i = 1; i < n; i++) srunner_add_suite(r, suites[i]());
#ifdef __SANITIZE_ADDRESS__ /* looking for leaks takes a third of a second at every child's end; without children it is done once */
    if (!getenv("CK_FORK")) srunner_set_fork_status(r, CK_NOFORK);
#endif
    srunner_run_all(r, getenv("MLA_TEST_VERBOSE") ? CK_VERBOSE : CK_NORMAL);
    int failed = srunner_ntests_failed(r), ran = srunner_ntests_run(r);
    srunner_free(r);
    printf("%s: %d passed, %d failed, %zu skipped\n", layer, ran - failed, failed, *skipped);
    return failed ? 1 : 0;
}

char *mla_test_tmpdir(void)
{
    const char *base = getenv("TMPDIR");
    char buf[512];
    snprintf(buf, sizeof buf, "%s/mla-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(buf)) {
        perror("mkdtemp");
        abort();
    }
    return mla_strdup(buf);
}

const char *mla_fixture(const char *name)
{
    static char ring[8][1024];
    static unsigned at;
    char *b = ring[at++ % 8];
    const char *root = getenv("MLA_ROOT");
    snprintf(b, sizeof ring[0], "%s/tests/fixtures/%s", root && *root ? root : ".", name);
    return b;
}
