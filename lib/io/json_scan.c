/* A validating scan of JSON text: recursive descent over bytes, nothing is built. */
#include "io/json_scan.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/str.h"

typedef struct {
    const char *s;
    size_t n, at, values;
    const char *what;
    mla_err *err;
} scan;

static bool bad(const scan *c, const char *why)
{
    if (c->at >= c->n) return mla_fail(c->err, MLA_EFORMAT, "%s: ends early at byte %zu: %s", c->what, c->n, why) == MLA_OK;
    unsigned char b = (unsigned char)c->s[c->at];
    if (b > 0x20 && b < 0x7f)
        return mla_fail(c->err, MLA_EFORMAT, "%s: byte %zu ('%c'): %s", c->what, c->at, b, why) == MLA_OK;
    return mla_fail(c->err, MLA_EFORMAT, "%s: byte %zu (0x%02x): %s", c->what, c->at, b, why) == MLA_OK;
}

static void space(scan *c)
{
    while (c->at < c->n && (c->s[c->at] == ' ' || c->s[c->at] == '\n' || c->s[c->at] == '\t' || c->s[c->at] == '\r')) c->at++;
}

static bool is(const scan *c, char ch) { return c->at < c->n && c->s[c->at] == ch; }

static bool digits(scan *c)
{
    size_t from = c->at;
    while (c->at < c->n && c->s[c->at] >= '0' && c->s[c->at] <= '9') c->at++;
    return c->at > from;
}

static bool number(scan *c)
{
    size_t from = c->at;
    if (is(c, '-')) c->at++;
    if (is(c, '0')) {
        c->at++;
        if (c->at < c->n && c->s[c->at] >= '0' && c->s[c->at] <= '9') return bad(c, "a number with a leading zero");
    } else if (!digits(c)) {
        return bad(c, "expected a digit");
    }
    if (is(c, '.')) {
        c->at++;
        if (!digits(c)) return bad(c, "expected a digit after the point");
    }
    if (is(c, 'e') || is(c, 'E')) {
        c->at++;
        if (is(c, '+') || is(c, '-')) c->at++;
        if (!digits(c)) return bad(c, "expected a digit in the exponent");
    }
    if (c->at - from > 63) {
        c->at = from;
        return bad(c, "a number of more than 63 characters");
    }
    return true;
}

static bool hex4(scan *c, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++, c->at++) {
        if (c->at >= c->n) return bad(c, "expected four hex digits after \\u");
        char ch = c->s[c->at];
        uint32_t d = ch >= '0' && ch <= '9' ? (uint32_t)(ch - '0') : ch >= 'a' && ch <= 'f' ? (uint32_t)(ch - 'a' + 10)
                   : ch >= 'A' && ch <= 'F' ? (uint32_t)(ch - 'A' + 10) : 16u;
        if (d == 16) return bad(c, "expected four hex digits after \\u");
        v = v << 4 | d;
    }
    *out = v;
    return true;
}

static bool escape(scan *c) /* at the byte after the backslash */
{
    if (c->at >= c->n || !strchr("\"\\/bfnrtu", c->s[c->at]) || !c->s[c->at]) return bad(c, "an unknown escape");
    if (c->s[c->at++] != 'u') return true;
    uint32_t u, low;
    if (!hex4(c, &u)) return false;
    if (u == 0) return bad(c, "NUL (\\u0000) in a string");
    if (u < 0xD800 || u > 0xDFFF) return true;
    if (u > 0xDBFF || !is(c, '\\')) return bad(c, "a lone surrogate");
    c->at++;
    if (!is(c, 'u')) return bad(c, "a lone surrogate");
    c->at++;
    if (!hex4(c, &low)) return false;
    return (low >= 0xDC00 && low <= 0xDFFF) || bad(c, "a lone surrogate");
}

static bool string(scan *c)
{
    if (!is(c, '"')) return bad(c, "expected a string");
    for (c->at++; c->at < c->n;) {
        unsigned char ch = (unsigned char)c->s[c->at];
        if (ch < 0x20) return bad(c, "a control character in a string");
        c->at++;
        if (ch == '"') return true;
        if (ch == '\\' && !escape(c)) return false;
    }
    return bad(c, "an open string");
}

static bool literal(scan *c, const char *word)
{
    size_t k = strlen(word);
    if (c->n - c->at < k || memcmp(c->s + c->at, word, k)) return bad(c, "expected a value");
    c->at += k;
    return true;
}

static bool value(scan *c, unsigned depth);

static bool members(scan *c, unsigned depth, bool object)
{
    char close = object ? '}' : ']';
    if (depth > MLA_JSON_DEPTH) return bad(c, "nested deeper than 64");
    c->at++;
    space(c);
    if (is(c, close)) {
        c->at++;
        return true;
    }
    for (;;) {
        space(c);
        if (object) {
            if (!string(c)) return false;
            space(c);
            if (!is(c, ':')) return bad(c, "expected ':'");
            c->at++;
        }
        if (!value(c, depth)) return false;
        space(c);
        if (is(c, close)) {
            c->at++;
            return true;
        }
        if (!is(c, ',')) return bad(c, object ? "expected ',' or '}'" : "expected ',' or ']'");
        c->at++;
    }
}

static bool value(scan *c, unsigned depth)
{
    space(c);
    if (c->at >= c->n) return bad(c, "expected a value");
    if (++c->values > MLA_JSON_VALUES) return bad(c, "more values than are accepted (4194304)");
    switch (c->s[c->at]) {
    case '{': return members(c, depth + 1, true);
    case '[': return members(c, depth + 1, false);
    case '"': return string(c);
    case 't': return literal(c, "true");
    case 'f': return literal(c, "false");
    case 'n': return literal(c, "null");
    default:
        if (c->s[c->at] != '-' && (c->s[c->at] < '0' || c->s[c->at] > '9')) return bad(c, "expected a value");
        return number(c);
    }
}

mla_status mla_json_scan(const char *text, size_t n, const char *what, mla_err *err)
{
    scan c = {.s = text, .n = n, .what = what, .err = err};
    if (!mla_utf8_valid(text, n)) return mla_fail(err, MLA_EFORMAT, "%s: not valid UTF-8", what);
    if (!value(&c, 0)) return MLA_EFORMAT;
    space(&c);
    if (c.at < n) {
        bad(&c, "text after the end of the document");
        return MLA_EFORMAT;
    }
    return MLA_OK;
}
