/* MLA decode for Hopper, what lies where in a block's shared memory: the one place of this arithmetic, host and device. */
#ifndef MLA_CUDA_DECODE_SMEM_CUH
#define MLA_CUDA_DECODE_SMEM_CUH
#include <stdint.h>

#include "cuda/decode_dev.cuh"
#include "cuda/ptx.cuh"

enum { BOX = 8192, BAR_ALL = 1, BAR_WG = 2, SMEM_MAX = 232448 };

/* Trio: a factor for every column and a flag; every column's scale and running maximum, who moved the maxima and who voted for it. Then 8
 * bytes a column. */
static __host__ __device__ constexpr uint32_t decode_note(int n) { return (uint32_t)n * 4 + 32; }
static __host__ __device__ constexpr uint32_t decode_top(int n) { return (uint32_t)n * 8 + 32; }
/* Trio: where registers are short, threads of the softmax keep their totals in shared memory while they multiply. */
static __host__ __device__ constexpr bool decode_totals(int n) { return n > 32; }
/* Trio: bytes of a page: latents in boxes of 64 tokens x 128, then rotary keys. */
static __host__ __device__ constexpr uint32_t decode_trio_page(int lat) { return (uint32_t)lat * 64 + BOX / 2; }

/* Shared memory of one block, bytes from a 1024-byte boundary; the one place of this arithmetic (host and device). */
struct DecodeSmem {
    uint32_t ring, q, p, totals, ex, red, colscale, limit, note, top, rows, bars, bytes;
    /* solo: number of warpgroups that work alone; 0: a pair with an exchange area; TRIO: two buffers of P and of notes.
     * unit: bytes of a ring slot, of a trio a page. cl: blocks of a cluster; two exchange buffers of 64 x N sums for every warpgroup. */
    __host__ __device__ constexpr DecodeSmem(int N, int kboxes, int slots, int solo, int unit = BOX, int cl = 1)
        : ring(0), q(0), p(0), totals(0), ex(0), red(0), colscale(0), limit(0), note(0), top(0), rows(0), bars(0), bytes(0)
    {
        const bool trio = solo == TRIO;
        ring = 0;
        q = ring + (uint32_t)(slots * unit);
        p = q + (uint32_t)(kboxes * N * 128);
        totals = p + (uint32_t)(N * 128 * (trio ? 2 : solo ? solo : 1));
        ex = totals + (trio && decode_totals(N) ? (uint32_t)N * 256 : 0);
        red = ex + (trio ? 0 : solo ? (cl > 1 ? (uint32_t)(2 * solo * N * 256) : 0) : (uint32_t)N * 256);
        colscale = red + (uint32_t)(N * (trio ? 32 : solo ? 16 * solo : 32));
        limit = colscale + (uint32_t)N * 4;
        note = limit + (uint32_t)N * 4;
        top = note + (trio ? 2 * decode_note(N) : 0);
        rows = trio ? top + decode_top(N) : p;
        bars = trio ? rows + (uint32_t)N * 8 : top;
        /* full and empty per slot (trio: empty per box); turns, exchanges, queries */
        bytes = bars + (uint32_t)slots * (trio ? 8 + 8 * (kboxes / 2) : 16) + 96;
    }
};

/* bf16 pages in memory order: a slot of the ring holds 16 tokens (one warp's share of a page's keys), fetched 8 at a time, so 8-row
 * groups lie a whole row of boxes apart; at once where rotary keys lie behind the latents. Needs a page and a half. */
static __host__ __device__ constexpr int decode_unit(int lat, int rb) { return (lat / 64 + rb) * 2048; }
static __host__ __device__ constexpr bool decode_rows8(int lat, int rb, int nt, int solo, bool fp8, int cl)
{
    return !fp8 && DecodeSmem(nt, lat / 64 + rb, 6, solo, decode_unit(lat, rb), cl).bytes + 1024 <= SMEM_MAX;
}

/* Pages of a trio's ring. Known when it is built, so that every place is a constant. */
static __host__ __device__ constexpr int decode_trio_pages(int lat, int N)
{
    return (SMEM_MAX - (int)DecodeSmem(N, lat / 64 + 1, 0, TRIO).bytes) / (int)(decode_trio_page(lat) + 8 + 8 * (lat / 128));
}

#ifdef MLA_HOPPER
static __device__ __forceinline__ char *smem_1024(char *raw)
{
    return raw + ((1024 - (smem_u32(raw) & 1023)) & 1023);
}
#endif
#endif
