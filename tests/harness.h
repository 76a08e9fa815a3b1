/* What every test binary shares: running suites, counting skips, temporary folders, fixture paths. */
#ifndef MLA_TESTS_HARNESS_H
#define MLA_TESTS_HARNESS_H
#include <check.h>
#include <stddef.h>

#include "base/err.h"

/* check writes every assertion that holds to a file, to name the last one when a test crashes: in a loop that costs more than what is
 * asserted. A line is written once until another one's turn, and never under AddressSanitizer, which shows the stack itself. */
#ifdef __SANITIZE_ADDRESS__
#define _mark_point(file, line) ((void)0)
#else
extern int mla_marked; /* the place written last */
void mla_mark(int place, const char *file, int line);
#define MLA_PLACE(file, line) ((int)sizeof(file) << 16 | (line))
#define _mark_point(file, line) (mla_marked == MLA_PLACE(file, line) ? (void)0 : mla_mark(MLA_PLACE(file, line), file, line))
#endif

typedef Suite *(*mla_suite_fn)(void);

/* Runs the suites; prints "layer: N passed, N failed" (and the skips); returns the exit status for main.
 * Per-test timeout 600 s (check's default of 4 s kills numeric tests). CK_FORK=no is honoured. */
int mla_test_main(const char *layer, const mla_suite_fn *suites, size_t n);

/* Prints "SKIP what: why" and counts `cases` of them; under MLA_STRICT=1 the test fails instead. */
void mla_test_skip(const char *what, const char *why, size_t cases);

/* A fresh folder under $TMPDIR (or /tmp), removed by mla_test_main's end or by the system. Caller frees. */
char *mla_test_tmpdir(void);
/* "<repo>/tests/fixtures/<name>"; repo from $MLA_ROOT or the working directory. Static ring of 8 buffers. */
const char *mla_fixture(const char *name);

/* st must be OK; prints the error text otherwise. */
#define ck_ok(expr)                                                                    \
    do {                                                                               \
        mla_status ck_st_ = (expr);                                                    \
        ck_assert_msg(ck_st_ == MLA_OK, "%s: %s (%s)", #expr, mla_status_name(ck_st_), err.msg); \
    } while (0)
/* st must be `want` and the message must contain `text`. Both macros use a local `mla_err err`. */
#define ck_refused(expr, want, text)                                                                      \
    do {                                                                                                  \
        mla_status ck_st_ = (expr);                                                                       \
        ck_assert_msg(ck_st_ == (want), "%s: %s, wanted %s (%s)", #expr, mla_status_name(ck_st_),         \
                      mla_status_name(want), err.msg);                                                    \
        ck_assert_msg(strstr(err.msg, (text)) != NULL, "message \"%s\" lacks \"%s\"", err.msg, (text));   \
    } while (0)
#endif
