/* Trio kernel, what its roles share: where things lie in shared memory, barriers, the walk over the ring. */
#ifndef MLA_CUDA_DECODE_TRIO_ROLE_CUH
#define MLA_CUDA_DECODE_TRIO_ROLE_CUH
#include "cuda/decode_sm90.cuh"

/* TRIO_AT: shared address of a block's memory. A constant, so that addresses, barriers and descriptors are, too: they come from
 * registers of their own otherwise, four instructions a product. The kernel looks whether it is so. */
enum { BAR_TOTALS = BAR_WG + 2, TRIO_AT = 1024 };

#ifdef MLA_HOPPER
template <int LAT, int N, bool FP8, int CL> struct TrioRole {
    static_assert(!FP8 || CL == 1, "the blocks of a cluster would scale their queries each by their own powers of two");
    static constexpr int NB = FP8 ? LAT / 128 : LAT / 64, PER = NB + 1, OWN = N / CL; /* boxes of a page and with the rotary one; columns of this block's softmax */
    static constexpr bool ROWS8 = decode_trio_rows8(FP8, CL);
    static constexpr int SLOTS = decode_trio_slots(LAT, N, FP8, CL);
    static constexpr uint32_t GROUP = ROWS8 ? PER * 1024 : 1024; /* bytes between 8-token groups of a box */
    static constexpr int UNIT = ROWS8 ? decode_unit(LAT, 1) : BOX, UNITS = ROWS8 ? 4 : NB; /* a ring slot; slots of a page */
    static constexpr uint32_t NOTE = decode_note(N), FLAGS = N * 4, SENT = OWN * 4 + 16; /* bytes: a note, where its flags are, what the twin sends of it */
    using RingPos = RingPosOf<1>;
    const DecodeP &d;
    char *smem;
    uint32_t base;
    DecodeSmem sm;
    int w, lane, g, c, t, rank;
    RingPos pos, rope; /* of the page, and of its rotary part where that lies apart */
    uint32_t messages, sequences; /* so far */

    __device__ __forceinline__ TrioRole(const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : d(d_), smem(smem_), base(TRIO_AT), sm(sm_), pos{0, 0}, rope{0, 0}, messages(0), sequences(0)
    {
        rank = CL > 1 ? (int)cluster_rank() : 0, t = threadIdx.x & 127, w = __shfl_sync(~0u, t >> 5, 0), lane = t & 31, g = lane >> 2, c = lane & 3;
    }
    /* Slot i of the page at pos: where the ring is a whole number of pages, they lie one after the other. */
    __device__ __forceinline__ RingPos unit(int i) const { return FP8 || ROWS8 ? RingPos{pos.slot + i, pos.phase} : pos.at(i, SLOTS); }
    __device__ __forceinline__ void next_page() { pos = pos.at(UNITS, SLOTS); }
    __device__ __forceinline__ uint32_t slot_addr(RingPos r) const { return base + sm.ring + r.slot * UNIT; }
    __device__ __forceinline__ void wait_full(RingPos r) const { mbar_wait(base + sm.bars + r.slot * 8, r.phase); }
    __device__ __forceinline__ void release(RingPos r) const { mbar_arrive_if(base + sm.bars + (SLOTS + r.slot) * 8, lane == 0); }
    __device__ __forceinline__ uint32_t rope_addr() const { return base + sm.rope + rope.slot * (BOX / 2); }
    __device__ __forceinline__ uint32_t rope_bar() const { return bar(12 + rope.slot); }
    __device__ __forceinline__ void wait_rope() const { mbar_wait(rope_bar(), rope.phase); }
    __device__ __forceinline__ void release_rope() const { mbar_arrive_if(rope_bar() + ROPES * 8, lane == 0); }
    __device__ __forceinline__ uint32_t bar(int i) const { return base + sm.bars + (2 * SLOTS + i) * 8; }
    __device__ __forceinline__ uint32_t sent(uint32_t msg) const { return bar(msg & 1); }      /* 4 warps; in a cluster one thread and the twin's bytes */
    __device__ __forceinline__ uint32_t used(uint32_t msg) const { return bar(2 + (msg & 1)); } /* 8 warps of each block */
    __device__ __forceinline__ uint32_t turn(int of) const { return bar(4 + of); }              /* one thread: the message before has its maxima */
    __device__ __forceinline__ uint32_t sums(int of) const { return bar(6 + of); }              /* the twin's bytes */
    __device__ __forceinline__ uint32_t room() const { return bar(8); }                         /* the twin's 4 warps: they have read this block's sums */
    __device__ __forceinline__ uint32_t room_turn(int of) const { return base + sm.top + OWN * 4 + 16 + of * 8; } /* cluster: one thread: the message before has seen its room; behind the maxima */
    __device__ __forceinline__ uint32_t q_full() const { return bar(9); }                       /* 8 warps of O: queries are there */
    __device__ __forceinline__ uint32_t q_free() const { return bar(10); }                      /* 8 warps of S: queries are used */
    __device__ __forceinline__ uint32_t q_boxes() const { return bar(11); }                     /* bytes of queries that come as boxes */
    __device__ __forceinline__ uint32_t p_addr(uint32_t msg) const { return base + sm.p + (msg & 1) * (N * 128); }
    __device__ __forceinline__ char *note(uint32_t msg) const { return smem + sm.note + (msg & 1) * NOTE; }
    __device__ __forceinline__ void wait_sent(uint32_t msg) const { mbar_wait(sent(msg), (msg >> 1) & 1); }
    /* The query row of local column n. */
    __device__ __forceinline__ int row_of(int n) const { return blockIdx.y * N + (n < OWN ? n + OWN * rank : n - OWN * rank); }
};
#endif
#endif
