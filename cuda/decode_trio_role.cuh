/* Trio kernel, what its roles share: where things lie in shared memory, barriers, the walk over the ring. */
#ifndef MLA_CUDA_DECODE_TRIO_ROLE_CUH
#define MLA_CUDA_DECODE_TRIO_ROLE_CUH
#include "cuda/decode_sm90.cuh"

/* TRIO_AT: shared address of a block's memory. A constant, so that addresses, barriers and descriptors are, too: they come from
 * registers of their own otherwise, four instructions a product. The kernel looks whether it is so. */
enum { BAR_TOTALS = BAR_WG + 2, TRIO_AT = 1024 };
/* A column's maximum before any: every logit is beyond it, and it stays in range. */
#define NO_MAX -3e38f

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioRole {
    static constexpr int NB = LAT / 128; /* boxes of a page */
    static constexpr int PAGES = decode_trio_pages(LAT, N), BARS = PAGES * (1 + NB);
    static constexpr uint32_t PAGE = decode_trio_page(LAT), NOTE = decode_note(N), FLAGS = N * 4; /* bytes: a page, a note, where its flag is */
    static constexpr int ROLE_BARS = 11;
    using RingPos = RingPosOf<1>;
    static_assert(PAGES >= 3, "two pages are multiplied and one is added while others come");
    const DecodeP &d;
    char *smem;
    uint32_t base;
    DecodeSmem sm;
    int tid, w, lane, g, c, t;    /* tid: of both warpgroups of a role */
    RingPos pos;                  /* of the page */
    uint32_t messages, sequences; /* so far */

    __device__ __forceinline__ TrioRole(const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : d(d_), smem(smem_), base(TRIO_AT), sm(sm_), pos{0, 0}, messages(0), sequences(0)
    {
        /* A number that stays in a register: threadIdx the compiler reads wherever it is used, 50 clocks each time. */
        tid = __shfl_sync(~0u, threadIdx.x & 255, threadIdx.x & 31);
        w = __shfl_sync(~0u, (threadIdx.x & 127) >> 5, 0);
        again();
    }
    /* What follows from tid is made anew from here on, and takes no registers meanwhile. */
    __device__ __forceinline__ void again()
    {
        asm volatile("" : "+r"(tid));
        t = tid & 127, lane = t & 31, g = lane >> 2, c = lane & 3;
    }
    __device__ __forceinline__ RingPos after(int n) const { return pos.at(n, PAGES); }
    static __device__ __forceinline__ uint32_t page_addr(const DecodeSmem &sm, RingPos r) { return TRIO_AT + sm.ring + r.slot * PAGE; }
    __device__ __forceinline__ uint32_t bar(int i) const { return base + sm.bars + i * 8; }
    __device__ __forceinline__ uint32_t full(RingPos r) const { return bar(r.slot); }                              /* its bytes are there */
    __device__ __forceinline__ uint32_t empty(RingPos r, int box) const { return bar(PAGES + r.slot * NB + box); } /* 4 warps of O */
    __device__ __forceinline__ void wait_full(RingPos r) const { mbar_wait(full(r), r.phase); }
    __device__ __forceinline__ void release(RingPos r, int box) const { mbar_arrive_if(empty(r, box), lane == 0); }
    __device__ __forceinline__ uint32_t sent(uint32_t msg) const { return bar(BARS + (msg & 1)); }     /* 4 warps */
    __device__ __forceinline__ uint32_t used(uint32_t msg) const { return bar(BARS + 2 + (msg & 1)); } /* 8 warps */
    __device__ __forceinline__ uint32_t turn(int of) const { return bar(BARS + 4 + of); }              /* one thread: the message before has its maxima */
    __device__ __forceinline__ uint32_t q_full() const { return bar(BARS + 6); }                       /* 8 warps of O: queries are there */
    __device__ __forceinline__ uint32_t q_free() const { return bar(BARS + 7); }                       /* 8 warps of S: queries are used */
    __device__ __forceinline__ uint32_t q_boxes() const { return bar(BARS + 8); }                      /* bytes of queries that come as boxes */
    __device__ __forceinline__ uint32_t vote(int of) const { return bar(BARS + 9 + of); }              /* 4 warps of S */
    static __device__ __forceinline__ void init_bars(uint32_t bars)
    {
        const int counts[ROLE_BARS] = {4, 4, 8, 8, 1, 1, 8, 8, 1, 4, 4};
        for (int i = 0; i < BARS; i++) mbar_init(bars + i * 8, i < PAGES ? 1 : 4);
        for (int i = 0; i < ROLE_BARS; i++) mbar_init(bars + (BARS + i) * 8, counts[i]);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __device__ __forceinline__ uint32_t p_addr(uint32_t msg) const { return base + sm.p + (msg & 1) * (N * 128); }
    __device__ __forceinline__ char *note(uint32_t msg) const { return smem + sm.note + (msg & 1) * NOTE; }
    __device__ __forceinline__ float2 *top() const { return (float2 *)(smem + sm.top); } /* of a column: its scale; the maximum, negative */
    __device__ __forceinline__ void wait_sent(uint32_t msg) const { mbar_wait(sent(msg), (msg >> 1) & 1); }
    /* The query row of column n. */
    __device__ __forceinline__ int row_of(int n) const { return blockIdx.y * N + n; }
};
#endif
#endif
