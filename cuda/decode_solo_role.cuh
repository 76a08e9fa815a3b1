/* Solo kernel, what its parts share: a warpgroup's place in the block, the ring, turns, sums over its warps. */
#ifndef MLA_CUDA_DECODE_SOLO_ROLE_CUH
#define MLA_CUDA_DECODE_SOLO_ROLE_CUH
#include "cuda/decode_sm90.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, int RB, bool FP8, int NW, bool SPLIT, int CL> struct SoloRole {
    static_assert(CL == 1 || (CL == 2 && RB == 1 && !FP8), "a cluster halves one rotary box; two blocks would scale e4m3 queries each by their own powers of two");
    static constexpr int NB = FP8 ? LAT / 128 : LAT / 64, PER = NB + RB, TILES = LAT / 64, NC = N / 4, ALL = NW * 128,
                         NT = SPLIT ? NW * N : N; /* query rows of the block */
    static constexpr bool ROWS8 = decode_rows8(LAT, RB, NT, SPLIT ? 1 : NW, FP8, CL);
    static constexpr uint32_t GROUP = ROWS8 ? PER * 1024 : 1024; /* bytes between 8-token groups of a box */
    static constexpr int UNIT = ROWS8 ? decode_unit(LAT, RB) : BOX, UNITS = ROWS8 ? 4 : PER; /* a ring slot; slots of a page */
    using RingPos = RingPosOf<FP8 ? 0 : 1>;                      /* 0: the ring is a whole number of pages */
    const DecodeP &d;
    char *smem;
    uint32_t base;
    DecodeSmem sm;
    int wg, w, lane, g, c, t, rank;
    float acc[TILES][N / 2], m[NC], l[NC];
    RingPos pos;
    uint32_t turns, swaps; /* parity of this warpgroup's next turn; exchanges so far */

    __device__ __forceinline__ SoloRole(const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : d(d_), smem(smem_), base(smem_u32(smem_)), sm(sm_), pos{0, 0}, turns(0), swaps(0)
    {
        rank = CL > 1 ? (int)cluster_rank() : 0;
        wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), t = threadIdx.x & 127, w = __shfl_sync(~0u, t >> 5, 0);
        lane = t & 31, g = lane >> 2, c = lane & 3;
    }
    __device__ __forceinline__ uint32_t slot_addr(RingPos r) const { return base + sm.ring + r.slot * UNIT; }
    __device__ __forceinline__ void wait_full(RingPos r) const { mbar_wait(base + sm.bars + r.slot * 8, r.phase); }
    __device__ __forceinline__ void release(RingPos r) const
    {
        mbar_arrive_if(base + sm.bars + (d.slots + r.slot) * 8, lane == 0);
    }
    /* A barrier's parity tells two uses of a slot apart, not three: a warpgroup looks at the boxes of its page only after
     * the owner of the page before has seen all of its own, so no slot can be a whole use behind. */
    __device__ __forceinline__ uint32_t order_bar(int of) const { return base + sm.bars + (2 * d.slots + of) * 8; }
    __device__ __forceinline__ uint32_t query_bar(void) const { return order_bar(7); } /* behind turns and exchanges */
    __device__ __forceinline__ void take_turn(bool first)
    {
        if (SPLIT || first) return;
        mbar_wait(order_bar(wg), turns);
        turns ^= 1;
    }
    __device__ __forceinline__ void pass_turn(bool last) const
    {
        if (!SPLIT) mbar_arrive_if(order_bar(wg + 1 == NW ? 0 : wg + 1), t == 0 && !last);
    }
    /* Descriptor low words of this warpgroup's queries, box by box, and of its P. */
    __device__ __forceinline__ uint32_t q_box(int box) const
    {
        return wgmma_lo(base + sm.q + (SPLIT ? wg * N * 128 : 0)) + (uint32_t)((box * NT * 128) >> 4);
    }
    __device__ __forceinline__ uint32_t p_box() const { return wgmma_lo(p_addr()); }
    __device__ __forceinline__ uint32_t p_addr() const { return base + sm.p + wg * N * 128; }

    /* Over the 8 lanes g of each warp (max or sum), then the warps' results into red; ends with the warpgroup's barrier.
     * Columns 8j + 2c + {0,1} of warp i: float2 number (4j + c) * 4 + i. */
    template <bool MAX> __device__ __forceinline__ void column_reduce(const float (&v)[NC])
    {
        float2 *red = (float2 *)(smem + sm.red) + wg * N * 2;
        float2 x[N / 8];
#pragma unroll
        for (int j = 0; j < N / 8; j++) x[j] = make_float2(v[2 * j], v[2 * j + 1]);
#pragma unroll
        for (int o = 4; o < 32; o <<= 1)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float ax = __shfl_xor_sync(~0u, x[j].x, o), ay = __shfl_xor_sync(~0u, x[j].y, o);
                x[j].x = MAX ? fmaxf(x[j].x, ax) : x[j].x + ax;
                x[j].y = MAX ? fmaxf(x[j].y, ay) : x[j].y + ay;
            }
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            if (g == 0) red[(4 * j + c) * 4 + w] = x[j];
        bar_sync(BAR_WG + wg, 128);
    }
};
#endif
#endif
