/* Trio kernel, what its roles share: where things lie in shared memory, barriers, the walk over the ring. */
#ifndef MLA_CUDA_DECODE_TRIO_ROLE_CUH
#define MLA_CUDA_DECODE_TRIO_ROLE_CUH
#include "cuda/decode_sm90.cuh"

/* TRIO_AT: shared address of a block's memory. A constant, so that addresses, barriers and descriptors are, too: they come from
 * registers of their own otherwise, four instructions a product. The kernel looks whether it is so. */
enum { BAR_TOTALS = BAR_WG + 2, TRIO_AT = 1024 };

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioRole {
    static constexpr int NB = LAT / 128; /* boxes of a page */
    static constexpr int SLOTS = decode_trio_slots(LAT, N);
    static constexpr uint32_t NOTE = decode_note(N), FLAGS = N * 4; /* bytes: a note, where its flag is */
    using RingPos = RingPosOf<1>;
    const DecodeP &d;
    char *smem;
    uint32_t base;
    DecodeSmem sm;
    int w, lane, g, c, t;
    RingPos pos, rope; /* of the page, and of its rotary part where that lies apart */
    uint32_t messages, sequences; /* so far */

    __device__ __forceinline__ TrioRole(const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : d(d_), smem(smem_), base(TRIO_AT), sm(sm_), pos{0, 0}, rope{0, 0}, messages(0), sequences(0)
    {
        t = threadIdx.x & 127, w = __shfl_sync(~0u, t >> 5, 0), lane = t & 31, g = lane >> 2, c = lane & 3;
    }
    /* Slot i of the page at pos: where the ring is a whole number of pages, they lie one after the other. */
    __device__ __forceinline__ RingPos unit(int i) const { return RingPos{pos.slot + i, pos.phase}; }
    __device__ __forceinline__ void next_page() { pos = pos.at(NB, SLOTS); }
    __device__ __forceinline__ uint32_t slot_addr(RingPos r) const { return base + sm.ring + r.slot * BOX; }
    __device__ __forceinline__ void wait_full(RingPos r) const { mbar_wait(base + sm.bars + r.slot * 8, r.phase); }
    __device__ __forceinline__ void release(RingPos r) const { mbar_arrive_if(base + sm.bars + (SLOTS + r.slot) * 8, lane == 0); }
    __device__ __forceinline__ uint32_t rope_addr() const { return base + sm.rope + rope.slot * (BOX / 2); }
    __device__ __forceinline__ uint32_t rope_bar() const { return bar(12 + rope.slot); }
    __device__ __forceinline__ void wait_rope() const { mbar_wait(rope_bar(), rope.phase); }
    __device__ __forceinline__ void release_rope() const { mbar_arrive_if(rope_bar() + ROPES * 8, lane == 0); }
    __device__ __forceinline__ uint32_t bar(int i) const { return base + sm.bars + (2 * SLOTS + i) * 8; }
    __device__ __forceinline__ uint32_t sent(uint32_t msg) const { return bar(msg & 1); }      /* 4 warps */
    __device__ __forceinline__ uint32_t used(uint32_t msg) const { return bar(2 + (msg & 1)); } /* 8 warps */
    __device__ __forceinline__ uint32_t turn(int of) const { return bar(4 + of); }              /* one thread: the message before has its maxima */
    __device__ __forceinline__ uint32_t q_full() const { return bar(9); }                       /* 8 warps of O: queries are there */
    __device__ __forceinline__ uint32_t q_free() const { return bar(10); }                      /* 8 warps of S: queries are used */
    __device__ __forceinline__ uint32_t q_boxes() const { return bar(11); }                     /* bytes of queries that come as boxes */
    __device__ __forceinline__ uint32_t p_addr(uint32_t msg) const { return base + sm.p + (msg & 1) * (N * 128); }
    __device__ __forceinline__ char *note(uint32_t msg) const { return smem + sm.note + (msg & 1) * NOTE; }
    __device__ __forceinline__ void wait_sent(uint32_t msg) const { mbar_wait(sent(msg), (msg >> 1) & 1); }
    /* The query row of column n. */
    __device__ __forceinline__ int row_of(int n) const { return blockIdx.y * N + n; }
};
#endif
#endif
