/* What a person sees on stderr: lines, warnings and a progress bar with rate and ETA.
 * The library receives an mla_log from the command (NULL = silent); it never prints otherwise. */
#ifndef MLA_BASE_LOG_H
#define MLA_BASE_LOG_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct {
    bool quiet;   /* warnings only */
    bool tty;     /* progress is drawn on a terminal, and told once a minute elsewhere */
    bool color;   /* false under NO_COLOR or when stderr is no terminal */
    size_t warnings; /* counted, so that a command can say so at its end */
} mla_log;

mla_log mla_log_stderr(bool quiet); /* looks at isatty and NO_COLOR */
void mla_info(mla_log *log, const char *fmt, ...) MLA_PRINTF(2, 3);
void mla_warn(mla_log *log, const char *fmt, ...) MLA_PRINTF(2, 3);

/* Progress over `total` units ("tokens", "MiB", "layers"). */
typedef struct {
    mla_log *log;
    const char *what, *unit;
    double total, done, start, last;
} mla_progress;

mla_progress mla_progress_begin(mla_log *log, const char *what, double total, const char *unit);
void mla_progress_add(mla_progress *p, double units);
void mla_progress_end(mla_progress *p);

double mla_now(void); /* monotonic seconds, for rates only: never written into an artifact */
#endif
