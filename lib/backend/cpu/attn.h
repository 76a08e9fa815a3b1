/* Attention in pieces: what the driver (attention.c) and the work on one tile (attn_tile.c, attn_kv.c) share.
 *
 * Heads are cut into units: the smallest groups in which no K or V head is shared with another group. A tile is a few
 * heads of one unit times a few consecutive queries; its rows are ordered (head, token). Keys come in blocks of 64
 * absolute positions and are widened to f32 in the microkernel's panel layout, a piece at a time:
 *   keys    32 keys of one head      (d, 32), column = key
 *   values  32 columns of one head   (64, 32), row = key
 * In bf16 (args.bf16, and the variant has pair products) keys are pairs of dims, values of whole blocks pairs of keys;
 * a block that a query sees in part is added in f32, so that no later key is ever multiplied.
 * A tile of a unit that has one or two of them widens each piece into the worker's own small buffer just before it is
 * used (it stays in L1); otherwise all blocks of a round are widened once for all tiles. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_ATTN_H
#define MLA_BACKEND_CPU_ATTN_H
#include "backend/cpu/cpu.h"

typedef struct {
    const mla_cpu_kern *k;
    const mla_attn_args *a;
    size_t units, U;            /* heads per unit */
    bool pairs;                 /* bf16 pair products */
    size_t kp;                  /* dims per k panel */
    size_t kpanels, k2panels;   /* k panels of the two parts of a dot product */
    size_t ldo;                 /* row stride of the running outputs */
    size_t kblk, k2blk, vblk;   /* f32 elements of one block of one head */
    size_t vpairs;              /* elements of the pairs of one block of one V head; 0 without pairs */
    size_t block_elems;         /* one block of all heads; fused: the largest piece */
    bool fused;                 /* each tile widens its own pieces: its unit has one or two tiles */
    size_t nh, nt, htiles, ttiles, ntiles;
    size_t t0, T;               /* queries of this round */
    size_t b0, nb;              /* key blocks of this round */
    bool observe;               /* second pass: final probabilities */
    float *q, *o, *m, *l;       /* per tile (panels, rows, MLA_LDA), (rows, ldo), (rows), (rows) */
    float *blocks;              /* shared: (nb, block_elems); fused: per worker (block_elems) */
    float *work;                /* per worker: logits, probabilities, factors */
    size_t work_elems;
    double *part;               /* observation: (ntiles, nb * 64) sums of p^2 */
} mla_attn_job;

typedef struct { /* one tile: heads h0.. of unit u, tokens ta.. of this round */
    size_t index, u, h0, nh, ta, nt;
    float *q, *o, *m, *l;
} mla_attn_tile;

enum { MLA_PART_K, MLA_PART_K2, MLA_PART_V };

typedef struct { /* the stored rows of one block of one head */
    int part;
    size_t head, block, n;      /* n keys exist */
    const void *row[MLA_BLOCK], *next[MLA_BLOCK]; /* and those of the next block, to be touched ahead */
} mla_attn_head;

static inline size_t mla_attn_rows(const mla_attn_job *j) { return j->nh * j->nt; }
mla_attn_tile mla_attn_tile_at(const mla_attn_job *j, size_t index);
/* Elements of worker scratch for the current tile shape. */
size_t mla_attn_work_elems(const mla_attn_job *j);

/* par_for bodies: blocks x heads to panels; tiles over the current blocks; tiles to the output. */
void mla_attn_widen(void *ctx, size_t begin, size_t end, size_t worker);
void mla_attn_tiles(void *ctx, size_t begin, size_t end, size_t worker);
void mla_attn_finish(void *ctx, size_t begin, size_t end, size_t worker);

/* Finds the rows of a head. In a shared round only head and block are noted. */
void mla_attn_find(const mla_attn_job *j, int part, size_t head, size_t block, mla_attn_head *h);
/* Keys from, from+1, .. from+31 (from 0 or 32), or columns from .. from+31 of the values, as f32 or pairs: shared, or
 * widened into buf. */
const void *mla_attn_piece(const mla_attn_job *j, const mla_attn_head *h, size_t from, bool pairs, float *buf);
#endif
