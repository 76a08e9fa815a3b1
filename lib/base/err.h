/* One error idiom for the whole toolkit: functions return mla_status, the caller owns the text.
 *
 * A message names the thing, what was expected and what was found. Context is added on the way up with
 * mla_wrap ("layer 7: ..."). Library code never prints, never exits and keeps no global error. */
#ifndef MLA_BASE_ERR_H
#define MLA_BASE_ERR_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    MLA_OK = 0,
    MLA_EINVAL,       /* the caller asked for something that makes no sense (usage) */
    MLA_EFORMAT,      /* a file's content is wrong */
    MLA_EIO,          /* the system refused: open, read, write, fsync, rename */
    MLA_ENOMEM,       /* allocation failed or a size does not fit size_t */
    MLA_EUNSUPPORTED, /* well-formed, but this toolkit does not know it */
    MLA_EDIFFER,      /* compared and differs: the gate failed */
    MLA_EINTERNAL     /* a broken invariant of ours, e.g. an eigensolver that did not converge */
} mla_status;

typedef struct {
    mla_status status;
    char msg[1000]; /* one line, no trailing newline */
} mla_err;

#define MLA_CHECKED __attribute__((warn_unused_result))
#define MLA_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Control characters become '?': what a file says stays on its line and does not speak to the terminal. */
void mla_one_line(char *s);

/* Writes the message into *err (NULL is fine), as one line whatever the arguments hold, and returns st. */
mla_status mla_fail(mla_err *err, mla_status st, const char *fmt, ...) MLA_PRINTF(3, 4);

/* Puts "context: " before the message in *err and returns the status already there.
 * With err == NULL it returns MLA_EINTERNAL: pass an err wherever a status matters. */
mla_status mla_wrap(mla_err *err, const char *fmt, ...) MLA_PRINTF(2, 3);

/* The first of n workers' errors e that is one: copied into *err, its status returned; MLA_OK when there is none. */
MLA_CHECKED mla_status mla_first_error(const mla_err *e, size_t n, mla_err *err);

/* Short name of a status, for logs and tests: "ok", "format", ... */
const char *mla_status_name(mla_status st);

/* The process exit code for a finished command: 0 ok, 1 EDIFFER, 2 EINVAL, 3 everything else. */
int mla_exit_code(mla_status st);

#ifdef __cplusplus
}
#endif
#endif
