/* SHA-256 compression with the CPU's SHA instructions, one or two independent streams at a time. Private to io/.
 *
 * One stream leaves the unit half idle: each round pair waits for the one before it. Two interleaved streams fill the
 * gaps. Compression only: the caller pads. State words are h0..h7 of FIPS 180-4, blocks are 64 bytes. */
#ifndef MLA_IO_SHA256_X2_H
#define MLA_IO_SHA256_X2_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool mla_sha256_x2_usable(void); /* built for x86-64, and this CPU has SHA, SSSE3 and SSE4.1 */
void mla_sha256_x2_blocks(uint32_t a[8], const unsigned char *pa, uint32_t b[8], const unsigned char *pb, size_t blocks);
void mla_sha256_x1_blocks(uint32_t a[8], const unsigned char *pa, size_t blocks);
#endif
