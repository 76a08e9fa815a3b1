/* Decode over keys and values of their own (GQA), bf16, heads of D: the same plan, pages and merge as the latent kernels.
 * A block has one KV head and a share of the pages; boxes of 64 tokens x 64 keys, then of values, come through a ring of
 * whole pages. Four warps take 16 tokens of every page each, with a running maximum and an O of their own for up to 16 query
 * rows (heads of the group times new tokens), and join at a sequence's end.
 * mma.m16n8k16: query rows on 16 rows; keys and values by ldmatrix, P from the registers of S. */
#ifndef MLA_CUDA_DECODE_GQA_CUH
#define MLA_CUDA_DECODE_GQA_CUH
#include <cuda_bf16.h>
#include <math_constants.h>

#include "cuda/decode_sm90.cuh"

enum { GQA_ROWS = 16, GQA_WARPS = 4 };
/* Shared memory from a 1024-byte boundary: ring, one O of GQA_ROWS rows, maxima and sums of the warps, barriers. */
struct GqaSmem {
    uint32_t page, o, stat, bars, bytes;
    __host__ __device__ constexpr GqaSmem(int D, int slots) : page((uint32_t)(D / 32 * BOX)), o(0), stat(0), bars(0), bytes(0)
    {
        o = (uint32_t)slots * page;
        stat = o + (uint32_t)(GQA_ROWS * (D + 4) * 4);
        bars = stat + GQA_WARPS * GQA_ROWS * 8;
        bytes = bars + (uint32_t)slots * 16;
    }
};

#ifdef MLA_HOPPER
template <int D> struct Gqa {
    const DecodeP &d;
    char *smem;
    uint32_t base;
    GqaSmem sm;
    int w, lane, g, c;
    uint32_t q[D / 16][4];
    float o[D / 8][4], m[2], l[2]; /* rows g and g + 8 */

    __device__ __forceinline__ Gqa(const DecodeP &d_, char *smem_) : d(d_), smem(smem_), base(smem_u32(smem_)), sm(D, d_.slots)
    {
        w = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    }
    __device__ __forceinline__ int row_of(int half) const { return blockIdx.y * GQA_ROWS + g + 8 * half; }
    __device__ __forceinline__ size_t at(const DecodeRows &r, int b, int row) const
    {
        return (size_t)(b * r.b + row / d.Hg * r.t + (blockIdx.z * d.Hg + row % d.Hg) * r.h);
    }
    __device__ __forceinline__ void begin(int b)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bool in = row_of(half) < d.rows;
            const size_t from = in ? at(d.q, b, row_of(half)) : 0;
#pragma unroll
            for (int k = 0; k < D / 16; k++)
#pragma unroll
                for (int hi = 0; hi < 2; hi++) {
                    const size_t i = from + 16 * k + 2 * c + 8 * hi;
                    q[k][half + 2 * hi] = in ? pack2<false>(load_f32(d.q.p, d.q.f32, i), load_f32(d.q.p, d.q.f32, i + 1)) : 0u;
                }
            m[half] = -CUDART_INF_F, l[half] = 0.f;
        }
#pragma unroll
        for (int i = 0; i < D / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[i][e] = 0.f;
    }
    /* This warp's 16 tokens of the page in `slot`, the first of which is token `first` of the sequence. */
    __device__ __forceinline__ void tokens(uint32_t slot, int first, int len)
    {
        const uint32_t keys = base + slot * sm.page, values = keys + D / 64 * BOX;
        const int r8 = lane & 7, m1 = lane >> 3 & 1, m2 = lane >> 4;
        float s[2][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) { /* matrices: tokens 0-7 and 8-15 (m2), dims 0-7 and 8-15 (m1) */
            uint32_t b[4];
            ldmatrix4(b, keys + (k >> 2) * BOX + (16 * w + 8 * m2 + r8) * 128 + (((2 * (k & 3) + m1) ^ r8) << 4));
            mma_bf16(s[0], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
            mma_bf16(s[1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
        }
        float top[2], use[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int end = len - d.s_q + row_of(half) / d.Hg + 1 - first; /* tokens before it are seen */
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[i][2 * half + e];
                    x = 8 * i + 2 * c + e < end ? x * d.scale : -CUDART_INF_F;
                }
            top[half] = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
            top[half] = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], 1));
            top[half] = fmaxf(m[half], fmaxf(top[half], __shfl_xor_sync(~0u, top[half], 2)));
        }
        if (__any_sync(~0u, top[0] > m[0] || top[1] > m[1])) {
            float alpha[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                alpha[half] = exp2_fast(m[half] - (top[half] == -CUDART_INF_F ? 0.f : top[half]));
                m[half] = top[half], l[half] *= alpha[half];
            }
#pragma unroll
            for (int i = 0; i < D / 8; i++) o[i][0] *= alpha[0], o[i][1] *= alpha[0], o[i][2] *= alpha[1], o[i][3] *= alpha[1];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            use[half] = m[half] == -CUDART_INF_F ? 0.f : m[half];
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[i][2 * half + e];
                    x = exp2_fast(x - use[half]);
                    l[half] += x;
                }
        }
        const uint32_t p[4] = {pack2<false>(s[0][0], s[0][1]), pack2<false>(s[0][2], s[0][3]), pack2<false>(s[1][0], s[1][1]), pack2<false>(s[1][2], s[1][3])};
        if (first + 16 > len) { /* slots past the end hold anything; 0 x NaN must not reach the sum */
            for (int i = lane; i < 16 * (D / 8); i += 32) {
                const int t = i & 15, e = i >> 4;
                if (first + t >= len) *(uint4 *)(smem + (values - base) + (e >> 3) * BOX + (16 * w + t) * 128 + (e & 7) * 16) = make_uint4(0, 0, 0, 0);
            }
            __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++) { /* matrices: tokens 0-7 and 8-15 (m1), dims 0-7 and 8-15 (m2) */
            uint32_t b[4];
            ldmatrix4_trans(b, values + (i >> 2) * BOX + (16 * w + 8 * m1 + r8) * 128 + (((2 * (i & 3) + m2) ^ r8) << 4));
            mma_bf16(o[2 * i], p[0], p[1], p[2], p[3], b[0], b[1]);
            mma_bf16(o[2 * i + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
        }
    }
    /* The warps' sums of a sequence, brought to their common maximum, one after the other; then out. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        constexpr int LD = D + 4;
        float *sum = (float *)(smem + sm.o);
        float2 *stat = (float2 *)(smem + sm.stat);
        float f[2], all[2], top[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            l[half] += __shfl_xor_sync(~0u, l[half], 1);
            l[half] += __shfl_xor_sync(~0u, l[half], 2);
            if (c == 0) stat[w * GQA_ROWS + g + 8 * half] = make_float2(m[half], l[half]);
        }
        bar_sync(BAR_ALL, GQA_WARPS * 32);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[half] = -CUDART_INF_F, all[half] = 0.f;
            for (int i = 0; i < GQA_WARPS; i++) top[half] = fmaxf(top[half], stat[i * GQA_ROWS + g + 8 * half].x);
            const float use = top[half] == -CUDART_INF_F ? 0.f : top[half];
            for (int i = 0; i < GQA_WARPS; i++) {
                const float2 s = stat[i * GQA_ROWS + g + 8 * half];
                all[half] += s.y * exp2_fast(s.x - use);
            }
            f[half] = exp2_fast(m[half] - use) * (all[half] > 0.f ? d.out_scale / all[half] : (all[half] == 0.f ? 0.f : all[half])); /* NaN stays NaN */
        }
#pragma unroll 1
        for (int i = 0; i < GQA_WARPS; i++) {
            if (i == w)
#pragma unroll
                for (int n = 0; n < D / 8; n++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float2 *to = (float2 *)(sum + (g + 8 * half) * LD + 8 * n + 2 * c), x = make_float2(o[n][2 * half] * f[half], o[n][2 * half + 1] * f[half]);
                        if (i) x.x += to->x, x.y += to->y;
                        *to = x;
                    }
            bar_sync(BAR_ALL, GQA_WARPS * 32);
        }
        for (int i = threadIdx.x; i < GQA_ROWS * D; i += GQA_WARPS * 32) {
            const int n = i / D, e = i % D, row = blockIdx.y * GQA_ROWS + n;
            if (row >= d.rows) break;
            if (whole) store_f32((void *)d.o.p, d.o.f32, at(d.o, b, row) + e, sum[n * LD + e]);
            else d.po[((size_t)part_slot * GQA_ROWS + n) * D + e] = sum[n * LD + e];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = row_of(half);
            if (w || c || row >= d.rows) continue;
            const float lse2 = all[half] > 0.f || all[half] != all[half] ? top[half] + log2f(all[half]) : -CUDART_INF_F;
            if (!whole) d.plse[(size_t)part_slot * GQA_ROWS + g + 8 * half] = lse2;
            else if (d.lse) d.lse[((size_t)b * d.s_q + row / d.Hg) * d.H + blockIdx.z * d.Hg + row % d.Hg] = lse2 * 0.693147180559945f;
        }
        bar_sync(BAR_ALL, GQA_WARPS * 32);
    }
    /* f(sequence, first page, end, pages in all) for every sequence of the block's share. */
    template <class F> __device__ __forceinline__ void walk(F f) const
    {
        const int2 from = part_begin(d, blockIdx.x), to = part_begin(d, blockIdx.x + 1);
        for (int b = from.x; b <= to.x && b < d.B; b++) {
            const int n = (d.len[b] + 63) >> 6, i0 = b == from.x ? from.y : 0, i1 = b == to.x ? to.y : n;
            if (i0 < i1) f(b, i0, i1, n);
        }
    }
};
#endif

template <int D>
__global__ void __launch_bounds__(GQA_WARPS * 32 + 32, 1)
    decode_gqa(const __grid_constant__ CUtensorMap mk, const __grid_constant__ CUtensorMap mv, const __grid_constant__ DecodeP d)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(1024) char smem_raw[];
    char *smem = smem_1024(smem_raw);
    Gqa<D> k(d, smem);
    const uint32_t full = k.base + k.sm.bars, empty = full + d.slots * 8;
    init_ring(full, d.slots, GQA_WARPS);
    grid_wait();
    int slot = 0;
    uint32_t phase = 0;
    auto next = [&] {
        if (++slot == d.slots) slot = 0, phase ^= 1;
    };
    if (k.w == GQA_WARPS) {
        const uint64_t policy = evict_first_policy();
        k.walk([&](int b, int i0, int i1, int) {
            for (int i = i0; i < i1 && k.lane == 0; i++, next()) {
                const int page = d.table[b * d.table_stride + i];
                mbar_wait(empty + slot * 8, phase ^ 1);
                mbar_expect(full + slot * 8, k.sm.page);
                for (int x = 0; x < D / 64; x++) {
                    const uint32_t to = k.base + slot * k.sm.page + x * BOX;
                    tma_box(to, &mk, full + slot * 8, policy, d.lat_col + blockIdx.z * D + 64 * x, 0, page);
                    tma_box(to + D / 64 * BOX, &mv, full + slot * 8, policy, d.v_col + blockIdx.z * D + 64 * x, 0, page);
                }
            }
        });
        return;
    }
    k.walk([&](int b, int i0, int i1, int n) {
        k.begin(b);
        for (int i = i0; i < i1; i++, next()) {
            mbar_wait(full + slot * 8, phase);
            k.tokens(slot, i * 64 + 16 * k.w, d.len[b]);
            __syncwarp();
            mbar_arrive_if(empty + slot * 8, k.lane == 0);
        }
        k.finish(b, i0 == 0 && i1 == n, part_slot(d, blockIdx.z * d.tiles + blockIdx.y, blockIdx.x, i0 == 0));
    });
    grid_release();
#endif
}
#endif
