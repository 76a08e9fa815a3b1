/* Trio kernel, S of a page: keys, e4m3 through registers, times queries. */
#ifndef MLA_CUDA_DECODE_TRIO_KEYS_CUH
#define MLA_CUDA_DECODE_TRIO_KEYS_CUH
#include "cuda/decode_trio_role.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioKeys : TrioRole<LAT, N> {
    using R = TrioRole<LAT, N>;
    using R::base, R::c, R::d, R::g, R::pos, R::sm, R::w, R::NB;
    int mine;                       /* which of the two warpgroups */
    float x[N / 2];                 /* S of the page at pos */
    uint32_t u[2][4], v[2][4];      /* words of tokens g and g + 8, 64 latents, of a page's steps h and h + 1 */

    __device__ __forceinline__ TrioKeys(const DecodeP &d_, char *smem_, const DecodeSmem &sm_) : R(d_, smem_, sm_), mine(__shfl_sync(~0u, (threadIdx.x >> 7) - 2, 0)) {}
    /* Of the page at `at`. */
    __device__ __forceinline__ void fetch(uint32_t at, int h)
    {
        const bool rope = h == LAT / 64;
        const int row = 16 * w + tok8(g);
        const uint32_t from = rope ? at + NB * BOX + row * 64 + c * 16 : (at + row * 128 + ((c ^ (row & 7)) << 4) ^ (h & 1) * 64) + (h >> 1) * BOX;
        lds128(u[h & 1], from);
        lds128(v[h & 1], from + (rope ? 8 * 64 : 8 * 128));
    }
    /* S of the page at pos: 64 latents at a time, whose bytes are fetched two such times ahead; two sets of
     * fragments of two k-steps. */
    __device__ __forceinline__ void multiply()
    {
        const uint32_t q = wgmma_lo(base + sm.q), at = R::page_addr(sm, pos);
        uint32_t a[2][2][4];
#pragma unroll
        for (int i = 0; i < N / 2; i++) x[i] = 0.f;
        this->wait_full(pos);
#pragma unroll
        for (int i = 0; i < 2; i++) fetch(at, i);
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
                if (b && h + 2 <= LAT / 64) fetch(at, h + 2);
            }
        wgmma_wait<0>();
        wgmma_pin(x);
    }
};
#endif
#endif
