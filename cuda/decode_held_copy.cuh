/* Held kernel, the copying warps: queries of a piece, where they come by boxes, then its pages, box by box as slots come free
 * in every block of the cluster; a box takes a warp 330 clocks, so four take every fourth. */
#ifndef MLA_CUDA_DECODE_HELD_COPY_CUH
#define MLA_CUDA_DECODE_HELD_COPY_CUH
#include "cuda/decode_held_role.cuh"

#ifdef MLA_HOPPER
template <int N, int CL> struct HeldCopy : HeldRole<N, CL> {
    using R = HeldRole<N, CL>;
    using typename R::RingPos;
    using R::d, R::lane, R::pos, R::tile, R::w, R::LAT, R::PER;
    const CUtensorMap *mc, *mr;
    uint64_t policy;
    uint32_t boxes; /* so far */
    static constexpr uint32_t WARPS = 4;

    __device__ __forceinline__ HeldCopy(const CUtensorMap *mc_, const CUtensorMap *mr_, const DecodeP &d_, char *smem_)
        : R(d_, smem_), mc(mc_), mr(mr_), policy(evict_first_policy()), boxes(0)
    {
    }
    /* fetch(place, slot, barrier) of the warp's boxes of an item, as slots come free. */
    template <typename F> __device__ __forceinline__ void item(uint32_t bytes, F fetch)
    {
        if (lane == 0)
#pragma unroll 1
            for (uint32_t x = (w - boxes) % WARPS; x < PER; x += WARPS) {
                const RingPos r = this->at(x);
                this->wait_empty(r);
                mbar_expect(this->full(R::third_of(x)), bytes);
                fetch((int)x, this->slot_addr(r), this->full(R::third_of(x)));
            }
    }
    __device__ __forceinline__ void queries(int b)
    {
        const int row = blockIdx.z * d.Hg + tile * N;
        if (d.maps)
            item(N * 128, [&](int x, uint32_t to, uint32_t bar) { tma_box_keep(to, x ? &d.q_map : &d.q2_map, bar, x ? 64 * (x - 1) : 0, row, b); });
        boxes += PER;
        this->next(PER);
    }
    /* Blocks of a cluster count the same boxes: warps of even number fetch for both in the first, the others in the second. */
    __device__ __forceinline__ void page(int page)
    {
        item(BOX, [&](int x, uint32_t to, uint32_t bar) {
            const CUtensorMap *map = x ? mc : mr;
            const int col = x ? d.lat_col + blockIdx.z * LAT + 64 * (x - 1) : d.rope_col;
            if (CL == 1) tma_box(to, map, bar, policy, col, 0, page);
            else if ((w & 1) == tile) tma_box_both(to, map, bar, policy, col, 0, page);
        });
        boxes += PER;
        this->next(PER);
    }
    __device__ __forceinline__ void run()
    {
        const int part = blockIdx.x / d.tiles;
        const int2 from = part_begin(d, part), to = part_begin(d, part + 1);
        for (int b = from.x; b <= to.x && b < d.B; b++) {
            const int i0 = b == from.x ? from.y : 0, i1 = piece_end(d, b, to);
            for (int at = i0; at < i1; at += 32) {
                const int mine = at + lane < i1 ? d.table[b * d.table_stride + at + lane] : 0;
                if (at == i0) queries(b); /* while the table is on its way */
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
