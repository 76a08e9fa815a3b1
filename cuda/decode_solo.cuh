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
#include "cuda/decode_sm90.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, int RB, bool FP8, int NW, bool SPLIT, int CL> struct Solo {
    static_assert(CL == 1 || (CL == 2 && RB == 1 && !FP8), "a cluster halves one rotary box; two blocks would scale e4m3 queries each by their own powers of two");
    static constexpr int NB = FP8 ? LAT / 128 : LAT / 64, PER = NB + RB, TILES = LAT / 64, NC = N / 4, ALL = NW * 128,
                         NT = SPLIT ? NW * N : N; /* query rows of the block */
    static constexpr bool ROWS8 = decode_rows8(LAT, RB, NT, SPLIT ? 1 : NW, FP8, CL);
    static constexpr uint32_t GROUP = ROWS8 ? PER * 1024 : 1024; /* bytes between 8-token groups of a box */
    static constexpr int UNIT = ROWS8 ? decode_unit(LAT, RB) : BOX, UNITS = ROWS8 ? 4 : PER; /* a ring slot; slots of a page */
    using RingPos = RingPosOf<FP8 ? 0 : 1>;                      /* 0: the ring is a whole number of pages */
    const DecodeP &d;
    char *smem;
    uint32_t base;
    DecodeSmem sm;
    int wg, w, lane, g, c, t, rank;
    float acc[TILES][N / 2], m[NC], l[NC];
    RingPos pos;
    uint32_t turns, swaps; /* parity of this warpgroup's next turn; exchanges so far */

    __device__ __forceinline__ Solo(const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : d(d_), smem(smem_), base(smem_u32(smem_)), sm(sm_), pos{0, 0}, turns(0), swaps(0)
    {
        rank = CL > 1 ? (int)cluster_rank() : 0;
        wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), t = threadIdx.x & 127, w = __shfl_sync(~0u, t >> 5, 0);
        lane = t & 31, g = lane >> 2, c = lane & 3;
    }
    __device__ __forceinline__ uint32_t slot_addr(RingPos r) const { return base + sm.ring + r.slot * UNIT; }
    __device__ __forceinline__ void wait_full(RingPos r) const { mbar_wait(base + sm.bars + r.slot * 8, r.phase); }
    __device__ __forceinline__ void release(RingPos r) const
    {
        mbar_arrive_if(base + sm.bars + (d.slots + r.slot) * 8, lane == 0);
    }
    /* A barrier's parity tells two uses of a slot apart, not three: a warpgroup looks at the boxes of its page only after
     * the owner of the page before has seen all of its own, so no slot can be a whole use behind. */
    __device__ __forceinline__ uint32_t order_bar(int of) const { return base + sm.bars + (2 * d.slots + of) * 8; }
    __device__ __forceinline__ uint32_t query_bar(void) const { return order_bar(7); } /* behind turns and exchanges */
    __device__ __forceinline__ void take_turn(bool first)
    {
        if (SPLIT || first) return;
        mbar_wait(order_bar(wg), turns);
        turns ^= 1;
    }
    __device__ __forceinline__ void pass_turn(bool last) const
    {
        if (!SPLIT) mbar_arrive_if(order_bar(wg + 1 == NW ? 0 : wg + 1), t == 0 && !last);
    }
    /* Descriptor low words of this warpgroup's queries, box by box, and of its P. */
    __device__ __forceinline__ uint32_t q_box(int box) const
    {
        return wgmma_lo(base + sm.q + (SPLIT ? wg * N * 128 : 0)) + (uint32_t)((box * NT * 128) >> 4);
    }
    __device__ __forceinline__ uint32_t p_box() const { return wgmma_lo(p_addr()); }
    __device__ __forceinline__ uint32_t p_addr() const { return base + sm.p + wg * N * 128; }

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

    /* Over the 8 lanes g of each warp (max or sum), then the warps' results into red; ends with the warpgroup's barrier.
     * Columns 8j + 2c + {0,1} of warp i: float2 number (4j + c) * 4 + i. */
    template <bool MAX> __device__ __forceinline__ void column_reduce(const float (&v)[NC])
    {
        float2 *red = (float2 *)(smem + sm.red) + wg * N * 2;
        float2 x[N / 8];
#pragma unroll
        for (int j = 0; j < N / 8; j++) x[j] = make_float2(v[2 * j], v[2 * j + 1]);
#pragma unroll
        for (int o = 4; o < 32; o <<= 1)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float ax = __shfl_xor_sync(~0u, x[j].x, o), ay = __shfl_xor_sync(~0u, x[j].y, o);
                x[j].x = MAX ? fmaxf(x[j].x, ax) : x[j].x + ax;
                x[j].y = MAX ? fmaxf(x[j].y, ay) : x[j].y + ay;
            }
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            if (g == 0) red[(4 * j + c) * 4 + w] = x[j];
        bar_sync(BAR_WG + wg, 128);
    }

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

    /* What a thread needs at the end of a piece lies where P was (every product with it is done): a warpgroup's maxima, then
     * the factors of all its columns and where each row goes (NULL: nowhere). */
    __device__ __forceinline__ float *maxima(int of) const { return (float *)(smem + sm.p) + of * N * 32; }
    __device__ __forceinline__ float *factors(void) const { return (float *)(smem + sm.p + 512); }
    __device__ __forceinline__ char **targets(void) const { return (char **)(smem + sm.p + 1024); }
    /* A thread for every column of every warpgroup: sums over warps and warpgroups, log-sum-exp, factor and target. */
    __device__ __forceinline__ void conclude(int b, bool whole, int part_slot)
    {
        static_assert(NW * N <= 128 && NT * 8 + 1024 <= N * 128, "three tables in a P");
        column_reduce<false>(l);
        if (w == 0 && g == 0)
#pragma unroll
            for (int i = 0; i < NC; i++) maxima(wg)[8 * (i >> 1) + 2 * c + (i & 1)] = m[i];
        bar_sync(BAR_ALL, ALL);
        if (threadIdx.x < NW * N) {
            const int own = threadIdx.x / N, n = threadIdx.x % N, col = SPLIT ? (int)threadIdx.x : n, row = blockIdx.y * NT + col;
            const float mine = maxima(own)[n];
            float mx = mine, sum = 0.f;
            for (int k = 0; k < NW; k++) mx = SPLIT ? mx : fmaxf(mx, maxima(k)[n]);
            const float use = mx == -CUDART_INF_F ? 0.f : mx;
            for (int k = 0; k < NW; k++) {
                const float *red = (const float *)(smem + sm.red) + k * N * 4 + (n >> 1) * 8 + (n & 1);
                const float x = red[0] + red[2] + red[4] + red[6];
                if (!SPLIT) sum += x * exp2_fast(maxima(k)[n] - use);
                else if (k == own) sum = x;
            }
            const float inv = sum > 0.f ? d.out_scale / sum : (sum == 0.f ? 0.f : sum); /* NaN stays NaN */
            factors()[threadIdx.x] = exp2_fast(mine - use) * inv;
            if (SPLIT || own == 0) {
                const bool real = row < d.rows && b >= 0;
                const int tk = row / d.Hg, h = blockIdx.z * d.Hg + row % d.Hg;
                const size_t part = (((size_t)part_slot * NT + col) * CL + rank) * LAT, o = (size_t)(b * d.o.b + tk * d.o.t + h * d.o.h) + rank * LAT;
                targets()[col] = !real ? NULL : whole ? (char *)d.o.p + o * (d.o.f32 ? 4 : 2) : (char *)(d.po + part);
                const float lse2 = sum > 0.f || sum != sum ? mx + log2f(sum) : -CUDART_INF_F;
                if (real && !rank && !whole) d.plse[(size_t)part_slot * NT + col] = lse2;
                else if (real && !rank && d.lse) d.lse[((size_t)b * d.s_q + tk) * d.H + h] = lse2 * 0.693147180559945f;
            }
        }
        bar_sync(BAR_ALL, ALL);
    }

    /* This warpgroup's O of one half of the latents, times f, into (or onto) rows of HALF + 4 floats: the padding puts
     * the four columns of a store into different banks. */
    static constexpr int HALF = LAT / 2, LDH = HALF + 4;
    template <int H> __device__ __forceinline__ void put_half(float *rows, const float (&f)[NC], bool onto)
    {
#pragma unroll
        for (int k = 0; k < NC; k++) {
            const int e = 4 * (k >> 1) + (k & 1);
            float *row = rows + (8 * (k >> 1) + 2 * c + (k & 1)) * LDH;
#pragma unroll
            for (int i = H * (TILES / 2); i < (H + 1) * (TILES / 2); i += FP8 ? 2 : 1) {
                const int j = i - H * (TILES / 2);
                if (FP8) { /* a thread's four latents of a box lie side by side */
                    float4 x = make_float4(acc[i][e] * f[k], acc[i][e + 2] * f[k], acc[i + 1][e] * f[k], acc[i + 1][e + 2] * f[k]);
                    float4 *to = (float4 *)(row + 64 * j + (8 * w + g) * 4);
                    if (onto) x.x += to->x, x.y += to->y, x.z += to->z, x.w += to->w;
                    *to = x;
                } else {
                    float *to = row + 64 * j + 16 * w + g;
                    const float x = acc[i][e] * f[k], y = acc[i][e + 2] * f[k];
                    to[0] = onto ? to[0] + x : x;
                    to[8] = onto ? to[8] + y : y;
                }
            }
        }
    }
    template <int H> __device__ __forceinline__ void write_half(const float (&f)[NC], bool f32, bool wide)
    {
        float *rows = (float *)(smem + sm.q); /* half of O fits the queries' space */
        if (SPLIT) {
            put_half<H>(rows + wg * N * LDH, f, false);
            bar_sync(BAR_ALL, ALL);
        } else
#pragma unroll 1
            for (int k = 0; k < NW; k++) {
                if (wg == k) put_half<H>(rows, f, k > 0);
                bar_sync(BAR_ALL, ALL);
            }
#pragma unroll 1
        for (int i = threadIdx.x; i < NT * (HALF / 4); i += ALL) {
            const int n = i / (HALF / 4), at = i % (HALF / 4) * 4;
            char *to = targets()[n];
            if (!to) break;
            const float4 x = *(const float4 *)(rows + n * LDH + at);
            if (wide) {
                *(float4 *)((float *)to + H * HALF + at) = x;
                continue;
            }
            store_f32(to, f32, H * HALF + at, x.x);
            store_f32(to, f32, H * HALF + at + 1, x.y);
            store_f32(to, f32, H * HALF + at + 2, x.z);
            store_f32(to, f32, H * HALF + at + 3, x.w);
        }
        bar_sync(BAR_ALL, ALL);
    }

    /* bf16: sums go out as they lie in the fragments, 8 neighbouring values of each of 4 rows a store. Two warpgroups that
     * share rows give each other half of theirs, a quarter of the latents at a time. */
    static constexpr bool DIRECT = !FP8 && (SPLIT || (NW == 2 && TILES % 4 == 0));
    template <bool F32> static __device__ __forceinline__ void put_value(char *row, int at, float x)
    {
        if (F32) ((float *)row)[at] = x;
        else ((__nv_bfloat16 *)row)[at] = __float2bfloat16_rn(x);
    }
    static constexpr int QUARTER = SPLIT ? TILES : TILES / 4;
    __device__ __forceinline__ float *given(int by) const { return (float *)(smem + sm.q) + t + by * QUARTER * (N / 2) * 128; }
    template <int WG> __device__ __forceinline__ void give(int r, const float (&f)[NC])
    {
        float *to = given(WG);
#pragma unroll
        for (int i = 0; i < QUARTER; i++)
#pragma unroll
            for (int e = 0; e < N / 2; e++) to[(i * (N / 2) + e) * 128] = acc[(WG ? 0 : TILES / 2) + r * QUARTER + i][e] * f[2 * (e >> 2) + (e & 1)];
    }
    template <bool F32, int WG> __device__ __forceinline__ void put(int r, char *const (&rows)[NC], const float (&f)[NC])
    {
        const float *from = given(WG ^ 1);
        const int own = SPLIT ? 0 : (WG ? TILES / 2 : 0) + r * QUARTER;
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            const int k = 2 * (e >> 2) + (e & 1);
            if (!rows[k]) continue;
#pragma unroll
            for (int i = 0; i < QUARTER; i++)
                put_value<F32>(rows[k], 64 * (own + i) + 8 * (e >> 1 & 1), SPLIT ? acc[own + i][e] * f[k] : fmaf(acc[own + i][e], f[k], from[(i * (N / 2) + e) * 128]));
        }
    }
    template <bool F32> __device__ __forceinline__ void write_rows(char *const (&rows)[NC], const float (&f)[NC])
    {
        if constexpr (SPLIT) put<F32, 0>(0, rows, f);
        else
#pragma unroll
            for (int r = 0; r < 2; r++) { /* both warpgroups meet at the same barriers */
                if (wg == 0) give<0>(r, f);
                else give<1>(r, f);
                bar_sync(BAR_ALL, ALL);
                if (wg == 0) put<F32, 0>(r, rows, f);
                else put<F32, 1>(r, rows, f);
                bar_sync(BAR_ALL, ALL);
            }
    }

    /* whole: the block saw every page of the sequence and writes the output itself; otherwise a partial for the merge. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        const bool f32 = !whole || d.o.f32;
        float f[NC];
        conclude(b, whole, part_slot);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 x = *(const float2 *)(factors() + wg * N + 8 * j + 2 * c);
            f[2 * j] = x.x, f[2 * j + 1] = x.y;
        }
        if constexpr (DIRECT) {
            char *rows[NC]; /* where this thread's columns go */
#pragma unroll
            for (int k = 0; k < NC; k++) {
                char *to = targets()[(SPLIT ? wg * N : 0) + 8 * (k >> 1) + 2 * c + (k & 1)];
                rows[k] = to ? to + (16 * w + g) * (f32 ? 4 : 2) : NULL;
            }
            if (f32) write_rows<true>(rows, f);
            else write_rows<false>(rows, f);
        } else {
            write_half<0>(f, f32, !whole || (d.o.f32 && d.o.vec));
            write_half<1>(f, f32, !whole || (d.o.f32 && d.o.vec));
        }
    }
};
#endif
#endif
