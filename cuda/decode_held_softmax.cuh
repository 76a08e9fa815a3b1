/* Held kernel, the warpgroup of S and the softmax: holds the queries in registers, multiplies them with a page's keys while it takes
 * the softmax of the page before. A warp has 16 rows to itself: it needs no other. */
#ifndef MLA_CUDA_DECODE_HELD_SOFTMAX_CUH
#define MLA_CUDA_DECODE_HELD_SOFTMAX_CUH
#include "cuda/decode_held_role.cuh"

#ifdef MLA_HOPPER
template <int N, int CL> struct HeldSoftmax : HeldRole<N, CL> {
    using R = HeldRole<N, CL>;
    using typename R::RingPos;
    using R::base, R::c, R::d, R::g, R::lane, R::messages, R::pos, R::smem, R::t, R::w, R::LAT, R::NB, R::PER, R::THIRDS;
    uint32_t q[PER * 4][4];  /* rows g and g + 8 of the warp's 16 */
    float x[32];             /* S of a page: x[4j + {0, 1}] row g, tokens 8j + 2c + {0, 1}; x[4j + {2, 3}] row g + 8 */
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
        for (int i = 0; i < PER * 4; i++) {
            q[i][0] = q[i][1] = q[i][2] = q[i][3] = 0; /* rows of nobody: products with zeros take less power */
            if (!idle()) ldmatrix4(q[i], this->slot_addr(this->at(R::place(i / 4))) + row * 128 + (((2 * (i % 4) + hi) ^ r8) << 4));
        }
#pragma unroll
        for (int i = 0; i < PER; i++) this->release(this->at(i));
        this->next(PER);
        min_limit = len - d.s_q + 1;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = this->row_of(16 * w + g + 8 * i), seen = min(len, len - d.s_q + row / d.Hg + 1);
            limit[i] = row < d.rows && seen >= 0 ? seen : len;
            m[i] = -CUDART_INF_F, l[i] = 0.f;
        }
    }
    /* Queues S of the page at pos, whose first third is there; step(i) after product i. */
    template <typename F> __device__ __forceinline__ void multiply(F step)
    {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < PER * 4; i++) {
            const int b = i / 4, k = i % 4;
            constexpr auto third = [](int b) { return R::third_of(R::place(b)); };
            if (k == 0 && b && b < NB && third(b) != third(b - 1)) this->wait_full(third(b));
            const uint64_t keys = wgmma_at(wgmma_lo(this->slot_addr(this->at(R::place(b)))), k * 32);
            if (i == 0) Wgmma<64>::template rs<false, 0>(x, q[i], keys);
            else Wgmma<64>::template rs<false>(x, q[i], keys);
            step(i);
        }
        wgmma_commit();
    }
    /* Slots beyond the sequence's end hold anything; 0 x NaN must not reach the sum. */
    __device__ __forceinline__ void zero_tail(int valid) const
    {
        bar_sync(BAR_WG, 128); /* every warp has its S */
#pragma unroll 1
        for (int b = 0; b < NB; b++)
            for (int i = valid * 8 + t; i < 64 * 8; i += 128) *(uint4 *)(smem + this->at(R::place(b)).slot * BOX + i * 16) = make_uint4(0, 0, 0, 0);
        fence_async_smem();
        bar_sync(BAR_WG, 128);
    }
    /* Warps without rows go along, but leave nothing. */
    __device__ __forceinline__ void close_message(bool flag)
    {
        if (lane == 0 && !idle()) this->flags()[w] = flag;
        fence_async_smem();
        __syncwarp();
        mbar_arrive_if(this->sent(messages), lane == 0 && !idle());
    }
    /* The softmax of a page in small steps, one after each of the next page's products. No branches: the compiler would serialise the
     * products. Exponentials are spread out, two values a step, so that a step takes no longer than a product. */
    static constexpr int MAXES = 2, EXPS = MAXES + 3, CLOSE = EXPS + 17, STEPS = CLOSE + 1;
    static_assert(STEPS <= PER * 4, "every step has its product");
    struct Page {
        float s[32], v[2], use[2];
        uint32_t p[4], row;
        bool moved;
    };
    /* Where a row has passed the running maximum by 2^8, m becomes the maximum over all tokens so far; l follows, the factors go into
     * the note. */
    __device__ __forceinline__ void move_max(Page &k)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float mx = k.moved ? fmaxf(m[r], k.v[r]) : m[r];
            k.use[r] = mx == -CUDART_INF_F ? 0.f : mx;
            const float alpha = exp2_here(m[r] - k.use[r]);
            l[r] *= alpha, m[r] = mx;
            store_if(this->note_addr() + (16 * w + g + 8 * r) * 4, alpha, c == 0 && k.moved);
        }
    }
    __device__ __forceinline__ void step(Page &k, int i)
    {
        if (i == 0) k.v[0] = k.v[1] = -CUDART_INF_F;
        if (i < MAXES)
#pragma unroll
            for (int j = 32 / MAXES * i; j < 32 / MAXES * (i + 1); j++) k.v[j >> 1 & 1] = fmaxf(k.v[j >> 1 & 1], k.s[j]);
        if (i == MAXES) k.moved = __any_sync(~0u, k.v[0] > m[0] + 8.f || k.v[1] > m[1] + 8.f); /* m only has to keep exp2 in range */
        if (i == MAXES || i == MAXES + 1)
#pragma unroll
            for (int r = 0; r < 2; r++) k.v[r] = fmaxf(k.v[r], __shfl_xor_sync(~0u, k.v[r], i - MAXES + 1));
        if (i == MAXES + 2) {
            this->wait_used();
            move_max(k);
            k.row = this->p_addr() + (16 * w + (lane & 15)) * 128;
        }
        const int e = i - EXPS, r = e & 1; /* values 2e, 2e + 1; those of the step before are added and packed: nothing waits */
        if (e >= 0 && e < 16) k.s[2 * e] = exp2_here(k.s[2 * e] - k.use[r]), k.s[2 * e + 1] = exp2_here(k.s[2 * e + 1] - k.use[r]);
        if (e > 0 && e <= 16) {
            l[r ^ 1] += k.s[2 * e - 2], l[r ^ 1] += k.s[2 * e - 1];
            k.p[(e - 1) & 3] = pack2<false>(k.s[2 * e - 2], k.s[2 * e - 1]);
        }
        if (e > 0 && e <= 16 && e % 4 == 0) stmatrix4_if(k.row + (((e / 2 - 2 + (lane >> 4)) ^ (lane & 7)) << 4), k.p[0], k.p[1], k.p[2], k.p[3], !idle());
        if (i == CLOSE) close_message(k.moved);
    }
    /* The page at pos, the blk-th of its sequence, whose S is on its way. MORE: the next one is multiplied as soon as S is in s;
     * EDGE: not every row sees all of it. No product is under way where iterations read x: the compiler would serialise them. */
    template <bool MORE, bool EDGE> __device__ __forceinline__ void page(int blk, int len)
    {
        Page k;
        const RingPos rope = this->at(R::place(NB));
        if (MORE) {
            this->next(PER);
            this->wait_full(0);
        }
        wgmma_wait<0>();
        wgmma_pin(x);
#pragma unroll
        for (int i = 0; i < 32; i++) k.s[i] = x[i] * d.scale;
        if (EDGE) {
            const int token = blk * 64 + 2 * c;
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (token + 8 * (i >> 2) + (i & 1) >= limit[i >> 1 & 1]) k.s[i] = -CUDART_INF_F;
        }
        auto act = [&](int i) {
            if (i == 0) this->release(rope);
            if (i < STEPS) step(k, i);
        };
        if (MORE)
            multiply(act);
        else {
            if (len - blk * 64 < 64) zero_tail(len - blk * 64);
#pragma unroll
            for (int i = 0; i < STEPS; i++) act(i);
            this->next(PER);
        }
        messages++;
    }
    /* Pages [i0, i1) of a sequence. */
    __device__ __forceinline__ void pages(int len, int i0, int i1)
    {
        this->wait_full(0);
        multiply([](int) {});
        const int last = i1 - 1, all = min(last, max(min_limit, 0) >> 6); /* pages before `all` are seen whole by every row */
        int i = i0;
        for (; i < all; i++) page<true, false>(i, len);
        for (; i < last; i++) page<true, true>(i, len);
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
