/* Held kernel, the warpgroup of S and the softmax: holds the queries of 512 latents in registers, multiplies them with a page's
 * keys while it takes the softmax of the page before. A warp has 16 rows to itself: it needs no other. */
#ifndef MLA_CUDA_DECODE_HELD_SOFTMAX_CUH
#define MLA_CUDA_DECODE_HELD_SOFTMAX_CUH
#include "cuda/decode_held_role.cuh"

#ifdef MLA_HOPPER
template <int N> struct HeldSoftmax : HeldRole<N> {
    using R = HeldRole<N>;
    using typename R::RingPos;
    using R::base, R::c, R::d, R::g, R::lane, R::messages, R::pos, R::smem, R::t, R::w, R::LAT, R::NB, R::PER, R::THIRDS;
    uint32_t q[NB * 4][4];   /* rows g and g + 8 of the warp's 16 */
    float x[32];             /* S of the page at pos: x[4j + {0, 1}] row g, tokens 8j + 2c + {0, 1}; x[4j + {2, 3}] row g + 8 */
    float m[2], l[2];        /* of the two rows: maximum, the thread's share of the total */
    int limit[2], min_limit; /* tokens a row sees; the least of all rows */

    __device__ __forceinline__ HeldSoftmax(const DecodeP &d_, char *smem_) : R(d_, smem_) {}
    __device__ __forceinline__ bool idle() const { return w >= N / 16; }

    __device__ __forceinline__ void queries(int, int len)
    {
        const int r8 = lane & 7, hi = lane >> 4;
        const uint32_t row = 16 * w + (lane & 15);
        for (int i = 0; i < THIRDS; i++) this->wait_full(i);
#pragma unroll
        for (int b = 0; b < NB; b++) {
#pragma unroll
            for (int k = 0; k < 4; k++) ldmatrix4(q[4 * b + k], this->slot_addr(this->at(b)) + row * 128 + (((2 * k + hi) ^ r8) << 4));
        }
#pragma unroll
        for (int b = 0; b < NB; b++) this->release(this->at(b));
        this->next(NB);
        min_limit = len - d.s_q + 1;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = this->row_of(16 * w + g + 8 * i), seen = min(len, len - d.s_q + row / d.Hg + 1);
            limit[i] = row < d.rows && seen >= 0 ? seen : len;
            m[i] = -CUDART_INF_F, l[i] = 0.f;
        }
    }
    /* Queues S of the page at pos; step(i) between product i and the next: the warp cannot queue
     * products faster than they are worked off, so this time is free. */
    template <typename F> __device__ __forceinline__ void multiply(F step)
    {
#pragma unroll
        for (int i = 0; i < 32; i++) x[i] = 0.f;
        wgmma_pin(x);
        wgmma_fence();
#pragma unroll
        for (int b = 0; b < NB; b++) {
            if (!b || R::third_of(b) != R::third_of(b - 1)) this->wait_full(R::third_of(b));
            const uint32_t keys = wgmma_lo(this->slot_addr(this->at(b)));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                Wgmma<64>::template rs<false>(x, q[4 * b + k], wgmma_at(keys, k * 32));
                step(4 * b + k);
            }
        }
        qk_bf16<64, 4>(x, wgmma_lo(base + R::sm().q2), wgmma_lo(this->slot_addr(this->at(NB))));
        wgmma_commit();
    }
    __device__ __forceinline__ void multiplied()
    {
        wgmma_wait<0>();
        wgmma_pin(x);
        this->release(this->at(NB));
    }
    /* Slots beyond the sequence's end hold anything; 0 x NaN must not reach the sum. */
    __device__ __forceinline__ void zero_tail(int valid) const
    {
        bar_sync(BAR_WG, 128); /* every warp has its S */
#pragma unroll 1
        for (int b = 0; b < NB; b++)
            for (int i = valid * 8 + t; i < 64 * 8; i += 128) *(uint4 *)(smem + this->at(b).slot * BOX + i * 16) = make_uint4(0, 0, 0, 0);
        fence_async_smem();
        bar_sync(BAR_WG, 128);
    }
    /* m becomes the maximum over all tokens so far, l follows; the factors go into the note. */
    __device__ __forceinline__ void move_max(float (&v)[2])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            for (int o = 1; o < 4; o <<= 1) v[i] = fmaxf(v[i], __shfl_xor_sync(~0u, v[i], o));
            const float mx = fmaxf(m[i], v[i]), alpha = exp2_fast(m[i] - (mx == -CUDART_INF_F ? 0.f : mx));
            l[i] *= alpha;
            m[i] = mx;
            if (c == 0) this->note()[16 * w + g + 8 * i] = alpha;
        }
    }
    /* Warps without rows go along, but leave nothing. */
    __device__ __forceinline__ void close_message(bool flag)
    {
        if (lane == 0 && !idle()) this->flags()[w] = flag;
        fence_async_smem();
        __syncwarp();
        mbar_arrive_if(this->sent(messages), lane == 0 && !idle());
    }
    /* The page whose S is x, the blk-th of its sequence; MORE: the next one is multiplied in the meantime; EDGE: not every row sees
     * all of it. No product is under way where iterations meet: the compiler would serialise them. */
    template <bool MORE, bool EDGE> __device__ __forceinline__ void page(int blk, int len)
    {
        float s[32], v[2] = {-CUDART_INF_F, -CUDART_INF_F};
#pragma unroll
        for (int i = 0; i < 32; i++) s[i] = x[i] * d.scale;
        if (EDGE) {
            const int token = blk * 64 + 2 * c;
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (token + 8 * (i >> 2) + (i & 1) >= limit[i >> 1 & 1]) s[i] = -CUDART_INF_F;
            if (len - blk * 64 < 64) zero_tail(len - blk * 64);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) v[i >> 1 & 1] = fmaxf(v[i >> 1 & 1], s[i]);
        this->wait_used();
        /* the running maximum only has to keep exp2 in range */
        const bool moved = __any_sync(~0u, v[0] > m[0] + 8.f || v[1] > m[1] + 8.f);
        if (moved) move_max(v);
        const float use[2] = {m[0] == -CUDART_INF_F ? 0.f : m[0], m[1] == -CUDART_INF_F ? 0.f : m[1]};
        const uint32_t row = this->p_addr() + (16 * w + (lane & 15)) * 128;
        uint32_t p[4];
        auto step = [&](int i) { /* values 2i, 2i + 1; those of the step before are added and packed: nothing waits */
            if (i < 16) s[2 * i] = exp2_here(s[2 * i] - use[i & 1]), s[2 * i + 1] = exp2_here(s[2 * i + 1] - use[i & 1]);
            if (i > 0 && i <= 16) {
                l[(i - 1) & 1] += s[2 * i - 2], l[(i - 1) & 1] += s[2 * i - 1];
                p[(i - 1) & 3] = pack2<false>(s[2 * i - 2], s[2 * i - 1]);
            }
            if (i > 0 && i <= 16 && i % 4 == 0) stmatrix4_if(row + (((i / 2 - 2 + (lane >> 4)) ^ (lane & 7)) << 4), p[0], p[1], p[2], p[3], !idle());
            if (i == 17) close_message(moved);
        };
        this->next(PER);
        if (MORE) {
            multiply(step);
            multiplied();
        } else
#pragma unroll
            for (int i = 0; i < 18; i++) step(i);
        messages++;
    }
    /* Pages [i0, i1) of a sequence. */
    __device__ __forceinline__ void pages(int len, int i0, int i1)
    {
        multiply([](int) {});
        multiplied();
        const int last = i1 - 1, all = min(last, max(min_limit, 0) >> 6); /* pages before `all` are seen whole by every row */
        int i = i0;
        for (; i < all; i++) page<true, false>(i, len);
        for (; i < last; i++) page<true, true>(i, len);
        mbar_arrive_if(this->q2_free(), lane == 0);
        page<false, true>(last, len);
    }
    /* The note that finishes O; log-sum-exps. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        this->wait_used();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = l[i];
            for (int o = 1; o < 4; o <<= 1) sum += __shfl_xor_sync(~0u, sum, o);
            const int n = 16 * w + g + 8 * i, row = this->row_of(n);
            if (c || idle()) continue;
            this->note()[n] = sum > 0.f ? d.out_scale / sum : (sum == 0.f ? 0.f : sum); /* NaN stays NaN */
            if (row >= d.rows) continue;
            const float lse2 = sum > 0.f || sum != sum ? m[i] + log2f(sum) : -CUDART_INF_F;
            if (!whole) d.plse[(size_t)part_slot * N + n] = lse2;
            else if (d.lse) d.lse[((size_t)b * d.s_q + row / d.Hg) * d.H + blockIdx.z * d.Hg + row % d.Hg] = lse2 * 0.693147180559945f;
        }
        __syncwarp();
        close_message(true);
        messages++;
    }
};
#endif
#endif
