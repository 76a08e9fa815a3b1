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
    static constexpr int TILES = LAT / 128;
    float acc[TILES][N / 2];
    uint32_t a[2][2][4], v[2][4]; /* e4m3: sets of fragments */
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
        load_q<LAT, N, 1, true, 8>(d, smem, sm, b, len, 0, 0, boxes, sequences & 1);
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
    /* Bytes of a box of 128 latents for k-step ks (16 tokens, in the order of tok8): two latents of two tokens a word. */
    __device__ __forceinline__ void load_values(uint32_t (&x)[4], uint32_t box, int ks) const
    {
        const int tk = tok8(lane & 7) + (lane & 8);
        ldmatrix4_trans(x, box + ks * 2048 + tk * 128 + (((2 * w + (lane >> 4)) ^ (tk & 7)) << 4));
    }
    /* Fragments of two tiles: even latents in the upper half of a warp's rows, odd ones in the lower. */
    static __device__ __forceinline__ void widen_values(uint32_t (&a)[2][4], const uint32_t (&x)[4])
    {
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int k = 0; k < 2; k++) e4m3x4_f16(a[u][2 * k], a[u][2 * k + 1], __byte_perm(x[2 * u + k], 0, 0x3120));
    }
    /* What the first products of a page take is ready before P; whole: no slot of the page lies beyond the end. */
    __device__ __forceinline__ void prepare()
    {
        const RingPos r = this->unit(half * (TILES / 2));
        this->wait_full(r);
        const uint32_t at = this->slot_addr(r);
        load_values(v[0], at, 0);
        load_values(v[1], at, 1);
        widen_values(a[0], v[0]);
    }
    __device__ __forceinline__ void page(bool whole)
    {
        if (whole) prepare();
        this->wait_sent(messages);
        if (!whole) prepare();
        const char *note = this->note(messages);
        if (*(const int *)(note + R::FLAGS))
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float2 k = ((const float2 *)note)[4 * j + c];
#pragma unroll
                for (int i = 0; i < TILES; i++) acc[i][4 * j] *= k.x, acc[i][4 * j + 1] *= k.y, acc[i][4 * j + 2] *= k.x, acc[i][4 * j + 3] *= k.y;
            }
#pragma unroll
        for (int i = 0; i < TILES; i++) wgmma_pin(acc[i]);
        wgmma_fence();
        const uint32_t p = wgmma_lo(this->p_addr(messages));
        add(p);
        used_message();
        this->next_page();
    }
    __device__ __forceinline__ void add(uint32_t p)
    {
#pragma unroll
        for (int i = 0; i < TILES / 2; i++) {
            const RingPos r = this->unit(half * (TILES / 2) + i);
            if (i) this->wait_full(r);
            const uint32_t at = this->slot_addr(r);
            if (i) load_values(v[0], at, 0);
#pragma unroll
            for (int ks = 0; ks < 4; ks++) {
                if (ks < 3 && (i || ks)) load_values(v[(ks + 1) & 1], at, ks + 1);
                if (i || ks > 1) wgmma_wait<1>();
                if (i || ks) widen_values(a[ks & 1], v[ks & 1]);
                wgmma_fence();
                Wgmma<N>::template rs<true>(acc[2 * i], a[ks & 1][0], wgmma_at(p, ks * 32));
                Wgmma<N>::template rs<true>(acc[2 * i + 1], a[ks & 1][1], wgmma_at(p, ks * 32));
                wgmma_commit();
            }
            this->release(r); /* its bytes are in registers */
        }
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
