/* The kernels one ISA variant brings: same names, same signatures, one table each; cpu.c picks a table at open.
 *
 * Matrix work goes through one microkernel on packed operands:
 *   A: rows of MLA_KP values, MLA_LDA apart (a constant stride keeps 14 rows addressable from one register);
 *   B: panels of MLA_NR columns, (k, MLA_NR) contiguous;
 *   C: (m, MLA_NR) += one fused multiply-add chain per element over k ascending, started at zero.
 * Row kernels come from rows_body.h, compiled once per variant. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_KERNELS_H
#define MLA_BACKEND_CPU_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cpu/dot.h"
#include "tensor/coded.h"

#define MLA_NR 32   /* columns per packed panel */
#define MLA_MR 14   /* most rows per microkernel call */
#define MLA_KP 256  /* k per panel: the summation block of the precision contract; twice that in bf16 pairs */
#define MLA_LDA 272 /* row stride of A in f32 or bf16 pairs: 17 cache lines, so rows fall into different sets */
#define MLA_BLOCK 64      /* keys per attention block */
#define MLA_GDN_COLS 32   /* state columns per delta-rule block */

typedef struct {
    const void *a;      /* f32 or bf16 pairs u32 (m, k; MLA_LDA) */
    const void *b;      /* f32 (k, MLA_NR) or bf16 pairs u32 (k, MLA_NR) */
    float *c;           /* (m, MLA_NR; ldc) */
    size_t ldc, k;      /* steps: values for f32, pairs for bf16; A holds at most MLA_KP elements a row */
    const float *alpha; /* (m): c = fma(c, alpha, sum), 1 adds; NULL: c = sum, c is not read */
} mla_tile;

typedef struct { /* softmax of rows of logits, one block further: see mla_cpu_attention */
    const float *s;          /* (rows, MLA_BLOCK) raw dot products */
    const unsigned char *n;  /* (rows) valid ones, at most MLA_BLOCK; 0: the row is left alone */
    const unsigned short *to; /* (rows) where p and al of a row go */
    float *p;                /* (.., MLA_LDA) out: exp(scale s - max), zero from n up to a multiple of 16 */
    float *al;               /* (..) out: e^(old max - new max), the factor of what was summed before */
    float *m, *l;            /* (rows) running maximum and sum */
    size_t rows;
    float scale;
} mla_softmax_rows;

typedef struct { /* recurrent delta rule on a block of n <= MLA_GDN_COLS state columns */
    float *s;           /* (dk, n; lds), readable and writable to MLA_GDN_COLS columns */
    const float *q, *k; /* rows of dk, ldqk apart; normalised */
    const float *v;     /* rows of n, ldv apart */
    float *o;           /* rows of n, ldo apart */
    const float *alpha, *beta; /* per token, ldg apart: e^g, beta */
    const float *kq;    /* k . q per token, ldkq apart */
    size_t lds, ldqk, ldv, ldo, ldg, ldkq, T, dk, n;
} mla_gdn_block;

typedef struct { /* C (m, n; ldc) += sum_t a_t b_t' in fp64, one fused chain per element from zero */
    const double *a;    /* (T, m; lda) */
    const double *b;    /* (T, n; ldb) */
    double *c;
    size_t lda, ldb, ldc, T, m, n;
} mla_gram_tile;

typedef struct { /* rows of a cache */
    const void *const *row;  /* (n) */
    const void *const *next; /* (n) rows that are needed soon: touched ahead, since no hardware prefetcher follows pages */
    mla_dtype dtype;
    size_t n, col, d;        /* elements col .. col+d-1 of every row */
    float scale;
} mla_stored_rows;

/* With one row codes stream from memory: lines that come so many bytes later are asked for. The distance is measured: half of it
 * costs a tenth of the speed where a core decodes 13 GB/s. */
#define MLA_AHEAD 6144
#define MLA_CODE_PANELS 2                              /* panels of codes that a product with one row takes at once */
#define MLA_CODE_SEGS (MLA_KP / MLA_CODED_UNIT + 1)    /* groups that a block of MLA_KP inputs can touch */

typedef struct { /* a block of at most MLA_KP inputs of packed panels; tensor/coded.h says what codes and scales mean */
    mla_code code;
    bool offset;               /* m is there */
    const float *lo, *hi;      /* (16) */
    const uint8_t *look;       /* codes_gemv_bytes, dot_gemv: (16) the integer that NIBBLE c stands for */
    mla_dot_form form;         /* dot_gemv: u - base, by `unit` octets */
    int32_t base;
    size_t unit;
    const uint32_t *a, *b;     /* planes of the first panel, from this block on; b: only where a code has two */
    const uint8_t *marks;      /* E4M3: octets of the first panel that hold a subnormal; the next ones 4 panel_words bytes on */
    size_t panel_words;        /* u32 from a panel to the next */
    const float *s, *m;        /* (panels, MLA_CODE_SEGS, MLA_NR) f32 */
    size_t first, seg, octets; /* inputs of the first group that fall into the block, of the next ones; inputs / 8 */
} mla_code_block;

typedef struct { /* scales and offsets of one panel's block as f32: groups g0 .. g0 + n - 1 of the row */
    mla_scale_kind scale;
    mla_offset_kind offset;
    const unsigned char *scales, *offsets;   /* (groups, MLA_NR) */
    const unsigned char *supers, *super_offs; /* (supers, MLA_NR) f16 */
    size_t per_super, g0, n;
    const float *table;
    const float *digits;  /* (16) the table taken apart (scale_of_digits); NULL: it is none of E4M3 */
    float e4m3;           /* of products in whole numbers: entries of the table are e4m3 numbers times this, to a rounding; 0: they are not */
    float factor, shift; /* s as stored times both: s, and m where no offset is stored */
} mla_code_scales;

typedef struct { /* EXL3: what one matrix' tiles are decoded with */
    unsigned codebook, twice_k; /* as in mla_trellis */
    bool unrounded;             /* fast path: values are not rounded to f16 (trellis_body.h) */
} mla_trellis_plan;

typedef struct {
    mla_isa isa;
    const char *name;
    bool bf16_pairs;    /* tile_bf16 takes A as bf16 pairs; otherwise as f32 holding bf16 values */
    void (*tile_f32)(size_t m, const mla_tile *t);
    void (*tile_bf16)(size_t m, const mla_tile *t);
    void (*tile_gram)(const mla_gram_tile *t);
    /* rows (rows <= MLA_NR of k values, ld apart) to one B panel (k, MLA_NR), missing rows zero */
    void (*pack_f32)(float *dst, const float *src, size_t ld, size_t rows, size_t k);
    /* the same to bf16 pairs ((k+1)/2, MLA_NR), rounded to nearest even, an odd end padded with zero */
    void (*pack_bf16)(uint32_t *dst, const float *src, size_t ld, size_t rows, size_t k);
    /* a B panel (k, MLA_NR) to bf16 pairs, rounded; an odd k is followed by a row of zeros; only with bf16_pairs */
    void (*pair_rows)(uint32_t *dst, const float *src, size_t k);
    /* A rows: n values rounded to bf16, as f32 or as pairs (bf16_pairs); dst == src is fine */
    void (*round_a)(void *dst, const float *src, size_t n);
    /* n stored values to f32, times scale */
    void (*widen)(float *dst, const void *src, mla_dtype t, size_t n, float scale);
    /* stored rows (n <= MLA_NR) (col = 0) to one B panel (d, MLA_NR): columns = rows, missing columns undefined */
    void (*keys)(float *dst, const mla_stored_rows *r);
    /* stored rows (n <= MLA_BLOCK, d <= MLA_NR) to one B panel (n, MLA_NR), columns from d on zero */
    void (*values)(float *dst, const mla_stored_rows *r);
    /* the same two as bf16 pairs: ((d+1)/2, MLA_NR) pairs of dims, (n/2, MLA_NR) pairs of rows, n even; only with bf16_pairs */
    void (*key_pairs)(uint32_t *dst, const mla_stored_rows *r);
    void (*value_pairs)(uint32_t *dst, const mla_stored_rows *r);
    float (*sumsq)(const float *x, size_t n);
    float (*dot)(const float *x, const float *y, size_t n);
    void (*norm)(float *y, const float *x, const float *gain, float inv, size_t n);
    void (*gated)(float *y, const float *x, const float *gain, const float *z, float inv, size_t n);
    void (*add)(float *y, const float *x, float s, size_t n);  /* y += s x, s = +-1 */
    void (*scale)(float *y, const float *x, float s, size_t n); /* y = s x */
    void (*silu_mul)(float *y, const float *a, const float *b, size_t n);
    void (*sigmoid_mul)(float *x, const float *gate, size_t n);
    void (*rope)(float *x, const float *c, const float *s, size_t half);
    void (*exp)(float *y, const float *x, size_t n);
    void (*softmax)(const mla_softmax_rows *r);
    /* p (n) = exp(scale s - m) * inv: the final probabilities of a row */
    void (*probs)(float *p, const float *s, size_t n, float scale, float m, float inv);
    /* y (n) = silu(sum_j w[j] x[j]), rows w + j*ldw and x[j], j < K ascending */
    void (*conv)(float *y, const float *w, size_t ldw, const float *const *x, size_t K, size_t n);
    void (*gdn)(const mla_gdn_block *g);
    /* packed codes (codes_body.h): c (np, MLA_NR) = or += one row x (8 octets) times np panels; np is 1 or MLA_CODE_PANELS */
    void (*codes_gemv)(float *c, const float *x, const mla_code_block *q, size_t np, bool add);
    /* the same from codes as integers (codes_bytes.h), NIBBLE and the codes with it; NULL: nothing gained */
    void (*codes_gemv_bytes)(float *c, const float *x, const mla_code_block *q, size_t np, bool add);
    void (*codes_tile)(float *dst, const mla_code_block *q); /* (8 octets, MLA_NR): a B panel */
    /* the same products in whole numbers (dot.h): n <= MLA_KP inputs as integers, padded to a whole block of them; c (MLA_NR) of one panel */
    void (*dot_row)(mla_dot_x *dst, const float *x, size_t n, mla_dot_form form);
    void (*dot_gemv)(float *c, const mla_dot_x *x, const mla_code_block *q, bool add);
    void (*code_scales)(float *s, float *m, const mla_code_scales *a);
    /* EXL3 (trellis_body.h): `tiles` tile rows of 16 inputs of two panels (2 K, 32) u16; outputs of a panel in the order of lanes.
     * gemv: c (2, MLA_NR) as above; tile: one of the two panels */
    void (*trellis_gemv)(float *c, const float *x, const uint16_t *ring, size_t tiles, const mla_trellis_plan *p, bool add);
    void (*trellis_tile)(float *dst, const uint16_t *ring, size_t panel, size_t tiles, const mla_trellis_plan *p);
    void (*hadamard)(float *x); /* 128 values in place, unscaled */
} mla_cpu_kern;

/* Each fills a whole table; a variant starts from the one below it and replaces what it does better. */
void mla_cpu_fill_ref(mla_cpu_kern *k);
void mla_cpu_add_rows_ref(mla_cpu_kern *k); /* row kernels of ref */
#if defined(__x86_64__)
void mla_cpu_add_rows_ref_fma(mla_cpu_kern *k); /* the same */
void mla_cpu_fill_avx2(mla_cpu_kern *k);
void mla_cpu_fill_avx512(mla_cpu_kern *k);
void mla_cpu_fill_avx512bf16(mla_cpu_kern *k);
void mla_cpu_add_avx512fp16(mla_cpu_kern *k); /* replaces some of avx512bf16 */
void mla_cpu_add_avx512vnni(mla_cpu_kern *k); /* of avx512 */
void mla_cpu_add_avxvnni(mla_cpu_kern *k);    /* of avx2 */
#endif
#endif
