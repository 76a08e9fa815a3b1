/* Weights are cut into tiles of ROWS rows and those into stages of KC columns. A copying warp streams its block's tiles through
 * a ring, 8 warps multiply them, each every eighth pair of groups of 32 columns, by the tensor cores: tokens on 16 rows (8 are
 * used), weight rows on 8 columns. A block's first tile is its own, the others are drawn as they come: multiprocessors get unequal
 * shares of the memory's rate. The ring brings with a tile's first stage which one it is. Rows lie whole 128-byte lines apart in the
 * ring: copies to other places are slower than the memory.
 *
 * Weights never change, so the ring is filled before grid_wait: the next layer's first bytes arrive while this one ends,
 * and copies do not stop between kernels. Between phases they do not, either: the copying warp walks on through the next phase
 * while the others wait for all blocks' results (`meet`). Columns are permuted within 32, in weights and tokens alike, so that a
 * thread reads 16 bytes at a time: its words 0, 1 belong to the first step of 16 columns, 2, 3 to the second. A result depends
 * neither on how many tokens there are, nor on the tile, the phase or the block. The warps' sums of a tile are added in warp order. */
#include "cuda/check.cuh"
#include "cuda/linear_few_x.cuh"
#include "cuda/ptx.cuh"

/* One phase: a ring has as many stages as let two kernels' blocks share a multiprocessor (HALF), at least three. Several: as many
 * as leave room for the small kernel after it (SMALL). */
enum { ROWS = 8, KC = 1024, PITCH = KC * 2, STAGE = ROWS * PITCH, WARPS = ROW / 32, THREADS = ROW + 32, STAGES_MIN = 3, STAGES_MAX = 5,
       PART = 2 * WARPS * 32 * 8, BAR_TILE = 1, NOTE = 32, SMEM_ALL = 232448, HALF = 233472 / 2 - 1536, SMALL = 12 << 10 };

/* Shared memory: ring, two places for the warps' sums of a tile, a note for every stage, tokens. A note: mbarriers of what has
 * come and of what is free (8 bytes each); layer and row of the tile that begins there, -1: the phase ends. */
static inline __host__ __device__ int part_at(int stages) { return stages * STAGE; }
static inline __host__ __device__ int bars_at(int stages) { return part_at(stages) + PART; }
static inline __host__ __device__ int x_at(int stages) { return bars_at(stages) + stages * NOTE; }

#ifdef MLA_HOPPER
static __device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src),
                 "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
/* d (16 x 8) += a (16 x 16) b (16 x 8) with rows 8..15 of a zero. */
static __device__ __forceinline__ void mma_half(float (&d)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
}

/* Draws a tile of a phase after the blocks' first ones: by one thread, once for every tile there is. */
static __device__ __forceinline__ int draw(unsigned *drawn, int tiles)
{
    const int n = (int)atomicAdd(drawn, 1u);
    if (n == tiles - 1) *drawn = 0; /* the last one */
    return n + (int)gridDim.x;
}
static __device__ __forceinline__ void note(uint32_t at, int job, int row) { asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(job), "r"(row) : "memory"); }

/* The copying warp: every stage as its slot comes free; lane i has row i of a tile. Little is left in the inner loop: what it
 * costs is what limits the copies. */
static __device__ __forceinline__ void copy_stages(const FewP &p, uint32_t ring, uint32_t notes)
{
    const int lane = threadIdx.x & 31;
    const uint64_t policy = evict_first_policy();
    int slot = 0;
    uint32_t parity = 1;
    for (int f = 0; f < p.phases; f++) {
        const FewPhase &ph = p.phase[f];
        for (int tile = blockIdx.x; tile < ph.tiles;) {
            int next = 0, j = ph.job0;
            if (lane == 0) next = draw(p.drawn + f, ph.tiles); /* has come when this tile is queued */
            while (tile >= p.job[j].tile0 + p.job[j].tiles) j++;
            const FewJob &job = p.job[j];
            const int in = job.in, row = (tile - job.tile0) * ROWS, rows = min((int)ROWS, job.out * (ph.pairs ? 2 : 1) - row), v = row + lane;
            const char *w = (const char *)(ph.pairs ? (v & 1 ? job.w2 : job.w) + (size_t)(v >> 1) * in : job.w + (size_t)v * in);
            for (int k0 = 0; k0 < in; k0 += KC, w += PITCH) {
                const uint32_t bytes = (uint32_t)min((int)KC, in - k0) * 2, bar = notes + slot * NOTE;
                mbar_wait(bar + 8, parity);
                if (lane == 0) {
                    if (k0 == 0) note(bar + 16, j, row);
                    mbar_expect(bar, bytes * rows);
                }
                __syncwarp();
                if (lane < rows) bulk_copy(ring + slot * STAGE + lane * PITCH, w, bytes, bar, policy);
                if (++slot == p.stages) slot = 0, parity ^= 1;
            }
            tile = __shfl_sync(~0u, next, 0);
        }
        mbar_wait(notes + slot * NOTE + 8, parity);
        if (lane == 0) {
            note(notes + slot * NOTE + 16, -1, 0);
            mbar_expect(notes + slot * NOTE, 0);
        }
        if (++slot == p.stages) slot = 0, parity ^= 1;
    }
}

/* Sums s0, s1 of this lane's token and two rows of the tile that begins at `row`; w's and w2's rows alternate. */
static __device__ __forceinline__ void put_tile(const FewPhase &p, const FewJob &job, int row, float s0, float s1)
{
    const int lane = threadIdx.x & 31, t = lane >> 2, first = row + 2 * (lane & 3);
    if (t >= p.T) return;
    if (p.pairs) {
        const long long o = t * job.ldy + (first >> 1);
        if (first >> 1 >= job.out) return;
        const float v = silu(s0) * s1;
        job.y[o] = v;
        if (job.half) job.half[o] = __float2bfloat16_rn(v);
        return;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int o = first + e;
        if (o >= job.out) break;
        float *y = job.y + t * job.ldy + o;
        const float s = e ? s1 : s0, v = job.bias ? s + job.bias[o] : s;
        *y = job.accumulate ? __ldcg(y) + v : v;
    }
}

/* All blocks' multiplying warps: what they wrote before is seen by all after. `goal`: of met, when all have come. */
static __device__ __forceinline__ void meet(unsigned long long *met, unsigned long long goal)
{
    bar_sync(BAR_TILE, ROW);
    if (threadIdx.x == 0) {
        unsigned long long n;
        asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(met) : "memory");
        do asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(n) : "l"(met) : "memory");
        while (n < goal);
    }
    bar_sync(BAR_TILE, ROW);
}
#endif

static __global__ void __launch_bounds__(THREADS, 2) linear_few(const __grid_constant__ FewP p)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(128) char smem[];
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
    const uint32_t ring = smem_u32(smem), notes = ring + bars_at(p.stages);
    grid_release(); /* every kernel waits for the one before, so the one after may come as soon as there is room */
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.stages; i++) {
            mbar_init(notes + i * NOTE, 1);
            mbar_init(notes + i * NOTE + 8, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (w == WARPS) {
        copy_stages(p, ring, notes);
        grid_wait(); /* nothing of this kernel ends before the one before it */
        return;
    }
    for (int f = 0; f < p.phases; f++) /* not read before the wait, but near by then */
        if (p.phase[f].gain)
            for (int i = threadIdx.x * 32; i < p.job[p.phase[f].job0].in; i += ROW * 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(p.phase[f].gain + i));
    grid_wait();
    unsigned long long goal = 0;
    if (p.phases > 1 && threadIdx.x == 0) { /* a multiple of the blocks when the launch began; none meets twice before all have met once */
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(goal) : "l"(&p.sync->met) : "memory");
        goal -= goal % gridDim.x;
    }
    const int odd = (g & 1) * 64; /* odd rows read the second half of a line first: rows that lie whole lines apart then meet other banks */
    int slot = 0, tiles = 0;
    uint32_t parity = 0;
    for (int f = 0; f < p.phases; f++) {
        const FewPhase &ph = p.phase[f];
        if (f && ph.gain) /* to L1, while others end */
            for (int i = threadIdx.x * 8; i < p.job[ph.job0].in; i += ROW * 8) asm volatile("{.reg .f32 near; ld.global.f32 near, [%0];}" ::"l"(ph.gain + i));
        if (f) meet(&p.sync->met, goal += gridDim.x);
        for (int j = ph.job0, seen = -1; j < ph.job0 + ph.jobs; j++) {
            if (p.job[j].xs == seen) continue;
            seen = p.job[j].xs;
            load_x(ph, p.job[j], smem + x_at(p.stages) + seen);
        }
        bar_sync(BAR_TILE, ROW);
        for (;;) {
            mbar_wait(notes + slot * NOTE, parity);
            const int2 tile = *(const int2 *)(smem + bars_at(p.stages) + slot * NOTE + 16);
            const bool end = tile.x < 0;
            const FewJob &job = p.job[end ? ph.job0 : tile.x];
            const int in = end ? 1 : job.in;
            const char *xs = smem + x_at(p.stages) + job.xs + min(g, ph.T - 1) * x_pitch(in) + c * 16;
            float acc[4][4] = {}; /* as many sums as instructions may be under way */
            for (int k0 = 0; k0 < in; k0 += KC) {
                const int groups = min((int)KC, in - k0) / 32; /* none at the end */
                const char *ws = smem + slot * STAGE + g * PITCH + c * 16;
                const uint32_t bar = notes + slot * NOTE;
                mbar_wait(bar, parity);
#pragma unroll
                for (int n = 0; n < KC / 64 / WARPS; n++) {
                    const int i = w + n * WARPS; /* pairs of groups */
                    if (2 * i >= groups) break;
                    const uint4 first = *(const uint4 *)(ws + i * 128 + odd), second = *(const uint4 *)(ws + i * 128 + (64 - odd)), a0 = *(const uint4 *)(xs + k0 * 2 + i * 128);
                    const uint4 b0 = odd ? second : first, b1 = odd ? first : second;
                    mma_half(acc[0], a0.x, a0.y, b0.x, b0.y);
                    mma_half(acc[1], a0.z, a0.w, b0.z, b0.w);
                    if (2 * i + 1 >= groups) break;
                    const uint4 a1 = *(const uint4 *)(xs + k0 * 2 + i * 128 + 64);
                    mma_half(acc[2], a1.x, a1.y, b1.x, b1.y);
                    mma_half(acc[3], a1.z, a1.w, b1.z, b1.w);
                }
                __syncwarp();
                mbar_arrive_if(bar + 8, lane == 0);
                if (++slot == p.stages) slot = 0, parity ^= 1;
            }
            if (end) break;
            /* every warp's sums to one of two places, one warp adds them, in turn */
            float2 *part = (float2 *)(smem + part_at(p.stages)) + (tiles & 1) * WARPS * 32 + lane;
            part[w * 32] = make_float2((acc[0][0] + acc[1][0]) + (acc[2][0] + acc[3][0]), (acc[0][1] + acc[1][1]) + (acc[2][1] + acc[3][1]));
            bar_sync(BAR_TILE, ROW);
            if (w == tiles % WARPS) {
                float2 s = part[0];
#pragma unroll
                for (int i = 1; i < WARPS; i++) s.x += part[i * 32].x, s.y += part[i * 32].y;
                put_tile(ph, job, tile.y, s.x, s.y);
            }
            tiles++;
        }
    }
#endif
}

bool few_phase(FewP *p, const FewPhase *phase, const FewJob *jobs)
{
    if (phase->jobs < 1 || phase->T < 1 || phase->T > FEW_TOKENS || p->phases == FEW_PHASES) return false;
    FewPhase q = *phase;
    q.job0 = p->phases ? p->phase[p->phases - 1].job0 + p->phase[p->phases - 1].jobs : 0;
    if (q.job0 + q.jobs > FEW_ALL) return false;
    long long tiles = 0, bytes = 0;
    FewJob *to = &p->job[q.job0]; /* beyond what counts, until the phase does */
    for (int j = 0; j < q.jobs; j++) {
        FewJob a = jobs[j];
        if (a.in % 32 || (uintptr_t)a.x % 16 || a.ldx % 4 || (a.xh && (a.ldx % 8 || (uintptr_t)a.xh % 16)) || a.in > 1 << 20 || a.out > 1 << 26) return false;
        a.tile0 = (int)tiles, a.tiles = (a.out * (q.pairs ? 2 : 1) + ROWS - 1) / ROWS, tiles += a.tiles;
        if (tiles >= 1 << 27) return false;
        if (j && a.x == to[j - 1].x && a.ldx == to[j - 1].ldx && a.in == to[j - 1].in) a.xs = to[j - 1].xs; /* jobs with the same x share it */
        else a.xs = (int)bytes, bytes += (long long)q.T * x_pitch(a.in);
        if (x_at(STAGES_MIN) + bytes + 1024 > SMEM_ALL) return false;
        to[j] = a;
    }
    q.tiles = (int)tiles;
    p->phase[p->phases++] = q;
    if (bytes > p->x) p->x = (int)bytes;
    return true;
}
mla_status few_run(FewP *p, int sms, FewSync *sync, unsigned turn, cudaStream_t stream, mla_err *err)
{
    const bool one = p->phases == 1;
    const int room = ((one ? HALF : SMEM_ALL - SMALL) - x_at(0) - p->x) / (STAGE + NOTE);
    p->stages = room < STAGES_MIN ? STAGES_MIN : one && room > STAGES_MAX ? STAGES_MAX : room, p->sync = sync, p->drawn = sync->drawn[turn % FEW_TURNS];
    const int bytes = x_at(p->stages) + p->x;
    const mla_status st = cu_ok(cudaFuncSetAttribute(linear_few, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_ALL - 1024), "linear bf16: shared memory", err);
    return st ? st : cu_early("linear bf16", err, linear_few, dim3((unsigned)(one && p->phase[0].tiles < sms ? p->phase[0].tiles : sms)), dim3(THREADS), (size_t)bytes, stream, *p);
}
