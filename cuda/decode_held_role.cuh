/* Held kernel, what its roles share: where things lie in shared memory, barriers, the walk over the ring. */
#ifndef MLA_CUDA_DECODE_HELD_ROLE_CUH
#define MLA_CUDA_DECODE_HELD_ROLE_CUH
#include "cuda/decode_sm90.cuh"

/* Shared memory of one block with N query rows, bytes from a 1024-byte boundary: a ring of boxes of 64 rows x 128 bytes; two
 * messages, P and a note of it: a factor for every row, which of the four warps' rows it is for. */
struct HeldSmem {
    static constexpr uint32_t NOTE = 64 * 4 + 16;
    static constexpr int PER = 9, THIRDS = 3; /* boxes of an item; its barriers */
    uint32_t p, note, rows, bars, bytes;
    __host__ __device__ constexpr HeldSmem(int N, int slots) : p(0), note(0), rows(0), bars(0), bytes(0)
    {
        p = (uint32_t)slots * BOX;
        note = p + (uint32_t)N * 256;
        rows = note + 2 * NOTE;
        bars = rows + (uint32_t)N * 8;
        bytes = bars + (uint32_t)slots * 8 + (4 * THIRDS + 4) * 8; /* as HeldRole names them */
    }
    /* As many as fit. */
    static __host__ __device__ constexpr int slots(int N) { return (SMEM_MAX - 1024 - (int)HeldSmem(N, 0).bytes) / (BOX + 8); }
};

#ifdef MLA_HOPPER
/* N query rows of a block. CL 2: two blocks with the same pages are a cluster, and each fetches every other box for both. A piece of a sequence is an item of queries and an item for every page, each PER boxes of the ring: rotary
 * values, then latents. S gives a page's first box back before O gives back the others, and the last box of the page after the next
 * comes into its slot (N 48: 26 slots). */
template <int N, int CL> struct HeldRole {
    static constexpr int LAT = 512, NB = LAT / 64, PER = NB + 1, THIRDS = HeldSmem::THIRDS, SLOTS = HeldSmem::slots(N), ALL = 256;
    using RingPos = RingPosOf<1>;
    const DecodeP &d;
    char *smem;
    uint32_t base;
    int w, lane, g, c, t, tile;
    uint32_t empties; /* of the lane-th block of the cluster */
    RingPos pos;
    uint32_t items, messages; /* so far */

    static __device__ __forceinline__ constexpr HeldSmem sm() { return HeldSmem(N, SLOTS); }
    __device__ __forceinline__ HeldRole(const DecodeP &d_, char *smem_) : d(d_), smem(smem_), base(smem_u32(smem_)), pos{0, 0}, items(0), messages(0)
    {
        tile = blockIdx.x % d.tiles, t = threadIdx.x & 127, w = __shfl_sync(~0u, t >> 5, 0), lane = t & 31, g = lane >> 2, c = lane & 3;
        empties = cluster_addr(base + sm().bars, lane & (CL - 1));
    }
    __device__ __forceinline__ RingPos at(int ahead) const { return pos.at(ahead, SLOTS); }
    __device__ __forceinline__ uint32_t slot_addr(RingPos r) const { return base + r.slot * BOX; }
    __device__ __forceinline__ uint32_t empty(int slot) const { return base + sm().bars + slot * 8; } /* 4 warps of every block of the cluster */
    __device__ __forceinline__ uint32_t full(int third) const { return empty(SLOTS) + ((items & 3) * THIRDS + third) * 8; } /* a third of an item's boxes: the ring holds less than four items */
    static __device__ __forceinline__ constexpr int place(int b) { return b == NB ? 0 : b + 1; } /* of 64 latents, or (NB) the rotary values */
    static __device__ __forceinline__ constexpr int third_of(int place) { return place * THIRDS / PER; }
    __device__ __forceinline__ uint32_t sent(uint32_t msg) const { return empty(SLOTS + 4 * THIRDS) + (msg & 1) * 8; } /* the warps that have rows */
    __device__ __forceinline__ uint32_t used(uint32_t msg) const { return empty(SLOTS + 4 * THIRDS + 2) + (msg & 1) * 8; } /* 8 warps of O */
    __device__ __forceinline__ void wait_full(int third) const { mbar_wait(full(third), (items >> 2) & 1); }
    __device__ __forceinline__ void wait_empty(RingPos r) const { mbar_wait(empty(r.slot), r.phase ^ 1); }
    __device__ __forceinline__ void next(int boxes) { pos = at(boxes), items++; }
    __device__ __forceinline__ void wait_sent() const { mbar_wait(sent(messages), (messages >> 1) & 1); }
    __device__ __forceinline__ void wait_used() const { mbar_wait(used(messages), ((messages >> 1) & 1) ^ 1); }
    __device__ __forceinline__ void release(RingPos r) const { cluster_arrive_if(empties + r.slot * 8, lane < CL); }
    __device__ __forceinline__ uint32_t p_addr() const { return base + sm().p + (messages & 1) * (N * 128); }
    __device__ __forceinline__ uint32_t note_addr() const { return base + sm().note + (messages & 1) * HeldSmem::NOTE; }
    __device__ __forceinline__ float *note() const { return (float *)(smem + note_addr() - base); }
    __device__ __forceinline__ int *flags() const { return (int *)(note() + 64); }
    __device__ __forceinline__ int row_of(int n) const { return tile * N + n; }
};
#endif
#endif
