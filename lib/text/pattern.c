/* A walk over a pattern that lets through the common subset of two regex dialects. */
#include "text/pattern.h"

#include <stdbool.h>
#include <string.h>

#include "io/msg.h"

typedef struct {
    const char *s;
    size_t n, i;
    mla_err *err;
} walk;

static bool is_alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static char at(const walk *w, size_t i) { return i < w->n ? w->s[i] : 0; }

static mla_status refuse(const walk *w, size_t at_byte, const char *what)
{
    mla_quoted q;
    size_t left = w->n - at_byte;
    return mla_fail(w->err, MLA_EUNSUPPORTED, "pre-tokenizer pattern, byte %zu: %s \"%s\" is not known", at_byte, what,
                    mla_quote(&q, w->s + at_byte, left < 8 ? left : 8));
}

/* At a backslash: \r \n \t \s \S, \p{L} and the like, escaped punctuation. */
static mla_status escape(walk *w)
{
    char c = at(w, w->i + 1);
    if (c == 'p' || c == 'P') {
        const char *p = w->s + w->i;
        if (w->n - w->i >= 5 && p[2] == '{' && p[4] == '}' && strchr("LMN", p[3]) && p[3]) {
            w->i += 5;
            return MLA_OK;
        }
        return refuse(w, w->i, "the property");
    }
    if (c && (strchr("rntsS", c) || (c > 0x20 && c < 0x7f && !is_alnum(c)))) {
        w->i += 2;
        return MLA_OK;
    }
    return refuse(w, w->i, "the escape");
}

/* At '[': up to and past the closing bracket. No nested or POSIX classes, no intersections. */
static mla_status class(walk *w)
{
    size_t open = w->i++;
    if (at(w, w->i) == '^') w->i++;
    if (at(w, w->i) == ']') return refuse(w, open, "the class");
    while (w->i < w->n && w->s[w->i] != ']') {
        char c = w->s[w->i];
        if (c == '\\') {
            mla_status st = escape(w);
            if (st) return st;
            continue;
        }
        if (c == '[' || (c == '&' && at(w, w->i + 1) == '&') || c < 0x20 || c > 0x7e) return refuse(w, w->i, "in a class");
        w->i++;
    }
    if (w->i == w->n) return refuse(w, open, "the unclosed class");
    w->i++;
    return MLA_OK;
}

/* At '(': only the forms whose meaning is shared. */
static mla_status group(walk *w)
{
    static const char *const OPEN[] = {"(?:", "(?i:", "(?=", "(?!"};
    for (size_t k = 0; k < sizeof OPEN / sizeof *OPEN; k++) {
        size_t len = strlen(OPEN[k]);
        if (w->n - w->i >= len && !memcmp(w->s + w->i, OPEN[k], len)) {
            w->i += len;
            return MLA_OK;
        }
    }
    if (strchr("?*+{", at(w, w->i + 1))) return refuse(w, w->i, "the group"); /* strchr finds the end's NUL, too */
    w->i++;
    return MLA_OK;
}

/* At '{': {m}, {m,} or {m,n}; a plus after it nests in one dialect and is possessive in the other. */
static mla_status counted(walk *w)
{
    size_t open = w->i, i = w->i + 1, digits = i;
    while (is_digit(at(w, i))) i++;
    if (i == digits) return refuse(w, open, "the brace");
    if (at(w, i) == ',') i++;
    while (is_digit(at(w, i))) i++;
    if (at(w, i) != '}' || at(w, i + 1) == '+') return refuse(w, open, "the brace");
    w->i = i + 1;
    return MLA_OK;
}

mla_status mla_pattern_check(const char *s, size_t n, mla_err *err)
{
    walk w = {s, n, 0, err};
    while (w.i < n) {
        mla_status st = MLA_OK;
        char c = s[w.i];
        if (c == '\\') st = escape(&w);
        else if (c == '[') st = class(&w);
        else if (c == '(') st = group(&w);
        else if (c == '{') st = counted(&w);
        else if (c < 0x20 || c > 0x7e) st = refuse(&w, w.i, "the character");
        else if (strchr("^$.]}", c)) st = refuse(&w, w.i, "the construct");
        else w.i++;
        if (st) return st;
    }
    return MLA_OK;
}
