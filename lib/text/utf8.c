/* UTF-8 steps after the table of well-formed byte sequences (Unicode, table 3-7). */
#include "text/utf8.h"

#include <string.h>

size_t mla_utf8_step(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *b = (const unsigned char *)s;
    unsigned lead = b[0];
    if (lead < 0x80) {
        *cp = lead;
        return 1;
    }
    *cp = MLA_UTF8_BAD;
    if (lead < 0xC2 || lead > 0xF4) return 1;
    size_t want = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* only the second byte's range depends on the lead byte: no overlong forms, no surrogates, nothing past U+10FFFF */
    unsigned lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    uint32_t v = lead & (0x7Fu >> want);
    for (size_t i = 1; i < want; i++, lo = 0x80, hi = 0xBF) {
        if (i == n || b[i] < lo || b[i] > hi) return i;
        v = v << 6 | (b[i] & 0x3Fu);
    }
    *cp = v;
    return want;
}

size_t mla_utf8_back(const char *s, size_t i)
{
    do i--;
    while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80);
    return i;
}

size_t mla_utf8_put(char out[4], uint32_t cp)
{
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char LEAD[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(LEAD[n] | cp);
    return n;
}

void mla_utf8_lossy(mla_str *out, const char *s, size_t n)
{
    size_t kept = 0; /* s[kept..i) is valid and not yet written */
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = mla_utf8_step(s + i, n - i, &cp);
        if (cp == MLA_UTF8_BAD) {
            mla_str_putn(out, s + kept, i - kept);
            mla_str_putn(out, "\xEF\xBF\xBD", 3);
            kept = i + len;
        }
        i += len;
    }
    mla_str_putn(out, s + kept, n - kept);
}
