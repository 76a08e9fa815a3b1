/* Growable text and the few string parsers that commands share. */
#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"

static bool reserve(mla_str *b, size_t extra)
{
    size_t need;
    if (b->failed) return false;
    if (!mla_add(&need, b->len, extra) || !mla_add(&need, need, 1) || need > b->max + 1) return !(b->failed = true);
    if (need <= b->cap) return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *s = mla_realloc(b->s, cap, 1);
    if (!s) return !(b->failed = true);
    b->s = s;
    b->cap = cap;
    return true;
}

void mla_str_putn(mla_str *b, const char *s, size_t n)
{
    if (!reserve(b, n)) return;
    memcpy(b->s + b->len, s, n);
    b->len += n;
    b->s[b->len] = 0;
}

void mla_str_put(mla_str *b, const char *s) { mla_str_putn(b, s, strlen(s)); }

void mla_str_vprintf(mla_str *b, const char *fmt, va_list ap)
{
    va_list ap2;
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap2);
    va_end(ap2);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if (!reserve(b, (size_t)n)) return;
    vsnprintf(b->s + b->len, (size_t)n + 1, fmt, ap);
    b->len += (size_t)n;
}

void mla_str_printf(mla_str *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    mla_str_vprintf(b, fmt, ap);
    va_end(ap);
}

const char *mla_str_c(const mla_str *b) { return b->s ? b->s : ""; }
bool mla_str_ok(const mla_str *b) { return !b->failed; }

void mla_str_clear(mla_str *b)
{
    b->len = 0;
    if (b->s) b->s[0] = 0;
}

void mla_str_free(mla_str *b)
{
    mla_free(b->s);
    *b = (mla_str){.max = b->max};
}

const char *mla_bytes_text(char *buf, size_t cap, double bytes)
{
    static const char *const UNIT[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t u = 0;
    while (bytes >= 1024 && u < 5) bytes /= 1024, u++;
    snprintf(buf, cap, u ? "%.2f %s" : "%.0f %s", bytes, UNIT[u]);
    return buf;
}

bool mla_parse_bytes(const char *s, double *out)
{
    static const struct {
        const char *unit;
        double mul;
    } U[] = {{"", 1}, {"B", 1}, {"K", 1024.}, {"M", 1048576.}, {"G", 1073741824.}, {"T", 1099511627776.},
             {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
             {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}, {"TiB", 1099511627776.}};
    if (!isdigit((unsigned char)s[0])) return false;
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (errno || !isfinite(v)) return false;
    for (size_t i = 0; i < sizeof U / sizeof *U; i++)
        if (!strcmp(end, U[i].unit)) {
            *out = v * U[i].mul;
            return true;
        }
    return false;
}

bool mla_parse_size(const char *s, size_t *out)
{
    size_t v = 0;
    if (!*s) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || !mla_mul(&v, v, 10) || !mla_add(&v, v, (size_t)(*s - '0'))) return false;
    }
    *out = v;
    return true;
}

bool mla_parse_double(const char *s, double *out)
{
    char *end;
    if (!*s || isspace((unsigned char)*s)) return false;
    double v = strtod(s, &end);
    if (*end || !isfinite(v)) return false;
    *out = v;
    return true;
}

bool mla_starts_with(const char *s, const char *prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

bool mla_ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

bool mla_utf8_valid(const char *str, size_t n)
{
    const unsigned char *s = (const unsigned char *)str;
    for (size_t i = 0; i < n;) {
        unsigned c = s[i];
        size_t k = c < 0x80 ? 0 : (c >= 0xC2 && c <= 0xDF) ? 1 : (c & 0xF0) == 0xE0 ? 2 : (c >= 0xF0 && c <= 0xF4) ? 3 : 9;
        if (k == 9 || k > n - i - 1) return false;
        for (size_t j = 1; j <= k; j++)
            if ((s[i + j] & 0xC0) != 0x80) return false;
        if ((c == 0xE0 && s[i + 1] < 0xA0) || (c == 0xED && s[i + 1] > 0x9F) || (c == 0xF0 && s[i + 1] < 0x90) ||
            (c == 0xF4 && s[i + 1] > 0x8F))
            return false;
        i += k + 1;
    }
    return true;
}
