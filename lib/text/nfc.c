/* NFC over utf8proc, cut into stretches: text below U+0300 is copied, and characters that the tokenizers library's
 * older tables do not know stand alone. Canonical ordering is done here: utf8proc's own takes time in the square of
 * the number of marks in a row. */
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/ckd.h"
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

static unsigned ccc(int32_t cp) { return (unsigned)utf8proc_get_property(cp)->combining_class; }

/* Sorts the marks c[0..n) by combining class, equal classes in their order; tmp has room for n. */
static void order_marks(int32_t *c, size_t n, int32_t *tmp)
{
    if (n < 24) {
        for (size_t i = 1; i < n; i++) {
            int32_t x = c[i];
            size_t k = i;
            for (unsigned cc = ccc(x); k > 0 && ccc(c[k - 1]) > cc; k--) c[k] = c[k - 1];
            c[k] = x;
        }
        return;
    }
    size_t at[257] = {0}; /* counting sort: where the next mark of each class goes */
    for (size_t i = 0; i < n; i++) at[ccc(c[i]) + 1]++;
    for (size_t k = 1; k < 257; k++) at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++) tmp[at[ccc(c[i])]++] = c[i];
    memcpy(c, tmp, n * sizeof *c);
}

/* Decomposes s[0..n) into c and orders its marks; returns the count, at most 2n (SIZE_MAX should utf8proc ever need
 * more). tmp is scratch of that size. */
static size_t decompose(int32_t *c, int32_t *tmp, const char *s, size_t n)
{
    size_t len = 0, run = 0; /* c[run..len) are marks */
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int boundclass = UTF8PROC_BOUNDCLASS_START;
        i += mla_utf8_step(s + i, n - i, &cp);
        utf8proc_ssize_t k = utf8proc_decompose_char((int32_t)cp, c + len, (utf8proc_ssize_t)(2 * n - len),
                                                     UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundclass);
        if (k < 0 || (size_t)k > 2 * n - len) return SIZE_MAX;
        for (size_t end = len + (size_t)k; len < end; len++)
            if (ccc(c[len]) == 0) {
                order_marks(c + run, len - run, tmp);
                run = len + 1;
            }
    }
    order_marks(c + run, len - run, tmp);
    return len;
}

/* One stretch of known characters. A canonical decomposition of k UTF-8 bytes has at most 1.5 k characters. */
static mla_status compose(mla_str *out, const char *s, size_t n, mla_err *err)
{
    size_t twice;
    if (n == 0) return MLA_OK;
    int32_t *c = mla_mul(&twice, n, 2) ? mla_alloc_raw(twice, 2, sizeof *c) : NULL;
    if (!c) return mla_fail(err, MLA_ENOMEM, "NFC of %zu bytes", n);
    size_t len = decompose(c, c + twice, s, n);
    utf8proc_ssize_t k = len == SIZE_MAX ? -1 : utf8proc_normalize_utf32(c, (utf8proc_ssize_t)len, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < k; i++) {
        char b[4];
        mla_str_putn(out, b, mla_utf8_put(b, (uint32_t)c[i]));
    }
    mla_free(c);
    return k < 0 ? mla_fail(err, MLA_EINTERNAL, "NFC of %zu bytes failed", n) : MLA_OK;
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
