/* A quantized matrix as codes, in the one form that a device multiplies with: what the weight formats have in common.
 *
 *   W[o, i] = s v(code[o, p]) + m      p: place of input i (perm), s and m: shared by `group` consecutive places of a row
 *
 * Every format that fits decodes to exactly the f32 values its own definition gives: s v is exact or rounded once, and
 * where there is an m, s v is exact, so that one fused multiply-add rounds as the format does.
 * lib/quant fills it, row by row and in stored precision, and lib/backend lays the rows out for its own kernels: neither
 * knows the other. EXL3 is different (its rows exist only under two Hadamard transforms): MLA_CODE_TRELLIS. */
#ifndef MLA_TENSOR_CODED_H
#define MLA_TENSOR_CODED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { /* a code, one byte of a filled row (BF16, F16: two), and its value v */
    MLA_CODE_NIBBLE,       /* 4 bits: lo[c] */
    MLA_CODE_NIBBLE_BIT,   /* 5 bits: lo[c & 15] + hi[c >> 4] */
    MLA_CODE_NIBBLE_CRUMB, /* 6 bits: lo[c & 15] + hi[c >> 4] */
    MLA_CODE_CRUMB,        /* 2 bits: lo[c] */
    MLA_CODE_CRUMB_BIT,    /* 3 bits: lo[c & 3] + hi[c >> 2] */
    MLA_CODE_INT8,         /* two's complement */
    MLA_CODE_E4M3,
    MLA_CODE_BF16,         /* a bf16 number, 16 bits; no scale */
    MLA_CODE_F16,          /* a finite f16 number, 16 bits; no scale */
    MLA_CODE_TRELLIS,      /* EXL3 */
    MLA_CODE_N
} mla_code;

typedef enum { /* s, in the bytes of mla_coded_row.scale */
    MLA_SCALE_ONE,      /* s = 1, no bytes */
    MLA_SCALE_F32, MLA_SCALE_F16, MLA_SCALE_BF16, /* a number each */
    MLA_SCALE_TABLE,    /* a byte each: table[b] */
    MLA_SCALE_SUPER_I8, /* a signed byte b each: f16 super * b */
    MLA_SCALE_SUPER_U4  /* a byte b each: f16 super * (b & 15) */
} mla_scale_kind;

typedef enum { /* m, in the bytes of mla_coded_row.offset */
    MLA_OFFSET_NONE,     /* m = 0, no bytes */
    MLA_OFFSET_F16,      /* a number each */
    MLA_OFFSET_ZERO,     /* a signed byte z each: m = -(z s), which is exact for scales of F16 and BF16 */
    MLA_OFFSET_SUPER_U8, /* a byte b each: m = -(f16 super offset * b) */
    MLA_OFFSET_SUPER_U4  /* no bytes of its own: m = -(f16 super offset * (scale byte >> 4)) */
} mla_offset_kind;

#define MLA_CODED_ROOM 8192
#define MLA_CODED_UNIT 8 /* groups hold a multiple of so many places, or the whole row */

typedef struct { /* where one row goes */
    uint8_t *code;       /* (in), or (in) uint16 for BF16 and F16 */
    uint8_t *scale;      /* ceil(in / group) of the scale kind */
    uint8_t *offset;     /* ceil(in / group) of the offset kind */
    uint16_t *super;     /* ceil(in / super_group) f16 bits; SUPER kinds */
    uint16_t *super_off;
} mla_coded_row;

typedef struct { /* EXL3: W^T = diag(su) H V H diag(sv) / 128, H block-diagonal 128 x 128 Hadamard, V [in128, out128] from tiles */
    const unsigned char *tiles; /* [in128 / 16, out128 / 16, 16 twice_k bytes]: rings of 256 K bits in u32 words, MSB first */
    unsigned twice_k;           /* bits per value, doubled: 2..16 */
    unsigned codebook;          /* 0 3inst, 1 mcg, 2 mul1: docs/weight-formats.md */
    size_t in128, out128;       /* stored dims, multiples of 128; in and out may be less */
} mla_trellis;
static inline size_t mla_trellis_bytes(const mla_trellis *t) { return t->in128 * t->out128 / 16 * t->twice_k; }

typedef struct mla_coded mla_coded;
struct mla_coded {
    size_t out, in;
    mla_code code;
    float lo[16], hi[16];  /* every entry is set: shorter codes repeat */
    size_t group;          /* a multiple of MLA_CODED_UNIT, or >= in: one group */
    mla_scale_kind scale;
    mla_offset_kind offset;
    size_t super_group;
    float table[256];
    const uint32_t *perm;  /* (in): place p holds input perm[p]; NULL: p = i */
    /* Row `row` into the buffers of *to; safe from several threads at once. TRELLIS: unused. */
    mla_status (*fill)(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err);
    const void *ctx;       /* of fill */
    mla_trellis trellis;   /* TRELLIS */
    /* TRELLIS: su (in128) and sv (out128) */
    void (*sides)(const mla_coded *c, float *su, float *sv);
    /* NULL, or: codes of BF16, tiles of TRELLIS stand in a file one after another, with nothing between: bytes [at, at + n) of them, read to
     * *from in room (n + MLA_CODED_ROOM bytes on a boundary of 4096); safe from several threads at once. */
    mla_status (*read)(const mla_coded *c, size_t at, size_t n, void *room, const void **from, mla_err *err);
    bool (*near)(const mla_coded *c); /* with read: whether it only copies, as all of them seem to be in memory; else it comes fastest some MiB at a time */
    const void *file;      /* of read */
    const char *name;      /* with read: whose it is, for errors; NULL: nobody's. Lives as long as the file */
    const unsigned char *stored;
    size_t (*row_of)(const void *map, size_t row); /* NULL, or: logical row `row` is filled from stored row row_of(map, row) */
    const void *map;
};

/* Numbers as they are: 16 bits, no scale. */
static inline bool mla_code_bare(mla_code c) { return c == MLA_CODE_BF16 || c == MLA_CODE_F16; }
/* Bytes of one element. */
static inline size_t mla_scale_size(mla_scale_kind k)
{
    return k == MLA_SCALE_ONE ? 0 : k == MLA_SCALE_F32 ? 4 : k == MLA_SCALE_F16 || k == MLA_SCALE_BF16 ? 2 : 1;
}
static inline size_t mla_offset_size(mla_offset_kind k)
{
    return k == MLA_OFFSET_F16 ? 2 : k == MLA_OFFSET_ZERO || k == MLA_OFFSET_SUPER_U8 ? 1 : 0;
}

#ifdef __cplusplus
}
#endif
#endif
