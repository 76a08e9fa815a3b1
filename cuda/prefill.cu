/* Prefill attention: a block takes 128 queries of one head, two warpgroups of 64 rows each, and one warp that copies.
 *
 * Per block of 80 keys and warpgroup: S = Q K' for the next block and O += P V of the last are queued together, and the
 * softmax of the next block runs under the second. P goes to the tensor cores from registers: the accumulator layout of S
 * is the operand layout of P. The running maximum of a row moves only when a logit passes it by 2^8 (the sums are exact
 * either way), so O is rarely rescaled. Blocks with the most keys start first. */
#include <cuda.h>
#include <math_constants.h>

#include "cuda/check.cuh"
#include "cuda/prefill.cuh"
#include "cuda/ptx.cuh"
#include "cuda/tmap.cuh"
#include "cuda/wgmma_wide.cuh"

enum { BM = 128, BN = 80, D = PREFILL_D, BOXES = D / 64, STAGES = 2, Q_BYTES = BM * D * 2, KV_BYTES = BN * D * 2, THREADS = 384 };
enum { SMEM = Q_BYTES + 2 * STAGES * KV_BYTES + 128 + 1024, TURN = 1 };

struct PrefillDev {
    float *o, *lse;
    int T, pos0, H, kh, vh, dv;
    long long ldo;
    float scale_log2;
};

#ifdef MLA_HOPPER
/* Barrier addresses: Q, then full and empty of K and V, STAGES each. */
struct Bars {
    uint32_t base;
    __device__ __forceinline__ uint32_t q() const { return base; }
    __device__ __forceinline__ uint32_t full(int v, int stage) const { return base + 8 + (uint32_t)(v * STAGES + stage) * 8; }
    __device__ __forceinline__ uint32_t empty(int v, int stage) const { return base + 8 + (uint32_t)((2 + v) * STAGES + stage) * 8; }
};

static __device__ void produce(const CUtensorMap *mq, const CUtensorMap *mk, const CUtensorMap *mv, const PrefillDev &p, uint32_t smem, Bars bars, int m0,
                               int h, int blocks)
{
    const uint64_t first = evict_first_policy(); /* Q is read once; keys and values again by other blocks */
    mbar_expect(bars.q(), Q_BYTES);
    for (int i = 0; i < BOXES; i++) tma_box(smem + i * BM * 128, mq, bars.q(), first, i * 64, h, m0);
    const int heads[2] = {(int)((long long)h * p.kh / p.H), (int)((long long)h * p.vh / p.H)};
    for (int j = 0; j < blocks; j++)
        for (int v = 0; v < 2; v++) {
            const int stage = j % STAGES;
            const uint32_t at = smem + Q_BYTES + (uint32_t)(v * STAGES + stage) * KV_BYTES;
            mbar_wait(bars.empty(v, stage), (j / STAGES & 1) ^ 1);
            mbar_expect(bars.full(v, stage), KV_BYTES);
            for (int i = 0; i < BOXES; i++) tma_box_keep(at + i * BN * 128, v ? mv : mk, bars.full(v, stage), i * 64, heads[v], j * BN);
        }
}

/* One warpgroup's 64 rows. Thread: rows g and g + 8 of its warp's 16, columns 8 j + 2 c + {0, 1}. */
struct Rows {
    float o[D / 2], m[2], l[2];
    uint32_t p[BN / 16][4];

    __device__ __forceinline__ void start_qk(float (&s)[BN / 2], uint32_t q, uint32_t k)
    {
        wgmma_pin(s);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const uint64_t a = wgmma_at(q + (uint32_t)((i >> 2) * BM * 8 + (i & 3) * 2), 0), b = wgmma_at(k + (uint32_t)((i >> 2) * BN * 8 + (i & 3) * 2), 0);
            if (i == 0) wgmma_qk<0>(s, a, b);
            else wgmma_qk<1>(s, a, b);
        }
        wgmma_commit();
    }
    __device__ __forceinline__ void start_pv(uint32_t v)
    {
        wgmma_pin(o);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BN / 16; i++) wgmma_pv(o, p[i], wgmma_wide_at(v + (uint32_t)(i * 128), BN * 128));
        wgmma_commit();
    }
    /* Masked logits (of scale_log2 q . k) -> s holds exp2(s - m); alpha: what O and l were multiplied by. */
    __device__ __forceinline__ bool softmax(float (&s)[BN / 2], float (&alpha)[2], float scale)
    {
        bool moved = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float mx = -CUDART_INF_F;
#pragma unroll
            for (int i = 0; i < BN / 8; i++) mx = fmaxf(mx, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
            mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 1));
            mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 2)) * scale;
            const bool up = mx > m[r] + 8.f;
            const float use = up ? mx : m[r] == -CUDART_INF_F ? 0.f : m[r];
            alpha[r] = up ? exp2_fast(m[r] - mx) : 1.f;
            m[r] = up ? mx : m[r];
            moved |= up;
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float x = exp2_fast(fmaf(s[4 * i + 2 * r + e], scale, -use));
                    s[4 * i + 2 * r + e] = x;
                    sum += x;
                }
            l[r] = fmaf(l[r], alpha[r], sum);
        }
        return __any_sync(~0u, moved);
    }
    __device__ __forceinline__ void pack(const float (&s)[BN / 2])
    {
#pragma unroll
        for (int i = 0; i < BN / 16; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const __nv_bfloat162 x = __floats2bfloat162_rn(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
                p[i][e] = *(const uint32_t *)&x;
            }
    }
    __device__ __forceinline__ void rescale(const float (&alpha)[2])
    {
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] *= alpha[i >> 1 & 1];
    }
};

static __device__ __forceinline__ void mask(float (&s)[BN / 2], int key0, int last0, int c)
{
#pragma unroll
    for (int i = 0; i < BN / 2; i++)
        if (key0 + 8 * (i >> 2) + 2 * c + (i & 1) > last0 + 8 * (i >> 1 & 1)) s[i] = -CUDART_INF_F;
}

static __device__ __forceinline__ void consume(const PrefillDev &p, uint32_t smem, Bars bars, int m0, int h, int blocks)
{
    const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0) - 1, t = threadIdx.x & 127, w = t >> 5, lane = t & 31, g = lane >> 2, c = lane & 3;
    const int row0 = m0 + wg * 64 + 16 * w + g, last0 = p.pos0 + row0; /* last key of this thread's first row */
    const uint32_t q = wgmma_lo(smem + wg * 64 * 128);
    auto tile = [&](int v, int stage) { return wgmma_lo(smem + Q_BYTES + (uint32_t)(v * STAGES + stage) * KV_BYTES); };
    /* Warpgroups queue their products in turns, so that one multiplies while the other takes its softmax. */
    auto my_turn = [&] { bar_sync(TURN + wg, 256); };
    auto your_turn = [&] { bar_arrive(TURN + (wg ^ 1), 256); };
    Rows r;
    float s[BN / 2], alpha[2];
#pragma unroll
    for (int i = 0; i < D / 2; i++) r.o[i] = 0.f;
    r.m[0] = r.m[1] = -CUDART_INF_F, r.l[0] = r.l[1] = 0.f;
    const int open = (p.pos0 + m0 + wg * 64 + 1) / BN; /* blocks whose keys all rows see */
    mbar_wait(bars.q(), 0);
    mbar_wait(bars.full(0, 0), 0);
    if (wg == 1) your_turn();
    my_turn();
    r.start_qk(s, q, tile(0, 0));
    your_turn();
    wgmma_wait<0>();
    wgmma_pin(s);
    mbar_arrive_if(bars.empty(0, 0), lane == 0);
    if (open == 0) mask(s, 0, last0, c);
    r.softmax(s, alpha, p.scale_log2);
    r.pack(s);
    for (int j = 1; j < blocks; j++) {
        const int stage = j % STAGES, before = (j - 1) % STAGES;
        mbar_wait(bars.full(0, stage), j / STAGES & 1);
        mbar_wait(bars.full(1, before), (j - 1) / STAGES & 1);
        my_turn();
        r.start_qk(s, q, tile(0, stage));
        r.start_pv(tile(1, before));
        your_turn();
        wgmma_wait<1>();
        wgmma_pin(s);
        mbar_arrive_if(bars.empty(0, stage), lane == 0);
        if (j >= open) mask(s, j * BN, last0, c);
        const bool moved = r.softmax(s, alpha, p.scale_log2);
        wgmma_wait<0>();
        wgmma_pin(r.o);
        mbar_arrive_if(bars.empty(1, before), lane == 0);
        if (moved) r.rescale(alpha);
        r.pack(s);
    }
    mbar_wait(bars.full(1, (blocks - 1) % STAGES), (blocks - 1) / STAGES & 1);
    if (wg == 0) my_turn(); /* the other's last word */
    r.start_pv(tile(1, (blocks - 1) % STAGES));
    wgmma_wait<0>();
    wgmma_pin(r.o);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        r.l[e] += __shfl_xor_sync(~0u, r.l[e], 1);
        r.l[e] += __shfl_xor_sync(~0u, r.l[e], 2);
        const int row = row0 + 8 * e;
        if (row >= p.T) continue;
        const float inv = 1.f / r.l[e]; /* never empty: a query sees itself */
        float *o = p.o + (size_t)row * p.ldo + (size_t)h * p.dv;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            if (8 * i + 2 * c < p.dv) *(float2 *)(o + 8 * i + 2 * c) = make_float2(r.o[4 * i + 2 * e] * inv, r.o[4 * i + 2 * e + 1] * inv);
        if (c == 0 && p.lse) p.lse[(size_t)row * p.H + h] = (r.m[e] + log2f(r.l[e])) * 0.693147180559945f;
    }
}
#endif

/* Grid (H, tiles of queries, the last first). */
static __global__ void __launch_bounds__(THREADS, 1) prefill_kernel(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                                                                    const __grid_constant__ CUtensorMap mv, const __grid_constant__ PrefillDev p)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(1024) char raw[];
    const uint32_t smem = (smem_u32(raw) + 1023) & ~1023u;
    const Bars bars = {smem + Q_BYTES + 2 * STAGES * KV_BYTES};
    const int m0 = (int)(gridDim.y - 1 - blockIdx.y) * BM, h = blockIdx.x;
    const int end = p.pos0 + min(p.T, m0 + BM), blocks = (end + BN - 1) / BN;
    if (threadIdx.x == 0) {
        mbar_init(bars.q(), 1);
        for (int v = 0; v < 2; v++)
            for (int i = 0; i < STAGES; i++) {
                mbar_init(bars.full(v, i), 1);
                mbar_init(bars.empty(v, i), 8);
            }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        regs_shrink<24>();
        if (threadIdx.x == 0) produce(&mq, &mk, &mv, p, smem, bars, m0, h, blocks);
    } else {
        regs_grow<240>();
        consume(p, smem, bars, m0, h, blocks);
    }
#endif
}

bool prefill_here(void)
{
    int dev = 0, major = 0;
    return cudaGetDevice(&dev) == cudaSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev) == cudaSuccess && major == 9;
}

mla_status prefill_run(const PrefillP *p, cudaStream_t stream, mla_err *err)
{
    if (!p->T) return MLA_OK;
    if (p->pos0 + p->T + BM > INT32_MAX || p->dv > D || p->dv % 2 || p->ldo % 2 || (uintptr_t)p->o % 8)
        return mla_fail(err, MLA_EUNSUPPORTED, "prefill attention: %zu tokens, value width %zu, rows %zu apart: at most 2^31 tokens and an even width up to %d", p->pos0 + p->T,
                        p->dv, p->ldo, (int)D);
    CUtensorMap mq, mk, mv;
    const size_t S = p->pos0 + p->T;
    auto map = [&](CUtensorMap *m, const void *base, size_t heads, size_t rows, unsigned box) {
        const TensorBox b = {3, 2, {D, heads, rows}, {D * 2, heads * D * 2}, {64, 1, box}, true, false};
        return tensor_box_map(m, base, &b, "prefill attention", err);
    };
    mla_status st = map(&mq, p->q, p->H, p->T, BM);
    if (!st) st = map(&mk, p->k, p->kh, S, BN);
    if (!st) st = map(&mv, p->v, p->vh, S, BN);
    if (!st) st = cu_ok(cudaFuncSetAttribute(prefill_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM), "prefill attention: shared memory", err);
    if (st) return st;
    const PrefillDev d = {p->o, p->lse, (int)p->T, (int)p->pos0, (int)p->H, (int)p->kh, (int)p->vh, (int)p->dv, (long long)p->ldo, p->scale * 1.44269504088896f};
    prefill_kernel<<<dim3((unsigned)p->H, (unsigned)((p->T + BM - 1) / BM)), THREADS, SMEM, stream>>>(mq, mk, mv, d);
    return cu_ok(cudaGetLastError(), "prefill attention", err);
}
