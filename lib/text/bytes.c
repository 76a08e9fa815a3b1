/* The byte alphabet, by arithmetic: the bytes that do not stand for themselves are 0..32, 127..160 and 173. */
#include "text/bytes.h"

uint32_t mla_byte_char(unsigned char b)
{
    if (b <= 32) return 0x100u + b;
    if (b >= 127 && b <= 160) return 0x100u + 33u + (b - 127u);
    return b == 173 ? 0x100u + 67u : b;
}

int mla_char_byte(uint32_t cp)
{
    if (cp < 0x100) return cp <= 32 || (cp >= 127 && cp <= 160) || cp == 173 ? -1 : (int)cp;
    uint32_t n = cp - 0x100;
    return n < 33 ? (int)n : n < 67 ? (int)(n - 33 + 127) : n == 67 ? 173 : -1;
}
