/* Held kernel, a warpgroup of O: adds P V page by page for every other 64 latents, writes what comes of a sequence. Queries that
 * do not come by copies are put into the ring here. */
#ifndef MLA_CUDA_DECODE_HELD_SUMS_CUH
#define MLA_CUDA_DECODE_HELD_SUMS_CUH
#include "cuda/decode_columns.cuh"
#include "cuda/decode_held_role.cuh"

#ifdef MLA_HOPPER
template <int N, int CL> struct HeldSums : HeldRole<N, CL> {
    using R = HeldRole<N, CL>;
    using typename R::RingPos;
    using R::base, R::c, R::d, R::g, R::lane, R::messages, R::pos, R::smem, R::w, R::LAT, R::PER, R::ALL;
    static constexpr int TILES = LAT / 128;
    float acc[TILES][N / 2];
    int half;

    __device__ __forceinline__ HeldSums(const DecodeP &d_, char *smem_) : R(d_, smem_) { half = __shfl_sync(~0u, threadIdx.x >> 7, 0); }
    __device__ __forceinline__ void queries(int b, int)
    {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < N / 2; j++) acc[i][j] = 0.f;
        if (!d.maps) fill(b);
        this->next(PER);
    }
    /* Rows of any type and place: 8 values a thread at a time. */
    __device__ __forceinline__ void fill(int b)
    {
        for (int x = 0; x < PER; x++) this->wait_empty(this->at(x));
#pragma unroll 1
        for (int i = threadIdx.x; i < N * PER * 8; i += ALL) {
            const int n = i / (PER * 8), k = i % (PER * 8) * 8, row = this->row_of(n), token = row / d.Hg, h = blockIdx.z * d.Hg + row % d.Hg,
                      seg = (int)((unsigned)h * (unsigned)d.rope_heads / (unsigned)d.H) * d.rope, r = k - LAT - seg;
            const bool lat = k < LAT, in = row < d.rows && (lat || (r >= 0 && r < d.rope));
            const DecodeRows &src = lat ? d.q : d.q2;
            const size_t from = in ? (size_t)(b * src.b + token * src.t + h * src.h + (lat ? k : r)) : 0;
            Raw8 raw = {};
            if (in && src.vec) {
                const char *p = (const char *)src.p + from * (src.f32 ? 4 : 2);
                raw.a = load16_if(p, true), raw.b = load16_if(p + 16, src.f32);
            } else if (in)
                raw = load8_unaligned(src.p, src.f32, from);
            float y[8];
            raw.widen(y, src.f32);
            for (int j = 0; j < 8 && !lat; j++) y[j] *= d.rope_ratio;
            char *to = smem + this->at(R::place(k >> 6)).slot * BOX;
            *(uint4 *)(to + n * 128 + (((k >> 3 & 7) ^ (n & 7)) << 4)) = make_uint4(pack2<false>(y[0], y[1]), pack2<false>(y[2], y[3]), pack2<false>(y[4], y[5]), pack2<false>(y[6], y[7]));
        }
        fence_async_smem();
        bar_sync(BAR_ALL, ALL);
        mbar_arrive_if(this->full(R::third_of(min((int)threadIdx.x, PER - 1))), threadIdx.x < PER);
    }
    __device__ __forceinline__ void used_message()
    {
        __syncwarp();
        mbar_arrive_if(this->used(messages), lane == 0);
        messages++;
    }
    __device__ __forceinline__ void page()
    {
        this->wait_sent(); /* the page is there: S has been made of all of it */
        const int4 f = *(const int4 *)this->flags();
        if (f.x | f.y | f.z | f.w) {
            const int moved[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                float2 k = ((const float2 *)this->note())[4 * j + c];
                if (!moved[j >> 1]) k = make_float2(1.f, 1.f);
#pragma unroll
                for (int i = 0; i < TILES; i++) acc[i][4 * j] *= k.x, acc[i][4 * j + 1] *= k.y, acc[i][4 * j + 2] *= k.x, acc[i][4 * j + 3] *= k.y;
            }
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) wgmma_pin(acc[i]);
        wgmma_fence();
        const uint32_t p = wgmma_lo(this->p_addr());
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const uint32_t at = wgmma_lo(this->slot_addr(this->at(R::place(2 * i + half))));
#pragma unroll
            for (int ks = 0; ks < 4; ks++) Wgmma<N>::template ss<false, 1>(acc[i], wgmma_at(at, ks * 2048), wgmma_at(p, ks * 32));
            wgmma_commit();
            if (i) {
                wgmma_wait<1>();
                this->release(this->at(R::place(2 * i - 2 + half)));
            }
        }
        wgmma_wait<0>();
        this->release(this->at(R::place(2 * TILES - 2 + half)));
        used_message();
        this->next(PER);
    }
    __device__ __forceinline__ void pages(int, int i0, int i1)
    {
        for (int i = i0; i < i1; i++) page();
    }
    /* Short code: it runs once a sequence, from a cold instruction cache. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        long long *rows = (long long *)(smem + R::sm().rows); /* where a row begins, in elements; -1: nowhere */
        if (threadIdx.x < N) {
            const int n = threadIdx.x, row = this->row_of(n);
            rows[n] = row >= d.rows ? -1
                      : whole       ? b * d.o.b + row / d.Hg * d.o.t + (blockIdx.z * d.Hg + row % d.Hg) * d.o.h
                                    : ((long long)part_slot * N + n) * LAT;
        }
        bar_sync(BAR_ALL, ALL);
        this->wait_sent();
        if (!whole || d.o.f32) write<true>(whole ? (char *)d.o.p : (char *)d.po);
        else write<false>((char *)d.o.p);
        bar_sync(BAR_ALL, ALL); /* rows are read */
        used_message();
    }
    template <bool F32> __device__ __forceinline__ void write(char *to)
    {
        to += (64 * half + 16 * w + g) * (F32 ? 4 : 2);
        write_columns<F32, N>(acc, to, (const long long *)(smem + R::sm().rows), this->note(), c, [](int i, int hi) { return 128 * i + 8 * hi; });
    }
};
#endif
#endif
