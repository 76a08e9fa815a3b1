/* The ring of weights of linear_few.cu: where things lie in shared memory, and the warp that copies. The ring is filled while the other
 * warps wait for tokens; where it is full then, what comes next is fetched to L2. */
#ifndef MLA_CUDA_LINEAR_FEW_RING_CUH
#define MLA_CUDA_LINEAR_FEW_RING_CUH
#include "cuda/linear_few_x.cuh"
#include "cuda/ptx.cuh"

/* One phase: a ring has as many stages as let two kernels' blocks share a multiprocessor (HALF), at least three. Several: as many
 * as leave room for the small kernel after it (SMALL). */
enum { ROWS = 8, KC = 1024, PITCH = KC * 2, STAGE = ROWS * PITCH, WARPS = ROW / 32, COPIERS = 2, THREADS = ROW + COPIERS * 32, STAGES_MIN = 3, STAGES_MAX = 5,
       SETS_MAX = FEW_TOKENS / 4, PART = 2 * SETS_MAX * WARPS * 16 * 8, BAR_TILE = 1, BAR_COPY = 2, NOTE = 32, SMEM_ALL = 232448, HALF = 233472 / 2 - 1536, SMALL = 12 << 10 };

/* Shared memory: ring, two places for the warps' sums of a tile, a note for every stage, tokens. A note: mbarriers of what has
 * come and of what is free (8 bytes each); layer and row of the tile that begins there, -1: the phase ends. */
static inline __host__ __device__ int part_at(int stages) { return stages * STAGE; }
static inline __host__ __device__ int bars_at(int stages) { return part_at(stages) + PART; }
static inline __host__ __device__ int x_at(int stages) { return bars_at(stages) + stages * NOTE; }

#ifdef MLA_HOPPER
enum { AHEAD = 12 }; /* stages a block has in L2 at most: 26 MB of all blocks */

static __device__ __forceinline__ void note(uint32_t at, int job, int row) { asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(job), "r"(row) : "memory"); }

/* A tile: its even and its odd rows begin at `even` and `odd`, `step` bytes from one to the next. The same in all lanes. */
struct Tile {
    const char *even, *odd;
    size_t step;
    int in, rows, job, row;
};
static __device__ __forceinline__ Tile tile_of(const FewP &p, const FewPhase &ph, int tile, int j)
{
    while (tile >= p.job[j].tile0 + p.job[j].tiles) j++;
    const FewJob &job = p.job[j];
    const int row = (tile - job.tile0) * ROWS, in = job.in;
    const size_t line = (size_t)in * 2;
    Tile t = {(const char *)job.w + row * line, NULL, 2 * line, in, min((int)ROWS, job.out - row), j, row};
    t.odd = t.even + line;
    if (ph.pairs) t = Tile{(const char *)job.w + (row >> 1) * line, (const char *)job.w2 + (row >> 1) * line, line, in, min((int)ROWS, 2 * job.out - row), j, row};
    return t;
}
/* The copying warp's block has a full ring and multiplies nothing yet: stages that come after `k0` of the tile go to L2, from
 * the first that did not go there before. `next`: the tile after it, of the same phase if there is one. */
static __device__ __noinline__ int fetch_ahead(const FewP &p, int f, int tile, int j, int k0, int next, int ahead, uint32_t bar, uint32_t parity, const volatile int *begun)
{
    const int lane = threadIdx.x & 31;
    Tile t = tile_of(p, p.phase[f], tile, j);
    int from = 0;
    for (; ahead < AHEAD && __any_sync(~0u, *begun < f && !mbar_ready(bar, parity)); ahead++) {
        int k = k0 + ahead * KC - from;
        if (k >= t.in) {
            if (from) break;
            from = (t.in + KC - 1) / KC * KC, k = k0 + ahead * KC - from;
            if (next < p.phase[f].tiles) t = tile_of(p, p.phase[f], next, t.job);
            else if (f + 1 < p.phases && (int)blockIdx.x < p.phase[f + 1].tiles) t = tile_of(p, p.phase[f + 1], blockIdx.x, p.phase[f + 1].job0);
            else break;
        }
        if (k >= t.in) break;
        if (lane < t.rows) l2_fetch((lane & 1 ? t.odd : t.even) + (lane >> 1) * t.step + (size_t)k * 2, (uint32_t)min((int)KC, t.in - k) * 2);
    }
    return ahead;
}

/* What the warps of a block tell each other beside the ring. */
struct FewTalk {
    int begun;   /* the phase whose tokens are there */
    int next[2]; /* the tile after this one, in turns */
    /* Of the multiplying warps, kept here from phase to phase, not in registers that tokens need meanwhile: their place in the ring, tiles so far,
     * the launch, what the last end's `met` is when all blocks are there. */
    int slot, tiles;
    uint32_t parity, launch;
    unsigned long long goal;
};
/* The copying warps: every stage as its slot comes free, even rows by the first, odd ones by the second. One lane issues them, from
 * addresses that the compiler sees to be the same in all lanes: a warp takes 60 ns for a copy whatever its size, and a stage's 8
 * would take as long as its bytes. */
static __device__ __forceinline__ void copy_stages(const FewP &p, uint32_t ring, uint32_t notes, FewTalk *talk)
{
    const int lane = threadIdx.x & 31, second = (threadIdx.x >> 5) - WARPS;
    const uint64_t policy = evict_first_policy();
    int slot = 0, ahead = 0, turn = 0; /* ahead: stages from the next one on that are in L2 */
    uint32_t parity = 1;
    for (int f = 0; f < p.phases; f++) {
        const FewPhase &ph = p.phase[f];
        int j = ph.job0;
        bool idle = !second; /* as far as the first warp knows, nothing of the phase is multiplied yet */
        for (int tile = blockIdx.x; tile < ph.tiles;) {
            int next = 0;
            if (!second && lane == 0) next = few_draw(p.drawn + f, ph.tiles) + (int)gridDim.x; /* has come when this tile is queued */
            const Tile t = tile_of(p, ph, tile, j);
            const int rows = (t.rows + 1 - second) / 2;
            j = t.job;
            for (int k0 = 0; k0 < t.in; k0 += KC) {
                const uint32_t bytes = (uint32_t)min((int)KC, t.in - k0) * 2, bar = notes + slot * NOTE, to = ring + slot * STAGE + second * PITCH;
                if (idle && (idle = __any_sync(~0u, *(volatile int *)&talk->begun < f)) && __any_sync(~0u, !mbar_ready(bar + 8, parity)))
                    ahead = fetch_ahead(p, f, tile, j, k0, __shfl_sync(~0u, next, 0), ahead, bar + 8, parity, &talk->begun);
                mbar_wait(bar + 8, parity);
                if (elect_one()) {
                    const char *w = (second ? t.odd : t.even) + (size_t)k0 * 2;
                    if (!second && k0 == 0) note(bar + 16, j, t.row);
                    mbar_expect(bar, bytes * rows);
                    if (rows == ROWS / 2) {
#pragma unroll
                        for (int r = 0; r < ROWS / 2; r++, w += t.step) bulk_copy(to + r * 2 * PITCH, w, bytes, bar, policy);
                    } else
#pragma unroll 1
                        for (int r = 0; r < rows; r++, w += t.step) bulk_copy(to + r * 2 * PITCH, w, bytes, bar, policy);
                }
                __syncwarp();
                if (++slot == p.stages) slot = 0, parity ^= 1;
                if (ahead) ahead--;
            }
            if (!second && lane == 0) talk->next[turn] = next;
            bar_sync(BAR_COPY, COPIERS * 32);
            tile = *(volatile int *)&talk->next[turn];
            turn ^= 1;
        }
        mbar_wait(notes + slot * NOTE + 8, parity);
        if (lane == 0) {
            if (!second) note(notes + slot * NOTE + 16, -1, 0);
            mbar_expect(notes + slot * NOTE, 0);
        }
        __syncwarp();
        if (++slot == p.stages) slot = 0, parity ^= 1;
    }
}
#endif
#endif
