/* What the blocks of codes_mma.cu are: arguments, shared memory, and the warp that copies a team's units to its ring. */
#ifndef MLA_CUDA_CODES_RING_CUH
#define MLA_CUDA_CODES_RING_CUH
#include "cuda/codes.cuh"
#include "cuda/linear_few.cuh"
#include "cuda/ptx.cuh"

enum { WARPS = 8, TEAMS = 2, THREADS = TEAMS * (WARPS + 1) * 32, TOKENS = 8, NOTE = 32, PITCH = 20, SMEM_ALL = 232448 - 4096,
       HALF = 233472 / 2 - 4096, OTHERS = 96 << 10, UNITS_MOST = 160, SLOTS_MOST = 32 };

struct MmaP {
    const float *x, *bias;
    float *y;
    size_t ldx, ldy;
    int tokens, accumulate, pitch; /* pitch: of a token in shared memory, bytes */
    bool wide;                     /* rows of x start on 16 bytes */
    int tiles, teams, blocks, slots, slot_tile; /* teams of a block, blocks of a multiprocessor; slots of a team's ring, of a tile */
    unsigned *drawn;               /* tiles given out */
};
/* Units of a slot: a copy takes its warp 300 clocks whatever its size, so slots are 8 to 17 KB. */
static inline __host__ __device__ constexpr int per_slot(mla_code c) { return code_bits_a(c) == 8 ? WARPS / 2 : (int)WARPS; }
/* Shared memory: ring, a note for every slot (mbarriers of what has come and what is free, the tile's first row), two places for a tile's sums by class, tokens, their sums. */
struct MmaSmem {
    int slot, notes, parts, part, team, x, sums, starts, bytes; /* team: bytes of a team's ring, notes and places, from which on notes and parts count */
    __host__ __device__ MmaSmem(const Codes &c, const MmaP &a, bool one)
    {
        const int n = c.units * c.unit_groups * (one ? 1 : TOKENS) * 4;
        slot = (per_slot(c.code) * c.unit_bytes + 127) / 128 * 128;
        notes = a.slots * slot, parts = notes + a.slots * NOTE;
        part = one ? WARPS * CODE_ROWS * 4 : WARPS * TOKENS * PITCH * 4;
        team = (parts + 2 * part + 127) / 128 * 128;
        x = a.teams * team;
        sums = x + a.tokens * a.pitch;
        starts = sums + (c.offset == MLA_OFFSET_NONE ? 0 : n);
        bytes = starts + (c.values == VALUES_LINE && code_bits_a(c.code) < 8 ? n : 0);
    }
};

#ifdef MLA_HOPPER
/* A team's copying warp. */
static __device__ __forceinline__ void copy_units(const Codes &c, const MmaP &a, const MmaSmem &at, uint32_t ring, int team)
{
    const int lane = threadIdx.x % 32, teams = (int)gridDim.x * a.teams;
    const uint64_t policy = evict_first_policy();
    const uint32_t notes = ring + at.notes, all = per_slot(c.code) * (uint32_t)c.unit_bytes;
    int slot = 0;
    uint32_t parity = 1;
    for (int tile = (int)blockIdx.x * a.teams + team; tile < a.tiles;) {
        int next = 0;
        if (lane == 0) next = few_draw(a.drawn, a.tiles); /* looked at when this tile is queued */
        const char *from = (const char *)c.data + (size_t)tile * (size_t)c.row_bytes;
        for (int s = 0; s < a.slot_tile; s++) {
            const uint32_t bar = notes + slot * NOTE, done = s * all, bytes = min(all, (uint32_t)c.row_bytes - done);
            mbar_wait(bar + 8, parity);
            if (elect_one()) {
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(bar + 16), "r"(tile * CODE_ROWS) : "memory");
                mbar_expect(bar, bytes);
                bulk_copy(ring + slot * at.slot, from + done, bytes, bar, policy);
            }
            __syncwarp();
            if (++slot == a.slots) slot = 0, parity ^= 1;
        }
        tile = __shfl_sync(~0u, next, 0) + teams;
    }
    mbar_wait(notes + slot * NOTE + 8, parity);
    if (lane == 0) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(notes + slot * NOTE + 16), "r"(-1) : "memory");
        mbar_expect(notes + slot * NOTE, 0);
    }
    __syncwarp();
}
#endif
#endif
