/* Trio kernel, a warpgroup of S and the softmax: multiplies keys and queries, takes the softmax, sends messages
 * (decode_trio.cuh) to the warpgroups of O. */
#ifndef MLA_CUDA_DECODE_TRIO_SOFTMAX_CUH
#define MLA_CUDA_DECODE_TRIO_SOFTMAX_CUH
#include "cuda/decode_trio_totals.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioSoftmax : TrioTotals<LAT, N> {
    using T = TrioTotals<LAT, N>;
    using R = TrioRole<LAT, N>;
    using T::base, T::c, T::d, T::g, T::l, T::lane, T::messages, T::pos, T::sequences, T::sm, T::smem, T::t, T::w, T::mine, T::x, T::NB;
    static constexpr int NC = N / 4;
    uint32_t votes; /* so far */
    float sum[NC];  /* totals with the page */

    __device__ __forceinline__ TrioSoftmax(const DecodeP &d_, char *smem_, const DecodeSmem &sm_) : T(d_, smem_, sm_), votes(0) {}
    __device__ __forceinline__ uint32_t voted() const { return base + sm.top + N * 8 + 16 + mine * 4; } /* the last message whose maxima a warp found too low */

    /* Slots beyond the sequence's end hold anything; 0 x NaN must not reach the sum. */
    __device__ __forceinline__ void zero_tail(int valid) const
    {
#pragma unroll 1
        for (int b = 0; b < NB; b++)
            for (int i = valid * 8 + t; i < 64 * 8; i += 128) {
                const uint32_t at = pos.slot * R::PAGE + b * BOX + (i >> 6) * 1024;
                *(uint4 *)(smem + sm.ring + at + (i & 63) * 16) = make_uint4(0, 0, 0, 0);
            }
    }

    /* S where a column does not see the token: its logit is -inf. */
    __device__ __forceinline__ void mask(int token)
    {
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const int n = 8 * (i >> 1) + 2 * c + (i & 1), k = 4 * (i >> 1) + (i & 1), limit = ((const int *)(smem + sm.limit))[n];
            const float never = this->top()[n].x < 0.f ? CUDART_INF_F : -CUDART_INF_F;
            if (token >= limit) x[k] = never;
            if (token + 8 >= limit) x[k + 2] = never;
        }
    }
    /* Scales and maxima of the thread's columns. */
    struct Columns {
        float scale[NC], less[NC];
    };
    __device__ __forceinline__ void get_columns(Columns &y) const
    {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            uint32_t u[4];
            lds128(u, base + sm.top + (4 * j + c) * 16);
#pragma unroll
            for (int i = 0; i < 2; i++) y.scale[2 * j + i] = __uint_as_float(u[2 * i]), y.less[2 * j + i] = __uint_as_float(u[2 * i + 1]);
        }
    }
    /* A logit less its column's maximum. */
    __device__ __forceinline__ float logit(const Columns &y, int i, int k) const { return fmaf(x[4 * (i >> 1) + (i & 1) + 2 * k], y.scale[i], y.less[i]); }
    /* The maxima become those over all tokens so far, totals follow; the factors go into the note. */
    __device__ __forceinline__ void move_max(Columns &y)
    {
        float v[NC], less[NC];
#pragma unroll
        for (int i = 0; i < NC; i++) v[i] = fmaxf(x[4 * (i >> 1) + (i & 1)] * y.scale[i], x[4 * (i >> 1) + (i & 1) + 2] * y.scale[i]), less[i] = y.less[i];
        this->template column_reduce<true>(v);
        const float4 *from = (const float4 *)this->red(mine);
        float *note = (float *)this->note(messages);
#pragma unroll
        for (int i = 0; i < NC; i++) {
            const int n = 8 * (i >> 1) + 2 * c + (i & 1);
            const float4 a = from[(4 * (i >> 1) + c) * 2], b = from[(4 * (i >> 1) + c) * 2 + 1];
            const float m = i & 1 ? fmaxf(fmaxf(a.y, a.w), fmaxf(b.y, b.w)) : fmaxf(fmaxf(a.x, a.z), fmaxf(b.x, b.z));
            const float now = fminf(less[i], -m), alpha = exp2_fast(now - less[i]);
            this->scale_total(i, alpha);
            if (t < 4) note[n] = alpha, this->top()[n].y = now;
        }
        bar_sync(BAR_WG + mine, 128);
        get_columns(y);
    }
    /* The message is there. */
    __device__ __forceinline__ void close_message(bool flag)
    {
        if (t == 0) *(int *)(this->note(messages) + R::FLAGS) = flag;
        fence_async_smem();
        __syncwarp();
        mbar_arrive_if(this->sent(messages), lane == 0);
    }
    __device__ __forceinline__ void wait_used() const { mbar_wait(this->used(messages), ((messages >> 1) & 1) ^ 1); }

    /* The page at pos, the blk-th of its sequence, first of a piece; x is its S. */
    __device__ __forceinline__ void softmax(int blk, bool first, int len, int min_limit)
    {
        Columns y;
        this->again();
        if (__builtin_expect(blk * 64 + 64 > min_limit, 0)) mask(blk * 64 + 16 * w + tok8(g));
        const bool late = this->take_turn() && !first;
        get_columns(y);
        bool beyond = false; /* the running maximum only has to keep exp2 in range */
#pragma unroll
        for (int i = 0; i < NC; i++) beyond |= fmaxf(logit(y, i, 0), logit(y, i, 1)) > 8.f;
        if (__builtin_expect(late, 0)) this->follow(); /* before the turn can pass */
        if (__any_sync(~0u, beyond) && lane == 0) sts32(voted(), messages + 1);
        __syncwarp();
        mbar_arrive_if(this->vote(mine), lane == 0);
        uint32_t p[N / 4];
        take(p, y); /* as if the maxima stayed: others vote meanwhile */
        mbar_wait(this->vote(mine), votes++ & 1);
        const bool move = lds32(voted()) == messages + 1;
        if (__builtin_expect(move, 0)) {
            wait_used();
            get_columns(y);
            move_max(y);
            take(p, y);
        }
        this->pass_turn(move);
        if (__builtin_expect(len - blk * 64 < 64, 0)) zero_tail(len - blk * 64); /* every warp has its S */
        wait_used();
        this->again();
        const int r8 = lane & 7, hi = (lane >> 3) & 1;
        const uint32_t row = this->p_addr(messages) + r8 * 128 + (((2 * w + hi) ^ r8) << 4);
#pragma unroll
        for (int j = 0; j < N / 8; j++) stmatrix_trans2(row + 8 * j * 128, p[2 * j], p[2 * j + 1]);
        close_message(move);
#pragma unroll
        for (int i = 0; i < NC; i++) l[i] = sum[i];
        this->put_totals();
    }
    /* P of the page, as fragments, and totals with it. */
    __device__ __forceinline__ void take(uint32_t (&p)[N / 4], const Columns &y)
    {
        this->get_totals();
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float e[4];
#pragma unroll
            for (int i = 0; i < 4; i++) e[i] = exp2_fast(logit(y, 2 * j + (i & 1), i >> 1));
            sum[2 * j] = l[2 * j] + (e[0] + e[2]), sum[2 * j + 1] = l[2 * j + 1] + (e[1] + e[3]);
            p[2 * j] = pack2<true>(e[0], e[1]), p[2 * j + 1] = pack2<true>(e[2], e[3]);
        }
    }

    /* Pages [i0, i1) of a sequence: every other message is this warpgroup's. */
    __device__ __forceinline__ void pages(int len, int i0, int i1)
    {
        const int skip = (messages & 1) != (uint32_t)mine;
        messages += skip, pos = this->after(skip);
        for (int i = i0 + skip; i < i1; i += 2) {
            this->again();
            this->multiply();
            softmax(i, i == i0, len, len - d.s_q + 1);
            const int step = i + 1 < i1 ? 2 : 1;
            messages += step, pos = this->after(step);
        }
    }

    /* Totals of both warpgroups; the one whose turn it is sends the note that finishes O and writes log-sum-exps. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        const bool closes = (messages & 1) == (uint32_t)mine;
        if (closes && this->take_turn()) this->follow(); /* otherwise the last page was this warpgroup's: it knows the maxima */
        this->get_totals();
        bar_sync(BAR_WG + mine, 128); /* nobody reads what the last maximum was made of */
        this->template column_reduce<false>(l);
        if (closes) {
            bar_sync(BAR_TOTALS, 256);
            wait_used();
            if (t < N) close(b, whole, part_slot);
            close_message(true);
            this->pass_turn(true);
        } else
            bar_arrive(BAR_TOTALS, 256);
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
        for (int i = 0; i < 8; i++) sum += ((const float *)(this->red(i >> 2) + (t >> 1) * 4 + (i & 3)))[t & 1];
        const float lse2 = sum > 0.f || sum != sum ? log2f(sum) - this->top()[t].y : -CUDART_INF_F;
        ((float *)this->note(messages))[t] = sum > 0.f ? d.out_scale / sum : (sum == 0.f ? 0.f : sum); /* NaN stays NaN */
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
