/* Trio kernel, a warpgroup of S and the softmax: multiplies keys and queries, keeps totals and with its neighbour maxima, sends
 * messages (decode_trio.cuh) to the warpgroups of O. */
#ifndef MLA_CUDA_DECODE_TRIO_SOFTMAX_CUH
#define MLA_CUDA_DECODE_TRIO_SOFTMAX_CUH
#include "cuda/decode_trio_keys.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioSoftmax : TrioKeys<LAT, N> {
    using K = TrioKeys<LAT, N>;
    using R = TrioRole<LAT, N>;
    using K::base, K::c, K::d, K::g, K::lane, K::messages, K::pos, K::sequences, K::sm, K::smem, K::t, K::w, K::mine, K::x, K::NB;
    static constexpr int NC = N / 4;
    float l[NC];
    int seen;            /* moves of the maximum that l follows */

    __device__ __forceinline__ TrioSoftmax(const DecodeP &d_, char *smem_, const DecodeSmem &sm_) : K(d_, smem_, sm_), seen(0) {}
    __device__ __forceinline__ float *top() const { return (float *)(smem + sm.top); }
    __device__ __forceinline__ volatile int *moves() const { return (volatile int *)(smem + sm.top + N * 4); }
    __device__ __forceinline__ float2 *red(int of) const { return (float2 *)(smem + sm.red) + of * N * 2; }
    /* Messages get their maxima in order. Where the message before, the other warpgroup's, moved them, its factors are still in its note. */
    __device__ __forceinline__ void take_turn()
    {
        mbar_wait(this->turn(mine), ((messages >> 1) + mine + 1) & 1);
        const int now = *moves();
        if (now == seen) return;
        seen = now;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 y = ((const float2 *)this->note(messages - 1))[4 * j + c];
            l[2 * j] *= y.x, l[2 * j + 1] *= y.y;
        }
    }
    /* e4m3: a thread's totals lie in shared memory while it multiplies, in its registers are fragments. */
    static constexpr bool APART = decode_totals(N);
    __device__ __forceinline__ float4 *totals() const { return (float4 *)(smem + sm.totals) + (threadIdx.x & 255); }
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
    __device__ __forceinline__ void pass_turn() const { mbar_arrive_if(this->turn(mine ^ 1), t == 0); }
    __device__ __forceinline__ void begin()
    {
#pragma unroll
        for (int j = 0; j < NC; j++) l[j] = 0.f;
        put_totals();
    }

    /* Slots beyond the sequence's end hold anything; 0 x NaN must not reach the sum. */
    __device__ __forceinline__ void zero_tail(int valid) const
    {
#pragma unroll 1
        for (int b = 0; b < NB; b++)
            for (int i = valid * 8 + t; i < 64 * 8; i += 128) {
                const uint32_t at = this->unit(b).slot * BOX + (i >> 6) * 1024;
                *(uint4 *)(smem + sm.ring + at + (i & 63) * 16) = make_uint4(0, 0, 0, 0);
            }
    }

    /* Over the 8 lanes g of each warp (max or sum), then the warps' results into red; ends with the warpgroup's barrier. */
    template <bool MAX> __device__ __forceinline__ void column_reduce(const float (&v)[NC])
    {
        float2 *to = red(mine);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float2 y = make_float2(v[2 * j], v[2 * j + 1]);
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) {
                const float ax = __shfl_xor_sync(~0u, y.x, o), ay = __shfl_xor_sync(~0u, y.y, o);
                y.x = MAX ? fmaxf(y.x, ax) : y.x + ax;
                y.y = MAX ? fmaxf(y.y, ay) : y.y + ay;
            }
            if (g == 0) to[(4 * j + c) * 4 + w] = y;
        }
        bar_sync(BAR_WG + mine, 128);
    }
    /* m becomes the maximum over all tokens so far, l follows; the factors go into the note. */
    __device__ __forceinline__ void move_max(const float (&v)[NC], float (&m)[NC])
    {
        column_reduce<true>(v);
        const float4 *from = (const float4 *)red(mine);
        float *note = (float *)this->note(messages);
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const float4 a = from[(4 * (i >> 1) + c) * 2], b = from[(4 * (i >> 1) + c) * 2 + 1];
            const float mx = i & 1 ? fmaxf(fmaxf(m[i], fmaxf(a.y, a.w)), fmaxf(b.y, b.w)) : fmaxf(fmaxf(m[i], fmaxf(a.x, a.z)), fmaxf(b.x, b.z));
            const float alpha = exp2_fast(m[i] - (mx == -CUDART_INF_F ? 0.f : mx));
            l[i] *= alpha;
            m[i] = mx;
            const int n = 8 * (i >> 1) + 2 * c + (i & 1);
            if (t < 4) note[n] = alpha, top()[n] = mx;
        }
        seen++;
        if (t == 0) *moves() = seen;
        __syncwarp();
    }
    /* The message is there. */
    __device__ __forceinline__ void close_message(bool flag)
    {
        if (t == 0) *(int *)(this->note(messages) + R::FLAGS) = flag;
        fence_async_smem();
        __syncwarp();
        mbar_arrive_if(this->sent(messages), lane == 0);
    }

    template <int M> __device__ __forceinline__ void softmax(float (&s)[M], int blk, int len, int min_limit)
    {
        float v[NC], m[NC];
        scale_columns(s, (const float *)(smem + sm.colscale), c);
        if (blk * 64 + 64 > min_limit) mask_columns(s, (const int *)(smem + sm.limit), c, blk * 64 + 16 * w + tok8(g));
        mbar_wait(this->used(messages), ((messages >> 1) & 1) ^ 1);
        get_totals();
        take_turn();
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 y = ((const float2 *)top())[4 * j + c];
            m[2 * j] = y.x, m[2 * j + 1] = y.y;
        }
        bool beyond = false; /* the running maximum only has to keep exp2 in range */
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            v[2 * j] = fmaxf(s[4 * j], s[4 * j + 2]), v[2 * j + 1] = fmaxf(s[4 * j + 1], s[4 * j + 3]);
            beyond |= v[2 * j] > m[2 * j] + 8.f || v[2 * j + 1] > m[2 * j + 1] + 8.f;
        }
        const bool moved = bar_any(BAR_WG + mine, 128, beyond);
        if (moved) move_max(v, m);
        pass_turn();
        if (len - blk * 64 < 64) zero_tail(len - blk * 64); /* every warp has its S */
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const float use = m[i] == -CUDART_INF_F ? 0.f : m[i];
            const int k = 4 * (i >> 1) + (i & 1);
            s[k] = exp2_fast(s[k] - use);
            s[k + 2] = exp2_fast(s[k + 2] - use);
            l[i] += s[k] + s[k + 2];
        }
        put_totals();
        const int r8 = lane & 7, hi = (lane >> 3) & 1;
        const uint32_t row = this->p_addr(messages) + r8 * 128 + (((2 * w + hi) ^ r8) << 4);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            stmatrix_trans2(row + 8 * j * 128, pack2<true>(s[4 * j], s[4 * j + 1]), pack2<true>(s[4 * j + 2], s[4 * j + 3]));
        close_message(moved);
    }

    /* The page at pos, the blk-th of its sequence. */
    __device__ __forceinline__ void page(int blk, int len, int min_limit)
    {
        this->multiply();
        wgmma_wait<0>();
        wgmma_pin(x);
        this->release_rope();
        softmax(x, blk, len, min_limit);
    }
    /* Pages [i0, i1) of a sequence: every other message is this warpgroup's. */
    __device__ __forceinline__ void pages(int len, int i0, int i1)
    {
        for (int i = i0; i < i1; i++, messages++) {
            if ((messages & 1) == (uint32_t)mine) page(i, len, len - d.s_q + 1);
            this->next_page();
            this->rope = this->rope.at(1, ROPES);
        }
    }

    /* Totals of both warpgroups; the one whose turn it is sends the note that finishes O and writes log-sum-exps. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        const bool closes = (messages & 1) == (uint32_t)mine;
        get_totals();
        if (closes) take_turn(); /* otherwise the last page was this warpgroup's: it knows the maxima */
        bar_sync(BAR_WG + mine, 128); /* nobody reads what the last maximum was made of */
        column_reduce<false>(l);
        if (closes) {
            bar_sync(BAR_TOTALS, 256);
            mbar_wait(this->used(messages), ((messages >> 1) & 1) ^ 1);
            if (t < N) close(b, whole, part_slot);
            if (t == 0) *moves() = seen + 1;
            close_message(true);
            bar_sync(BAR_WG + mine, 128); /* the maxima are reset */
            pass_turn();
        } else
            bar_arrive(BAR_TOTALS, 256);
        seen++; /* the maxima of the next sequence begin anew */
        messages++;
        __syncwarp();
        mbar_arrive_if(this->q_free(), lane == 0);
    }
    /* Thread t: column t. */
    __device__ __forceinline__ void close(int b, bool whole, int part_slot)
    {
        const int row = this->row_of(t);
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += ((const float *)(red(i >> 2) + (t >> 1) * 4 + (i & 3)))[t & 1];
        const float lse2 = sum > 0.f || sum != sum ? top()[t] + log2f(sum) : -CUDART_INF_F;
        ((float *)this->note(messages))[t] = sum > 0.f ? d.out_scale / sum : (sum == 0.f ? 0.f : sum); /* NaN stays NaN */
        top()[t] = -CUDART_INF_F;
        if (row >= d.rows) return;
        if (!whole) d.plse[(size_t)part_slot * N + (row - blockIdx.y * N)] = lse2;
        else if (d.lse) d.lse[((size_t)b * d.s_q + row / d.Hg) * d.H + blockIdx.z * d.Hg + row % d.Hg] = lse2 * 0.693147180559945f;
    }
    __device__ __forceinline__ void queries(int b, int)
    {
        if (b >= 0) mbar_wait(this->q_full(), sequences++ & 1);
    }
};
#endif
#endif
