/* Solo kernel, S of a page: keys times queries, from boxes, from rows in memory order or from e4m3 through registers; in a cluster the sums
 * of both blocks. */
#ifndef MLA_CUDA_DECODE_SOLO_KEYS_CUH
#define MLA_CUDA_DECODE_SOLO_KEYS_CUH
#include "cuda/decode_solo_role.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, int RB, bool FP8, int NW, bool SPLIT, int CL> struct SoloKeys : SoloRole<LAT, N, RB, FP8, NW, SPLIT, CL> {
    using B = SoloRole<LAT, N, RB, FP8, NW, SPLIT, CL>;
    using B::B;
    using typename B::RingPos;
    using B::d, B::base, B::sm, B::wg, B::w, B::lane, B::g, B::c, B::t, B::rank, B::pos, B::swaps, B::NB, B::PER, B::NT, B::GROUP, B::slot_addr,
        B::wait_full, B::release, B::pass_turn, B::q_box;

    __device__ __forceinline__ void qk_fp8(float (&s)[N / 2])
    {
        uint32_t a[2][2][4];
        const int row = 16 * w + tok8(g), sw = row & 7;
#pragma unroll
        for (int h = 0; h < LAT / 64 + RB; h++) { /* 64 latents or rotary dims at a time */
            const bool rope = h >= LAT / 64;
            const RingPos r = pos.at(rope ? NB + h - LAT / 64 : h >> 1, d.slots);
            const uint32_t at = slot_addr(r);
            const uint32_t lo = rope ? at + row * 64 + c * 16 : at + row * 128 + ((((h & 1) * 4 + c) ^ sw) << 4);
            qk_fp8_row<N, 4>(s, a, lo, lo + (rope ? 8 * 64 : 8 * 128), q_box(h), h == 0);
        }
        wgmma_wait<0>();
        wgmma_pin(s);
#pragma unroll
        for (int i = 0; i < RB; i++) release(pos.at(NB + i, d.slots));
    }
    /* Box by box as they arrive; whoever comes next may look at the ring once the last has. */
    __device__ __forceinline__ void qk_boxes(float (&s)[N / 2], bool last)
    {
        wgmma_pin(s);
        wgmma_fence();
#pragma unroll
        for (int h = 0; h < NB; h++) {
            const RingPos r = pos.at(h, d.slots);
            wait_full(r);
            qk_bf16<N, 4>(s, wgmma_lo(slot_addr(r)), q_box(h));
        }
#pragma unroll
        for (int h = NB; h < PER; h++) {
            const RingPos r = pos.at(h, d.slots);
            wait_full(r);
            qk_bf16<N, 4 / CL>(s, wgmma_lo(slot_addr(r)) + rank * 4, q_box(h) + rank * 4);
        }
        pass_turn(last);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(s);
#pragma unroll
        for (int i = 0; i < RB; i++) release(pos.at(NB + i, d.slots));
    }
    /* Each warp's 16 tokens lie in a slot of their own and come through registers, BATCH k-steps at a time: one batch is
     * fetched while the one before is multiplied. */
    __device__ __forceinline__ void qk_rows8(float (&s)[N / 2])
    {
        constexpr int BATCH = NW > 2 ? 2 : 4, FULL = (PER * 4 - (CL > 1 ? 4 : 0)) / BATCH, ALL_B = FULL + (CL > 1 ? 1 : 0);
        static_assert(CL == 1 || BATCH == 4, "the rotary half is one batch");
        const int r8 = lane & 7, hi = lane >> 4;
        const uint32_t at = slot_addr(pos.at(w, d.slots)) + ((lane >> 3) & 1) * GROUP + r8 * 128;
        uint32_t a[2][BATCH][4];
        auto steps = [&](int b) { return b < FULL ? BATCH : 2; };
        auto step = [&](int b, int i) { return b < FULL ? b * BATCH + i : FULL * BATCH + 2 * rank + i; }; /* k-step of 16 */
        auto fetch = [&](int b) {
#pragma unroll
            for (int i = 0; i < steps(b); i++) {
                const int k = step(b, i);
                ldmatrix4(a[b & 1][i], at + (k >> 2) * 1024 + (((2 * (k & 3) + hi) ^ r8) << 4));
            }
        };
        fetch(0);
        wgmma_pin(s);
#pragma unroll
        for (int b = 0; b < ALL_B; b++) {
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < steps(b); i++) {
                const int k = step(b, i);
                Wgmma<N>::template rs<false>(s, a[b & 1][i], wgmma_at(q_box(0) + (uint32_t)((k >> 2) * NT * 8 + (k & 3) * 2), 0));
            }
            wgmma_commit();
            if (b + 1 == ALL_B) break;
            if (b) wgmma_wait<1>();
            fetch(b + 1);
        }
        wgmma_wait<0>();
        wgmma_pin(s);
    }

    /* The twin's sum over its latents is added; both blocks get the same bits. Two buffers suffice: a thread sends the sums
     * of a page only when it has all of the page before, which every thread of the twin sent after it had read its buffer
     * of the page before that. */
    __device__ __forceinline__ void exchange(float (&s)[N / 2])
    {
        const uint32_t which = wg * 2 + (swaps & 1), buf = base + sm.ex + which * (N * 256) + t * 16,
                       bar = base + sm.bars + (2 * d.slots + NW + which) * 8, there = cluster_addr(buf, rank ^ 1),
                       bar_there = cluster_addr(bar, rank ^ 1);
        if (t == 0) mbar_expect(bar, N * 256);
#pragma unroll
        for (int i = 0; i < N / 8; i++) cluster_put(there + i * 2048, bar_there, s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
        mbar_wait(bar, (swaps >> 1) & 1);
        swaps++;
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            float4 v;
            asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(buf + i * 2048) : "memory");
            s[4 * i] += v.x, s[4 * i + 1] += v.y, s[4 * i + 2] += v.z, s[4 * i + 3] += v.w;
        }
    }
};
#endif
#endif
