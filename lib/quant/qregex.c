/* Python regular expressions to POSIX extended ones, for yes-or-no matching of names at their start.
 *
 * Whether a match exists does not depend on greed, so lazy quantifiers become plain ones; the longest-leftmost rule of
 * POSIX likewise changes only what a match covers. Everything else outside the common subset is refused by name. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "quant/qpattern.h"

#define LENGTH_MAX 400
#define REPEAT_MAX 1000

typedef struct {
    const char *all, *at; /* the pattern and the place being read */
    mla_str *out;
    bool atom;      /* something stands before, which a quantifier can repeat */
    int depth;      /* open groups */
    unsigned long product; /* of all repetition counts: bounds the automaton even when they nest */
} scan;

static mla_status outside(const scan *s, const char *what, mla_err *err)
{
    return mla_fail(err, MLA_EUNSUPPORTED, "pattern \"%s\": %s is outside the supported subset of regular expressions", s->all, what);
}

static mla_status broken(const scan *s, const char *what, mla_err *err)
{
    return mla_fail(err, MLA_EFORMAT, "pattern \"%s\": %s", s->all, what);
}

/* \d \w \s and their complements as the inside of a bracket expression, or NULL. */
static const char *class_of(char c, bool *negated)
{
    *negated = isupper((unsigned char)c) != 0;
    switch (tolower((unsigned char)c)) {
    case 'd': return "0-9";
    case 'w': return "A-Za-z0-9_";
    case 's': return " \t\n\r\f\v";
    default: return NULL;
    }
}

static mla_status escape(scan *s, mla_err *err)
{
    char c = s->at[1];
    bool negated;
    const char *set = class_of(c, &negated);
    if (c == 0) return broken(s, "ends in a backslash", err);
    if (isalnum((unsigned char)c)) {
        if (!set) return outside(s, "a backslash before a letter or digit other than \\d \\w \\s", err);
        mla_str_printf(s->out, "[%s%s]", negated ? "^" : "", set);
    } else {
        if (strchr(".[]{}()*+?^$|\\", c)) mla_str_putn(s->out, "\\", 1);
        mla_str_putn(s->out, &c, 1);
    }
    s->at += 2;
    s->atom = true;
    return MLA_OK;
}

static mla_status bracket(scan *s, mla_err *err)
{
    const char *p = s->at + 1;
    mla_str_put(s->out, "[");
    if (*p == '^') mla_str_putn(s->out, p++, 1);
    if (*p == ']') mla_str_putn(s->out, p++, 1); /* first of all it is a literal, in both syntaxes */
    for (; *p != ']'; p++) {
        bool negated;
        const char *set;
        if (*p == 0) return broken(s, "a [ without its ]", err);
        if (*p == '[') return outside(s, "[ inside [...]", err);
        if (*p != '\\') {
            mla_str_putn(s->out, p, 1);
            continue;
        }
        set = class_of(*++p, &negated);
        if (set && !negated) mla_str_put(s->out, set);
        else if (*p && strchr("./_:$+*?(){}|", *p)) mla_str_putn(s->out, p, 1);
        else return outside(s, "this escape inside [...]", err);
    }
    mla_str_put(s->out, "]");
    s->at = p + 1;
    s->atom = true;
    return MLA_OK;
}

static mla_status group(scan *s, mla_err *err)
{
    s->at++;
    if (*s->at == '?') {
        if (s->at[1] != ':') return outside(s, "a (?...) other than (?:...)", err);
        s->at += 2;
    }
    mla_str_put(s->out, "(");
    s->depth++;
    s->atom = false;
    return MLA_OK;
}

/* {m}, {m,}, {,n}, {m,n} at p; the end, or NULL when it is none of them. */
static const char *read_count(const char *p, unsigned long *lo, unsigned long *hi, bool *open)
{
    char *end;
    bool low = isdigit((unsigned char)*++p) != 0;
    *lo = low ? strtoul(p, &end, 10) : 0;
    if (low) p = end;
    *hi = *lo;
    *open = false;
    if (*p == ',') {
        p++;
        if (isdigit((unsigned char)*p)) {
            *hi = strtoul(p, &end, 10);
            p = end;
        } else {
            if (!low) return NULL;
            *open = true;
        }
    } else if (!low) return NULL;
    return *p == '}' ? p + 1 : NULL;
}

static mla_status quantifier(scan *s, mla_err *err)
{
    unsigned long lo = 0, hi = 0;
    bool open = false;
    const char *end = *s->at == '{' ? read_count(s->at, &lo, &hi, &open) : s->at + 1;
    if (!end) return outside(s, "a { that is no repetition count", err);
    if (!s->atom) return broken(s, "a quantifier with nothing to repeat", err);
    if (*s->at == '{') {
        if (!open && hi < lo) return broken(s, "a repetition count with its bounds reversed", err);
        if (lo > REPEAT_MAX || hi > REPEAT_MAX || (s->product *= hi ? hi : 1) > REPEAT_MAX)
            return outside(s, "a repetition of more than 1000", err);
        if (open) mla_str_printf(s->out, "{%lu,}", lo);
        else mla_str_printf(s->out, "{%lu,%lu}", lo, hi);
        s->at = end;
    } else mla_str_putn(s->out, s->at++, 1);
    if (*s->at == '?') s->at++; /* lazy: the same yes or no */
    else if (*s->at == '+') return outside(s, "a possessive quantifier", err);
    s->atom = false;
    return MLA_OK;
}

static mla_status step(scan *s, mla_err *err)
{
    switch (*s->at) {
    case '\\': return escape(s, err);
    case '[': return bracket(s, err);
    case '(': return group(s, err);
    case ')':
        if (s->depth-- == 0) return broken(s, "a ) without its (", err);
        s->atom = true;
        break;
    case '*': case '+': case '?': case '{': return quantifier(s, err);
    case '|': case '^': case '$': s->atom = false; break;
    case '}': case ']': /* literals in Python; escaped, they are in POSIX, too */
        mla_str_put(s->out, "\\");
        s->atom = true;
        break;
    default:
        if ((unsigned char)*s->at < 0x20 || (unsigned char)*s->at > 0x7e) return outside(s, "a character that is not ASCII text", err);
        s->atom = true;
    }
    mla_str_putn(s->out, s->at++, 1);
    return MLA_OK;
}

mla_status mla_qregex_translate(mla_str *out, const char *python, mla_err *err)
{
    scan s = {python, python, out, false, 0, 1};
    if (*python == 0) return mla_fail(err, MLA_EFORMAT, "an empty pattern, which would match every name");
    if (strlen(python) > LENGTH_MAX)
        return mla_fail(err, MLA_EUNSUPPORTED, "pattern \"%.60s...\" of %zu bytes, at most %d", python, strlen(python), LENGTH_MAX);
    mla_str_put(out, "^(");
    while (*s.at) {
        mla_status st = step(&s, err);
        if (st) return st;
    }
    if (s.depth) return broken(&s, "a ( without its )", err);
    mla_str_put(out, ")");
    return mla_str_ok(out) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "pattern \"%s\"", python);
}
