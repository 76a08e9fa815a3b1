/* Weights as zstd frames of byte planes: what bundles of packed checkpoints are made of.
 *
 * Floating-point weights hold their entropy unevenly: the exponents of a bf16 matrix carry about 2.6 of 8 bits, its signs and
 * mantissas all of theirs (DFloat11, ZipNN). Elements are turned left by one bit, so that a whole exponent stands in the top
 * byte, then byte j of every element forms plane j. A plane is one frame, Huffman-coded where that can pay. */
#ifndef MLA_IO_PLANES_H
#define MLA_IO_PLANES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tensor/dtype.h"

#define MLA_PLANES_MAX 4

typedef enum {
    MLA_PLANES_TEXT,  /* one plane, with match search: JSON, vocabularies, headers */
    MLA_PLANES_BYTES, /* one plane, literals alone: FP8, packed integers */
    MLA_PLANES_F16,   /* two planes: bf16 and f16 */
    MLA_PLANES_F32    /* four planes */
} mla_planes;

mla_planes mla_planes_of(mla_dtype t);
size_t mla_planes_count(mla_planes k);       /* 1, 1, 2, 4: also the element's bytes */
const char *mla_planes_name(mla_planes k);   /* "text", "bytes", "f16", "f32" */
bool mla_planes_parse(const char *s, mla_planes *out);

/* Bytes that dst of mla_planes_pack must hold for n bytes; scratch of both directions holds n bytes. */
size_t mla_planes_bound(mla_planes k, size_t n);
/* n bytes (a multiple of the element) into mla_planes_count frames back to back, frame j of size[j] bytes. */
MLA_CHECKED mla_status mla_planes_pack(mla_planes k, void *dst, size_t cap, size_t size[MLA_PLANES_MAX], const void *src, size_t n,
                                       void *scratch, mla_err *err);
/* The n bytes back; every frame's checksum is tested. src_n is what the sizes must add up to. */
MLA_CHECKED mla_status mla_planes_unpack(mla_planes k, void *dst, size_t n, const void *src, size_t src_n, const size_t size[MLA_PLANES_MAX],
                                         void *scratch, mla_err *err);
#endif
