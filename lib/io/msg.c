/* Wording of system errors and of names that come from files. */
#include "io/msg.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"

mla_status mla_sys_fail(mla_err *err, const char *path, const char *doing)
{
    char buf[128];
    return mla_fail(err, MLA_EIO, "%s: cannot %s: %s", path, doing, strerror_r(errno, buf, sizeof buf));
}

const char *mla_quote(mla_quoted *q, const char *s, size_t n)
{
    size_t head = n, tail = 0, at = 0;
    if (n > MLA_QUOTE_MAX) {
        head = MLA_QUOTE_MAX / 2;
        tail = MLA_QUOTE_MAX - head;
    }
    memcpy(q->s, s, head);
    at = head;
    if (tail) {
        memcpy(q->s + at, "...", 3);
        memcpy(q->s + at + 3, s + n - tail, tail);
        at += 3 + tail;
    }
    q->s[at] = 0;
    int utf8 = tail == 0 && mla_utf8_valid(q->s, at); /* a cut may fall inside a character */
    for (size_t i = 0; i < at; i++) {
        unsigned char c = (unsigned char)q->s[i];
        if (c < 0x20 || c == 0x7f || (c >= 0x80 && !utf8)) q->s[i] = '?';
    }
    return q->s;
}
