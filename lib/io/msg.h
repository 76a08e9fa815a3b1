/* What the readers of this layer share to word their errors: system calls and names from files.
 * Private to io/. */
#ifndef MLA_IO_MSG_H
#define MLA_IO_MSG_H
#include <stddef.h>

#include "base/err.h"

/* MLA_EIO "PATH: cannot DOING: <text of errno>". Reads errno first. */
mla_status mla_sys_fail(mla_err *err, const char *path, const char *doing);

#define MLA_QUOTE_MAX 112
/* A name from a file, safe to print: control bytes and broken UTF-8 become '?', the middle of a long name "...".
 * Returns q->s. */
typedef struct {
    char s[MLA_QUOTE_MAX + 8];
} mla_quoted;
const char *mla_quote(mla_quoted *q, const char *s, size_t n);
#endif
