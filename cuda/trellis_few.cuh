/* EXL3 with up to 8 tokens: how the work is cut, and the kernel that multiplies. Private to trellis_few.cu.
 *
 * A piece is 128 outputs and PART blocks of 128 inputs, SLAB blocks of which are in shared memory at a time. Of a block's warps SHARES
 * have the same outputs and take rows of tiles in turn; each copies its own tiles of the next slab while it multiplies those of this
 * one, the tokens between all that have the same rows. Several blocks share a multiprocessor, so that one's copies and sums stand under
 * the products of others. The first slabs are copied before grid_wait: weights never change.
 *
 * Sums of a piece are added up in order and left in memory. A result depends neither on how many tokens there are, nor on the block. */
#ifndef MLA_CUDA_TRELLIS_FEW_CUH
#define MLA_CUDA_TRELLIS_FEW_CUH
#include "cuda/ptx.cuh"
#include "cuda/trellis.cuh"
#include "cuda/trellis_values.cuh"

enum { SLAB = 4, SLABS = 1, PART = SLAB * SLABS, SHARES = 2, COLS = 2, SIDES = 8 / COLS, WARPS = SIDES * SHARES, ROWS = 8 * SLAB / SHARES, TOKENS = 8, PITCH = SIDE + 4, THREADS = WARPS * 32, BLOCKS = 2,
       BAR_SUMS = 1, BAR_X = BAR_SUMS + SIDES };

struct FewTrellis {
    const uint8_t *tiles;
    const uint4 *x;    /* (slabs, SHARES, ROWS, tokens, 4) inputs 2 q, 2 q + 8, 2 q + 1, 2 q + 9 of a row of tiles: two f16 numbers whose sum it is */
    const float *size; /* (parts, tokens) */
    float *y;          /* (parts, tokens, out128) */
    uint32_t mul, add; /* of the codebook */
    int tokens, blocks, groups, parts; /* blocks of 128 inputs, groups of 128 outputs */
};

/* Shared memory: two places for a slab's tiles (warps, rows, COLS tiles), for its tokens (shares, rows, tokens, 64 bytes), for sums
 * (shares, tokens, PITCH). */
static inline __host__ __device__ constexpr int tiles_of(int tk) { return ROWS * COLS * 16 * tk; } /* of a warp */
static inline __host__ __device__ int x_at(int tk) { return 2 * WARPS * tiles_of(tk); }
static inline __host__ __device__ int sums_at(int tk, int tokens) { return x_at(tk) + 2 * SHARES * ROWS * tokens * 64; }
static inline __host__ __device__ int smem_of(int tk, int tokens) { return sums_at(tk, tokens) + 2 * SHARES * tokens * PITCH * 4; }

static __device__ __forceinline__ void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void copy16(uint32_t to, const void *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
static __device__ __forceinline__ void copies_end(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* A slab of a piece, and where this lane's first copy of its tiles begins. */
struct Slab {
    const uint8_t *tiles;
    int slab, group;
};

/* The block's slabs, as one warp copies them. TK: bits per value, doubled. */
template <int TK> struct SlabCopy {
    static constexpr int WIDE = COLS * TK, ATONCE = WIDE < 32 ? 32 / WIDE : 1; /* 16-byte copies of a row; rows at once */
    size_t line, step;
    const uint4 *x;
    uint32_t to, x_to;
    int over, on, row, at, own, blocks, slabs, groups, T;

    __device__ __forceinline__ SlabCopy(const FewTrellis &a, uint32_t base, int warp, int col, int share, int lane)
        : line((size_t)a.groups * 8 * 16 * TK), over((int)gridDim.x / a.groups), on((int)gridDim.x % a.groups), row(WIDE < 32 ? lane / WIDE : 0), at(WIDE < 32 ? lane % WIDE : lane), own(col * 32 + lane),
          blocks(a.blocks), slabs(a.parts * SLABS), groups(a.groups), T(a.tokens)
    {
        step = over * (PART * 8) * line + (size_t)on * (8 * 16 * TK) - (SLABS - 1) * (SLAB * 8) * line;
        to = base + warp * tiles_of(TK) + (row * WIDE + at) * 16, x_to = base + x_at(TK) + share * (ROWS * 64) * T + own * 16;
        x = a.x + share * ROWS * T * 4 + own;
    }
    __device__ __forceinline__ Slab first(const FewTrellis &a, int col, int share) const
    {
        const int part = (int)blockIdx.x / groups, group = (int)blockIdx.x % groups;
        return {a.tiles + (size_t)(part * PART * 8 + share + row * SHARES) * line + (size_t)(group * 8 + col * COLS) * 16 * TK + at * 16, part * SLABS, group};
    }
    __device__ __forceinline__ void next(Slab &s) const
    {
        if ((s.slab + 1) % SLABS) {
            s.slab++, s.tiles += SLAB * 8 * line;
            return;
        }
        s.slab += over * SLABS - (SLABS - 1), s.group += on, s.tiles += step;
        if (s.group >= groups) s.group -= groups, s.slab += SLABS, s.tiles += (PART * 8 - 1) * line;
    }
    /* Rows of a share. */
    __device__ __forceinline__ int rows(const Slab &s) const { return 8 / SHARES * max(0, min((int)SLAB, blocks - s.slab * SLAB)); }
    __device__ __forceinline__ void tiles(const Slab &s, int place) const
    {
        if (s.slab >= slabs) return;
        const int n = rows(s);
        const uint8_t *from = s.tiles;
#pragma unroll
        for (int r = 0; r < ROWS; r += ATONCE, from += ATONCE * SHARES * line)
#pragma unroll
            for (int e = 0; e < WIDE; e += 32)
                if (row + r < n && row < ATONCE && at + e < WIDE) copy16(to + place * (WARPS * tiles_of(TK)) + (r * WIDE + e) * 16, from + e * 16);
    }
    __device__ __forceinline__ void tokens(const Slab &s, int place) const
    {
        if (s.slab >= slabs) return;
        const int n = rows(s) * T * 4;
        const uint4 *from = x + s.slab * (SHARES * ROWS * 4) * T;
#pragma unroll
        for (int c = 0; c < ROWS * TOKENS * 4; c += SIDES * 32)
            if (own + c < n) copy16(x_to + place * (SHARES * ROWS * 64) * T + c * 16, from + c);
    }
};

/* SUM: the codebook of sums of bytes. */
template <int TK, bool SUM> static __global__ void __launch_bounds__(THREADS, BLOCKS) trellis_mma(const FewTrellis a)
{
    using W = Windows<TK>;
    extern __shared__ __align__(16) unsigned char smem[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = warp / SHARES, share = (warp + col) % SHARES, g = lane >> 2, q = lane & 3, T = a.tokens;
    const SlabCopy<TK> copy(a, smem_u32(smem), warp, col, share, lane);
    Slab s = copy.first(a, col, share), ahead = s;
    copy.tiles(s, 0);
    grid_wait();
    grid_release();
    copy.tokens(s, 0);
    copies_end();
    int off[W::WORDS];
#pragma unroll
    for (int i = 0; i < W::WORDS; i++) off[i] = (W::first(lane) / 32 + i) % W::RING * 4;
    const int by = W::first(lane) % 32;
    const int put = ((share * T + 2 * q) * PITCH + col * (COLS * 16) + g) * 4, take = (share * PITCH + col * (COLS * 16) + lane) * 4; /* this lane's products, and outputs, among the sums */
    float sum[COLS][4], size[TOKENS / SHARES];
    for (int place = 0, flip = 0; s.slab < copy.slabs; copy.next(s), place ^= 1) {
        cp_wait();
        bar_sync(BAR_X + share, SIDES * 32); /* all have copied, and nobody reads the slab before any more */
        copy.next(ahead);
        copy.tiles(ahead, place ^ 1);
        copy.tokens(ahead, place ^ 1);
        copies_end();
        if (s.slab % SLABS == 0) {
#pragma unroll
            for (int i = 0; i < COLS * 4; i++) sum[i / 4][i % 4] = 0.f;
#pragma unroll
            for (int i = 0; i < TOKENS / SHARES; i++) size[i] = share + i * SHARES < T ? __ldcg(a.size + s.slab / SLABS * T + share + i * SHARES) : 0.f;
        }
        const unsigned char *tile = smem + (place * WARPS + warp) * tiles_of(TK);
        const unsigned char *xs = smem + x_at(TK) + ((place * SHARES + share) * ROWS * T + (g < T ? g : 0)) * 64 + q * 16;
        const int rows = copy.rows(s);
#pragma unroll 1
        for (int r = 0; r < rows; r += 4)
#pragma unroll
            for (int u = 0; u < 4; u++, tile += COLS * 16 * TK, xs += T * 64) {
                const uint4 b = *(const uint4 *)xs;
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    uint32_t w[W::WORDS + 1], v[8];
#pragma unroll
                    for (int i = 0; i < W::WORDS; i++) w[i] = *(const uint32_t *)(tile + c * 16 * TK + off[i]);
                    w[W::WORDS] = 0;
#pragma unroll
                    for (int i = 0; i < W::HELD && !W::ALIKE; i++) w[i] = __funnelshift_l(w[i + 1], w[i], by);
                    values_twice<TK, SUM>(v, w, tile + c * 16 * TK, off, a.mul, a.add);
                    mma_f16(sum[c], v[0], v[4], v[2], v[6], b.x, b.y); /* steps 2, 3: k + 8; 4 .. 7: outputs + 8 */
                    mma_f16(sum[c], v[1], v[5], v[3], v[7], b.z, b.w);
                }
            }
        if (s.slab % SLABS != SLABS - 1) continue;
        unsigned char *const sums = smem + sums_at(TK, T) + flip * (SHARES * PITCH * 4) * T;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (2 * q + i < T)
#pragma unroll
                for (int c = 0; c < COLS; c++)
#pragma unroll
                    for (int h = 0; h < 2; h++) *(float *)(sums + put + (i * PITCH + c * 16 + 8 * h) * 4) = sum[c][2 * h + i];
        bar_sync(BAR_SUMS + col, SHARES * 32);
        float *y = a.y + ((size_t)(s.slab / SLABS * T + share) * a.groups + s.group) * SIDE + col * (COLS * 16) + lane;
#pragma unroll
        for (int i = 0; i < TOKENS / SHARES; i++, y += SHARES * a.groups * SIDE)
            if (share + i * SHARES < T) {
                float v = *(const float *)(sums + take + i * SHARES * PITCH * 4);
#pragma unroll
                for (int k = 1; k < SHARES; k++) v += *(const float *)(sums + take + (k * T + i * SHARES) * (PITCH * 4));
                *y = v * size[i];
            }
        flip ^= 1;
    }
}
#endif
