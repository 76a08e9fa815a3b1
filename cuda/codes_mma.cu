/* Packed weights times up to 8 tokens on the tensor cores, unit by unit (codes_unit.cuh). A team of 8 warps takes tiles of 16 rows, drawn as they
 * come, and a tile's units in turn, so a warp's sums of a tile are those of a class of units, which are added in order. Which warp has which
 * class changes from tile to tile. On Hopper a copying warp streams units through the team's ring (codes_ring.cuh), four or eight a slot; as
 * weights never change, it fills the ring before the kernel waits for the one before it. Elsewhere warps read units from global memory. Two teams
 * share a multiprocessor, as two blocks or in one. A result depends neither on how many tokens there are, nor on block, warp or tile. */
#include "cuda/be.cuh"
#include "cuda/codes_tokens.cuh"
#include "cuda/linear_few.cuh"

/* A warp's sums of class k of a tile, to its place. */
template <int GROUP, bool ONE> static __device__ __forceinline__ void put_part(float *part, int k, const Sums<GROUP, ONE> &y)
{
    const int lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
    if (ONE) {
        if (q == 0) part[k * CODE_ROWS + g] = y.y[0][0], part[k * CODE_ROWS + g + 8] = y.y[0][2];
        return;
    }
    float *to = part + (k * TOKENS + 2 * q) * PITCH + g;
    to[0] = y.y[0][0], to[PITCH] = y.y[0][1], to[8] = y.y[0][2], to[PITCH + 8] = y.y[0][3];
}
/* A tile's result by one warp. */
template <bool ONE> static __device__ __forceinline__ void put_tile(const float *part, int row0, const Codes &c, const MmaP &a)
{
    const int lane = threadIdx.x % 32, r = lane % CODE_ROWS, classes = c.units < WARPS ? c.units : (int)WARPS;
    for (int t = lane / CODE_ROWS; t < a.tokens; t += 2) {
        float v = 0.f;
        for (int k = 0; k < classes; k++) v += ONE ? part[k * CODE_ROWS + r] : part[(k * TOKENS + t) * PITCH + r];
        if (row0 + r >= c.out) continue;
        if (a.bias) v += a.bias[row0 + r];
        float *to = a.y + (size_t)t * a.ldy + row0 + r;
        *to = a.accumulate ? __ldcg(to) + v : v;
    }
}

template <mla_code CODE, CodeValues VALUES, int GROUP, int SCALE, int OFFSET, bool ONE>
static __global__ void __launch_bounds__((THREADS + 127) / 128 * 128) codes_mma(const __grid_constant__ Codes c, const __grid_constant__ MmaP a)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float scale_table[256];
    __shared__ uint32_t pairs[VALUES == VALUES_TABLE ? 256 : 1];
    const MmaSmem at(c, a, ONE);
    const int all = threadIdx.x / 32, team = all < a.teams * WARPS ? all / WARPS : all - a.teams * WARPS, warp = all % WARPS;
    unsigned char *mine = smem + team * at.team;
#ifdef MLA_HOPPER
    __shared__ __align__(8) unsigned long long bars[TEAMS][4]; /* a place's sums are there, have been added */
    const uint32_t ring = smem_u32(mine), notes = ring + at.notes, full = smem_u32(bars[team]), used = full + 16;
    const int lane = threadIdx.x % 32;
    if (warp == 0 && lane == 0 && all < a.teams * WARPS) {
        for (int i = 0; i < a.slots; i++) mbar_init(notes + i * NOTE, 1), mbar_init(notes + i * NOTE + 8, WARPS);
        for (int i = 0; i < 2; i++) mbar_init(full + 8 * i, WARPS), mbar_init(used + 8 * i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (all >= a.teams * WARPS) {
        copy_units(c, a, at, ring, team);
        grid_wait();
        return;
    }
#else
    if (all >= a.teams * WARPS) return;
#endif
    if (threadIdx.x < 256) {
        if (VALUES == VALUES_TABLE) pairs[threadIdx.x] = bits(__floats2bfloat162_rn(c.lo[threadIdx.x & 15], c.lo[threadIdx.x >> 4]));
        if (c.scale == MLA_SCALE_TABLE) scale_table[threadIdx.x] = c.table[threadIdx.x];
    }
    grid_wait();
    grid_release();
    stage_tokens<ONE>(smem, at, c, a, Powers<CODE, VALUES>::TOKEN);
    bar_sync(1, a.teams * WARPS * 32);
    const Inputs in = {smem + at.x, (const float *)(smem + at.sums), (const float *)(smem + at.starts), scale_table, pairs, a.pitch, a.tokens};
    float *parts = (float *)(mine + at.parts);
#ifdef MLA_HOPPER
    constexpr int EACH = per_slot(CODE);
    int slot = 0;
    uint32_t parity = 0;
    for (int n = 0;; n++) {
        const int k = (warp + 4 * n) % WARPS, place = n & 1;
        int row0 = 0;
        Sums<GROUP, ONE> y = {};
        for (int s = 0; s < a.slot_tile; s++) { /* every warp looks at every slot: a parity tells two of its uses apart */
            const uint32_t bar = notes + slot * NOTE;
            mbar_wait(bar, parity);
            row0 = *(const int *)(mine + at.notes + slot * NOTE + 16);
            if (row0 < 0) return;
            if (k / EACH == s % (WARPS / EACH) && s * EACH + k % EACH < c.units)
                take_unit<CODE, VALUES, GROUP, SCALE, OFFSET, ONE>(y, c, mine + slot * at.slot + k % EACH * c.unit_bytes, s * EACH + k % EACH, in);
            __syncwarp();
            mbar_arrive_if(bar + 8, lane == 0);
            if (++slot == a.slots) slot = 0, parity ^= 1;
        }
        conclude(y);
        mbar_wait(used + 8 * place, (n >> 1 & 1) ^ 1);
        put_part(parts + place * (at.part / 4), k, y);
        __syncwarp();
        mbar_arrive_if(full + 8 * place, lane == 0);
        if (k == WARPS - 1) {
            mbar_wait(full + 8 * place, n >> 1 & 1);
            put_tile<ONE>(parts + place * (at.part / 4), row0, c, a);
            __syncwarp();
            mbar_arrive_if(used + 8 * place, lane == 0);
        }
    }
#else
    int place = 0;
    for (int tile = (int)blockIdx.x * a.teams + team; tile < a.tiles; tile += (int)gridDim.x * a.teams, place ^= 1) {
        Sums<GROUP, ONE> y = {};
        const uint8_t *from = c.data + (size_t)tile * (size_t)c.row_bytes;
        for (int u = warp; u < c.units; u += WARPS) take_unit<CODE, VALUES, GROUP, SCALE, OFFSET, ONE>(y, c, from + (size_t)u * (size_t)c.unit_bytes, u, in);
        conclude(y);
        put_part(parts + place * (at.part / 4), warp, y);
        bar_sync(2 + team, WARPS * 32);
        if (warp == tile % WARPS) put_tile<ONE>(parts + place * (at.part / 4), tile * CODE_ROWS, c, a);
    }
#endif
}

template <mla_code CODE, CodeValues VALUES, int GROUP, int SCALE, int OFFSET, bool ONE> static mla_status run(mla_cuda *c, const Codes *d, const MmaP &a, mla_err *err)
{
    const auto kernel = codes_mma<CODE, VALUES, GROUP, SCALE, OFFSET, ONE>;
    const int most = a.blocks * c->sms, blocks = (a.tiles + a.teams - 1) / a.teams, room = c->major == 9 ? SMEM_ALL : OTHERS;
    const mla_status st = cu_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room), "packed weight: shared memory", err);
    if (st) return st;
    const dim3 grid((unsigned)(blocks < most ? blocks : most)), block((unsigned)(a.teams * (WARPS + 1) * 32));
    return cu_early("packed weight", err, kernel, grid, block, (size_t)MmaSmem(*d, a, ONE).bytes, c->stream, *d, a);
}
template <mla_code CODE, CodeValues VALUES, int GROUP, int SCALE, int OFFSET> static mla_status of_kind(mla_cuda *c, const Codes *d, const MmaP &a, mla_err *err)
{
    return a.tokens == 1 ? run<CODE, VALUES, GROUP, SCALE, OFFSET, true>(c, d, a, err) : run<CODE, VALUES, GROUP, SCALE, OFFSET, false>(c, d, a, err);
}
/* Kernels of their own for what the common formats are; a look at the kind in every unit costs as much as its products. */
template <mla_code CODE, CodeValues VALUES, int GROUP> static mla_status of_tokens(mla_cuda *c, const Codes *d, const MmaP &a, mla_err *err)
{
#define KIND(K, V, G, S, O)                                          \
    if constexpr (CODE == MLA_CODE_##K && VALUES == V && GROUP == G) \
        if (d->scale == MLA_SCALE_##S && d->offset == MLA_OFFSET_##O) return of_kind<CODE, VALUES, GROUP, MLA_SCALE_##S, MLA_OFFSET_##O>(c, d, a, err)
    KIND(E4M3, VALUES_LINE, 128, F32, NONE);
    KIND(E4M3, VALUES_LINE, 256, F32, NONE);
    KIND(INT8, VALUES_LINE, 32, F16, NONE);
    KIND(NIBBLE, VALUES_LINE, 128, BF16, NONE);
    KIND(NIBBLE, VALUES_LINE, 128, F16, NONE);
    KIND(NIBBLE, VALUES_LINE, 128, F16, ZERO);
    KIND(NIBBLE, VALUES_LINE, 32, BF16, NONE);
    KIND(NIBBLE, VALUES_LINE, 32, F16, NONE);
    KIND(NIBBLE, VALUES_LINE, 32, F16, F16);
    KIND(NIBBLE, VALUES_LINE, 32, SUPER_I8, SUPER_U8);
    KIND(NIBBLE, VALUES_E2M1, 16, TABLE, NONE);
    KIND(NIBBLE, VALUES_E2M1, 32, TABLE, NONE);
    KIND(NIBBLE, VALUES_TABLE, 32, F16, NONE);
    KIND(NIBBLE, VALUES_TABLE, 32, SUPER_I8, NONE);
    KIND(NIBBLE_BIT, VALUES_LINE, 32, F16, NONE);
    KIND(NIBBLE_BIT, VALUES_LINE, 32, F16, F16);
    KIND(NIBBLE_BIT, VALUES_LINE, 32, SUPER_I8, SUPER_U8);
    KIND(NIBBLE_CRUMB, VALUES_LINE, 16, SUPER_I8, NONE);
    KIND(CRUMB, VALUES_LINE, 16, SUPER_U4, SUPER_U4);
    KIND(CRUMB_BIT, VALUES_LINE, 16, SUPER_I8, NONE);
#undef KIND
    return of_kind<CODE, VALUES, GROUP, ANY, ANY>(c, d, a, err);
}
template <mla_code CODE, CodeValues VALUES> static mla_status of_group(mla_cuda *c, const Codes *d, const MmaP &a, mla_err *err)
{
    switch (d->shift) {
    case 1: return of_tokens<CODE, VALUES, 16>(c, d, a, err);
    case 2: return of_tokens<CODE, VALUES, 32>(c, d, a, err);
    case 3: return of_tokens<CODE, VALUES, 64>(c, d, a, err);
    case 4: return of_tokens<CODE, VALUES, 128>(c, d, a, err);
    default: return of_tokens<CODE, VALUES, 256>(c, d, a, err);
    }
}

/* Of T tokens at once: of one, two blocks share a multiprocessor where both have room for it and a ring; otherwise a block has two teams, which
 * share the tokens, or one. False: too many tokens. */
static bool plan(MmaP *a, int major, const Codes *d, size_t T)
{
    static const struct {
        int teams, blocks, bytes, slots; /* slots: at least */
    } WAY[] = {{1, 2, HALF, 3}, {TEAMS, 1, SMEM_ALL, 2}, {1, 1, SMEM_ALL, 2}};
    const int x = d->units * CODE_UNIT * 2;
    a->tokens = (int)T, a->pitch = T == 1 ? x : x + 64; /* eight tokens' rows on different banks */
    a->tiles = (d->out + CODE_ROWS - 1) / CODE_ROWS, a->slot_tile = (d->units + per_slot(d->code) - 1) / per_slot(d->code);
    for (size_t i = T > 1; i < sizeof WAY / sizeof *WAY; i++) {
        a->teams = WAY[i].teams, a->blocks = WAY[i].blocks, a->slots = 0;
        const MmaSmem s(*d, *a, T == 1);
        if (major != 9) return s.bytes <= OTHERS;
        a->slots = ((WAY[i].bytes - s.bytes) / a->teams - 128) / (s.slot + NOTE);
        if (a->slots > SLOTS_MOST) a->slots = SLOTS_MOST;
        if (a->slots >= WAY[i].slots) return true;
    }
    return false;
}
bool codes_mma_fits(const mla_weight *w, size_t T)
{
    MmaP a = {};
    return w->codes && w->codes->units && w->codes->units <= UNITS_MOST && T <= TOKENS && plan(&a, 9, w->codes, 1);
}

mla_status codes_mma_run(mla_cuda *c, const mla_weight *w, const mla_linear_args *l, mla_err *err)
{
    const Codes *d = w->codes;
    MmaP a = {};
    size_t passes = 1;
    mla_status st = MLA_OK;
    while (!plan(&a, c->major, d, (l->T + passes - 1) / passes)) passes++;
    for (size_t t = 0, p = 0; !st && p < passes; p++) {
        const size_t n = (l->T - t + passes - p - 1) / (passes - p);
        plan(&a, c->major, d, n);
        a.x = cf32p(l->x) + t * l->ldx, a.bias = l->bias ? cf32p(l->bias) : NULL, a.y = f32p(l->y) + t * l->ldy;
        a.ldx = l->ldx, a.ldy = l->ldy, a.accumulate = l->accumulate, a.wide = l->ldx % 4 == 0 && (uintptr_t)l->x % 16 == 0, a.drawn = c->few_sync->drawn[c->few_turn++ % FEW_TURNS], t += n;
        switch (d->code) {
        case MLA_CODE_NIBBLE:
            st = d->values == VALUES_LINE    ? of_group<MLA_CODE_NIBBLE, VALUES_LINE>(c, d, a, err)
                 : d->values == VALUES_E2M1 ? of_group<MLA_CODE_NIBBLE, VALUES_E2M1>(c, d, a, err)
                                            : of_group<MLA_CODE_NIBBLE, VALUES_TABLE>(c, d, a, err);
            break;
        case MLA_CODE_NIBBLE_BIT: st = of_group<MLA_CODE_NIBBLE_BIT, VALUES_LINE>(c, d, a, err); break;
        case MLA_CODE_NIBBLE_CRUMB: st = of_group<MLA_CODE_NIBBLE_CRUMB, VALUES_LINE>(c, d, a, err); break;
        case MLA_CODE_CRUMB: st = of_group<MLA_CODE_CRUMB, VALUES_LINE>(c, d, a, err); break;
        case MLA_CODE_CRUMB_BIT: st = of_group<MLA_CODE_CRUMB_BIT, VALUES_LINE>(c, d, a, err); break;
        case MLA_CODE_INT8: st = of_group<MLA_CODE_INT8, VALUES_LINE>(c, d, a, err); break;
        default: st = of_group<MLA_CODE_E4M3, VALUES_LINE>(c, d, a, err); break;
        }
    }
    return st;
}
