/* UTF-8 by hand: one step at a time, and replacing what is not valid. */
#ifndef MLA_TEXT_UTF8_H
#define MLA_TEXT_UTF8_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

#define MLA_UTF8_BAD UINT32_MAX

/* Decodes the character at s[0..n), n > 0. Returns its length; *cp is the code point, or MLA_UTF8_BAD with the length
 * of the maximal invalid subpart (Unicode, section 3.9, "U+FFFD Substitution of Maximal Subparts"; at least 1). */
size_t mla_utf8_step(const char *s, size_t n, uint32_t *cp);

/* The start of the character that ends at s[i), i > 0, in valid UTF-8. */
size_t mla_utf8_back(const char *s, size_t i);

/* Writes a code point (no surrogate, <= 0x10FFFF); returns its length, 1 to 4. */
size_t mla_utf8_put(char out[4], uint32_t cp);

/* Appends s[0..n) with every maximal invalid subpart replaced by U+FFFD, as Python's errors="replace" does. */
void mla_utf8_lossy(mla_str *out, const char *s, size_t n);
#endif
