/* Error text: formatting and context. The only place that maps a status to an exit code. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mla_one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

mla_status mla_fail(mla_err *err, mla_status st, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        mla_one_line(err->msg);
        err->status = st;
    }
    return st;
}

mla_status mla_wrap(mla_err *err, const char *fmt, ...)
{
    if (!err) return MLA_EINTERNAL;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    mla_one_line(err->msg);
    if (n >= 0 && (size_t)n + 2 < sizeof err->msg)
        snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", old);
    return err->status == MLA_OK ? (err->status = MLA_EINTERNAL) : err->status;
}

mla_status mla_first_error(const mla_err *e, size_t n, mla_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (e[i].status != MLA_OK) {
            *err = e[i];
            return e[i].status;
        }
    return MLA_OK;
}

const char *mla_status_name(mla_status st)
{
    static const char *const NAME[] = {"ok", "invalid", "format", "io", "memory", "unsupported", "differ", "internal"};
    return (unsigned)st < sizeof NAME / sizeof *NAME ? NAME[st] : "unknown";
}

int mla_exit_code(mla_status st)
{
    switch (st) {
    case MLA_OK: return 0;
    case MLA_EDIFFER: return 1;
    case MLA_EINVAL: return 2;
    default: return 3;
    }
}
