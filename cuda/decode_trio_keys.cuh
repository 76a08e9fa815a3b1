/* Trio kernel, S of a page: keys times queries, from boxes, from rows in memory order, or from e4m3 through registers. */
#ifndef MLA_CUDA_DECODE_TRIO_KEYS_CUH
#define MLA_CUDA_DECODE_TRIO_KEYS_CUH
#include "cuda/decode_trio_role.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioKeys : TrioRole<LAT, N> {
    using R = TrioRole<LAT, N>;
    using typename R::RingPos;
    using R::base, R::c, R::d, R::g, R::pos, R::sm, R::w, R::NB;
    int mine;       /* which of the two warpgroups */
    float x[N / 2]; /* S of the page at pos */

    __device__ __forceinline__ TrioKeys(const DecodeP &d_, char *smem_, const DecodeSmem &sm_) : R(d_, smem_, sm_), mine(__shfl_sync(~0u, (threadIdx.x >> 7) - 2, 0)) {}
    /* S of the page at pos, 64 latents at a time, whose bytes are fetched two such times ahead; two sets of fragments of two k-steps. */
    __device__ __forceinline__ void multiply()
    {
        const uint32_t q = wgmma_lo(base + sm.q);
        uint32_t a[2][2][4], u[2][4], v[2][4]; /* fragments; words of tokens g and g + 8 */
        const int row = 16 * w + tok8(g), sw = row & 7;
        const uint32_t page = this->slot_addr(pos) + row * 128, even = page + ((c ^ sw) << 4), odd = page + (((c + 4) ^ sw) << 4);
        auto fetch = [&](int h) {
            const bool rope = h == LAT / 64;
            const uint32_t at = rope ? this->rope_addr() + row * 64 + c * 16 : (h & 1 ? odd : even) + (h >> 1) * BOX;
            lds128(u[h & 1], at);
            lds128(v[h & 1], at + (rope ? 8 * 64 : 8 * 128));
        };
#pragma unroll
        for (int i = 0; i < N / 2; i++) x[i] = 0.f;
#pragma unroll
        for (int i = 0; i < NB; i++) this->wait_full(this->unit(i));
        this->wait_rope();
#pragma unroll
        for (int i = 0; i < 2; i++) fetch(i);
#pragma unroll
        for (int h = 0; h <= LAT / 64; h++)
#pragma unroll
            for (int b = 0; b < 2; b++) {
                if (h) wgmma_wait<1>();
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    e4m3x4_f16(a[b][i][0], a[b][i][2], u[h & 1][2 * b + i]);
                    e4m3x4_f16(a[b][i][1], a[b][i][3], v[h & 1][2 * b + i]);
                }
                if (!h && !b) wgmma_pin(x);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < 2; i++) Wgmma<N>::template rs<true>(x, a[b][i], wgmma_at(q + ((h * N * 128) >> 4), (2 * b + i) * 32));
                wgmma_commit();
                if (b && h + 2 <= LAT / 64) fetch(h + 2);
            }
        wgmma_wait<0>(); /* the products read a */
    }
};
#endif
#endif
