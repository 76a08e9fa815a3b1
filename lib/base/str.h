/* Growable text, with a mandatory maximum: reports, JSON, paths. Append failure is sticky, so a caller
 * may append freely and check once with mla_str_ok. Always NUL-terminated. */
#ifndef MLA_BASE_STR_H
#define MLA_BASE_STR_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct {
    char *s; /* never NULL after the first append; use mla_str_c for a safe view */
    size_t len, cap, max;
    bool failed;
} mla_str;

#define MLA_STR_MAX(bytes) ((mla_str){.max = (bytes)})

void mla_str_put(mla_str *b, const char *s);
void mla_str_putn(mla_str *b, const char *s, size_t n);
void mla_str_printf(mla_str *b, const char *fmt, ...) MLA_PRINTF(2, 3);
void mla_str_vprintf(mla_str *b, const char *fmt, va_list ap) MLA_PRINTF(2, 0);
const char *mla_str_c(const mla_str *b); /* "" when empty */
bool mla_str_ok(const mla_str *b);
void mla_str_clear(mla_str *b); /* keeps the memory */
void mla_str_free(mla_str *b);

/* "12.3 GiB"-style text into buf (at least 32 bytes); returns buf. */
const char *mla_bytes_text(char *buf, size_t cap, double bytes);

/* Parses "96GB", "24GiB", "512M", "1000" into bytes (GB = 10^9, GiB = 2^30, plain letter = 2^x). */
bool mla_parse_bytes(const char *s, double *out);
bool mla_parse_size(const char *s, size_t *out); /* decimal, whole string, no sign */
bool mla_parse_double(const char *s, double *out); /* whole string, finite */
bool mla_ends_with(const char *s, const char *suffix);
bool mla_starts_with(const char *s, const char *prefix);

/* True when the bytes are well-formed UTF-8 (no surrogates, no overlong forms). */
bool mla_utf8_valid(const char *s, size_t n);
#endif
