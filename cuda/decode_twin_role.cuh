/* Twin kernel, what its roles share: where things lie in shared memory, barriers, the walk over the ring. */
#ifndef MLA_CUDA_DECODE_TWIN_ROLE_CUH
#define MLA_CUDA_DECODE_TWIN_ROLE_CUH
#include "cuda/decode_sm90.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, bool FP8, int CL> struct TwinRole {
    static constexpr int NB = FP8 ? LAT / 128 : LAT / 64, PER = NB + 1, OWN = N / CL; /* boxes and ring slots of a page; columns of this block's softmax */
    static constexpr bool ROWS8 = false;
    static constexpr uint32_t GROUP = ROWS8 ? PER * 1024 : 1024; /* bytes between 8-token groups of a box */
    static constexpr int UNIT = ROWS8 ? decode_unit(LAT, 1) : BOX, UNITS = ROWS8 ? 4 : PER; /* a ring slot; slots of a page */
    static constexpr uint32_t NOTE = decode_note(N), FLAGS = N * 4, SENT = OWN * 4 + 16; /* bytes: a note, where its flags are, what the twin sends of it */
    using RingPos = RingPosOf<1>;
    const DecodeP &d;
    char *smem;
    uint32_t base;
    DecodeSmem sm;
    int w, lane, g, c, t, rank;
    RingPos pos;
    uint32_t messages, sequences; /* so far */

    __device__ __forceinline__ TwinRole(const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : d(d_), smem(smem_), base(smem_u32(smem_)), sm(sm_), pos{0, 0}, messages(0), sequences(0)
    {
        rank = CL > 1 ? (int)cluster_rank() : 0, t = threadIdx.x & 127, w = __shfl_sync(~0u, t >> 5, 0), lane = t & 31, g = lane >> 2, c = lane & 3;
    }
    __device__ __forceinline__ uint32_t slot_addr(RingPos r) const { return base + sm.ring + r.slot * UNIT; }
    __device__ __forceinline__ void wait_full(RingPos r) const { mbar_wait(base + sm.bars + r.slot * 8, r.phase); }
    __device__ __forceinline__ void release(RingPos r) const { mbar_arrive_if(base + sm.bars + (d.slots + r.slot) * 8, lane == 0); }
    __device__ __forceinline__ uint32_t bar(int i) const { return base + sm.bars + (2 * d.slots + i) * 8; }
    __device__ __forceinline__ uint32_t sent(uint32_t msg) const { return bar(msg & 1); }      /* 4 warps, and the twin's bytes */
    __device__ __forceinline__ uint32_t used(uint32_t msg) const { return bar(2 + (msg & 1)); } /* 8 warps of each block */
    __device__ __forceinline__ uint32_t sums() const { return bar(4); }                         /* the twin's bytes */
    __device__ __forceinline__ uint32_t room() const { return bar(5); }                         /* the twin's 4 warps: they have read this block's sums */
    __device__ __forceinline__ uint32_t q_full() const { return bar(6); }                       /* 8 warps of O: queries are there */
    __device__ __forceinline__ uint32_t q_free() const { return bar(7); }                       /* 4 warps: queries are used */
    __device__ __forceinline__ uint32_t p_addr(uint32_t msg) const { return base + sm.p + (msg & 1) * (N * 128); }
    __device__ __forceinline__ char *note(uint32_t msg) const { return smem + sm.note + (msg & 1) * NOTE; }
    __device__ __forceinline__ void wait_sent(uint32_t msg) const { mbar_wait(sent(msg), (msg >> 1) & 1); }
    /* The query row of local column n. */
    __device__ __forceinline__ int row_of(int n) const { return blockIdx.y * N + (n < OWN ? n + OWN * rank : n - OWN * rank); }
};
#endif
#endif
