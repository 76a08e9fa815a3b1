/* Character classes: utf8proc's general categories and the table of what the library knows beyond them. */
#include "text/unicode.h"

#include <utf8proc.h>

typedef struct {
    uint32_t lo, hi;
    char kind; /* 'L', 'M', 'N': class in the library's regex engine; 'D': numeric for Digits, no class in the engine */
} range;

/* Ascending. Assigned after Unicode 14 (or, D, after the engine's 16.0). Every 'N' is numeric for Digits, too. */
static const range NEWER[] = {
    {0x897, 0x897, 'M'}, {0xCF3, 0xCF3, 'M'}, {0xECE, 0xECE, 'M'}, {0x1C89, 0x1C8A, 'L'}, {0xA7CB, 0xA7CD, 'L'},
    {0xA7DA, 0xA7DC, 'L'}, {0x105C0, 0x105F3, 'L'}, {0x10D40, 0x10D49, 'N'}, {0x10D4A, 0x10D65, 'L'},
    {0x10D69, 0x10D6D, 'M'}, {0x10D6F, 0x10D85, 'L'}, {0x10EC2, 0x10EC4, 'L'}, {0x10EFC, 0x10EFF, 'M'},
    {0x1123F, 0x11240, 'L'}, {0x11241, 0x11241, 'M'}, {0x11380, 0x11389, 'L'}, {0x1138B, 0x1138B, 'L'},
    {0x1138E, 0x1138E, 'L'}, {0x11390, 0x113B5, 'L'}, {0x113B7, 0x113B7, 'L'}, {0x113B8, 0x113C0, 'M'},
    {0x113C2, 0x113C2, 'M'}, {0x113C5, 0x113C5, 'M'}, {0x113C7, 0x113CA, 'M'}, {0x113CC, 0x113D0, 'M'},
    {0x113D1, 0x113D1, 'L'}, {0x113D2, 0x113D2, 'M'}, {0x113D3, 0x113D3, 'L'}, {0x113E1, 0x113E2, 'M'},
    {0x116D0, 0x116E3, 'N'}, {0x11BC0, 0x11BE0, 'L'}, {0x11BF0, 0x11BF9, 'N'}, {0x11DE0, 0x11DE9, 'D'},
    {0x11F00, 0x11F01, 'M'}, {0x11F02, 0x11F02, 'L'}, {0x11F03, 0x11F03, 'M'}, {0x11F04, 0x11F10, 'L'},
    {0x11F12, 0x11F33, 'L'}, {0x11F34, 0x11F3A, 'M'}, {0x11F3E, 0x11F42, 'M'}, {0x11F50, 0x11F59, 'N'},
    {0x11F5A, 0x11F5A, 'M'}, {0x1342F, 0x1342F, 'L'}, {0x13440, 0x13440, 'M'}, {0x13441, 0x13446, 'L'},
    {0x13447, 0x13455, 'M'}, {0x13460, 0x143FA, 'L'}, {0x16100, 0x1611D, 'L'}, {0x1611E, 0x1612F, 'M'},
    {0x16130, 0x16139, 'N'}, {0x16D40, 0x16D6C, 'L'}, {0x16D70, 0x16D79, 'N'}, {0x16FF4, 0x16FF6, 'D'},
    {0x18CFF, 0x18CFF, 'L'}, {0x1B132, 0x1B132, 'L'}, {0x1B155, 0x1B155, 'L'}, {0x1CCF0, 0x1CCF9, 'N'},
    {0x1D2C0, 0x1D2D3, 'N'}, {0x1DF25, 0x1DF2A, 'L'}, {0x1E030, 0x1E06D, 'L'}, {0x1E08F, 0x1E08F, 'M'},
    {0x1E4D0, 0x1E4EB, 'L'}, {0x1E4EC, 0x1E4EF, 'M'}, {0x1E4F0, 0x1E4F9, 'N'}, {0x1E5D0, 0x1E5ED, 'L'},
    {0x1E5EE, 0x1E5EF, 'M'}, {0x1E5F0, 0x1E5F0, 'L'}, {0x1E5F1, 0x1E5FA, 'N'}, {0x2B739, 0x2B739, 'L'},
    {0x2EBF0, 0x2EE5D, 'L'}, {0x31350, 0x323AF, 'L'},
};

static const range *newer(uint32_t cp)
{
    /* the two wide stretches without entries hold nearly all three-byte text */
    if (cp < 0x897 || (cp > 0x1C8A && cp < 0xA7CB) || (cp > 0xA7DC && cp < 0x105C0)) return NULL;
    size_t lo = 0, hi = sizeof NEWER / sizeof *NEWER;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (NEWER[mid].hi < cp) lo = mid + 1;
        else hi = mid;
    }
    return lo < sizeof NEWER / sizeof *NEWER && NEWER[lo].lo <= cp ? &NEWER[lo] : NULL;
}

bool mla_uc_numeric(uint32_t cp)
{
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    const range *r = newer(cp);
    if (r) return r->kind == 'N' || r->kind == 'D';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool mla_uc_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool mla_uc_word(uint32_t cp)
{
    if (newer(cp)) return true;
    if (cp == 0x200C || cp == 0x200D) return true; /* Join_Control */
    /* Other_Alphabetic symbols: circled and squared letters */
    if ((cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
        (cp >= 0x1F170 && cp <= 0x1F189))
        return true;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

uint32_t mla_uc_stand_in(uint32_t cp)
{
    if (cp == 0x180E) return 0x200B; /* a format character: in no class */
    const range *r = newer(cp);
    if (!r) return cp;
    bool three = cp < 0x10000;
    switch (r->kind) { /* members of each class since early Unicode */
    case 'L': return three ? 0x4E00 : 0x20000;
    case 'M': return three ? 0x20D0 : 0x1D165;
    case 'N': return three ? 0x0E50 : 0x1D7CE;
    default: return three ? 0x200B : 0x1F600;
    }
}
