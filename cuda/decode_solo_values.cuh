/* Solo kernel, O of a page: P times values, from boxes or rows, or from e4m3 through registers. */
#ifndef MLA_CUDA_DECODE_SOLO_VALUES_CUH
#define MLA_CUDA_DECODE_SOLO_VALUES_CUH
#include "cuda/decode_solo_keys.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, int RB, bool FP8, int NW, bool SPLIT, int CL> struct SoloValues : SoloKeys<LAT, N, RB, FP8, NW, SPLIT, CL> {
    using B = SoloKeys<LAT, N, RB, FP8, NW, SPLIT, CL>;
    using B::B;
    using typename B::RingPos;
    using B::d, B::smem, B::sm, B::w, B::g, B::c, B::t, B::acc, B::pos, B::NB, B::TILES, B::ROWS8, B::GROUP, B::UNIT, B::slot_addr, B::release,
        B::p_box;

    __device__ __forceinline__ void zero_tail(int valid) const
    {
#pragma unroll 1
        for (int b = 0; b < NB; b++)
            for (int i = valid * 8 + t; i < 64 * 8; i += 128) {
                const int q = i >> 7; /* 16 tokens */
                const uint32_t at = ROWS8 ? pos.at(q, d.slots).slot * UNIT + (i >> 6 & 1) * GROUP + b * 1024 : pos.at(b, d.slots).slot * UNIT + (i >> 6) * 1024;
                *(uint4 *)(smem + sm.ring + at + (i & 63) * 16) = make_uint4(0, 0, 0, 0);
            }
    }

    __device__ __forceinline__ void pv_fp8()
    {
        uint32_t a[2][2][4], v[2][4];
#pragma unroll
        for (int i = 0; i < NB; i++) {
            const RingPos r = pos.at(i, d.slots);
            const uint32_t at = slot_addr(r);
            if (i == 0) pv_load(v[0], at, 0, w, g, c);
#pragma unroll
            for (int ks = 0; ks < 4; ks++) {
                if (ks < 3) pv_load(v[(ks + 1) & 1], at, ks + 1, w, g, c);
                else if (i + 1 < NB) pv_load(v[0], slot_addr(pos.at(i + 1, d.slots)), 0, w, g, c);
                if (i || ks > 1) wgmma_wait<1>();
                pv_frags(a[ks & 1], v[ks & 1]);
                if (i == 0 && ks == 0)
#pragma unroll
                    for (int j = 0; j < TILES; j++) wgmma_pin(acc[j]);
                wgmma_fence();
                Wgmma<N>::template rs<true>(acc[2 * i], a[ks & 1][0], wgmma_at(p_box(), ks * 32));
                Wgmma<N>::template rs<true>(acc[2 * i + 1], a[ks & 1][1], wgmma_at(p_box(), ks * 32));
                wgmma_commit();
            }
            release(r); /* its bytes are in registers */
        }
        wgmma_wait<0>();
    }
    __device__ __forceinline__ void pv_bf16()
    {
#pragma unroll
        for (int j = 0; j < TILES; j++) wgmma_pin(acc[j]);
        wgmma_fence();
        constexpr int OUTER = ROWS8 ? 4 : NB, INNER = ROWS8 ? NB : 4; /* slots are released one by one */
#pragma unroll
        for (int o = 0; o < OUTER; o++) {
            const uint32_t at = wgmma_lo(slot_addr(pos.at(o, d.slots)));
#pragma unroll
            for (int i = 0; i < INNER; i++) {
                const int box = ROWS8 ? i : o, ks = ROWS8 ? o : i;
                Wgmma<N>::template ss<false, 1>(acc[box], wgmma_at<GROUP>(at, ROWS8 ? box * 1024 : ks * 2048), wgmma_at(p_box(), ks * 32));
            }
            wgmma_commit();
            if (o) {
                wgmma_wait<1>();
                release(pos.at(o - 1, d.slots));
            }
        }
        wgmma_wait<0>();
        release(pos.at(OUTER - 1, d.slots));
    }
};
#endif
#endif
