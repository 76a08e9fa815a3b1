/* Inside the chunks of the gated delta rule (gdn_chunk.cuh): T, P, and the factors of norms and decays.
 *
 * Block = one chunk, one key head and up to three of its value heads, two warpgroups: the first multiplies K K', the second
 * Q K' and, for the norms on its diagonal, Q Q'. (I + A)^-1 is taken by two warps per value head. */
#include <cuda_bf16.h>

#include "cuda/check.cuh"
#include "cuda/gdn_chunk.cuh"
#include "cuda/gdn_inverse.cuh"
#include "cuda/ptx.cuh"
#include "cuda/tmap.cuh"
#include "cuda/wgmma.cuh"

enum { HEADS = 3, THREADS = 256 };
/* P and the matrices take the place of q and k, so that three blocks share an SM. */
enum { QK_BYTES = 4 * GDN_TILE, M_AT = HEADS * GDN_TILE, G_AT = M_AT + HEADS * MATRIX * 4, E_AT = G_AT + HEADS * GDN_C * 8, B_AT = E_AT + HEADS * GDN_C * 8,
       N_AT = B_AT + HEADS * GDN_C * 4, BAR_AT = N_AT + 2 * GDN_C * 4, SMEM = BAR_AT + 8 + 1024 };
static_assert(QK_BYTES <= G_AT && 3 * (SMEM + 1024) <= 228 << 10, "q and k end before the gates; three blocks an SM");

#ifdef MLA_HOPPER
/* Place of 16-byte piece `at` of row `row` in a tile. */
static __device__ __forceinline__ uint32_t swizzled(int row, int at) { return (uint32_t)(row * 128 + ((at ^ (row & 7)) << 4)); }
static __device__ __forceinline__ uint32_t bf16x2(float lo, float hi)
{
    const __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&x;
}

/* By one warp: beta and the summed log decays (in powers of two, as a sum of two floats) of value head h; e^g and e^(g_end - g).
 * A token's decay below 2^-10000 counts as that; NaN stays. */
static __device__ __forceinline__ void gates(float2 *g, float *beta, float2 *e_g, const GdnChunk &p, size_t t0, int n, int h)
{
    const int lane = threadIdx.x & 31;
    double x[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int t = 2 * lane + e;
        const bool in = t < n;
        const size_t at = (t0 + (in ? t : 0)) * p.nv + h;
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
        e_g[t] = make_float2(exp2f(hi), exp2f((float)(end - s)));
    }
}
static __device__ __forceinline__ float decay(float2 to, float2 from) { return exp2_fast((to.x - from.x) + (to.y - from.y)); }

/* d (64 x 64) = rows of tile a times rows of tile b, each in halves of 64 elements. */
static __device__ __forceinline__ void dots(float (&d)[32], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int i = 0; i < 32; i++) d[i] = 0.f;
    wgmma_pin(d);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < GDN_D / 16; i++) {
        const uint32_t at = (uint32_t)((i >> 2) * GDN_TILE + (i & 3) * 32);
        Wgmma<64>::ss<false, 0>(d, wgmma_at(a, at), wgmma_at(b, at));
    }
    wgmma_commit();
}
/* From a warp's rows of such a product of a tile with itself: the inverse norms of the rows, times `by`. */
static __device__ __forceinline__ void inverse_norms(float *out, const float (&d)[32], float by)
{
    const int w = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float x = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) /* row 16 w + g + 8 e is column 8 (2 w + e) + g */
            x = w == i ? (g & 1 ? d[4 * (2 * i + e) + 2 * e + 1] : d[4 * (2 * i + e) + 2 * e]) : x;
        if ((lane & 3) == g >> 1) out[16 * w + g + 8 * e] = by / sqrtf(x + 1e-6f);
    }
}
#endif

/* Grid (nk chunks, groups of HEADS value heads of a key head): blocks that run together read whole stretches of few rows. */
static __global__ void __launch_bounds__(THREADS, 3) gdn_intra_kernel(const __grid_constant__ CUtensorMap mqkv, const __grid_constant__ GdnChunk p)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(16) char raw[];
    const uint32_t smem = (smem_u32(raw) + 1023) & ~1023u, bar = smem + BAR_AT;
    char *base = raw + (smem - smem_u32(raw));
    float2 *const g = (float2 *)(base + G_AT), *const e_g = (float2 *)(base + E_AT);
    float *const beta = (float *)(base + B_AT), *const m = (float *)(base + M_AT), *const norms = (float *)(base + N_AT); /* of k, of q */
    const int nk = (int)p.nk, chunk = blockIdx.x / nk, hk = blockIdx.x % nk, ratio = (int)p.nv / nk, r0 = blockIdx.y * HEADS, heads = min(HEADS, ratio - r0);
    const int w = __shfl_sync(~0u, threadIdx.x >> 5, 0), wg = w >> 2, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        mbar_init(bar, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        mbar_expect(bar, QK_BYTES);
        for (int i = 0; i < 4; i++) tma_box_keep(smem + i * GDN_TILE, &mqkv, bar, (i & 1) * 64, hk + (i >> 1) * nk, chunk * GDN_C);
    }
    const int seq = p.seqs.of(chunk), inside = (chunk - p.seqs.chunk[seq]) * GDN_C;
    const size_t t0 = (size_t)p.seqs.start[seq] + inside;
    const int n = min(GDN_C, p.seqs.start[seq + 1] - (int)t0);
    auto tp = [&](int r) { return p.tp + ((size_t)chunk * p.nv + hk * ratio + r0 + r) * GDN_TP; };
    if (w < heads) gates(g + w * GDN_C, beta + w * GDN_C, e_g + w * GDN_C, p, t0, n, hk * ratio + r0 + w);
    __syncthreads();
    mbar_wait(bar, 0);

    float d[32];
    const uint32_t q = wgmma_lo(smem), k = wgmma_lo(smem + 2 * GDN_TILE);
    if (wg) { /* Q Q' for its diagonal */
        dots(d, q, q);
        wgmma_wait<0>();
        wgmma_pin(d);
        inverse_norms(norms + GDN_C, d, 0.08838834764831845f);
    }
    dots(d, wg ? q : k, k);
    wgmma_wait<0>();
    wgmma_pin(d);
    if (!wg) inverse_norms(norms, d, 1.f);
    __syncthreads();

    const int row = 16 * (w & 3) + (lane >> 2), c = lane & 3;
    const float mine[2] = {norms[wg * GDN_C + row], norms[wg * GDN_C + row + 8]};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 other = *(const float2 *)(norms + 8 * j + 2 * c);
#pragma unroll
        for (int e = 0; e < 2; e++) d[4 * j + 2 * e] *= mine[e] * other.x, d[4 * j + 2 * e + 1] *= mine[e] * other.y;
    }
    for (int i = threadIdx.x; i < heads * GDN_C; i += THREADS) { /* what the sums along the chunks are times */
        const float2 e = e_g[i];
        const float ks = norms[i & 63];
        float *out = (float *)(tp(i >> 6) + 2 * GDN_TILE) + (i & 63);
        out[0] = ks * e.x, out[GDN_C] = norms[GDN_C + (i & 63)] * e.x, out[2 * GDN_C] = ks * e.y, out[3 * GDN_C] = e.x;
    }
    const int most = 2 * (w & 3) + 2; /* from column 8 most on all is above the diagonal */
    for (int r = 0; r < heads; r++) {
        const float2 *gr = g + r * GDN_C, top[2] = {gr[row], gr[row + 8]};
        const float by[2] = {beta[r * GDN_C + row], beta[r * GDN_C + row + 8]};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int col = 8 * j + 2 * c;
            float x[2][2] = {};
            if (j < most) {
                const float4 two = *(const float4 *)(gr + col);
                const float2 from[2] = {make_float2(two.x, two.y), make_float2(two.z, two.w)};
#pragma unroll
                for (int e = 0; e < 2; e++)
#pragma unroll
                    for (int f = 0; f < 2; f++) x[e][f] = col + f < row + 8 * e + wg ? d[4 * j + 2 * e + f] * decay(top[e], from[f]) : 0.f;
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int t = row + 8 * e;
                if (wg) *(uint32_t *)(base + r * GDN_TILE + swizzled(t, j) + c * 4) = bf16x2(x[e][0], x[e][1]);
                else if (j < (w < 2 ? 4 : 8))
                    *(float2 *)(m + r * MATRIX + (w < 2 ? 0 : j < 4 ? BELOW : SECOND) + (t & 31) * LD + (col & 31)) = make_float2(by[e] * x[e][0], by[e] * x[e][1]);
            }
        }
    }
    fence_async_smem();
    __syncthreads();
    if (threadIdx.x == THREADS - 1)
        for (int r = 0; r < heads; r++) bulk_put(tp(r) + GDN_TILE, smem + r * GDN_TILE, GDN_TILE);
    invert(m + (w >> 1) * MATRIX, w & 1, w < 2 * heads);
    __syncthreads();
    const int tr = threadIdx.x >> 3, s0 = 8 * ((threadIdx.x ^ tr) & 7); /* eight columns of rows tr and tr + 32 */
    for (int r = 0; r < heads; r++) {
        float by[8];
#pragma unroll
        for (int e = 0; e < 8; e += 4) *(float4 *)(by + e) = *(const float4 *)(beta + r * GDN_C + s0 + e);
#pragma unroll
        for (int z = 0; z < 2; z++) {
            const int t = tr + 32 * z;
            const float *from = m + r * MATRIX + (s0 >= 32 ? SECOND : z ? BELOW : 0) + tr * LD + (s0 & 31);
            float v[8];
#pragma unroll
            for (int e = 0; e < 8; e += 4) *(float4 *)(v + e) = *(const float4 *)(from + e);
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = s0 + e <= t ? v[e] * by[e] : 0.f;
            *(uint4 *)(tp(r) + (threadIdx.x + THREADS * z) * 16) = make_uint4(bf16x2(v[0], v[1]), bf16x2(v[2], v[3]), bf16x2(v[4], v[5]), bf16x2(v[6], v[7]));
        }
    }
    bulk_put_end();
#endif
}

mla_status gdn_intra(const GdnChunk *p, cudaStream_t stream, mla_err *err)
{
    const size_t ratio = p->nv / p->nk, chunks = (size_t)p->seqs.chunk[p->seqs.n];
    CUtensorMap m;
    const TensorBox b = {3, 2, {GDN_D, 2 * p->nk + p->nv, chunks * GDN_C}, {GDN_D * 2, (2 * p->nk + p->nv) * GDN_D * 2}, {64, 1, GDN_C}, true, true};
    mla_status st = tensor_box_map(&m, p->qkv, &b, "delta net", err);
    if (!st) st = cu_ok(cudaFuncSetAttribute(gdn_intra_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM), "delta net: shared memory", err);
    if (st) return st;
    gdn_intra_kernel<<<dim3((unsigned)(chunks * p->nk), (unsigned)((ratio + HEADS - 1) / HEADS)), THREADS, SMEM, stream>>>(m, *p);
    return cu_ok(cudaGetLastError(), "delta net inside chunks", err);
}
