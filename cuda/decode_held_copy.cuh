/* Held kernel, the copying warps: queries of a piece, where they come by boxes, then its pages, box by box as slots come free; a
 * box takes a warp 330 clocks, so four take every fourth. */
#ifndef MLA_CUDA_DECODE_HELD_COPY_CUH
#define MLA_CUDA_DECODE_HELD_COPY_CUH
#include "cuda/decode_held_role.cuh"

#ifdef MLA_HOPPER
template <int N> struct HeldCopy : HeldRole<N> {
    using R = HeldRole<N>;
    using typename R::RingPos;
    using R::base, R::d, R::lane, R::pos, R::tile, R::w, R::LAT, R::NB, R::PER;
    const CUtensorMap *mc, *mr;
    uint64_t policy;
    uint32_t pieces, boxes; /* so far */
    static constexpr uint32_t WARPS = 4;

    __device__ __forceinline__ HeldCopy(const CUtensorMap *mc_, const CUtensorMap *mr_, const DecodeP &d_, char *smem_)
        : R(d_, smem_), mc(mc_), mr(mr_), policy(evict_first_policy()), pieces(0), boxes(0)
    {
    }
    __device__ __forceinline__ void queries(int b)
    {
        if (lane == 0 && d.maps) {
            const int row = blockIdx.z * d.Hg + tile * N;
#pragma unroll 1
            for (int x = w; x < PER; x += WARPS) {
                if (x < NB) this->wait_empty(this->at(x));
                else mbar_wait(this->q2_free(), (pieces & 1) ^ 1);
                mbar_expect(this->full(R::third_of(x)), N * 128);
                tma_box_keep(x < NB ? this->slot_addr(this->at(x)) : base + R::sm().q2, x < NB ? &d.q_map : &d.q2_map, this->full(R::third_of(x)), x < NB ? 64 * x : 0, row, b);
            }
        }
        pieces++, boxes += NB;
        this->next(NB);
    }
    __device__ __forceinline__ void page(int page)
    {
        if (lane == 0)
#pragma unroll 1
            for (uint32_t x = (w - boxes) % WARPS; x < PER; x += WARPS) {
                const RingPos r = this->at(x);
                const CUtensorMap *map = x < NB ? mc : mr;
                const int col = x < NB ? d.lat_col + blockIdx.z * LAT + 64 * x : d.rope_col;
                this->wait_empty(r);
                mbar_expect(this->full(R::third_of(x)), BOX);
                tma_box(this->slot_addr(r), map, this->full(R::third_of(x)), policy, col, 0, page);
            }
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
