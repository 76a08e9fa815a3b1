/* The byte alphabet of byte-level BPE: each byte is written as one printable character.
 * 33..126, 161..172 and 174..255 stand for themselves, the other 68 bytes in order for U+0100 + n. */
#ifndef MLA_TEXT_BYTES_H
#define MLA_TEXT_BYTES_H
#include <stdint.h>

uint32_t mla_byte_char(unsigned char b); /* code point of a byte */
int mla_char_byte(uint32_t cp);          /* the byte of a code point, or -1 */
#endif
