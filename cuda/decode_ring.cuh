/* MLA decode for Hopper, the ring of boxes: places in it, its barriers, the copying warp of solo and pair kernels. */
#ifndef MLA_CUDA_DECODE_RING_CUH
#define MLA_CUDA_DECODE_RING_CUH
#include "cuda/decode_smem.cuh"

#ifdef MLA_HOPPER
template <int WRAPS> struct RingPosOf {
    int slot;
    uint32_t phase;
    __device__ __forceinline__ RingPosOf at(int ahead, int slots) const
    {
        RingPosOf r = {slot + ahead, phase}; /* `ahead` goes round WRAPS times at most; selects, no branches between wgmmas */
#pragma unroll
        for (int i = 0; i < WRAPS; i++) {
            const bool over = r.slot >= slots;
            r.slot -= over ? slots : 0;
            r.phase ^= (uint32_t)over;
        }
        return r;
    }
};

/* One full and one empty barrier per slot; empty completes when the reading warps have arrived. */
static __device__ __forceinline__ void init_ring(uint32_t bars, int slots, int readers)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < slots; i++) {
            mbar_init(bars + i * 8, 1);
            mbar_init(bars + (slots + i) * 8, readers);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}
/* While the kernel before ends. */
static __device__ __forceinline__ void fetch_maps(const CUtensorMap *mc, const CUtensorMap *mr, const DecodeP &d)
{
    map_fetch(mc), map_fetch(mr);
    if (d.maps) map_fetch(&d.q_map), map_fetch(&d.q2_map);
}
/* End of a block's pages of sequence b. The length is read only where the sequence ends in the block: a load fewer before
 * most blocks' first page. */
static __device__ __forceinline__ int piece_end(const DecodeP &d, int b, int2 to)
{
    int end = to.y;
    if (b != to.x) end = (d.len[b] + 63) >> 6;
    return end;
}
/* The copying warp: pages of the block's share, box by box, as slots come free. */
template <int LAT, int RB, bool FP8, bool ROWS8, int CL>
static __device__ void produce(const CUtensorMap *mc, const CUtensorMap *mr, const DecodeP &d, uint32_t base,
                               const DecodeSmem &sm)
{
    constexpr int NB = FP8 ? LAT / 128 : LAT / 64, BW = FP8 ? 128 : 64;
    const int lane = threadIdx.x & 31;
    const uint64_t policy = evict_first_policy();
    const uint32_t full = base + sm.bars, empty = full + d.slots * 8;
    const int2 from = part_begin(d, blockIdx.x / CL), to = part_begin(d, blockIdx.x / CL + 1);
    const int col = d.lat_col + (blockIdx.z * CL + (CL > 1 ? cluster_rank() : 0)) * LAT;
    int slot = 0;
    uint32_t phase = 0;
    for (int b = from.x; b <= to.x && b < d.B; b++) {
        const int i0 = b == from.x ? from.y : 0, i1 = piece_end(d, b, to);
        for (int at = i0; at < i1; at += 32) {
            const int mine = at + lane < i1 ? d.table[b * d.table_stride + at + lane] : 0;
            const int m = min(32, i1 - at);
            for (int i = 0; i < m; i++) {
                const int page = __shfl_sync(~0u, mine, i);
                for (int x = 0; ROWS8 && x < 4; x++) {
                    const uint32_t at = base + sm.ring + slot * decode_unit(LAT, RB), bar = full + slot * 8;
                    if (lane == 0) {
                        mbar_wait(empty + slot * 8, phase ^ 1);
                        mbar_expect(bar, decode_unit(LAT, RB));
                        if (d.joined) tma_box5(at, mc, bar, policy, col, 0, 0, 2 * x, page); /* a thread issues a box in 60 ns */
                        for (int g = 0; g < 2 && !d.joined; g++) {
                            tma_box4(at + g * (NB + RB) * 1024, mc, bar, policy, col, 16 * x + 8 * g, 0, page);
                            if (RB) tma_box4(at + (g * (NB + RB) + NB) * 1024, mr, bar, policy, d.rope_col, 16 * x + 8 * g, 0, page);
                        }
                    }
                    if (++slot == d.slots) slot = 0, phase ^= 1;
                }
                for (int x = 0; !ROWS8 && x < NB + RB; x++) {
                    if (lane == 0) {
                        const bool rope = RB && x >= NB && x < NB + RB;
                        mbar_wait(empty + slot * 8, phase ^ 1);
                        mbar_expect(full + slot * 8, rope && FP8 ? BOX / 2 : BOX);
                        tma_box(base + sm.ring + slot * BOX, rope ? mr : mc, full + slot * 8, policy,
                                rope ? d.rope_col + (x - NB) * 64 : col + x * BW, 0, page);
                    }
                    if (++slot == d.slots) slot = 0, phase ^= 1;
                }
                __syncwarp();
            }
        }
    }
}
#endif
#endif
