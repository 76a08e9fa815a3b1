/* The solo kernel: NW consumer warpgroups that never wait for each other inside a sequence: one multiplies while another
 * takes its softmax. Each keeps a whole O for its N query rows.
 * SPLIT = false: they share the rows and take every NW-th page; at the end of a sequence (or of the block's part of it)
 * warpgroup 0 gathers the sums through the space of the queries.
 * SPLIT = true: each has N rows of its own (NW N per block) and reads every page.
 * CL = 2: two blocks of a cluster share the pages, each with half of the latents (LAT): warpgroups exchange their sums of
 * S with their twins in the other block and take the same softmax; each block writes its half of O. The rotary box goes
 * to both, each multiplies half of it. */
#ifndef MLA_CUDA_DECODE_SOLO_CUH
#define MLA_CUDA_DECODE_SOLO_CUH
#include "cuda/decode_solo_sums.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, int RB, bool FP8, int NW, bool SPLIT, int CL> struct Solo : SoloSums<LAT, N, RB, FP8, NW, SPLIT, CL> {
    using B = SoloSums<LAT, N, RB, FP8, NW, SPLIT, CL>;
    using B::B;
    using B::d, B::smem, B::sm, B::wg, B::w, B::lane, B::g, B::c, B::acc, B::m, B::l, B::pos, B::TILES, B::NC, B::ROWS8, B::UNITS, B::wait_full,
        B::take_turn, B::pass_turn, B::p_addr, B::column_reduce, B::qk_fp8, B::qk_boxes, B::qk_rows8, B::exchange, B::zero_tail, B::pv_fp8,
        B::pv_bf16;

    static constexpr float SLACK = 8.f; /* exponents: P stays below 256 */
    /* m becomes the maximum over all tokens so far; O and l follow. v: this thread's largest logit per column. */
    __device__ __forceinline__ void move_max(const float (&v)[NC])
    {
        column_reduce<true>(v);
        const float4 *red = (const float4 *)(smem + sm.red) + wg * N;
        float alpha[NC];
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const float4 x = red[(4 * (i >> 1) + c) * 2], y = red[(4 * (i >> 1) + c) * 2 + 1];
            const float mx = i & 1 ? fmaxf(fmaxf(m[i], fmaxf(x.y, x.w)), fmaxf(y.y, y.w))
                                   : fmaxf(fmaxf(m[i], fmaxf(x.x, x.z)), fmaxf(y.x, y.z));
            alpha[i] = exp2_fast(m[i] - (mx == -CUDART_INF_F ? 0.f : mx));
            l[i] *= alpha[i];
            m[i] = mx;
        }
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < N / 2; j++) acc[i][j] *= alpha[2 * (j / 4) + (j & 1)];
    }

    __device__ __forceinline__ void softmax(float (&s)[N / 2], int blk, int len, int min_limit)
    {
        float v[NC];
        scale_columns(s, (const float *)(smem + sm.colscale) + (SPLIT ? wg * N : 0), c);
        if (blk * 64 + 64 > min_limit) mask_columns(s, (const int *)(smem + sm.limit) + (SPLIT ? wg * N : 0), c, blk * 64 + 16 * w + (FP8 ? tok8(g) : g));
        /* The running maximum only has to keep exp2 in range: it moves when some logit passes it by 2^SLACK. */
        bool beyond = false;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            v[2 * j] = fmaxf(s[4 * j], s[4 * j + 2]), v[2 * j + 1] = fmaxf(s[4 * j + 1], s[4 * j + 3]);
            beyond |= v[2 * j] > m[2 * j] + SLACK || v[2 * j + 1] > m[2 * j + 1] + SLACK;
        }
        if (bar_any(BAR_WG + wg, 128, beyond)) move_max(v);
        if (len - blk * 64 < 64) zero_tail(len - blk * 64); /* every warp has its S */
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const float use = m[i] == -CUDART_INF_F ? 0.f : m[i];
            const int k = 4 * (i >> 1) + (i & 1);
            s[k] = exp2_fast(s[k] - use);
            s[k + 2] = exp2_fast(s[k + 2] - use);
            l[i] += s[k] + s[k + 2];
        }
        /* two 8 x 8 blocks a column group: tokens 16w + 0..7 and + 8..15; lanes 0-7 and 8-15 address their columns */
        const int r8 = lane & 7, hi = (lane >> 3) & 1;
        const uint32_t row = p_addr() + r8 * 128 + (((2 * w + hi) ^ r8) << 4);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            stmatrix_trans2(row + 8 * j * 128, pack2<FP8>(s[4 * j], s[4 * j + 1]), pack2<FP8>(s[4 * j + 2], s[4 * j + 3]));
        fence_async_smem();
        bar_sync(BAR_WG + wg, 128);
    }

    /* The page at pos, the blk-th of its sequence. */
    __device__ __forceinline__ void page(int blk, int len, int min_limit, bool first, bool last)
    {
        take_turn(first);
        float s[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) s[i] = 0.f;
        if constexpr (FP8 || ROWS8) {
#pragma unroll
            for (int i = 0; i < UNITS; i++) wait_full(pos.at(i, d.slots));
            pass_turn(last);
            if constexpr (FP8) qk_fp8(s);
            else qk_rows8(s);
        } else
            qk_boxes(s, last);
        if constexpr (CL > 1) exchange(s);
        softmax(s, blk, len, min_limit);
        if constexpr (FP8) pv_fp8();
        else pv_bf16();
    }
    /* Pages [i0, i1) of a sequence; done: pages of the block's earlier sequences. */
    __device__ __forceinline__ void pages(int i0, int i1, int len, uint32_t done)
    {
        for (int blk = i0 + (SPLIT ? 0 : wg); blk < i1; blk += SPLIT ? 1 : NW) {
            const uint32_t slot = (done + (uint32_t)(blk - i0)) * UNITS;
            pos.slot = (int)(slot % (uint32_t)d.slots);
            pos.phase = (slot / (uint32_t)d.slots) & 1;
            page(blk, len, len - d.s_q + 1, blk == i0, blk + 1 == i1);
        }
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
};
#endif
#endif
