/* zstd frames (zst.c is zstd's only home). Every frame carries a checksum; sizes are bounded by the caller. */
#ifndef MLA_IO_ZST_H
#define MLA_IO_ZST_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

size_t mla_zst_bound(size_t n);
/* One frame from n bytes. dst holds at least mla_zst_bound(n). *out_n = bytes written. Deterministic for a level. */
MLA_CHECKED mla_status mla_zst_pack(void *dst, size_t cap, size_t *out_n, const void *src, size_t n, int level, mla_err *err);
/* One frame without match search: Huffman-coded literals where `entropy`, stored ones otherwise. Several times the speed of
 * level 1, and smaller on bytes without repeats (exponents of weights), where short chance matches cost more than they save. */
MLA_CHECKED mla_status mla_zst_pack_literals(void *dst, size_t cap, size_t *out_n, const void *src, size_t n, bool entropy, mla_err *err);
/* One frame of exactly n decoded bytes; anything else is refused. */
MLA_CHECKED mla_status mla_zst_unpack(void *dst, size_t n, const void *src, size_t src_n, mla_err *err);
const char *mla_zst_version(void);
#endif
