/* Character classes and composition as the tokenizers library sees them, on top of utf8proc.
 *
 * The library's pieces carry tables of different Unicode versions: its regex engine 16.0 (0.23 of the library), digits
 * 17.0, composition an old one. The differences to the tables installed here, measured over all code points, are in
 * unicode.c, so that ids do not depend on which utf8proc and PCRE2 a system has. */
#ifndef MLA_TEXT_UNICODE_H
#define MLA_TEXT_UNICODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

bool mla_uc_numeric(uint32_t cp); /* Nd, Nl, No: what a Digits pre-tokenizer isolates */
bool mla_uc_space(uint32_t cp);   /* White_Space */
bool mla_uc_word(uint32_t cp);    /* \w of UTS #18: Alphabetic, M, Nd, Pc, Join_Control */

/* A character of the same UTF-8 length that PCRE2 puts into the same of \p{L} \p{M} \p{N} \s as the library's engine
 * puts cp: cp itself except for characters newer than PCRE2's tables and U+180E (PCRE2's \s has it, White_Space not). */
uint32_t mla_uc_stand_in(uint32_t cp);

/* Appends valid UTF-8 s[0..n) in NFC. Characters that the library's tables do not know pass through and compose with
 * nothing. ENOMEM only (also when out's maximum is reached). */
MLA_CHECKED mla_status mla_uc_nfc(mla_str *out, const char *s, size_t n, mla_err *err);
/* False: s[0..n) is certainly in NFC (all below U+0300). */
bool mla_uc_may_compose(const char *s, size_t n);
#endif
