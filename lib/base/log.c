/* Lines, warnings and progress on stderr. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"

double mla_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

mla_log mla_log_stderr(bool quiet)
{
    bool tty = isatty(STDERR_FILENO) == 1;
    const char *nc = getenv("NO_COLOR");
    return (mla_log){.quiet = quiet, .tty = tty && !quiet, .color = tty && !(nc && *nc)};
}

MLA_PRINTF(3, 0) static void line(mla_log *log, const char *prefix, const char *fmt, va_list ap)
{
    char text[4000];
    (void)vsnprintf(text, sizeof text, fmt, ap);
    mla_one_line(text);
    if (log->tty) fputs("\r\033[K", stderr);
    fprintf(stderr, "%s%s\n", prefix, text);
}

void mla_info(mla_log *log, const char *fmt, ...)
{
    if (!log || log->quiet) return;
    va_list ap;
    va_start(ap, fmt);
    line(log, "", fmt, ap);
    va_end(ap);
}

void mla_warn(mla_log *log, const char *fmt, ...)
{
    if (!log) return;
    log->warnings++;
    va_list ap;
    va_start(ap, fmt);
    line(log, log->color ? "\033[33mwarning:\033[0m " : "warning: ", fmt, ap);
    va_end(ap);
}

mla_progress mla_progress_begin(mla_log *log, const char *what, double total, const char *unit)
{
    double now = mla_now();
    return (mla_progress){.log = log, .what = what, .unit = unit, .total = total, .start = now, .last = now};
}

#define MINUTE 60.0
typedef char figure[32];

/* Four digits, no exponent: 52990, 1238, 47.28. */
static const char *digits(figure out, double x)
{
    (void)snprintf(out, sizeof(figure), x >= 1000 ? "%.0f" : "%.4g", x);
    return out;
}

void mla_progress_add(mla_progress *p, double units)
{
    p->done += units;
    if (!p->log || p->log->quiet) return;
    double now = mla_now();
    if (now - p->last < (p->log->tty ? 0.1 : MINUTE)) return;
    p->last = now;
    double rate = p->done / (now - p->start + 1e-9), left = rate > 0 ? (p->total - p->done) / rate : 0;
    figure done, total, speed;
    fprintf(stderr, "%s%s %3.0f%%  %s/%s %s  %s %s/s  ETA %.0f s%s", p->log->tty ? "\r\033[K" : "", p->what, p->total > 0 ? 100 * p->done / p->total : 0,
            digits(done, p->done), digits(total, p->total), p->unit, digits(speed, rate), p->unit, left, p->log->tty ? "" : "\n");
    fflush(stderr);
}

void mla_progress_end(mla_progress *p)
{
    if (!p->log || p->log->quiet) return;
    double t = mla_now() - p->start;
    figure done, speed;
    mla_info(p->log, "%s: %s %s in %.1f s (%s %s/s)", p->what, digits(done, p->done), p->unit, t, digits(speed, p->done / (t + 1e-9)), p->unit);
}
