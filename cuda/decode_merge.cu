/* The merge of a decode: partial outputs of sequences that several parts share become outputs. */
#include <math_constants.h>

#include "cuda/check.cuh"
#include "cuda/decode_dev.cuh"
#include "cuda/ptx.cuh"

/* MERGE_PARTS: parts a warp fetches at once, at least; at most one a lane. MERGE_WARPS: most warps of a block, by their shared memory.
 * MERGE_SHARE: most warps that take an item together. */
enum { MERGE_WARPS = 24, MERGE_SHARE = 8, MERGE_PARTS = 17, SMEM_SM = 228 << 10, SMEM_BLOCK = 213 << 10 };

/* Sums a sequence's partial outputs in a fixed order; zero for an empty sequence. An item is 128 latents of a row; `share`
 * warps take its parts in turn. All of a round's parts are fetched at once, before their weights are known. One block an SM:
 * a few SMs' share of the bandwidth would take longer; so would a long sequence's items, if they lay in the same blocks. */
static __global__ void __launch_bounds__(MERGE_WARPS * 32, 1) merge_parts(const __grid_constant__ DecodeP d, int N, int tiles, int lat, int items, int share, int round)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(128) float4 fetched[]; /* (warp, part of the round, lane) */
    __shared__ float4 sums[MERGE_WARPS][32];
    __shared__ float tot[MERGE_WARPS];
    __shared__ uint64_t full[MERGE_WARPS];
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, each = blockDim.x / 32 / share, chunks = lat / 128, turn = w % share; /* each: items of a block */
    const uint32_t bar = smem_u32(&full[w]);
    float4 *mine = fetched + w * round * 32;
    uint32_t phase = 0;
    if (lane == 0) {
        mbar_init(bar, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    grid_release(); /* the next decode may be launched: it waits, too */
    bool waits = true;
    const int stride = gridDim.x * each;
    for (int first = 0; first < items; first += stride) {
        const int it = first + w / share * gridDim.x + blockIdx.x, chunk = it % chunks, row = it / chunks % d.rows, z = it / chunks / d.rows, b = z % d.B, grp = z / d.B;
        const int2 sp = it < items ? part_split(d, b) : make_int2(0, 0);
        const bool any = sp.x != sp.y;
        if (waits) grid_wait(); /* the plan is older than the decode, every block of which had waited for it before this kernel came */
        waits = false;
        auto slot = [&](int p) { return (size_t)part_slot(d, grp * tiles + row / N, p, p == sp.x) * N + row % N; };
        const int last = any ? sp.y : -1;
        float mx = -CUDART_INF_F, sum = 0.f;
        float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int p0 = sp.x + turn; p0 <= last; p0 += round * share) {
            const int n = min(round, (last - p0) / share + 1), p = p0 + lane * share;
            if (lane == 0) mbar_expect(bar, n * 512);
            __syncwarp();
            if (lane < n) bulk_get(smem_u32(mine + lane * 32), d.po + slot(p) * lat + chunk * 128, 512, bar);
            const float e = lane < n ? d.plse[slot(p)] : -CUDART_INF_F;
            if (p0 == sp.x + turn) { /* the largest of all parts */
#pragma unroll 1
                for (int i0 = sp.x + lane; i0 <= last; i0 += 160) {
                    float y[5];
#pragma unroll
                    for (int i = 0; i < 5; i++) y[i] = i0 + 32 * i <= last ? d.plse[slot(i0 + 32 * i)] : -CUDART_INF_F;
#pragma unroll
                    for (int i = 0; i < 5; i++) mx = fmaxf(mx, y[i]);
                }
                for (int o = 16; o; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, o));
            }
            const float weight = exp2f(e - (mx == -CUDART_INF_F ? 0.f : mx));
            mbar_wait(bar, phase);
            phase ^= 1;
#pragma unroll 4
            for (int i = 0; i < n; i++) {
                const float k = __shfl_sync(~0u, weight, i);
                const float4 v = mine[i * 32 + lane];
                x.x += k * v.x, x.y += k * v.y, x.z += k * v.z, x.w += k * v.w;
                sum += k;
            }
            __syncwarp(); /* the next round overwrites what all lanes have read */
        }
        if (share > 1) { /* its warps' sums in their order */
            sums[w][lane] = x;
            if (lane == 0) tot[w] = sum;
            __syncthreads();
            for (int i = 1; i < share && turn == 0; i++) {
                const float4 y = sums[w + i][lane];
                x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
                sum += tot[w + i];
            }
            if (first + stride < items) __syncthreads();
        }
        if (turn || !any) continue;
        const float inv = sum != 0.f ? 1.f / sum : 0.f;
        const int t = row / d.Hg, h = grp * d.Hg + row % d.Hg;
        const size_t oo = (size_t)(b * d.o.b + t * d.o.t + h * d.o.h) + chunk * 128 + lane * 4;
        const float y[4] = {x.x * inv, x.y * inv, x.z * inv, x.w * inv};
        if (d.o.f32 && d.o.vec) *(float4 *)((float *)d.o.p + oo) = make_float4(y[0], y[1], y[2], y[3]);
        else
            for (int i = 0; i < 4; i++) store_f32((void *)d.o.p, d.o.f32, oo + i, y[i]);
        if (lane == 0 && chunk == 0 && d.lse)
            d.lse[((size_t)b * d.s_q + t) * d.H + h] = (sum != 0.f ? mx + log2f(sum) : -CUDART_INF_F) * 0.693147180559945f;
    }
#endif
}

/* One block on every SM where that is enough; its warps follow, as many for an item as there are. */
mla_status decode_merge(const DecodeP &p, int N, int tiles, int lat, cudaStream_t stream, mla_err *err)
{
    int dev = 0, sms = 0;
    mla_status st = cu_ok(cudaGetDevice(&dev), "decode: merge", err);
    if (!st) st = cu_ok(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, dev), "decode: merge", err);
    if (st) return st;
    const int items = lat / 128 * p.rows * p.B * (p.H / p.Hg), spare = sms * MERGE_WARPS / items, some = p.parts / p.B / 4,
              most = some < MERGE_SHARE ? some : (int)MERGE_SHARE, share = spare < 2 || most < 2 ? 1 : spare < most ? spare : most;
    const int full = MERGE_WARPS / share, spread = (items + sms - 1) / sms, each = spread < full ? spread : full, warps = each * share, blocks = (items + each - 1) / each;
    const int room = (SMEM_BLOCK - 8192) / (warps * 512), round = share > 4 || room < MERGE_PARTS ? (int)MERGE_PARTS : room < 32 ? room : 32;
    const size_t need = (size_t)warps * round * 512, alone = SMEM_SM / 2;
    const int at_once = need + 8192 > alone ? sms : 2 * sms;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3((unsigned)(blocks < at_once ? blocks : at_once)), cfg.blockDim = dim3((unsigned)warps * 32);
    cfg.dynamicSmemBytes = need < alone && blocks <= sms ? alone : need, cfg.stream = stream, cfg.attrs = &early, cfg.numAttrs = 1;
    st = cu_ok(cudaFuncSetAttribute(merge_parts, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)cfg.dynamicSmemBytes), "decode: shared memory", err);
    return st ? st : cu_ok(cudaLaunchKernelEx(&cfg, merge_parts, p, N, tiles, lat, items, share, round), "decode: merge", err);
}
