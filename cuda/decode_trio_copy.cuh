/* Trio kernel, the copying warp: pages of the block's share as boxes come free; a page has one barrier. */
#ifndef MLA_CUDA_DECODE_TRIO_COPY_CUH
#define MLA_CUDA_DECODE_TRIO_COPY_CUH
#include "cuda/decode_trio_role.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N> struct TrioCopy : TrioRole<LAT, N> {
    using R = TrioRole<LAT, N>;
    using R::d, R::lane, R::pos, R::sm, R::NB;
    const CUtensorMap *mc, *mr;
    uint64_t policy;

    __device__ __forceinline__ TrioCopy(const CUtensorMap *mc_, const CUtensorMap *mr_, const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : R(d_, smem_, sm_), mc(mc_), mr(mr_), policy(evict_first_policy())
    {
    }
    /* Boxes in the order in which the two halves of O let go of them. When the first is free, S is done with the page. */
    __device__ __forceinline__ void page(int page)
    {
        if (lane == 0) {
            const uint32_t at = R::page_addr(sm, pos), full = this->full(pos);
#pragma unroll
            for (int x = 0; x < NB; x++) {
                const int box = (x & 1) * (NB / 2) + (x >> 1);
                mbar_wait(this->empty(pos, box), pos.phase ^ 1);
                if (!x) {
                    mbar_expect(full, R::PAGE);
                    tma_box(at + NB * BOX, mr, full, policy, d.rope_col, 0, page);
                }
                tma_box(at + box * BOX, mc, full, policy, d.lat_col + blockIdx.z * LAT + box * 128, 0, page);
            }
        }
        pos = this->after(1);
    }
    __device__ __forceinline__ void run()
    {
        const int2 from = part_begin(d, blockIdx.x), to = part_begin(d, blockIdx.x + 1);
        for (int b = from.x; b <= to.x && b < d.B; b++) {
            const int i0 = b == from.x ? from.y : 0, i1 = piece_end(d, b, to);
            for (int at = i0; at < i1; at += 32) {
                const int mine = at + lane < i1 ? d.table[b * d.table_stride + at + lane] : 0;
                for (int i = 0; i < min(32, i1 - at); i++) {
                    page(__shfl_sync(~0u, mine, i));
                    __syncwarp();
                }
            }
        }
    }
};
#endif
#endif
