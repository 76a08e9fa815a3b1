/* Along the chunks of the gated delta rule (gdn_chunk.cuh): a block has one value head and 64 columns of its state per
 * warpgroup, and one thread that copies, in a ring of chunks.
 *
 * Everything is transposed: S' (64 columns x 128) stays in a warpgroup's accumulators and meets the products as a register
 * operand, so do V - e^g K S and D; a warp's 16 columns depend on no other warp. Per chunk and warpgroup:
 *     K S -> V - e^g K S -> D -> S', and beside that chain Q S and P D.
 * The k tile is read both ways: rows as columns (K S) and as they stand (K' D). O takes the place of V, from where it is copied out
 * while the next chunk is multiplied. */
#include <cuda.h>
#include <cuda_bf16.h>

#include "cuda/check.cuh"
#include "cuda/gdn_chunk.cuh"
#include "cuda/ptx.cuh"
#include "cuda/tmap.cuh"
#include "cuda/wgmma.cuh"
#include "cuda/wgmma_wide.cuh"

enum { K_AT = 2 * GDN_TILE, T_AT = 4 * GDN_TILE, P_AT = T_AT + GDN_TILE, G_AT = T_AT + 2 * GDN_TILE, V_AT = G_AT + GDN_GATES };
template <int WGS> struct Shape {
    static constexpr int stages = 3, stage = V_AT + WGS * GDN_TILE, threads = 128 + WGS * 128, smem = stages * stage + 128 + 1024;
};

#ifdef MLA_HOPPER
struct Ring {
    uint32_t smem, bars;
    __device__ __forceinline__ uint32_t full(int i) const { return bars + 8 * i; }
    __device__ __forceinline__ uint32_t empty(int i) const { return bars + 32 + 8 * i; }
};

template <int WGS> static __device__ void produce(const GdnChunk &p, const CUtensorMap *mqkv, Ring ring, int h, int first, int chunks)
{
    typedef Shape<WGS> S;
    const int nk = (int)p.nk, hk = h / ((int)p.nv / nk);
    for (int n = 0; n < chunks; n++) {
        const int i = n % S::stages, row = (first + n) * GDN_C;
        const uint32_t at = ring.smem + (uint32_t)i * S::stage, bar = ring.full(i);
        mbar_wait(ring.empty(i), (n / S::stages & 1) ^ 1);
        mbar_expect(bar, S::stage);
        for (int b = 0; b < 4; b++) tma_box_keep(at + b * GDN_TILE, mqkv, bar, (b & 1) * 64, hk + (b >> 1) * nk, row);
        bulk_get(at + T_AT, p.tp + ((size_t)(first + n) * p.nv + h) * GDN_TP, GDN_TP, bar);
        for (int b = 0; b < WGS; b++) tma_box_keep(at + V_AT + b * GDN_TILE, mqkv, bar, ((int)blockIdx.x * WGS + b) * 64, h + 2 * nk, row);
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
template <int WGS> static __device__ __forceinline__ void consume(const GdnChunk &p, const CUtensorMap *mo, Ring ring, int h, int first, int chunks, float *state)
{
    typedef Shape<WGS> Sh;
    const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0) - 1, lane = threadIdx.x & 31, c = lane & 3, w = threadIdx.x >> 5 & 3,
              col0 = ((int)blockIdx.x * WGS + wg) * 64, col = col0 + 16 * w + (lane >> 2), speaker = (threadIdx.x & 127) == 0;
    /* V and O as 8 x 8 matrices: lanes 8 i .. 8 i + 7 address tokens 8 (i / 2) .. of columns 8 (i & 1) .. of the warp's 16 */
    const uint32_t vo = (uint32_t)(V_AT + wg * GDN_TILE + (8 * (lane >> 4) + (lane & 7)) * 128 + (((2 * w + (lane >> 3 & 1)) ^ (lane & 7)) << 4));
    float s[64], d[32], o[32];
    uint32_t sa[8][4], da[4][4], ea[4][4], out[16];
#pragma unroll
    for (int i = 0; i < 64; i++) s[i] = state[(size_t)(8 * (i >> 2) + 2 * c + (i & 1)) * GDN_D + col + 8 * (i >> 1 & 1)];
    pack(sa, s);
#pragma unroll
    for (int e = 0; e < 16; e++) out[e] = 0;

    /* O of chunk n, in place of its V, out of shared memory; branches would serialise the wgmmas around them */
    auto store = [&](int n, uint32_t stage, int yes) {
#pragma unroll
        for (int j = 0; j < 4; j++) stmatrix_trans4_if(stage + vo + j * 2048, out[4 * j], out[4 * j + 1], out[4 * j + 2], out[4 * j + 3], yes);
        fence_async_smem();
        bar_sync(1 + wg, 128);
        tma_put_if(mo, stage + V_AT + wg * GDN_TILE, col0, h, (first + n) * GDN_C, speaker && yes);
    };
    uint32_t last = ring.smem; /* the stage before */
    for (int n = 0; n < chunks; n++) {
        const int i = n % Sh::stages;
        const uint32_t at = ring.smem + (uint32_t)i * Sh::stage, tiles = wgmma_lo(at);
        const float *gate = (const float *)__cvta_shared_to_generic(at + G_AT);
        auto tile = [&](int bytes) { return tiles + (uint32_t)(bytes >> 4); };
        mbar_wait(ring.full(i), n / Sh::stages & 1);
#pragma unroll
        for (int e = 0; e < 32; e++) d[e] = 0.f;
        times_rows(d, sa, tile(K_AT)); /* K S */
        store(n - 1, last, n);
#pragma unroll
        for (int e = 0; e < 32; e++) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(o[e]));
        times_rows(o, sa, tile(0)); /* Q S */
        wgmma_wait<1>();
        wgmma_pin(d);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t v[4];
            ldmatrix4_trans(v, at + vo + j * 1024);
#pragma unroll
            for (int z = 0; z < 2; z++) {
                const float2 by = *(const float2 *)(gate + 8 * (j + z) + 2 * c);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float *x = d + 4 * (j + z) + 2 * e;
                    x[0] = fmaf(-by.x, x[0], __uint_as_float(v[2 * z + e] << 16));
                    x[1] = fmaf(-by.y, x[1], __uint_as_float(v[2 * z + e] & 0xffff0000u));
                }
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
            const float2 by = *(const float2 *)(gate + GDN_C + 8 * j + 2 * c);
            o[4 * j] *= by.x, o[4 * j + 1] *= by.y, o[4 * j + 2] *= by.x, o[4 * j + 3] *= by.y;
        }
        const float end = gate[4 * GDN_C - 1];
#pragma unroll
        for (int e = 0; e < 64; e++) s[e] *= end;
        wgmma_wait<0>();
        wgmma_pin(d);
        pack(da, d);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 by = *(const float2 *)(gate + 2 * GDN_C + 8 * j + 2 * c);
            d[4 * j] *= by.x, d[4 * j + 1] *= by.y, d[4 * j + 2] *= by.x, d[4 * j + 3] *= by.y;
        }
        pack(ea, d);
        wgmma_pin(s);
        wgmma_fence();
#pragma unroll
        for (int e = 0; e < 4; e++) wgmma_wide128(s, ea[e], wgmma_wide_at(tile(K_AT + e * 2048), GDN_TILE)); /* S + K' D */
        wgmma_commit();
        times_rows(o, da, tile(P_AT)); /* + P D */
        bulk_put_wait(); /* the stage before is read out */
        mbar_arrive_if(ring.empty((n + Sh::stages - 1) % Sh::stages), speaker && n);
        wgmma_wait<1>();
        wgmma_pin(s);
        pack(sa, s);
        wgmma_wait<0>();
        wgmma_pin(o);
#pragma unroll
        for (int e = 0; e < 16; e++) asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out[e]) : "f"(o[2 * e + 1]), "f"(o[2 * e])); /* now */
        last = at;
    }
    store(chunks - 1, last, 1);
#pragma unroll
    for (int i = 0; i < 64; i++) state[(size_t)(8 * (i >> 2) + 2 * c + (i & 1)) * GDN_D + col + 8 * (i >> 1 & 1)] = s[i];
    bulk_put_wait();
}
#endif

/* Grid (128 / (64 WGS), nv, sequences). */
template <int WGS> static __global__ void __launch_bounds__(384, 1)
gdn_scan_kernel(const __grid_constant__ CUtensorMap mqkv, const __grid_constant__ CUtensorMap mo, const __grid_constant__ GdnChunk p)
{
#ifdef MLA_HOPPER
    typedef Shape<WGS> S;
    extern __shared__ __align__(16) char raw[];
    const uint32_t smem = (smem_u32(raw) + 1023) & ~1023u;
    const Ring ring = {smem, smem + S::stages * S::stage};
    const int h = blockIdx.y, seq = blockIdx.z, first = p.seqs.chunk[seq], chunks = p.seqs.chunk[seq + 1] - first;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::stages; i++) mbar_init(ring.full(i), 1), mbar_init(ring.empty(i), WGS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        regs_shrink<24>();
        if (threadIdx.x == 0) produce<WGS>(p, &mqkv, ring, h, first, chunks);
    } else {
        regs_grow<240>();
        consume<WGS>(p, &mo, ring, h, first, chunks, p.seqs.state[seq] + (size_t)h * GDN_D * GDN_D);
    }
#endif
}

template <int WGS> static mla_status launch(const GdnChunk *p, const CUtensorMap &mqkv, const CUtensorMap &mo, cudaStream_t stream, mla_err *err)
{
    mla_status st = cu_ok(cudaFuncSetAttribute(gdn_scan_kernel<WGS>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape<WGS>::smem), "delta net: shared memory", err);
    if (st) return st;
    gdn_scan_kernel<WGS><<<dim3(2 / WGS, (unsigned)p->nv, (unsigned)p->seqs.n), Shape<WGS>::threads, Shape<WGS>::smem, stream>>>(mqkv, mo, *p);
    return cu_ok(cudaGetLastError(), "delta net along chunks", err);
}

mla_status gdn_scan(const GdnChunk *p, cudaStream_t stream, mla_err *err)
{
    const size_t rows = (size_t)p->seqs.chunk[p->seqs.n] * GDN_C, heads = 2 * p->nk + p->nv;
    CUtensorMap mqkv, mo;
    const TensorBox in = {3, 2, {GDN_D, heads, rows}, {GDN_D * 2, heads * GDN_D * 2}, {64, 1, GDN_C}, true, true},
                    out = {3, 2, {GDN_D, p->nv, rows}, {GDN_D * 2, p->nv * GDN_D * 2}, {64, 1, GDN_C}, true, true};
    int dev = 0, sms = 0;
    mla_status st = tensor_box_map(&mqkv, p->qkv, &in, "delta net", err);
    if (!st) st = tensor_box_map(&mo, p->o, &out, "delta net", err);
    if (!st) st = cu_ok(cudaGetDevice(&dev), "delta net", err);
    if (!st) st = cu_ok(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, dev), "delta net", err);
    if (st) return st;
    return 2 * p->nv * (size_t)p->seqs.n <= (size_t)sms ? launch<1>(p, mqkv, mo, stream, err) : launch<2>(p, mqkv, mo, stream, err);
}

bool gdn_chunk_here(void)
{
    int dev = 0, major = 0;
    return cudaGetDevice(&dev) == cudaSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev) == cudaSuccess && major == 9;
}
bool gdn_seqs_add(GdnSeqs *s, size_t tokens, float *state)
{
    const size_t most = (size_t)(INT32_MAX / GDN_C - GDN_C);
    if (s->n >= GDN_SEQS || !tokens || tokens > most || (size_t)s->start[s->n] + tokens > most) return false;
    s->state[s->n] = state;
    s->start[s->n + 1] = s->start[s->n] + (int)tokens;
    s->chunk[s->n + 1] = s->chunk[s->n] + (int)((tokens + GDN_C - 1) / GDN_C);
    s->n++;
    return true;
}

mla_status gdn_chunk(const GdnChunk *p, cudaStream_t stream, mla_err *err)
{
    uintptr_t odd = (uintptr_t)p->qkv | (uintptr_t)p->o | (uintptr_t)p->tp;
    for (int i = 0; i < p->seqs.n; i++) odd |= (uintptr_t)p->seqs.state[i];
    if (!p->nk || !p->nv || p->nv % p->nk || p->nv > 65535)
        return mla_fail(err, MLA_EINVAL, "delta net: %zu value heads over %zu key heads", p->nv, p->nk);
    if (odd % 16) return mla_fail(err, MLA_EINVAL, "delta net: inputs, outputs, states and scratch must start on 16 bytes");
    if (!p->seqs.n) return MLA_OK;
    mla_status st = gdn_intra(p, stream, err);
    return st ? st : gdn_scan(p, stream, err);
}
