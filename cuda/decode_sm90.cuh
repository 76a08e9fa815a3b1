/* MLA decode for Hopper, what both kernels share: a block's consumer warpgroups and a copying warp walk its share of
 * the cached pages.
 *
 * A page is 64 tokens x (lat + rope) in boxes of 64 x 128 bytes, fetched by the bulk tensor engine into a ring of
 * slots. Tiles are transposed: tokens or latents lie on wgmma's 64 rows and the N query rows on its columns, so few heads
 * waste nothing and every query row (heads x s_q) shares one read of the cache.
 *   S^T (64 tokens x N)   = K Q^T
 *   O^T (lat x N)        += V^T P^T
 * decode_solo.cuh: each warpgroup takes whole pages and keeps a whole O; decode_pair.cuh: two share a page and O.
 * bf16: both operands from shared memory. e4m3: the A operand goes through registers, converted exactly to f16; the
 * order of latents and tokens inside a tile is chosen so that every shared load is wide and free of bank conflicts:
 * tok(g) below permutes tokens within 8, and q is stored with its latents permuted within 64 to match. */
#ifndef MLA_CUDA_DECODE_SM90_CUH
#define MLA_CUDA_DECODE_SM90_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "cuda/decode_dev.cuh"
#include "cuda/ptx.cuh"
#include "cuda/wgmma.cuh"

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
template <int WRAPS> struct RingPosOf {
    int slot;
    uint32_t phase;
    __device__ __forceinline__ RingPosOf at(int ahead, int slots) const
    {
        RingPosOf r = {slot + ahead, phase}; /* ahead < 3 slots; selects, no branches between wgmmas */
#pragma unroll
        for (int i = 0; i < WRAPS; i++) {
            const bool over = r.slot >= slots;
            r.slot -= over ? slots : 0;
            r.phase ^= (uint32_t)over;
        }
        return r;
    }
};

static __device__ __forceinline__ int tok8(int g) { return g ^ ((g & 1) << 2); }

template <bool FP8> static __device__ __forceinline__ uint32_t pack2(float x, float y)
{
    if (FP8) {
        __half2 h = __floats2half2_rn(x, y);
        return *(uint32_t *)&h;
    }
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&h;
}
/* 2^e for -126 <= e <= 127, and the e that brings a row's largest value near 2^8 (0 for zero and non-finite rows). */
static __device__ __forceinline__ float pow2f(int e) { return __int_as_float((e + 127) << 23); }
static __device__ __forceinline__ int row_exponent(float amax)
{
    return amax > 0.f && amax < CUDART_INF_F ? min(100, max(-100, (__float_as_int(amax) >> 23) - 127 - 8)) : 0;
}
/* 16 bytes where `yes`, zero elsewhere: no branch, so a thread's loads stay in flight together. */
static __device__ __forceinline__ uint4 load16_if(const void *p, bool yes)
{
    uint4 v;
    asm("{.reg .pred q; setp.ne.b32 q, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
        "@q ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(p), "r"((int)yes));
    return v;
}

/* Eight query values as they came: bf16 in a, or f32 in a and b. */
struct Raw8 {
    uint4 a, b;
    __device__ __forceinline__ void widen(float (&x)[8], bool f32) const
    {
        const uint32_t u[4] = {a.x, a.y, a.z, a.w}, v[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[2 * j] = f32 ? __uint_as_float(j < 2 ? u[2 * j] : v[2 * j - 4]) : __uint_as_float(u[j] << 16);
            x[2 * j + 1] = f32 ? __uint_as_float(j < 2 ? u[2 * j + 1] : v[2 * j - 3]) : __uint_as_float(u[j] & 0xffff0000u);
        }
    }
};

/* The slow way for rows that do not start on 16 bytes. */
static __device__ __noinline__ Raw8 load8_unaligned(const void *p, bool f32, size_t i)
{
    uint32_t u[8];
    for (int j = 0; j < 8; j++) {
        const float x = load_f32(p, f32, i + j), y = load_f32(p, f32, i + (j ^ 1));
        u[j] = f32 ? __float_as_uint(x) : j & 1 ? __float_as_uint(x) | __float_as_uint(y) >> 16 : 0;
    }
    Raw8 r;
    r.a = f32 ? make_uint4(u[0], u[1], u[2], u[3]) : make_uint4(u[1], u[3], u[5], u[7]);
    r.b = make_uint4(u[4], u[5], u[6], u[7]);
    return r;
}

/* Where load_q keeps what it knows of the rows: limits, largest magnitudes, first elements of q and q2, rotary column. */
struct QRows {
    float *colscale;
    int *limit, *seg;
    long long *offset; /* (N, 2) */
    __device__ __forceinline__ QRows(char *smem, const DecodeSmem &sm)
        : colscale((float *)(smem + sm.colscale)), limit((int *)(smem + sm.limit)), seg((int *)(smem + sm.rows)), offset((long long *)(smem + sm.red))
    {
    }
};
/* FP8: eight values of row n from column k on, scaled by `down`, as f16 in the order of the cache's fragments. */
static __device__ __forceinline__ void put_q_f16(char *row, int n, int k, const float (&x)[8], float down)
{
    const int c = k >> 4 & 3, hi = k >> 3 & 1;
#pragma unroll
    for (int j = 0; j < 4; j++) { /* values 2j, 2j + 1: k-step 2 hi + j / 2, upper half j % 2 */
        const int c8 = 2 * (2 * hi + (j >> 1)) + (j & 1);
        *(uint32_t *)(row + ((c8 ^ (n & 7)) << 4) + 4 * c) = pack2<true>(x[2 * j] * down, x[2 * j + 1] * down);
    }
}

/* bf16 rows in shared memory to scaled f16, in place, a warp per row. */
template <int LAT, int N, int RB, int WARPS>
static __device__ __forceinline__ void narrow_q(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    constexpr int CHUNKS = LAT / 8 + RB * 8, T = WARPS * 32;
    const QRows rows(smem, sm);
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int n = threadIdx.x >> 5; n < N; n += WARPS) {
        constexpr int PER_LANE = (CHUNKS + 31) / 32;
        float x[PER_LANE][8], amax = 0.f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int k = (lane + 32 * i) * 8;
            Raw8 raw = {};
            if (k < CHUNKS * 8) raw.a = *(const uint4 *)(smem + sm.q + (k >> 6) * N * 128 + n * 128 + (((k >> 3 & 7) ^ (n & 7)) << 4));
            raw.widen(x[i], false);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (k >= LAT) x[i][j] *= d.rope_ratio;
                amax = x[i][j] == x[i][j] ? fmaxf(amax, fabsf(x[i][j])) : CUDART_INF_F;
            }
        }
        for (int o = 16; o; o >>= 1) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, o));
        if (lane == 0) rows.colscale[n] = amax;
        const float down = pow2f(-row_exponent(amax)); /* every lane has read its part of the row: the shuffles say so */
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int k = (lane + 32 * i) * 8;
            if (k < CHUNKS * 8) put_q_f16(smem + sm.q + (k >> 6) * N * 128 + n * 128, n, k, x[i], down);
        }
    }
    bar_sync(BAR_ALL, T);
}

/* bf16 rows on 16-byte boundaries: copied as they are, all at once; FP8: then converted in place, a warp per row. Short
 * code: it runs once a block, from a cold instruction cache. */
template <int LAT, int N, int RB, bool FP8, int WARPS>
static __device__ __forceinline__ void load_q_rows(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    constexpr int CHUNKS = LAT / 8 + RB * 8, T = WARPS * 32;
    const QRows rows(smem, sm);
    const uint32_t base = smem_u32(smem) + sm.q;
#pragma unroll 1
    for (int i = threadIdx.x; i < N * CHUNKS; i += T) {
        const int n = i / CHUNKS, k = i % CHUNKS * 8, r = k - LAT - rows.seg[n];
        const bool lat = k < LAT, in = rows.limit[n] >= 0 && (lat || (r >= 0 && r < d.rope));
        const size_t at = in ? (size_t)(lat ? rows.offset[2 * n] + k : rows.offset[2 * n + 1] + r) : 0;
        cp16_if(base + (k >> 6) * N * 128 + n * 128 + (((k >> 3 & 7) ^ (n & 7)) << 4), (const char *)(lat ? d.q.p : d.q2.p) + at * 2, in);
    }
    cp_wait();
    bar_sync(BAR_ALL, T);
    if (FP8) narrow_q<LAT, N, RB, WARPS>(d, smem, sm);
}

/* Any rows. */
template <int LAT, int N, int RB, bool FP8, int WARPS>
static __device__ __forceinline__ void load_q_any(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    constexpr int CHUNKS = LAT / 8 + RB * 8, T = WARPS * 32, ITEMS = (N * CHUNKS + T - 1) / T, BATCH = ITEMS < 2 ? ITEMS : 2;
    const QRows rows(smem, sm);
#pragma unroll 1
    for (int pass = FP8 ? 0 : 1; pass < 2; pass++) { /* pass 0: largest magnitudes; the second read hits the cache */
#pragma unroll 1
        for (int i0 = threadIdx.x; i0 < N * CHUNKS; i0 += T * BATCH) {
            Raw8 raw[BATCH];
#pragma unroll
            for (int it = 0; it < BATCH; it++) {
                const int i = i0 + it * T, n = min(i / CHUNKS, N - 1), k = i % CHUNKS * 8, r = k - LAT - rows.seg[n];
                const bool lat = k < LAT, in = i < N * CHUNKS && rows.limit[n] >= 0 && (lat || (r >= 0 && r < d.rope));
                const DecodeRows &src = lat ? d.q : d.q2;
                const size_t at = (size_t)(lat ? rows.offset[2 * n] + k : rows.offset[2 * n + 1] + r);
                if (src.vec) {
                    const char *p = (const char *)src.p + at * (src.f32 ? 4 : 2);
                    raw[it].a = load16_if(p, in);
                    raw[it].b = load16_if(p + 16, in && src.f32);
                } else
                    raw[it] = in ? load8_unaligned(src.p, src.f32, at) : Raw8{};
            }
#pragma unroll
            for (int it = 0; it < BATCH; it++) {
                const int i = i0 + it * T, n = i / CHUNKS, k = i % CHUNKS * 8;
                if (i >= N * CHUNKS) break;
                float x[8];
                raw[it].widen(x, k < LAT ? d.q.f32 : d.q2.f32);
                if (k >= LAT)
                    for (int j = 0; j < 8; j++) x[j] *= d.rope_ratio;
                const uint32_t row = sm.q + (k >> 6) * N * 128 + n * 128;
                if (FP8 && pass == 0) {
                    float amax = 0.f;
                    for (int j = 0; j < 8; j++) amax = x[j] == x[j] ? fmaxf(amax, fabsf(x[j])) : CUDART_INF_F;
                    atomicMax((int *)&rows.colscale[n], __float_as_int(amax)); /* the order of non-negative floats */
                } else if (FP8) {
                    put_q_f16(smem + row, n, k, x, pow2f(-row_exponent(rows.colscale[n])));
                } else
                    *(uint4 *)(smem + row + (((k >> 3 & 7) ^ (n & 7)) << 4)) =
                        make_uint4(pack2<false>(x[0], x[1]), pack2<false>(x[2], x[3]), pack2<false>(x[4], x[5]), pack2<false>(x[6], x[7]));
            }
        }
        bar_sync(BAR_ALL, T);
    }
}

/* One thread fetches the tile's bf16 rows by q_map and q2_map: the same places in shared memory, a dozen instructions. */
template <int LAT, int N, int RB>
static __device__ __forceinline__ void fetch_q(const DecodeP &d, uint32_t q, uint32_t bar, int b, int lat0)
{
    const int row = blockIdx.z * d.Hg + blockIdx.y * N;
    mbar_expect(bar, (LAT / 64 + RB) * N * 128);
#pragma unroll 1
    for (int i = 0; i < LAT / 64 + RB; i++)
        tma_box_keep(q + i * N * 128, i < LAT / 64 ? &d.q_map : &d.q2_map, bar, i < LAT / 64 ? lat0 + 64 * i : 64 * i - LAT, row, b);
}

/* Query rows of one tile into shared memory, K-major swizzled boxes of 64: latent boxes first, then rotary; WARPS warps,
 * 8 values a thread at a time; b = -1: zeros, nothing is read. FP8: f16
 * after an exact power of two that brings the row's largest value near 2^8, so that f16 neither overflows nor flushes;
 * values are permuted within 64 as the fragments of the cache are. bar: the boxes are on their way (fetch_q). */
template <int LAT, int N, int RB, bool FP8, int WARPS>
static __device__ __forceinline__ void load_q(const DecodeP &d, char *smem, const DecodeSmem &sm, int b, int len, int lat0 = 0, uint32_t bar = 0, uint32_t phase = 0)
{
    constexpr int T = WARPS * 32;
    const QRows rows(smem, sm);
    float *colscale = rows.colscale;
    int *limit = rows.limit;
    if (threadIdx.x < N) {
        const int n = threadIdx.x, row = blockIdx.y * N + n, t = row / d.Hg, h = blockIdx.z * d.Hg + row % d.Hg;
        limit[n] = b >= 0 && row < d.rows ? min(len, len - d.s_q + t + 1) : -1; /* negative: not a row; made positive below */
        colscale[n] = FP8 ? 0.f : d.scale;                           /* FP8: the row's largest magnitude first */
        rows.offset[2 * n] = b * d.q.b + t * d.q.t + h * d.q.h + lat0;
        rows.offset[2 * n + 1] = b * d.q2.b + t * d.q2.t + h * d.q2.h;
        rows.seg[n] = (int)((unsigned)h * (unsigned)d.rope_heads / (unsigned)d.H) * d.rope;
    }
    bar_sync(BAR_ALL, T);
    const bool plain = d.q.vec && !d.q.f32 && (!d.rope || (d.q2.vec && !d.q2.f32)) && (FP8 || d.rope_ratio == 1.f);
    if (bar) {
        mbar_wait(bar, phase);
        if (FP8) narrow_q<LAT, N, RB, WARPS>(d, smem, sm);
    } else if (plain) load_q_rows<LAT, N, RB, FP8, WARPS>(d, smem, sm);
    else load_q_any<LAT, N, RB, FP8, WARPS>(d, smem, sm);
    if (threadIdx.x < N) {
        if (FP8) colscale[threadIdx.x] = d.scale * pow2f(row_exponent(colscale[threadIdx.x]));
        if (limit[threadIdx.x] < 0) limit[threadIdx.x] = len;
    }
}

/* End of a block's pages of sequence b. The length is read only where the sequence ends in the block: a load fewer before
 * most blocks' first page. */
static __device__ __forceinline__ int piece_end(const DecodeP &d, int b, int2 to)
{
    int end = to.y;
    if (b != to.x) end = (d.len[b] + 63) >> 6;
    return end;
}
/* The copying warp: pages of the block's share, box by box, as slots come free. */
template <int LAT, int RB, bool FP8, int DROP, bool ROWS8, int CL>
static __device__ void produce(const CUtensorMap *mc, const CUtensorMap *mr, const DecodeP &d, uint32_t base,
                               const DecodeSmem &sm)
{
    constexpr int NB = FP8 ? LAT / 128 : LAT / 64, BW = FP8 ? 128 : 64;
    const int lane = threadIdx.x & 31;
    const uint64_t policy = evict_first_policy();
    const uint32_t full = base + sm.bars, empty = full + d.slots * 8;
    const int2 from = part_begin(d, blockIdx.x / CL), to = part_begin(d, blockIdx.x / CL + 1);
    const int col = d.lat_col + (blockIdx.z * CL + (CL > 1 ? cluster_rank() : 0)) * LAT;
    int slot = 0;
    uint32_t phase = 0;
    for (int b = from.x; b <= to.x && b < d.B; b++) {
        const int i0 = b == from.x ? from.y : 0, i1 = piece_end(d, b, to);
        for (int at = i0; at < i1; at += 32) {
            const int mine = at + lane < i1 ? d.table[b * d.table_stride + at + lane] : 0;
            const int m = min(32, i1 - at);
            for (int i = 0; i < m; i++) {
                const int page = __shfl_sync(~0u, mine, i);
                for (int x = 0; ROWS8 && x < 4; x++) {
                    const uint32_t at = base + sm.ring + slot * decode_unit(LAT, RB), bar = full + slot * 8;
                    if (lane == 0) {
                        mbar_wait(empty + slot * 8, phase ^ 1);
                        mbar_expect(bar, decode_unit(LAT, RB));
                        if (d.joined) tma_box5(at, mc, bar, policy, col, 0, 0, 2 * x, page); /* a thread issues a box in 60 ns */
                        for (int g = 0; g < 2 && !d.joined; g++) {
                            tma_box4(at + g * (NB + RB) * 1024, mc, bar, policy, col, 16 * x + 8 * g, 0, page);
                            if (RB) tma_box4(at + (g * (NB + RB) + NB) * 1024, mr, bar, policy, d.rope_col, 16 * x + 8 * g, 0, page);
                        }
                    }
                    if (++slot == d.slots) slot = 0, phase ^= 1;
                }
                for (int x = 0; !ROWS8 && x < NB + RB + DROP; x++) {
                    if (lane == 0) {
                        const bool rope = RB && x >= NB && x < NB + RB;
                        const int box = x < NB ? x : x - NB - RB;
                        mbar_wait(empty + slot * 8, phase ^ 1);
                        mbar_expect(full + slot * 8, rope && FP8 ? BOX / 2 : BOX);
                        tma_box(base + sm.ring + slot * BOX, rope ? mr : mc, full + slot * 8, policy,
                                rope ? d.rope_col + (x - NB) * 64 : col + box * BW, 0, page);
                    }
                    if (++slot == d.slots) slot = 0, phase ^= 1;
                }
                __syncwarp();
            }
        }
    }
}

/* S += the box's keys times q over STEPS k-steps of 16; box and q: descriptor low words. bf16 box: 64 latents. */
template <int N, int STEPS, uint32_t GROUP = 1024>
static __device__ __forceinline__ void qk_bf16(float (&s)[N / 2], uint32_t box, uint32_t q)
{
#pragma unroll
    for (int k = 0; k < STEPS; k++) Wgmma<N>::template ss<false, 0>(s, wgmma_at<GROUP>(box, k * 32), wgmma_at(q, k * 32));
}

/* S += two token rows' raw bytes times q over STEPS k-steps: word k of a thread's 4 STEPS bytes feeds k-step k. Fragments
 * alternate between two register sets, so that one pair of wgmmas runs while the next is widened. */
template <int N, int STEPS>
static __device__ __forceinline__ void qk_fp8_row(float (&s)[N / 2], uint32_t (&a)[2][2][4], uint32_t lo, uint32_t hi, uint32_t q, bool first)
{
    uint32_t x[4], y[4];
    if (STEPS == 4) {
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(lo));
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(hi));
    } else {
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(lo));
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(hi));
    }
#pragma unroll
    for (int b = 0; b < STEPS / 2; b++) {
        if (STEPS == 2) wgmma_wait<0>();
        else if (!first) wgmma_wait<1>();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t u = x[2 * b + i], v = y[2 * b + i];
            e4m3x4_f16(a[b][i][0], a[b][i][2], u);
            e4m3x4_f16(a[b][i][1], a[b][i][3], v);
        }
        if (first && b == 0) wgmma_pin(s);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2; i++) Wgmma<N>::template rs<true>(s, a[b][i], wgmma_at(q, (2 * b + i) * 32));
        wgmma_commit();
    }
}

/* Bytes of a box of 128 latents for k-step ks (16 tokens, in the order of tok8), four latents of four tokens a thread. */
static __device__ __forceinline__ void pv_load(uint32_t (&v)[4], uint32_t box, int ks, int w, int g, int c)
{
    const uint32_t off = (g & 3) * 4, ch = 2 * w + (g >> 2);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int tk = tok8(2 * c + (e & 1)) + 8 * (e >> 1); /* within 16 tokens; 16 ks keeps the swizzle's phase */
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v[e]) : "r"(box + ks * 2048 + tk * 128 + ((ch ^ (tk & 7)) << 4) + off));
    }
}
/* acc (2 tiles of 64 latents) += box^T P^T for 16 tokens: bytes of token pairs are interleaved, then widened. */
static __device__ __forceinline__ void pv_frags(uint32_t (&a)[2][4], const uint32_t (&v)[4])
{
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t x = __byte_perm(v[0], v[1], u ? 0x7362 : 0x5140), y = __byte_perm(v[2], v[3], u ? 0x7362 : 0x5140);
        e4m3x4_f16(a[u][0], a[u][1], x);
        e4m3x4_f16(a[u][2], a[u][3], y);
    }
}

/* A thread's sums of S, columns 8j + 2c + {0, 1}: times the columns' scales. */
template <int M> static __device__ __forceinline__ void scale_columns(float (&s)[M], const float *scales, int c)
{
#pragma unroll
    for (int j = 0; j < M / 4; j++) {
        const float2 k = ((const float2 *)scales)[4 * j + c];
        s[4 * j] *= k.x, s[4 * j + 1] *= k.y, s[4 * j + 2] *= k.x, s[4 * j + 3] *= k.y;
    }
}
/* Tokens at or beyond a column's limit take no part; s[4j] and s[4j + 1] are of `token`, the other two of the eighth after it. */
template <int M> static __device__ __forceinline__ void mask_columns(float (&s)[M], const int *limits, int c, int token)
{
#pragma unroll
    for (int j = 0; j < M / 4; j++) {
        const int2 k = ((const int2 *)limits)[4 * j + c];
        if (token >= k.x) s[4 * j] = -CUDART_INF_F;
        if (token >= k.y) s[4 * j + 1] = -CUDART_INF_F;
        if (token + 8 >= k.x) s[4 * j + 2] = -CUDART_INF_F;
        if (token + 8 >= k.y) s[4 * j + 3] = -CUDART_INF_F;
    }
}

static __device__ __forceinline__ char *smem_1024(char *raw)
{
    return raw + ((1024 - (smem_u32(raw) & 1023)) & 1023);
}
/* One full and one empty barrier per slot; empty completes when the reading warps have arrived. */
static __device__ __forceinline__ void init_ring(uint32_t bars, int slots, int readers)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < slots; i++) {
            mbar_init(bars + i * 8, 1);
            mbar_init(bars + (slots + i) * 8, readers);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}
#endif
#endif
