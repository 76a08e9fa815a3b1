/* Trio kernel, a warpgroup of O: loads queries with its neighbour, adds P V page by page, writes what comes of a sequence. */
#ifndef MLA_CUDA_DECODE_TRIO_SUMS_CUH
#define MLA_CUDA_DECODE_TRIO_SUMS_CUH
#include "cuda/decode_columns.cuh"
#include "cuda/decode_trio_role.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioSums : TrioRole<LAT, N> {
    using R = TrioRole<LAT, N>;
    using typename R::RingPos;
    using R::base, R::c, R::d, R::g, R::lane, R::messages, R::pos, R::sequences, R::sm, R::smem, R::w, R::NB;
    static constexpr int TILES = LAT / 128, STEPS = TILES / 2 * 4; /* k-steps of 16 tokens, box after box */
    float acc[TILES][N / 2];
    uint32_t a[3][2][4], v[2][4]; /* e4m3: sets of fragments */
    int half;

    __device__ __forceinline__ TrioSums(const DecodeP &d_, char *smem_, const DecodeSmem &sm_) : R(d_, smem_, sm_)
    {
        half = __shfl_sync(~0u, threadIdx.x >> 7, 0);
    }
    __device__ __forceinline__ void begin()
    {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < N / 2; j++) acc[i][j] = 0.f;
    }
    __device__ __forceinline__ void queries(int b, int len)
    {
        const uint32_t boxes = d.maps ? this->q_boxes() : 0;
        if (boxes && b < 0) return;
        if (b >= 0) mbar_wait(this->q_free(), (sequences & 1) ^ 1);
        if (boxes && threadIdx.x == 0) fetch_q<LAT, N, 1>(d, base + sm.q, boxes, b, 0);
        __syncwarp();
        load_q<LAT, N, 1, true, 8>(d, smem, sm, b, len, 0, boxes, sequences & 1);
        if (threadIdx.x < N) {
            const float k = ((const float *)(smem + sm.colscale))[threadIdx.x];
            this->top()[threadIdx.x] = make_float2(k == 0.f ? 1e-37f : k, -NO_MAX); /* what is not seen has a logit of -inf */
        }
        sequences += b >= 0;
        fence_async_smem();
        __syncwarp();
        mbar_arrive_if(this->q_full(), lane == 0 && b >= 0);
    }
    __device__ __forceinline__ void used_message()
    {
        __syncwarp();
        mbar_arrive_if(this->used(messages), lane == 0);
        messages++;
    }
    /* Bytes for k-step ks (16 tokens of a box of 128 latents, in the order of tok8): two latents of two tokens a word. */
    __device__ __forceinline__ void load_values(uint32_t (&x)[4], uint32_t at, int ks) const { ldmatrix4_trans(x, at + (ks >> 2) * BOX + (ks & 3) * 2048); }
    /* Where the thread's lie in a page. */
    __device__ __forceinline__ uint32_t values_at(RingPos r) const
    {
        const int tk = tok8(lane & 7) + (lane & 8);
        return R::page_addr(sm, r) + half * (TILES / 2) * BOX + tk * 128 + (((2 * w + (lane >> 4)) ^ (tk & 7)) << 4);
    }
    /* Fragments of two tiles: even latents in the upper half of a warp's rows, odd ones in the lower. */
    static __device__ __forceinline__ void widen_values(uint32_t (&a)[2][4], const uint32_t (&x)[4])
    {
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int k = 0; k < 2; k++) e4m3x4_f16(a[u][2 * k], a[u][2 * k + 1], __byte_perm(x[2 * u + k], 0, 0x3120));
    }
    /* What was prepared is of no use: no registers for it meanwhile. */
    __device__ __forceinline__ void forget()
    {
#pragma unroll
        for (int i = 0; i < 24; i++) a[i >> 3][i >> 2 & 1][i & 3] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) v[i >> 2][i & 3] = 0;
    }
    /* What the first products of a page take, ready before P. */
    __device__ __forceinline__ void prepare()
    {
        this->wait_full(pos);
        const uint32_t at = values_at(pos);
        load_values(v[0], at, 0);
        load_values(v[1], at, 1);
        widen_values(a[0], v[0]);
    }
    /* Pages [i0, i1) of a sequence. Slots beyond its end are zeroed before P comes: a page that has some is prepared behind it. */
    __device__ __forceinline__ void pages(int len, int i0, int i1)
    {
        bool ready = false;
        forget();
        for (int i = i0; i < i1; i++) {
            const bool whole = 64 * i + 64 <= len, next = i + 1 < i1 && 64 * i + 128 <= len;
            if (__builtin_expect(whole && !ready, 0)) prepare();
            const RingPos r = this->after(next);
            mbar_wait_if(this->full(r), r.phase, next);
            this->wait_sent(messages);
            if (__builtin_expect(!whole, 0)) prepare();
            const char *note = this->note(messages);
            if (__builtin_expect(*(const int *)(note + R::FLAGS), 0))
#pragma unroll
                for (int j = 0; j < N / 8; j++) {
                    const float2 k = ((const float2 *)note)[4 * j + c];
#pragma unroll
                    for (int i = 0; i < TILES; i++) acc[i][4 * j] *= k.x, acc[i][4 * j + 1] *= k.y, acc[i][4 * j + 2] *= k.x, acc[i][4 * j + 3] *= k.y;
                }
#pragma unroll
            for (int i = 0; i < TILES; i++) wgmma_pin(acc[i]);
            wgmma_fence();
            add(wgmma_lo(this->p_addr(messages)), next);
            used_message();
            pos = this->after(1);
            ready = next;
        }
    }
    /* The page at pos, which is prepared. next: the page behind it is prepared while the last products run; otherwise what is read there
     * is nobody's. */
    __device__ __forceinline__ void add(uint32_t p, bool next)
    {
        const RingPos r = this->after(next);
        const uint32_t at = values_at(pos), behind = values_at(r);
#pragma unroll
        for (int ks = 0; ks < STEPS; ks++) {
            const int tile = 2 * (ks >> 2), now = ks % 3, then = (ks + 1) % 3;
            wgmma_fence();
            Wgmma<N>::template rs<true>(acc[tile], a[now][0], wgmma_at(p, (ks & 3) * 32));
            Wgmma<N>::template rs<true>(acc[tile + 1], a[now][1], wgmma_at(p, (ks & 3) * 32));
            wgmma_commit();
            if (ks + 2 < STEPS) load_values(v[ks & 1], at, ks + 2);
            else load_values(v[ks & 1], behind, ks + 2 - STEPS);
            if (ks + 1 < STEPS) widen_values(a[then], v[(ks + 1) & 1]);
            if (((ks + 1) & 3) == 3) this->release(pos, half * (TILES / 2) + (ks >> 2)); /* its bytes are in registers */
            wgmma_wait<1>();
        }
        widen_values(a[0], v[0]);
        wgmma_wait<0>();
    }
    /* Short code: it runs once a sequence, from a cold instruction cache. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        long long *rows = (long long *)(smem + sm.rows); /* where a column's row begins, in elements; -1: nowhere */
        if (threadIdx.x < N) {
            const int row = this->row_of(threadIdx.x);
            rows[threadIdx.x] = row >= d.rows ? -1
                                : whole       ? b * d.o.b + row / d.Hg * d.o.t + (blockIdx.z * d.Hg + row % d.Hg) * d.o.h
                                              : ((long long)part_slot * N + (row - blockIdx.y * N)) * LAT;
        }
        bar_sync(BAR_ALL, 256);
        this->wait_sent(messages);
        if (!whole || d.o.f32) write<true>(whole ? (char *)d.o.p : (char *)d.po);
        else write<false>((char *)d.o.p);
        bar_sync(BAR_ALL, 256); /* rows are read */
        used_message();
    }
    template <bool F32> __device__ __forceinline__ void write(char *to)
    {
        to += (half * (LAT / 2) + 32 * w + 2 * g) * (F32 ? 4 : 2);
        write_columns<F32, N>(acc, to, (const long long *)(smem + sm.rows), (const float *)this->note(messages), c, [](int i, int hi) { return 128 * (i >> 1) + 16 * (i & 1) + hi; }); /* two latents side by side */
    }
};
#endif
#endif
