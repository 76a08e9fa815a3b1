/* XML well-formedness, enough for JUnit and SVG. */
#include "xml.h"

#include <string.h>

#include "base/str.h"

static const char *text_char(const char **p)
{
    static const char *const ENT[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    unsigned char c = (unsigned char)**p;
    if (c == '&') {
        for (size_t i = 0; i < 5; i++)
            if (!strncmp(*p, ENT[i], strlen(ENT[i]))) {
                *p += strlen(ENT[i]);
                return NULL;
            }
        return "unknown entity";
    }
    if (c == '<') return "< in text";
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) return "control character";
    (*p)++;
    return NULL;
}

static size_t name_len(const char *p) { return strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:."); }

static const char *attributes(const char **p)
{
    for (;;) {
        *p += strspn(*p, " \n");
        if (**p == '>' || **p == '/' || **p == '?') return NULL;
        size_t n = name_len(*p);
        if (!n) return "bad attribute name";
        *p += n;
        if (strncmp(*p, "=\"", 2)) return "attribute without =\"";
        *p += 2;
        while (**p && **p != '"') {
            const char *bad = text_char(p);
            if (bad) return bad;
        }
        if (!**p) return "attribute not closed";
        (*p)++;
    }
}

const char *xml_check(const char *s, const char *tag, size_t *count)
{
    char stack[32][32];
    size_t depth = 0, roots = 0;
    *count = 0;
    if (!mla_utf8_valid(s, strlen(s))) return "not UTF-8";
    for (const char *p = s; *p;) {
        if (*p != '<') {
            const char *bad = text_char(&p);
            if (bad) return bad;
            continue;
        }
        p++;
        if (*p == '?') {
            const char *end = strstr(p, "?>");
            if (!end) return "declaration not closed";
            p = end + 2;
            continue;
        }
        bool close = *p == '/';
        p += close;
        size_t n = name_len(p);
        if (!n || n > 31) return "bad tag name";
        if (close) {
            if (!depth || strlen(stack[depth - 1]) != n || strncmp(stack[depth - 1], p, n)) return "closing tag does not match";
            depth--;
            p += n;
            if (*p++ != '>') return "closing tag not closed";
            continue;
        }
        if (depth == 0 && roots++) return "two roots";
        if (depth == 32) return "too deep";
        memcpy(stack[depth], p, n);
        stack[depth][n] = '\0';
        *count += !strcmp(stack[depth], tag);
        depth++;
        p += n;
        const char *bad = attributes(&p);
        if (bad) return bad;
        if (*p == '/') {
            depth--;
            p++;
        }
        if (*p++ != '>') return "tag not closed";
    }
    return depth ? "tag left open" : roots ? NULL : "no root";
}
