/* Trio kernel, what a warpgroup of the softmax keeps from page to page: totals, and with its neighbour the columns' maxima in turn. */
#ifndef MLA_CUDA_DECODE_TRIO_TOTALS_CUH
#define MLA_CUDA_DECODE_TRIO_TOTALS_CUH
#include "cuda/decode_trio_keys.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioTotals : TrioKeys<LAT, N> {
    using K = TrioKeys<LAT, N>;
    using K::base, K::c, K::g, K::messages, K::sm, K::smem, K::t, K::w, K::mine;
    static constexpr int NC = N / 4;
    float l[NC]; /* a thread's share of its columns' totals */

    __device__ __forceinline__ TrioTotals(const DecodeP &d_, char *smem_, const DecodeSmem &sm_) : K(d_, smem_, sm_) {}
    __device__ __forceinline__ uint32_t moved(uint32_t msg) const { return base + sm.top + N * 8 + (msg & 1) * 4; } /* whether the message moved the maxima */
    __device__ __forceinline__ float2 *red(int of) const { return (float2 *)(smem + sm.red) + of * N * 2; }
    /* Messages get their maxima in order; whether the one before moved them. */
    __device__ __forceinline__ bool take_turn() const
    {
        mbar_wait(this->turn(mine), ((messages >> 1) + mine + 1) & 1);
        return lds32(moved(messages - 1));
    }
    __device__ __forceinline__ void pass_turn(bool move) const
    {
        if (t == 0) sts32(moved(messages), move);
        mbar_arrive_if(this->turn(mine ^ 1), t == 0);
    }
    /* Totals follow the message before, the other warpgroup's: its factors are still in its note. */
    __device__ __forceinline__ void follow()
    {
#pragma unroll
        for (int i = 0; i < NC; i++) scale_total(i, ((const float *)this->note(messages - 1))[8 * (i >> 1) + 2 * c + (i & 1)]);
    }
    /* e4m3: a thread's totals lie in shared memory while it multiplies, in its registers are fragments. */
    static constexpr bool APART = decode_totals(N);
    __device__ __forceinline__ float4 *totals() const { return (float4 *)(smem + sm.totals) + this->tid; }
    __device__ __forceinline__ void get_totals()
    {
        if constexpr (APART)
#pragma unroll
            for (int i = 0; i < NC / 4; i++) {
                const float4 y = totals()[i * 256];
                l[4 * i] = y.x, l[4 * i + 1] = y.y, l[4 * i + 2] = y.z, l[4 * i + 3] = y.w;
            }
    }
    __device__ __forceinline__ void put_totals() const
    {
        if constexpr (APART)
#pragma unroll
            for (int i = 0; i < NC / 4; i++) totals()[i * 256] = make_float4(l[4 * i], l[4 * i + 1], l[4 * i + 2], l[4 * i + 3]);
    }
    /* A total where it lies. */
    __device__ __forceinline__ void scale_total(int i, float f)
    {
        if constexpr (APART) ((float *)(totals() + i / 4 * 256))[i % 4] *= f;
        else l[i] *= f;
    }
    __device__ __forceinline__ void begin()
    {
#pragma unroll
        for (int j = 0; j < NC; j++) l[j] = 0.f;
        put_totals();
    }

    /* Over the 8 lanes g of each warp (max or sum), then the warps' results into red; ends with the warpgroup's barrier. */
    template <bool MAX> __device__ __forceinline__ void column_reduce(const float (&v)[NC])
    {
        float2 *to = red(mine);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 y = over_rows<MAX>(make_float2(v[2 * j], v[2 * j + 1]));
            if (g == 0) to[(4 * j + c) * 4 + w] = y;
        }
        bar_sync(BAR_WG + mine, 128);
    }
};
#endif
#endif
