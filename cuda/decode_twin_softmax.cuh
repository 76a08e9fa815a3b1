/* Twin kernel, the warpgroup of S and the softmax: multiplies keys and queries, exchanges sums with its twin in a cluster,
 * keeps maxima and totals, sends messages (decode_twin.cuh) to the warpgroups of O. */
#ifndef MLA_CUDA_DECODE_TWIN_SOFTMAX_CUH
#define MLA_CUDA_DECODE_TWIN_SOFTMAX_CUH
#include "cuda/decode_twin_role.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, bool FP8, int CL> struct TwinSoftmax : TwinRole<LAT, N, FP8, CL> {
    using R = TwinRole<LAT, N, FP8, CL>;
    using typename R::RingPos;
    using R::base, R::c, R::d, R::g, R::lane, R::messages, R::pos, R::rank, R::sequences, R::sm, R::smem, R::t, R::w, R::NB, R::OWN, R::PER;
    static constexpr int NC = OWN / 4;
    float x[N / 2], m[NC], l[NC]; /* S of the page at pos */
    uint32_t swaps;

    __device__ __forceinline__ TwinSoftmax(const DecodeP &d_, char *smem_, const DecodeSmem &sm_) : R(d_, smem_, sm_), swaps(0) {}
    __device__ __forceinline__ void begin()
    {
#pragma unroll
        for (int j = 0; j < NC; j++) m[j] = -CUDART_INF_F, l[j] = 0.f;
    }

    /* Queues S of the page at pos, box by box as they arrive. */
    __device__ __forceinline__ void multiply()
    {
        if constexpr (FP8) multiply_fp8();
        else if constexpr (R::ROWS8) multiply_rows8();
        else multiply_boxes();
    }
    __device__ __forceinline__ void multiply_fp8()
    {
        const uint32_t q = wgmma_lo(base + sm.q);
        uint32_t a[2][2][4];
        const int row = 16 * w + tok8(g), sw = row & 7;
#pragma unroll
        for (int i = 0; i < N / 2; i++) x[i] = 0.f;
#pragma unroll
        for (int h = 0; h < LAT / 64; h++) { /* 64 latents at a time */
            const RingPos r = pos.at(h >> 1, d.slots);
            if (!(h & 1)) this->wait_full(r);
            const uint32_t lo = this->slot_addr(r) + row * 128 + ((((h & 1) * 4 + c) ^ sw) << 4);
            qk_fp8_row<N, 4>(x, a, lo, lo + 8 * 128, q + ((h * N * 128) >> 4), h == 0);
        }
        const RingPos r = pos.at(NB, d.slots);
        this->wait_full(r);
        const uint32_t lo = this->slot_addr(r) + row * 64 + c * 16 + rank * 8;
        qk_fp8_row<N, 4 / CL>(x, a, lo, lo + 8 * 64, q + ((LAT / 64 * N * 128) >> 4) + rank * 4, false);
        wgmma_wait<0>(); /* the products read a */
    }
    __device__ __forceinline__ void multiply_boxes()
    {
        const uint32_t q = wgmma_lo(base + sm.q);
#pragma unroll
        for (int i = 0; i < N / 2; i++) x[i] = 0.f;
        wgmma_pin(x);
        wgmma_fence();
#pragma unroll
        for (int h = 0; h < NB; h++) {
            const RingPos r = pos.at(h, d.slots);
            this->wait_full(r);
            qk_bf16<N, 4>(x, wgmma_lo(this->slot_addr(r)), q + ((h * N * 128) >> 4));
        }
        const RingPos r = pos.at(NB, d.slots);
        this->wait_full(r);
        qk_bf16<N, 4 / CL>(x, wgmma_lo(this->slot_addr(r)) + rank * 4, q + ((NB * N * 128) >> 4) + rank * 4);
        wgmma_commit();
    }

    /* A warp's 16 tokens lie in a slot of their own and come through registers, 4 k-steps at a time: one batch is fetched
     * while the one before is multiplied. */
    __device__ __forceinline__ void multiply_rows8()
    {
        const int r8 = lane & 7, hi = lane >> 4;
        const RingPos r = pos.at(w, d.slots);
        const uint32_t at = this->slot_addr(r) + ((lane >> 3) & 1) * R::GROUP + r8 * 128, q = wgmma_lo(base + sm.q);
        uint32_t a[2][4][4];
        auto fetch = [&](int box) {
#pragma unroll
            for (int k = 0; k < 4; k++) ldmatrix4(a[box & 1][k], at + box * 1024 + (((2 * k + hi) ^ r8) << 4));
        };
#pragma unroll
        for (int i = 0; i < N / 2; i++) x[i] = 0.f;
        this->wait_full(r);
        fetch(0);
        wgmma_pin(x);
#pragma unroll
        for (int b = 0; b < PER; b++) {
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) Wgmma<N>::template rs<false>(x, a[b & 1][k], wgmma_at(q + (uint32_t)(b * N * 8), k * 32));
            wgmma_commit();
            if (b + 1 == PER) break;
            if (b) wgmma_wait<1>();
            fetch(b + 1);
        }
    }

    /* Slots beyond the sequence's end hold anything; 0 x NaN must not reach the sum. */
    __device__ __forceinline__ void zero_tail(RingPos page, int valid) const
    {
#pragma unroll 1
        for (int b = 0; b < NB; b++)
            for (int i = valid * 8 + t; i < 64 * 8; i += 128) {
                const uint32_t at = R::ROWS8 ? page.at(i >> 7, d.slots).slot * R::UNIT + (i >> 6 & 1) * R::GROUP + b * 1024 : page.at(b, d.slots).slot * BOX + (i >> 6) * 1024;
                *(uint4 *)(smem + sm.ring + at + (i & 63) * 16) = make_uint4(0, 0, 0, 0);
            }
    }

    /* Over the 8 lanes g of each warp (max or sum), then the warps' results into red; ends with the warpgroup's barrier. */
    template <bool MAX> __device__ __forceinline__ void column_reduce(const float (&v)[NC])
    {
        float2 *red = (float2 *)(smem + sm.red);
#pragma unroll
        for (int j = 0; j < OWN / 8; j++) {
            float2 y = make_float2(v[2 * j], v[2 * j + 1]);
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) {
                const float ax = __shfl_xor_sync(~0u, y.x, o), ay = __shfl_xor_sync(~0u, y.y, o);
                y.x = MAX ? fmaxf(y.x, ax) : y.x + ax;
                y.y = MAX ? fmaxf(y.y, ay) : y.y + ay;
            }
            if (g == 0) red[(4 * j + c) * 4 + w] = y;
        }
        bar_sync(BAR_WG, 128);
    }
    /* m becomes the maximum over all tokens so far, l follows; the factors go into the note. */
    __device__ __forceinline__ void move_max(const float (&v)[NC])
    {
        column_reduce<true>(v);
        const float4 *red = (const float4 *)(smem + sm.red);
        float *note = (float *)this->note(messages);
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const float4 a = red[(4 * (i >> 1) + c) * 2], b = red[(4 * (i >> 1) + c) * 2 + 1];
            const float mx = i & 1 ? fmaxf(fmaxf(m[i], fmaxf(a.y, a.w)), fmaxf(b.y, b.w)) : fmaxf(fmaxf(m[i], fmaxf(a.x, a.z)), fmaxf(b.x, b.z));
            const float alpha = exp2_fast(m[i] - (mx == -CUDART_INF_F ? 0.f : mx));
            l[i] *= alpha;
            m[i] = mx;
            if (t < 4) note[8 * (i >> 1) + 2 * c + (i & 1)] = alpha;
        }
    }
    /* This block's half of the message is there. Before anything goes to the twin: the fence would wait for that, too. */
    __device__ __forceinline__ void close_message(uint32_t bytes, bool flag)
    {
        if (t == 0) *(int *)(this->note(messages) + R::FLAGS) = flag;
        fence_async_smem();
        __syncwarp();
        if (CL > 1 && t == 0) mbar_expect(this->sent(messages), bytes);
        mbar_arrive_if(this->sent(messages), lane == 0 && (CL == 1 || w > 0));
    }
    /* This block's half of the note to the twin, by warp 0, which wrote it. */
    __device__ __forceinline__ void send_note()
    {
        if (CL == 1 || w || lane > OWN / 4) return;
        const char *note = this->note(messages);
        const uint32_t from = smem_u32(note), to = cluster_addr(from, rank ^ 1), there = cluster_addr(this->sent(messages), rank ^ 1);
        const bool last = lane == OWN / 4;
        const float4 v = *(const float4 *)(note + (last ? R::FLAGS : lane * 16));
        cluster_put(to + (last ? R::FLAGS + 16 : OWN * 4 + lane * 16), there, v.x, v.y, v.z, v.w);
    }

    template <int M> __device__ __forceinline__ void scale(float (&s)[M / 2])
    {
        const float2 *sc = (const float2 *)(smem + sm.colscale);
#pragma unroll
        for (int j = 0; j < M / 8; j++) {
            const float2 k = sc[4 * j + c];
            s[4 * j] *= k.x, s[4 * j + 1] *= k.y, s[4 * j + 2] *= k.x, s[4 * j + 3] *= k.y;
        }
    }
    template <int M> __device__ __forceinline__ void softmax(float (&s)[M], int blk, int len, int min_limit, RingPos page)
    {
        const int2 *lim = (const int2 *)(smem + sm.limit);
        float v[NC];
        if (!(FP8 && CL > 1)) scale<OWN>(s);
        if (blk * 64 + 64 > min_limit) {
            const int token = blk * 64 + 16 * w + (FP8 ? tok8(g) : g);
#pragma unroll
            for (int j = 0; j < OWN / 8; j++) {
                const int2 k = lim[4 * j + c];
                if (token >= k.x) s[4 * j] = -CUDART_INF_F;
                if (token >= k.y) s[4 * j + 1] = -CUDART_INF_F;
                if (token + 8 >= k.x) s[4 * j + 2] = -CUDART_INF_F;
                if (token + 8 >= k.y) s[4 * j + 3] = -CUDART_INF_F;
            }
        }
        bool beyond = false; /* the running maximum only has to keep exp2 in range */
#pragma unroll
        for (int j = 0; j < OWN / 8; j++) {
            v[2 * j] = fmaxf(s[4 * j], s[4 * j + 2]), v[2 * j + 1] = fmaxf(s[4 * j + 1], s[4 * j + 3]);
            beyond |= v[2 * j] > m[2 * j] + 8.f || v[2 * j + 1] > m[2 * j + 1] + 8.f;
        }
        mbar_wait(this->used(messages), ((messages >> 1) & 1) ^ 1);
        const bool moved = bar_any(BAR_WG, 128, beyond);
        if (moved) move_max(v);
        if (len - blk * 64 < 64) zero_tail(page, len - blk * 64); /* every warp has its S */
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const float use = m[i] == -CUDART_INF_F ? 0.f : m[i];
            const int k = 4 * (i >> 1) + (i & 1);
            s[k] = exp2_fast(s[k] - use);
            s[k + 2] = exp2_fast(s[k + 2] - use);
            l[i] += s[k] + s[k + 2];
        }
        const int r8 = lane & 7, hi = (lane >> 3) & 1;
        const uint32_t p = this->p_addr(messages), row = p + r8 * 128 + (((2 * w + hi) ^ r8) << 4);
#pragma unroll
        for (int j = 0; j < OWN / 8; j++)
            stmatrix_trans2(row + 8 * j * 128, pack2<FP8>(s[4 * j], s[4 * j + 1]), pack2<FP8>(s[4 * j + 2], s[4 * j + 3]));
        close_message(OWN * 128 + R::SENT, moved);
        send_note();
        if constexpr (CL > 1) send_p(p);
        messages++;
    }
    /* The warp's 16 tokens of every own column, 16 bytes at a time. */
    __device__ __forceinline__ void send_p(uint32_t p)
    {
        const uint32_t there = cluster_addr(p, rank ^ 1) + OWN * 128, bar = cluster_addr(this->sent(messages), rank ^ 1);
#pragma unroll
        for (int i = lane; i < OWN * 2; i += 32) {
            const int n = i >> 1, at = n * 128 + (((2 * w + (i & 1)) ^ (n & 7)) << 4);
            float4 y;
            asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(y.x), "=f"(y.y), "=f"(y.z), "=f"(y.w) : "r"(p + at) : "memory");
            cluster_put(there + at, bar, y.x, y.y, y.z, y.w);
        }
    }

    __device__ __forceinline__ void multiplied()
    {
        wgmma_wait<0>();
        wgmma_pin(x);
        if (!R::ROWS8) this->release(pos.at(NB, d.slots));
    }
    /* The page whose S is x, the blk-th of its sequence; MORE: the next one is multiplied in the meantime. No product is
     * under way where iterations meet: the compiler would serialise them. */
    template <bool MORE> __device__ __forceinline__ void page(int blk, int len, int min_limit)
    {
        const RingPos here = pos;
        if constexpr (CL == 1) {
            pos = here.at(R::UNITS, d.slots);
            softmax(x, blk, len, min_limit, here);
        } else {
            if (swaps) mbar_wait(this->room(), (swaps - 1) & 1); /* the twin has read the sums before */
            if (t == 0) mbar_expect(this->sums(), OWN * 256);
            const uint32_t ex = base + sm.ex + t * 16, there = cluster_addr(ex, rank ^ 1), bar = cluster_addr(this->sums(), rank ^ 1);
            float s[OWN / 2];
            if (FP8) scale<N>(x); /* the blocks' queries are scaled each by their own powers of two */
#pragma unroll
            for (int i = 0; i < OWN / 8; i++) cluster_put(there + i * 2048, bar, x[OWN / 2 + 4 * i], x[OWN / 2 + 4 * i + 1], x[OWN / 2 + 4 * i + 2], x[OWN / 2 + 4 * i + 3]);
#pragma unroll
            for (int i = 0; i < OWN / 2; i++) s[i] = x[i];
            pos = here.at(PER, d.slots);
            if (MORE) multiply();
            mbar_wait(this->sums(), swaps++ & 1);
#pragma unroll
            for (int i = 0; i < OWN / 8; i++) {
                float4 v;
                asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(ex + i * 2048) : "memory");
                s[4 * i] += v.x, s[4 * i + 1] += v.y, s[4 * i + 2] += v.z, s[4 * i + 3] += v.w;
            }
            __syncwarp();
            cluster_arrive_if(cluster_addr(this->room(), rank ^ 1), lane == 0);
            softmax(s, blk, len, min_limit, here);
            if (MORE) multiplied();
        }
    }

    /* The note that finishes O; log-sum-exps. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        bar_sync(BAR_WG, 128); /* nobody reads what the last maximum was made of */
        column_reduce<false>(l);
        const float2 *red = (const float2 *)(smem + sm.red);
        mbar_wait(this->used(messages), ((messages >> 1) & 1) ^ 1);
        float *note = (float *)this->note(messages);
#pragma unroll
        for (int k = 0; k < NC; k++) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 y = red[(4 * (k >> 1) + c) * 4 + i];
                sum += k & 1 ? y.y : y.x;
            }
            const int n = 8 * (k >> 1) + 2 * c + (k & 1), row = this->row_of(n);
            if (t >= 4) continue;
            note[n] = sum > 0.f ? d.out_scale / sum : (sum == 0.f ? 0.f : sum); /* NaN stays NaN */
            if (row >= d.rows) continue;
            const float lse2 = sum > 0.f || sum != sum ? m[k] + log2f(sum) : -CUDART_INF_F;
            if (!whole) d.plse[(size_t)part_slot * N + (row - blockIdx.y * N)] = lse2;
            else if (d.lse) d.lse[((size_t)b * d.s_q + row / d.Hg) * d.H + blockIdx.z * d.Hg + row % d.Hg] = lse2 * 0.693147180559945f;
        }
        close_message(R::SENT, true);
        send_note();
        messages++;
        mbar_arrive_if(this->q_free(), lane == 0); /* after close_message's __syncwarp */
    }
    __device__ __forceinline__ void queries(int b, int)
    {
        if (b >= 0) mbar_wait(this->q_full(), sequences++ & 1);
    }
};
#endif
#endif
