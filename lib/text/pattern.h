/* Which regular expressions mean the same to PCRE2 (UTF, UCP) and to the library's engine, Oniguruma. */
#ifndef MLA_TEXT_PATTERN_H
#define MLA_TEXT_PATTERN_H
#include <stddef.h>

#include "base/err.h"

/* MLA_OK when s[0..n) uses only: ASCII literals, \r \n \t, escaped punctuation, \s \S, \p{L} \p{M} \p{N} (and \P),
 * classes of these with ASCII ranges, groups ( (?: (?i: (?= (?!, alternation, and the quantifiers ? * + {m} {m,}
 * {m,n} with lazy ? (and possessive + after ? * +). EUNSUPPORTED otherwise, naming the construct and its offset:
 * the two dialects differ on much of the rest. */
MLA_CHECKED mla_status mla_pattern_check(const char *s, size_t n, mla_err *err);
#endif
