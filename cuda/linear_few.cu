/* Weights are cut into tiles of ROWS rows and those into stages of KC columns. Two copying warps stream a block's tiles through
 * a ring (linear_few_ring.cuh), 8 warps multiply them (linear_few_mul.cuh). A block's first tile is its own, the others are drawn as they
 * come: multiprocessors get unequal shares of the memory's rate. The ring brings with a tile's first stage which one it is. Rows lie whole
 * 128-byte lines apart in the ring: copies to other places are slower than the memory.
 *
 * Weights never change, so the ring is filled before grid_wait: the next layer's first bytes arrive while this one ends,
 * and copies do not stop between kernels. Between phases they do not, either: the copying warps walk on through the next phase
 * while the others wait for all blocks' results (`arrive`, `await`, or FewSync.link). A result depends neither on how many tokens
 * there are, nor on the tile, the phase or the block. */
#include "cuda/check.cuh"
#include "cuda/linear_few_mul.cuh"

#ifdef MLA_HOPPER
/* This block is at the end of a phase: what its multiplying warps wrote is seen by whoever sees that. Returns what `met` is when all blocks are there: no
 * block is at an end twice before all have been there once. By one thread, behind a barrier of all. */
static __device__ __forceinline__ unsigned long long arrive(unsigned long long *met)
{
    unsigned long long n;
    asm volatile("atom.release.gpu.global.add.u64 %0, [%1], 1;" : "=l"(n) : "l"(met) : "memory");
    return n - n % gridDim.x + gridDim.x;
}
static __device__ __forceinline__ void await(unsigned long long *met, unsigned long long goal)
{
    unsigned long long n;
    do asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(n) : "l"(met) : "memory");
    while (n < goal);
}
#endif

/* SETS: of four tokens, at most. */
template <int SETS> static __global__ void __launch_bounds__(THREADS, 2) linear_few(const __grid_constant__ FewP p)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(128) char smem[];
    __shared__ FewTalk talk;
    const int w = threadIdx.x >> 5;
    const uint32_t ring = smem_u32(smem), notes = ring + bars_at(p.stages);
    if (threadIdx.x == 0) {
        talk.begun = -1, talk.slot = talk.tiles = 0, talk.parity = 0;
        for (int i = 0; i < p.stages; i++) {
            mbar_init(notes + i * NOTE, COPIERS);
            mbar_init(notes + i * NOTE + 8, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (w >= WARPS) {
        copy_stages(p, ring, notes, &talk);
        grid_wait(); /* nothing of this kernel ends before the one before it */
        return;
    }
    for (int f = 0; f < p.phases; f++) /* not read before the wait, but near by then */
        if (p.phase[f].gain)
            for (int i = threadIdx.x * 32; i < p.job[p.phase[f].job0].in; i += ROW * 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(p.phase[f].gain + i));
    grid_wait();
    grid_release(); /* behind the wait: when the kernel after this one comes, all before this one are complete (GdnMix.early) */
    volatile FewTalk *const kept = &talk;
    if (SETS == 1 && p.phases > 1 && threadIdx.x == 0) { /* the same in all blocks, another one in every launch */
        unsigned long long n;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(n) : "l"(&p.sync->met[0]) : "memory");
        kept->launch = (uint32_t)(n / gridDim.x) + 1;
    }
    for (int f = 0; f < p.phases; f++) {
        const FewPhase &ph = p.phase[f];
        if (f && ph.gain) /* to L1, while others end */
            for (int i = threadIdx.x * 8; i < p.job[ph.job0].in; i += ROW * 8) asm volatile("{.reg .f32 near; ld.global.f32 near, [%0];}" ::"l"(ph.gain + i));
        const bool linked = SETS == 1 && ph.linked;
        if (threadIdx.x == ROW - 1 && f) { /* where tokens come by themselves, the end before the last one is waited for: then this phase may write */
            const unsigned long long all = arrive(&p.sync->met[f - 1]);
            if (f > 1 && linked && p.phase[f - 1].linked) await(&p.sync->met[f - 2], kept->goal);
            kept->goal = all;
            if (!linked) await(&p.sync->met[f - 1], all);
        }
        if (f && !linked) bar_sync(BAR_TILE, ROW);
        for (int j = ph.job0, seen = -1; j < ph.job0 + ph.jobs; j++) {
            if (p.job[j].xs == seen) continue;
            seen = p.job[j].xs;
            load_x(ph, p.job[j], smem + x_at(p.stages) + seen, linked ? p.sync->link[(f - 1) & 1] : NULL, link_tag(kept->launch, f - 1));
        }
        bar_sync(BAR_TILE, ROW);
        if (threadIdx.x == 0) *(volatile int *)&talk.begun = f;
        const FewLink link = {SETS == 1 && f + 1 < p.phases && p.phase[f + 1].linked ? p.sync->link[f & 1] : NULL, link_tag(kept->launch, f)};
        int slot = kept->slot, tiles = kept->tiles;
        uint32_t parity = kept->parity;
        if (SETS > 1 && ph.T > 4) take_tiles<SETS>(p, f, smem, slot, parity, tiles, link);
        else take_tiles<1>(p, f, smem, slot, parity, tiles, link);
        bar_sync(BAR_TILE, ROW); /* all this phase writes is written, and all have read their place */
        if (threadIdx.x == 0) kept->slot = slot, kept->tiles = tiles, kept->parity = parity;
    }
#endif
}

static bool apart(const void *a, long long n, const void *b, long long m) { return (uintptr_t)a + 4 * n <= (uintptr_t)b || (uintptr_t)b + 4 * m <= (uintptr_t)a; }
/* Whether phase q's layers take one token, which the one layer of the phase before makes, normed, and touch nothing else of it. */
static bool links(const FewP *p, const FewPhase *q, const FewJob *jobs)
{
    const FewPhase *before = p->phases ? &p->phase[p->phases - 1] : NULL;
    if (!before || before->jobs != 1 || before->pairs || before->T != 1 || q->T != 1 || !q->gain) return false;
    const FewJob *from = &p->job[before->job0];
    if (from->out > LINK_IN || from->out > KEEP * ROW * 8 || !apart(from->y, from->out, q->gain, from->out)) return false;
    for (int j = 0; j < q->jobs; j++) {
        const FewJob *a = &jobs[j];
        if (a->x != from->y || a->in != from->out || a->xh || !apart(from->y, from->out, a->y, a->out) || (a->half && !apart(from->y, from->out, a->half, a->out)) ||
            (a->bias && !apart(from->y, from->out, a->bias, a->out)))
            return false;
    }
    return true;
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
    q.tiles = (int)tiles, q.linked = links(p, phase, jobs);
    p->phase[p->phases++] = q;
    if (bytes > p->x) p->x = (int)bytes;
    return true;
}
mla_status few_run(FewP *p, int sms, FewSync *sync, unsigned turn, cudaStream_t stream, mla_err *err)
{
    const bool one = p->phases == 1;
    for (int f = 1; f < p->phases; f++) p->phase[f].linked = p->phase[f].linked && p->phase[f - 1].tiles >= sms; /* whoever has no tile might still wait for tokens that are overwritten */
    const int room = ((one ? HALF : SMEM_ALL - SMALL) - x_at(0) - p->x) / (STAGE + NOTE);
    p->stages = room < STAGES_MIN ? STAGES_MIN : one && room > STAGES_MAX ? STAGES_MAX : room, p->sync = sync, p->drawn = sync->drawn[turn % FEW_TURNS];
    const int bytes = x_at(p->stages) + p->x;
    int T = 0;
    for (int f = 0; f < p->phases; f++) T = p->phase[f].T > T ? p->phase[f].T : T;
    void (*kernel)(FewP) = T > 4 ? linear_few<2> : linear_few<1>;
    const mla_status st = cu_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_ALL - 1024), "linear bf16: shared memory", err);
    return st ? st : cu_early("linear bf16", err, kernel, dim3((unsigned)(one && p->phase[0].tiles < sms ? p->phase[0].tiles : sms)), dim3(THREADS), (size_t)bytes, stream, *p);
}
