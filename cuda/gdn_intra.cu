/* Inside the chunks of the gated delta rule (gdn_chunk.cuh): normalised q and k as operand tiles, T and P.
 *
 * Block = one chunk, one key head and up to three of its value heads, two warpgroups: the first multiplies K K', the second
 * Q K'. (I + A)^-1 is taken by two warps per value head: 16 x 16 blocks by substitution in fp32, then two rounds of
 * [[X, 0], [B, Y]]^-1 = [[X^-1, 0], [-Y^-1 B X^-1, Y^-1]] with tf32 products. */
#include <cuda_bf16.h>

#include "cuda/check.cuh"
#include "cuda/gdn_chunk.cuh"
#include "cuda/ptx.cuh"
#include "cuda/wgmma.cuh"

enum { HEADS = 3, LD = GDN_C + 4, THREADS = 256 };
enum { P_AT = GDN_QK, M_AT = P_AT + HEADS * GDN_TILE, G_AT = M_AT + HEADS * GDN_C * LD * 4, B_AT = G_AT + HEADS * GDN_C * 8, SMEM = B_AT + HEADS * GDN_C * 4 + 1024 };

#ifdef MLA_HOPPER
/* Place of 16-byte piece `at` of row `row` in a tile. */
static __device__ __forceinline__ uint32_t swizzled(int row, int at) { return (uint32_t)(row * 128 + ((at ^ (row & 7)) << 4)); }
static __device__ __forceinline__ uint32_t bf16x2(float lo, float hi)
{
    const __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&x;
}

/* A warp's 8 rows of q and of k: all of them in flight before anything else is done; rows from n on are zero. */
struct Rows {
    float4 x[2][8];
    __device__ __forceinline__ void fetch(const GdnChunk &p, long long t0, int n, int hk)
    {
        const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const size_t width = (2 * p.nk + p.nv) * GDN_D;
#pragma unroll
        for (int z = 0; z < 2; z++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int row = w * 8 + i;
                const float *from = p.qkv + (size_t)(t0 + row) * width + (z * p.nk + hk) * GDN_D + lane * 4;
                x[z][i] = row < n ? __ldg((const float4 *)from) : make_float4(0.f, 0.f, 0.f, 0.f);
            }
    }
    /* l2-normalised (q times 128^-1/2) into their tiles. */
    __device__ __forceinline__ void store(char *tiles) const
    {
        const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
        for (int z = 0; z < 2; z++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float4 v = x[z][i];
                float s = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
#pragma unroll
                for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
                const float by = (z ? 1.f : 0.08838834764831845f) / sqrtf(s + 1e-6f);
                *(uint2 *)(tiles + z * 2 * GDN_TILE + (lane >> 4) * GDN_TILE + swizzled(w * 8 + i, (lane & 15) >> 1) + (lane & 1) * 8) =
                    make_uint2(bf16x2(v.x * by, v.y * by), bf16x2(v.z * by, v.w * by));
            }
    }
};

/* By one warp: beta and the summed log decays (in powers of two, as a sum of two floats) of value head h, and e^g. A token's
 * decay below 2^-10000 counts as that; NaN stays. */
static __device__ __forceinline__ void gates(float2 *g, float *beta, float *out, const GdnChunk &p, long long t0, int n, int h)
{
    const int lane = threadIdx.x & 31;
    double x[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int t = 2 * lane + e;
        const bool in = t < n;
        const size_t at = (size_t)(t0 + (in ? t : 0)) * p.nv + h;
        const float z = p.a[at] + p.dt_bias[h], rate = -1.44269504088896f * expf(p.A_log[h]) * (fmaxf(z, 0.f) + log1pf(expf(-fabsf(z))));
        x[e] = in ? (rate < -1e4f ? -1e4f : rate) : 0.f;
        beta[t] = in ? 1.f / (1.f + expf(-p.b[at])) : 0.f;
    }
    double sum = x[0] + x[1];
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const double y = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += y;
    }
    const double end = __shfl_sync(~0u, sum, 31);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int t = 2 * lane + e;
        const double s = e ? sum : sum - x[1];
        const float hi = (float)s;
        g[t] = make_float2(hi, (float)(s - hi));
        out[t] = exp2f(hi);
        out[GDN_C + t] = exp2f((float)(end - s));
    }
}
static __device__ __forceinline__ float decay(float2 to, float2 from) { return exp2_fast((to.x - from.x) + (to.y - from.y)); }

/* ---- the inverse, by one warp; m (64, LD) */
static __device__ __forceinline__ uint32_t tf32(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
/* d (16 M x 8 N) = a (16 M x 8 K) b (8 K x 8 N), both rows of LD. */
template <int M, int N, int K> static __device__ __forceinline__ void product(float (&d)[M][N][4], const float *a, const float *b)
{
    const int g = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) d[m][n][0] = d[m][n][1] = d[m][n][2] = d[m][n][3] = 0.f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        uint32_t x[M][4], y[N][2];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[m][e] = tf32(a[(16 * m + g + 8 * (e & 1)) * LD + 8 * k + c + 4 * (e >> 1)]);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) y[n][e] = tf32(b[(8 * k + c + 4 * e) * LD + 8 * n + g]);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
                asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(d[m][n][0]), "+f"(d[m][n][1]), "+f"(d[m][n][2]), "+f"(d[m][n][3])
                             : "r"(x[m][0]), "r"(x[m][1]), "r"(x[m][2]), "r"(x[m][3]), "r"(y[n][0]), "r"(y[n][1]));
    }
}
template <int M, int N> static __device__ __forceinline__ void put(float *to, const float (&d)[M][N][4], float by)
{
    const int g = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) *(float2 *)(to + (16 * m + g + 8 * e) * LD + 8 * n + 2 * c) = make_float2(by * d[m][n][2 * e], by * d[m][n][2 * e + 1]);
}
/* m: strictly lower A with zeros up to the end of each row's 32-block -> its lower triangle holds (I + A)^-1. By two warps
 * (z = 0 and 1) per value head, and the whole block at the barriers; work: whether this warp has a head. */
static __device__ __forceinline__ void invert(float *m, int z, bool work)
{
    if (work) { /* a lane per column of the blocks 2 z and 2 z + 1 */
        const int col = threadIdx.x & 15;
        float *block = m + (32 * z + (threadIdx.x & 16)) * (LD + 1), x[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float s = i == col ? 1.f : 0.f;
#pragma unroll
            for (int j = 0; j < i; j += 4) {
                const float4 r = *(const float4 *)(block + i * LD + j);
                const float row[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (j + e < i) s = fmaf(-row[e], x[j + e], s);
            }
            x[i] = s;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; i++) block[i * LD + col] = x[i];
        __syncwarp();
        float d[1][2][4], *at = m + 32 * z * (LD + 1), *below = at + 16 * LD; /* -Y^-1 B X^-1 in the place of B, 16 wide */
        product<1, 2, 2>(d, below, at);
        __syncwarp();
        put(below, d, 1.f);
        __syncwarp();
        product<1, 2, 2>(d, below + 16, below);
        __syncwarp();
        put(below, d, -1.f);
    }
    __syncthreads();
    float d[1][4][4], *below = m + (32 + 16 * z) * LD; /* the same, 32 wide: a warp has 16 of the rows */
    if (work) {
        product<1, 4, 4>(d, below, m);
        __syncwarp();
        put(below, d, 1.f);
    }
    __syncthreads();
    if (work) product<1, 4, 4>(d, below + 32, m + 32 * LD);
    __syncthreads();
    if (work) put(below, d, -1.f);
}
#endif

/* Grid (nk slots, groups of HEADS value heads of a key head): blocks that run together read whole stretches of few rows. */
static __global__ void __launch_bounds__(THREADS, 2) gdn_intra_kernel(const __grid_constant__ GdnWork p)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(16) char raw[];
    const uint32_t smem = (smem_u32(raw) + 1023) & ~1023u;
    char *base = raw + (smem - smem_u32(raw));
    float2 *const g = (float2 *)(base + G_AT);
    float *const beta = (float *)(base + B_AT), *const m = (float *)(base + M_AT);
    const int slot = blockIdx.x / (int)p.a.nk, hk = blockIdx.x % (int)p.a.nk, ratio = (int)(p.a.nv / p.a.nk), r0 = blockIdx.y * HEADS, heads = min(HEADS, ratio - r0);
    const int w = __shfl_sync(~0u, threadIdx.x >> 5, 0), wg = w >> 2, lane = threadIdx.x & 31;
    int seq = 0;
    for (int hi = p.seqs.B - 1; seq < hi;) { /* the last sequence whose chunks start here or before */
        const int mid = (seq + hi + 1) / 2;
        if (p.seqs.slot(mid) <= slot) seq = mid;
        else hi = mid - 1;
    }
    const long long t0 = p.seqs.start(seq) + (long long)(slot - p.seqs.slot(seq)) * GDN_C;
    const int n = (int)min((long long)GDN_C, p.seqs.start(seq + 1) - t0);
    if (n <= 0) return; /* a gap in the numbers */
    auto tp = [&](int r) { return p.tp + ((size_t)slot * p.a.nv + hk * ratio + r0 + r) * GDN_TP; };

    Rows x;
    x.fetch(p.a, t0, n, hk);
    if (w < heads) gates(g + w * GDN_C, beta + w * GDN_C, (float *)(tp(w) + 2 * GDN_TILE), p.a, t0, n, hk * ratio + r0 + w);
    x.store(base);
    fence_async_smem();
    __syncthreads();
    if (threadIdx.x == 0 && r0 == 0) bulk_put(p.qk + ((size_t)slot * p.a.nk + hk) * GDN_QK, smem, GDN_QK);

    float d[32] = {};
    const uint32_t k = wgmma_lo(smem + 2 * GDN_TILE), rows = wg ? wgmma_lo(smem) : k;
    wgmma_pin(d);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < GDN_D / 16; i++) {
        const uint32_t at = (uint32_t)((i >> 2) * GDN_TILE + (i & 3) * 32);
        Wgmma<64>::ss<false, 0>(d, wgmma_at(rows, at), wgmma_at(k, at));
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(d);

    const int row = 16 * (w & 3) + (lane >> 2), c = lane & 3;
    for (int r = 0; r < heads; r++) {
        const float2 *gr = g + r * GDN_C, top[2] = {gr[row], gr[row + 8]};
        const float by[2] = {beta[r * GDN_C + row], beta[r * GDN_C + row + 8]};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int col = 8 * j + 2 * c;
            const float4 two = *(const float4 *)(gr + col);
            const float2 from[2] = {make_float2(two.x, two.y), make_float2(two.z, two.w)};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int t = row + 8 * e;
                float x[2];
#pragma unroll
                for (int f = 0; f < 2; f++) x[f] = col + f < t + wg ? d[4 * j + 2 * e + f] * decay(top[e], from[f]) : 0.f;
                if (wg) *(uint32_t *)(base + P_AT + r * GDN_TILE + swizzled(t, j) + c * 4) = bf16x2(x[0], x[1]);
                else if (j < (w < 2 ? 4 : 8)) *(float2 *)(m + (r * GDN_C + t) * LD + col) = make_float2(by[e] * x[0], by[e] * x[1]);
            }
        }
    }
    fence_async_smem();
    __syncthreads();
    if (threadIdx.x == THREADS - 1)
        for (int r = 0; r < heads; r++) bulk_put(tp(r) + GDN_TILE, smem + P_AT + r * GDN_TILE, GDN_TILE);
    invert(m + (w >> 1) * GDN_C * LD, w & 1, w < 2 * heads);
    __syncthreads();
    for (int i = threadIdx.x; i < heads * 512; i += THREADS) {
        const int r = i >> 9, t = i >> 3 & 63, s = 8 * ((i & 7) ^ (t & 7));
        float v[8], by[8];
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            *(float4 *)(v + e) = *(const float4 *)(m + (r * GDN_C + t) * LD + s + e);
            *(float4 *)(by + e) = *(const float4 *)(beta + r * GDN_C + s + e);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = s + e <= t ? v[e] * by[e] : 0.f; /* above the diagonal blocks m was never written */
        *(uint4 *)(tp(r) + (i & 511) * 16) = make_uint4(bf16x2(v[0], v[1]), bf16x2(v[2], v[3]), bf16x2(v[4], v[5]), bf16x2(v[6], v[7]));
    }
    bulk_put_end();
#endif
}

mla_status gdn_intra(const GdnWork *w, cudaStream_t stream, mla_err *err)
{
    const size_t ratio = w->a.nv / w->a.nk;
    mla_status st = cu_ok(cudaFuncSetAttribute(gdn_intra_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM), "delta net: shared memory", err);
    if (st) return st;
    gdn_intra_kernel<<<dim3((unsigned)(w->slots * w->a.nk), (unsigned)((ratio + HEADS - 1) / HEADS)), THREADS, SMEM, stream>>>(*w);
    return cu_ok(cudaGetLastError(), "delta net inside chunks", err);
}
