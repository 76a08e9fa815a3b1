/* Along the chunks of the gated delta rule (gdn_chunk.cuh): a block has one value head and 64 columns of its state per
 * warpgroup, and one thread that copies, in a ring of chunks.
 *
 * Everything is transposed: S' (64 columns x 128) stays in a warpgroup's accumulators and meets the products as a register
 * operand, so do V - e^g K S and D; a warp's 16 columns depend on no other warp. Per chunk and warpgroup:
 *     K S -> V - e^g K S -> D -> S', and beside that chain Q S and P D.
 * The k tile is read both ways: rows as columns (K S) and as they stand (K' D). */
#include <cuda.h>
#include <cuda_bf16.h>

#include "cuda/check.cuh"
#include "cuda/gdn_chunk.cuh"
#include "cuda/ptx.cuh"
#include "cuda/tmap.cuh"
#include "cuda/wgmma.cuh"
#include "cuda/wgmma_wide.cuh"

enum { K_AT = 2 * GDN_TILE, T_AT = GDN_QK, P_AT = T_AT + GDN_TILE, G_AT = T_AT + 2 * GDN_TILE, V_AT = G_AT + 1024 };
template <int WGS> struct Shape {
    static constexpr int stages = WGS == 1 ? 3 : 2, stage = V_AT + WGS * 2 * GDN_TILE, threads = 128 + WGS * 128, smem = stages * stage + 128 + 1024;
};

#ifdef MLA_HOPPER
struct Ring {
    uint32_t smem, bars;
    __device__ __forceinline__ uint32_t full(int i) const { return bars + 8 * i; }
    __device__ __forceinline__ uint32_t empty(int i) const { return bars + 32 + 8 * i; }
};

template <int WGS> static __device__ void produce(const GdnWork &p, const CUtensorMap *mv, Ring ring, int h, int slot, int t0, int chunks)
{
    typedef Shape<WGS> S;
    const int hk = h / (int)(p.a.nv / p.a.nk);
    for (int n = 0; n < chunks; n++) {
        const int i = n % S::stages;
        const uint32_t at = ring.smem + (uint32_t)i * S::stage, bar = ring.full(i);
        mbar_wait(ring.empty(i), (n / S::stages & 1) ^ 1);
        mbar_expect(bar, GDN_QK + GDN_TP + WGS * 2 * GDN_TILE);
        bulk_get(at, p.qk + ((size_t)(slot + n) * p.a.nk + hk) * GDN_QK, GDN_QK, bar);
        bulk_get(at + T_AT, p.tp + ((size_t)(slot + n) * p.a.nv + h) * GDN_TP, GDN_TP, bar);
        for (int b = 0; b < 2 * WGS; b++) tma_box_keep(at + V_AT + b * GDN_TILE, mv, bar, ((int)blockIdx.x * 2 * WGS + b) * 128, h, t0 + n * GDN_C);
    }
}

static __device__ __forceinline__ uint32_t bf16x2(float lo, float hi)
{
    const __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&x;
}
/* An accumulator of 16 N columns as N operands. */
template <int N> static __device__ __forceinline__ void pack(uint32_t (&a)[N][4], const float (&d)[8 * N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) a[i][e] = bf16x2(d[8 * i + 2 * e], d[8 * i + 2 * e + 1]);
}
/* d (64 x 64) += a (64 x 16 N) times the rows of a tile (halves of 64 elements). */
template <int N> static __device__ __forceinline__ void times_rows(float (&d)[32], const uint32_t (&a)[N][4], uint32_t tile)
{
    wgmma_pin(d);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N; i++) Wgmma<64>::rs<false>(d, a[i], wgmma_at(tile, (uint32_t)((i >> 2) * GDN_TILE + (i & 3) * 32)));
    wgmma_commit();
}

/* Thread: columns col and col + 8 of the value head; token or key dimension 8 j + 2 c + {0, 1}. */
template <int WGS> static __device__ __forceinline__ void consume(const GdnWork &p, Ring ring, int h, int slot0, int t0, int tokens, int chunks, float *state)
{
    typedef Shape<WGS> Sh;
    const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0) - 1, lane = threadIdx.x & 31, c = lane & 3, mine = 16 * (threadIdx.x >> 5 & 3) + (lane >> 2),
              col = ((int)blockIdx.x * WGS + wg) * 64 + mine;
    const size_t row = p.a.nv * GDN_D;
    float *o_at = p.a.o + ((size_t)t0 * p.a.nv + h) * GDN_D + col;
    uint32_t v_at[2][2]; /* of the tile's token 2 c + f, column col + 8 e */
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int f = 0; f < 2; f++) {
            const int x = mine + 8 * e;
            v_at[e][f] = (uint32_t)(V_AT + (2 * wg + (x >> 5)) * GDN_TILE + (2 * c + f) * 128 + (((x >> 2 & 7) ^ (2 * c + f)) << 4) + (x & 3) * 4);
        }
    float s[64], d[32], o[32], out[32];
    uint32_t sa[8][4], da[4][4], ea[4][4];
#pragma unroll
    for (int i = 0; i < 64; i++) s[i] = state[(size_t)(8 * (i >> 2) + 2 * c + (i & 1)) * GDN_D + col + 8 * (i >> 1 & 1)];
    pack(sa, s);

    auto store = [&](int n) { /* O of chunk n; branches would serialise the wgmmas around them */
        const int left = n < 0 ? 0 : tokens - n * GDN_C;
        float *at = o_at + (size_t)(max(n, 0) * GDN_C + 2 * c) * row;
#pragma unroll
        for (int j = 0; j < 8; j++, at += 8 * row)
#pragma unroll
            for (int f = 0; f < 2; f++)
                asm volatile("{.reg .pred q; setp.lt.s32 q, %2, %3; @q st.global.f32 [%0], %4; @q st.global.f32 [%1], %5;}" ::"l"(at + f * row),
                             "l"(at + f * row + 8), "r"(8 * j + 2 * c + f), "r"(left), "f"(out[4 * j + f]), "f"(out[4 * j + 2 + f])
                             : "memory");
    };
#pragma unroll
    for (int e = 0; e < 32; e++) out[e] = 0.f;
    for (int n = 0; n < chunks; n++) {
        const int i = n % Sh::stages;
        const uint32_t at = ring.smem + (uint32_t)i * Sh::stage, tiles = wgmma_lo(at);
        const float *gate = (const float *)__cvta_shared_to_generic(at + G_AT);
        auto tile = [&](int bytes) { return tiles + (uint32_t)(bytes >> 4); };
        mbar_wait(ring.full(i), n / Sh::stages & 1);
#pragma unroll
        for (int e = 0; e < 32; e++) d[e] = 0.f;
        times_rows(d, sa, tile(K_AT)); /* K S */
        store(n - 1);
#pragma unroll
        for (int e = 0; e < 32; e++) o[e] = 0.f;
        times_rows(o, sa, tile(0)); /* Q S */
        wgmma_wait<1>();
        wgmma_pin(d);
        const int left = tokens - n * GDN_C;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 eg = *(const float2 *)(gate + 8 * j + 2 * c);
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    float v;
                    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at + v_at[e][f] + j * 1024));
                    v = fmaf(f ? -eg.y : -eg.x, d[4 * j + 2 * e + f], v);
                    d[4 * j + 2 * e + f] = 8 * j + 2 * c + f < left ? v : 0.f; /* another sequence's values may stand there */
                }
        }
        pack(da, d);
#pragma unroll
        for (int e = 0; e < 32; e++) d[e] = 0.f;
        times_rows(d, da, tile(T_AT)); /* D */
        wgmma_wait<1>();
        wgmma_pin(o);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 eg = *(const float2 *)(gate + 8 * j + 2 * c);
            o[4 * j] *= eg.x, o[4 * j + 1] *= eg.y, o[4 * j + 2] *= eg.x, o[4 * j + 3] *= eg.y;
        }
        const float end = gate[GDN_C - 1];
#pragma unroll
        for (int e = 0; e < 64; e++) s[e] *= end;
        wgmma_wait<0>();
        wgmma_pin(d);
        pack(da, d);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 eg = *(const float2 *)(gate + GDN_C + 8 * j + 2 * c);
            d[4 * j] *= eg.x, d[4 * j + 1] *= eg.y, d[4 * j + 2] *= eg.x, d[4 * j + 3] *= eg.y;
        }
        pack(ea, d);
        wgmma_pin(s);
        wgmma_fence();
#pragma unroll
        for (int e = 0; e < 4; e++) wgmma_wide128(s, ea[e], wgmma_wide_at(tile(K_AT + e * 2048), GDN_TILE)); /* S + K' D */
        wgmma_commit();
        times_rows(o, da, tile(P_AT)); /* + P D */
        wgmma_wait<1>();
        wgmma_pin(s);
        pack(sa, s);
        wgmma_wait<0>();
        wgmma_pin(o);
#pragma unroll
        for (int e = 0; e < 32; e++) asm volatile("mov.f32 %0, %1;" : "=f"(out[e]) : "f"(o[e]));
        __syncwarp(); /* all lanes have read the stage */
        mbar_arrive_if(ring.empty(i), lane == 0);
    }
    store(chunks - 1);
#pragma unroll
    for (int i = 0; i < 64; i++) state[(size_t)(8 * (i >> 2) + 2 * c + (i & 1)) * GDN_D + col + 8 * (i >> 1 & 1)] = s[i];
}
#endif

/* Grid (128 / (64 WGS), nv, B). */
template <int WGS> static __global__ void __launch_bounds__(384, 1) gdn_scan_kernel(const __grid_constant__ CUtensorMap mv, const __grid_constant__ GdnWork p)
{
#ifdef MLA_HOPPER
    typedef Shape<WGS> S;
    extern __shared__ __align__(16) char raw[];
    const uint32_t smem = (smem_u32(raw) + 1023) & ~1023u;
    const Ring ring = {smem, smem + S::stages * S::stage};
    const int h = blockIdx.y, seq = blockIdx.z, t0 = p.seqs.start(seq), tokens = p.seqs.start(seq + 1) - t0, chunks = (tokens + GDN_C - 1) / GDN_C;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::stages; i++) mbar_init(ring.full(i), 1), mbar_init(ring.empty(i), 4 * WGS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        regs_shrink<24>();
        if (threadIdx.x == 0) produce<WGS>(p, &mv, ring, h, p.seqs.slot(seq), t0, chunks);
    } else {
        regs_grow<240>();
        consume<WGS>(p, ring, h, p.seqs.slot(seq), t0, tokens, chunks, p.a.state + ((size_t)seq * p.a.nv + h) * GDN_D * GDN_D);
    }
#endif
}

template <int WGS> static mla_status launch(const GdnWork *w, const CUtensorMap &mv, cudaStream_t stream, mla_err *err)
{
    mla_status st = cu_ok(cudaFuncSetAttribute(gdn_scan_kernel<WGS>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape<WGS>::smem), "delta net: shared memory", err);
    if (st) return st;
    gdn_scan_kernel<WGS><<<dim3(2 / WGS, (unsigned)w->a.nv, (unsigned)w->a.B), Shape<WGS>::threads, Shape<WGS>::smem, stream>>>(mv, *w);
    return cu_ok(cudaGetLastError(), "delta net along chunks", err);
}

mla_status gdn_scan(const GdnWork *w, cudaStream_t stream, mla_err *err)
{
    const GdnChunk &a = w->a;
    CUtensorMap mv;
    /* fp32 values as bytes: boxes of 32 columns */
    const TensorBox b = {3, 1, {GDN_D * 4, a.nv, a.T}, {GDN_D * 4, (2 * a.nk + a.nv) * GDN_D * 4}, {128, 1, GDN_C}, true, true};
    int dev = 0, sms = 0;
    mla_status st = tensor_box_map(&mv, a.qkv + 2 * a.nk * GDN_D, &b, "delta net", err);
    if (!st) st = cu_ok(cudaGetDevice(&dev), "delta net", err);
    if (!st) st = cu_ok(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, dev), "delta net", err);
    if (st) return st;
    return 2 * a.nv * a.B <= (size_t)sms ? launch<1>(w, mv, stream, err) : launch<2>(w, mv, stream, err);
}

bool gdn_chunk_here(void)
{
    int dev = 0, major = 0;
    return cudaGetDevice(&dev) == cudaSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev) == cudaSuccess && major == 9;
}
static size_t slots_of(const GdnChunk *p) { return p->T / GDN_C + p->B; }
size_t gdn_chunk_scratch(const GdnChunk *p) { return slots_of(p) * (p->nk * GDN_QK + p->nv * GDN_TP); }

mla_status gdn_chunk(const GdnChunk *p, void *scratch, cudaStream_t stream, mla_err *err)
{
    if (!p->B || !p->nk || !p->nv || p->nv % p->nk || p->B > 65535 || p->nv > 65535 || p->T > INT32_MAX - GDN_C || (!p->starts && p->T % p->B))
        return mla_fail(err, MLA_EINVAL, "delta net: %zu sequences, %zu tokens in all, %zu value heads over %zu key heads", p->B, p->T, p->nv, p->nk);
    if (((uintptr_t)p->qkv | (uintptr_t)p->o | (uintptr_t)p->state | (uintptr_t)scratch) % 16)
        return mla_fail(err, MLA_EINVAL, "delta net: inputs, outputs, state and scratch must start on 16 bytes");
    if (!p->T) return MLA_OK;
    const size_t slots = slots_of(p);
    const GdnWork w = {*p, {p->starts, (int)p->B, (int)(p->T / p->B)}, (char *)scratch, (char *)scratch + slots * p->nk * GDN_QK, (int)slots};
    mla_status st = gdn_intra(&w, stream, err);
    return st ? st : gdn_scan(&w, stream, err);
}
