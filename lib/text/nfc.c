/* NFC over utf8proc, cut into stretches: text below U+0300 is copied, and characters that the tokenizers library's
 * older tables do not know stand alone. */
#include <stdlib.h>
#include <utf8proc.h>

#include "text/unicode.h"
#include "text/utf8.h"

/* Ascending. Combining marks (and second halves of compositions) newer than the library's tables: it neither reorders
 * nor composes them. U+11A7 is here because utf8proc 2.8 takes it for an empty final consonant and drops it. */
static const struct {
    uint32_t lo, hi;
} UNKNOWN[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C0, 0x105F3}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10EFC, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x11380, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16100, 0x1612F}, {0x16D40, 0x16D6C}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
};

static bool unknown(uint32_t cp)
{
    size_t lo = 0, hi = sizeof UNKNOWN / sizeof *UNKNOWN;
    if (cp < 0x7FD || (cp > 0x1DFA && cp < 0xA82C) || (cp > 0xA82C && cp < 0x105C0)) return false;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (UNKNOWN[mid].hi < cp) lo = mid + 1;
        else hi = mid;
    }
    return lo < sizeof UNKNOWN / sizeof *UNKNOWN && UNKNOWN[lo].lo <= cp;
}

bool mla_uc_may_compose(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= 0xCC) return true; /* 0xCC 0x80 is U+0300 */
    return false;
}

/* One stretch of known characters. */
static mla_status compose(mla_str *out, const char *s, size_t n, mla_err *err)
{
    if (n == 0) return MLA_OK;
    utf8proc_uint8_t *r = NULL;
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &r,
                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (len < 0)
        return mla_fail(err, len == UTF8PROC_ERROR_NOMEM ? MLA_ENOMEM : MLA_EINTERNAL, "NFC of %zu bytes: %s", n,
                        utf8proc_errmsg(len));
    mla_str_putn(out, (const char *)r, (size_t)len);
    free(r); /* utf8proc's own malloc */
    return MLA_OK;
}

mla_status mla_uc_nfc(mla_str *out, const char *s, size_t n, mla_err *err)
{
    for (size_t i = 0; i < n;) {
        size_t j = i;
        while (j < n && (unsigned char)s[j] < 0xCC) j++;
        if (j == n) {
            mla_str_putn(out, s + i, n - i);
            break;
        }
        size_t begin = j > i ? mla_utf8_back(s, j) : j; /* the character before may be the base of a mark */
        mla_str_putn(out, s + i, begin - i);
        size_t cut = begin; /* s[cut..j) waits to be composed */
        while (j < n && (unsigned char)s[j] >= 0x80) {  /* an ASCII character starts afresh */
            uint32_t cp;
            size_t len = mla_utf8_step(s + j, n - j, &cp);
            if (unknown(cp)) {
                mla_status st = compose(out, s + cut, j - cut, err);
                if (st) return st;
                mla_str_putn(out, s + j, len);
                cut = j + len;
            }
            j += len;
        }
        mla_status st = compose(out, s + cut, j - cut, err);
        if (st) return st;
        i = j;
    }
    if (!mla_str_ok(out)) return mla_fail(err, MLA_ENOMEM, "NFC of %zu bytes", n);
    return MLA_OK;
}
