/* The pair kernel (e4m3): two consumer warpgroups share each page. Each sums S over its own boxes (even or odd), the halves are
 * exchanged so that each owns 32 tokens of the softmax, and each owns the output tiles of its own boxes: half the
 * registers per thread, for large latents. */
#ifndef MLA_CUDA_DECODE_PAIR_CUH
#define MLA_CUDA_DECODE_PAIR_CUH
#include "cuda/decode_sm90.cuh"

enum { CONSUMERS = 256 };

#ifdef MLA_HOPPER
/* One block of the ring walk for one warpgroup: everything a consumer keeps across pages. */
template <int LAT, int N> struct Pair {
    using RingPos = RingPosOf<1>;
    static constexpr int NB = LAT / 128, OWN = NB / 2, TILES = LAT / 128, NC = N / 4;
    const DecodeP &d;
    char *smem;
    uint32_t base;
    DecodeSmem sm;
    int wg, w, lane, g, c, t;
    float acc[TILES][N / 2], m[NC], l[NC];
    RingPos pos;

    __device__ __forceinline__ Pair(const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : d(d_), smem(smem_), base(smem_u32(smem_)), sm(sm_), pos{0, 0}
    {
        wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), t = threadIdx.x & 127, w = __shfl_sync(~0u, t >> 5, 0), lane = t & 31, g = lane >> 2, c = lane & 3;
    }
    __device__ __forceinline__ uint32_t slot_addr(RingPos r) const { return base + sm.ring + r.slot * BOX; }
    __device__ __forceinline__ void wait_full(RingPos r) const { mbar_wait(base + sm.bars + r.slot * 8, r.phase); }
    __device__ __forceinline__ void release(RingPos r) const
    {
        mbar_arrive_if(base + sm.bars + (d.slots + r.slot) * 8, lane == 0);
    }

    __device__ __forceinline__ void qk(float (&s)[N / 2])
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++) s[i] = 0.f;
        uint32_t a[2][2][4];
        const int rowa = 16 * w + tok8(g), sw = rowa & 7;
        wgmma_pin(s);
#pragma unroll
        for (int jj = 0; jj < OWN; jj++) {
            const int box = 2 * jj + wg;
            const RingPos r = pos.at(box, d.slots);
            const uint32_t at = slot_addr(r), q = base + sm.q;
            wait_full(r);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t lo = at + rowa * 128 + (((half * 4 + c) ^ sw) << 4);
                qk_fp8_row<N, 4>(s, a, lo, lo + 8 * 128, wgmma_lo(q) + (((2 * box + half) * N * 128) >> 4), jj == 0 && half == 0);
            }
        }
        const RingPos r = pos.at(NB, d.slots); /* rotary keys: half of the k-steps each */
        wait_full(r);
        const uint32_t lo = slot_addr(r) + rowa * 64 + c * 16 + wg * 8;
        qk_fp8_row<N, 2>(s, a, lo, lo + 8 * 64, wgmma_lo(base + sm.q + LAT / 64 * N * 128 + wg * 64), false);
        wgmma_wait<0>();
        wgmma_pin(s);
    }

    /* Tokens past the sequence's end hold anything; 0 x NaN must not reach the sum. */
    __device__ __forceinline__ void zero_tail(RingPos r, int valid) const
    {
        for (int i = valid * 8 + t; i < 64 * 8; i += 128)
            *(uint4 *)(smem + sm.ring + r.slot * BOX + i * 16) = make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void pv_box(int jj, RingPos r)
    {
        const uint32_t at = slot_addr(r), p = wgmma_lo(base + sm.p);
        uint32_t a[2][2][4];
        const uint32_t off = (g & 3) * 4, ch = 2 * w + (g >> 2);
#pragma unroll
        for (int ks = 0; ks < 4; ks++) {
            uint32_t v[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int tk = 16 * ks + tok8(2 * c + (e & 1)) + 8 * (e >> 1);
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v[e]) : "r"(at + tk * 128 + ((ch ^ (tk & 7)) << 4) + off));
            }
            if (ks > 1) wgmma_wait<1>();
            pv_frags(a[ks & 1], v);
            wgmma_fence();
            Wgmma<N>::template rs<true>(acc[2 * jj], a[ks & 1][0], wgmma_at(p, ks * 32));
            Wgmma<N>::template rs<true>(acc[2 * jj + 1], a[ks & 1][1], wgmma_at(p, ks * 32));
            wgmma_commit();
        }
    }

    __device__ __forceinline__ void pv()
    {
#pragma unroll
        for (int i = 0; i < TILES; i++) wgmma_pin(acc[i]);
        wgmma_fence();
#pragma unroll
        for (int jj = 0; jj < OWN; jj++) {
            const RingPos r = pos.at(2 * jj + wg, d.slots);
            pv_box(jj, r);
            wgmma_wait<0>();
            release(r);
        }
    }

    /* Online softmax of one page: own 32 tokens x N columns; leaves P in shared memory and acc rescaled. */
    __device__ __forceinline__ void softmax(float (&s)[N / 2], int blk, int len, int min_limit)
    {
        float2 *ex = (float2 *)(smem + sm.ex);
        float v[NC];
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            ex[(wg * (N / 8) + j) * 128 + t] = wg ? make_float2(s[4 * j], s[4 * j + 1]) : make_float2(s[4 * j + 2], s[4 * j + 3]);
        bar_sync(BAR_ALL, CONSUMERS);
        if (wg == 0) release(pos.at(NB, d.slots));
        const float2 *sc = (const float2 *)(smem + sm.colscale);
        const int2 *lim = (const int2 *)(smem + sm.limit);
        const int token = blk * 64 + 16 * w + 8 * wg + tok8(g);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 o = ex[((1 - wg) * (N / 8) + j) * 128 + t], k = sc[4 * j + c];
            v[2 * j] = ((wg ? s[4 * j + 2] : s[4 * j]) + o.x) * k.x;
            v[2 * j + 1] = ((wg ? s[4 * j + 3] : s[4 * j + 1]) + o.y) * k.y;
        }
        if (blk * 64 + 64 > min_limit)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const int2 k = lim[4 * j + c];
                if (token >= k.x) v[2 * j] = -CUDART_INF_F;
                if (token >= k.y) v[2 * j + 1] = -CUDART_INF_F;
            }
        column_reduce<true>(v);
        const float4 *red = (const float4 *)(smem + sm.red);
        bool moved = false;
        float alpha[NC], mx[NC];
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float4 r[4];
#pragma unroll
            for (int i = 0; i < 4; i++) r[i] = red[(4 * j + c) * 4 + i];
            mx[2 * j] = fmaxf(fmaxf(m[2 * j], fmaxf(r[0].x, r[0].z)), fmaxf(fmaxf(r[1].x, r[1].z), fmaxf(fmaxf(r[2].x, r[2].z), fmaxf(r[3].x, r[3].z))));
            mx[2 * j + 1] = fmaxf(fmaxf(m[2 * j + 1], fmaxf(r[0].y, r[0].w)), fmaxf(fmaxf(r[1].y, r[1].w), fmaxf(fmaxf(r[2].y, r[2].w), fmaxf(r[3].y, r[3].w))));
        }
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const float use = mx[i] == -CUDART_INF_F ? 0.f : mx[i];
            alpha[i] = exp2_fast(m[i] - use);
            moved |= mx[i] != m[i];
            m[i] = mx[i];
            v[i] = exp2_fast(v[i] - use);
            l[i] = l[i] * alpha[i] + v[i];
        }
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int r = lane & 7;
            stmatrix_trans(base + sm.p + (8 * j + r) * 128 + (((2 * w + wg) ^ r) << 4), pack2<true>(v[2 * j], v[2 * j + 1]));
        }
        const int valid = len - blk * 64;
        if (valid < 64)
#pragma unroll
            for (int jj = 0; jj < OWN; jj++) zero_tail(pos.at(2 * jj + wg, d.slots), valid);
        fence_async_smem();
        bar_sync(BAR_ALL, CONSUMERS);
        if (__any_sync(~0u, moved))
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int j = 0; j < N / 2; j++) acc[i][j] *= alpha[2 * (j / 4) + (j & 1)];
    }

    /* Over the 8 lanes g of each warp (max or sum), then each warp's result into red[column pair][warp]; ends with a
     * barrier. Column 8j + 2c + e of warp i: float2 number (4j + c) * 8 + i. */
    template <bool MAX> __device__ __forceinline__ void column_reduce(const float (&v)[NC])
    {
        float2 *red = (float2 *)(smem + sm.red);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 x = over_rows<MAX>(make_float2(v[2 * j], v[2 * j + 1]));
            if (g == 0) red[(4 * j + c) * 8 + (wg * 4 + w)] = x;
        }
        bar_sync(BAR_ALL, CONSUMERS);
    }

    __device__ __forceinline__ void begin()
    {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < N / 2; j++) acc[i][j] = 0.f;
#pragma unroll
        for (int j = 0; j < NC; j++) m[j] = -CUDART_INF_F, l[j] = 0.f;
    }

    /* whole: this block saw every page of the sequence and writes the output itself; otherwise a partial for the merge. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        column_reduce<false>(l);
        const float2 *red = (const float2 *)(smem + sm.red);
#pragma unroll
        for (int j = 0; j < NC; j++) l[j] = 0.f;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            for (int i = 0; i < 8; i++) {
                const float2 r = red[(4 * j + c) * 8 + i];
                l[2 * j] += r.x, l[2 * j + 1] += r.y;
            }
#pragma unroll
        for (int k = 0; k < NC; k++) {
            const int n = 8 * (k >> 1) + 2 * c + (k & 1), row = blockIdx.y * N + n;
            if (row >= d.rows) continue;
            const float inv = l[k] > 0.f ? d.out_scale / l[k] : (l[k] == 0.f ? 0.f : l[k]); /* NaN stays NaN */
            const int tk = row / d.Hg, h = blockIdx.z * d.Hg + row % d.Hg;
            const size_t oo = (size_t)(b * d.o.b + tk * d.o.t + h * d.o.h);
            const size_t po = ((size_t)part_slot * N + n) * LAT;
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int lat = 128 * (2 * (i >> 1) + wg) + (8 * w + g) * 4 + 2 * (i & 1) + half;
                    const float x = acc[i][4 * (k >> 1) + 2 * half + (k & 1)] * inv;
                    if (!whole) d.po[po + lat] = x;
                    else store_f32((void *)d.o.p, d.o.f32, oo + lat, x);
                }
            if (wg == 0 && w == 0 && g == 0) {
                const float lse2 = l[k] > 0.f || l[k] != l[k] ? m[k] + log2f(l[k]) : -CUDART_INF_F;
                if (!whole) d.plse[(size_t)part_slot * N + n] = lse2;
                else if (d.lse) d.lse[((size_t)b * d.s_q + tk) * d.H + h] = lse2 * 0.693147180559945f;
            }
        }
    }
};

template <int LAT, int N>
static __device__ __forceinline__ void consume(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    Pair<LAT, N> k(d, smem, sm);
    const int2 from = part_begin(d, blockIdx.x), to = part_begin(d, blockIdx.x + 1);
    for (int b = from.x; b <= to.x && b < d.B; b++) {
        const int len = d.len[b], n = (len + 63) >> 6, i0 = b == from.x ? from.y : 0, i1 = b == to.x ? to.y : n;
        if (i0 >= i1) continue;
        bar_sync(BAR_ALL, CONSUMERS);
        load_q<LAT, N, 1, true, CONSUMERS / 32>(d, smem, sm, b, len);
        fence_async_smem();
        bar_sync(BAR_ALL, CONSUMERS);
        k.begin();
        const int min_limit = len - d.s_q + 1;
        for (int blk = i0; blk < i1; blk++) {
            float s[N / 2];
            k.qk(s);
            k.softmax(s, blk, len, min_limit);
            k.pv();
            k.pos = k.pos.at(Pair<LAT, N>::NB + 1, d.slots);
        }
        k.finish(b, i0 == 0 && i1 == n, part_slot(d, blockIdx.z * d.tiles + blockIdx.y, blockIdx.x, i0 == 0));
    }
}
#endif

template <int LAT, int N>
__global__ void __launch_bounds__(CONSUMERS + 128, 1)
    decode_pair(const __grid_constant__ CUtensorMap mc, const __grid_constant__ CUtensorMap mr, const __grid_constant__ DecodeP d)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(1024) char smem_raw[];
    char *smem = smem_1024(smem_raw);
    const DecodeSmem sm(N, LAT / 64 + 1, d.slots, 0);
    const uint32_t base = smem_u32(smem);
    init_ring(base + sm.bars, d.slots, 4);
    grid_wait();
    if (threadIdx.x >= CONSUMERS) {
        regs_shrink<24>();
        if (threadIdx.x < CONSUMERS + 32) produce<LAT, 1, true, false, 1>(&mc, &mr, d, base, sm);
    } else {
        regs_grow<240>();
        consume<LAT, N>(d, smem, sm);
    }
#endif
}
#endif
