/* The solo kernel itself: a block walks over the sequences and pages that are its part of the plan. */
#ifndef MLA_CUDA_DECODE_WALK_CUH
#define MLA_CUDA_DECODE_WALK_CUH
#include "cuda/decode_solo.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, int RB, bool FP8, int NW, bool SPLIT, int CL>
static __device__ __forceinline__ void consume_solo(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    using S = Solo<LAT, N, RB, FP8, NW, SPLIT, CL>;
    S k(d, smem, sm);
    const int part = blockIdx.x / CL;
    int2 from = make_int2(0, 0), to = from;
    uint32_t done = 0, pieces = 0; /* pages and number of this block's earlier sequences */
    const uint32_t bar = d.maps ? k.query_bar() : 0;
    auto share = [&] {
        grid_wait();
        from = part_begin(d, part), to = part_begin(d, part + 1);
    };
    int b = -1; /* without maps: queries of nobody, while the kernel before ends: it brings the instructions near */
    if (bar) share(), b = from.x;
    for (; b < 0 || (b <= to.x && b < d.B); b++) {
        const int i0 = b == from.x ? from.y : 0, i1 = b < 0 ? 1 : piece_end(d, b, to);
        if (i0 >= i1) continue;
        const int len = b < 0 ? 0 : d.len[b];
        fence_async_smem();
        bar_sync(BAR_ALL, S::ALL);
        if (bar && threadIdx.x == 0) fetch_q<LAT, S::NT, RB>(d, smem_u32(smem) + sm.q, bar, b, k.rank * LAT);
        __syncwarp(); /* the warp meets again before its barriers */
        load_q<LAT, S::NT, RB, FP8, NW * 4>(d, smem, sm, b, len, k.rank * LAT, bar, pieces & 1);
        fence_async_smem();
        bar_sync(BAR_ALL, S::ALL);
        if (b < 0) {
            share();
            b = from.x - 1;
            continue;
        }
        k.begin();
        k.pages(i0, i1, len, done);
        if (b >= to.x - (to.y == 0)) grid_release(); /* the last sequence; the merge may be launched, it waits before it reads */
        done += (uint32_t)(i1 - i0), pieces++;
        k.finish(b, i0 == 0 && i1 == (len + 63) >> 6, part_slot(d, blockIdx.z * d.tiles + blockIdx.y, part, i0 == 0));
    }
}
#endif

/* LAT: latents of one block. */
template <int LAT, int N, int RB, bool FP8, int NW, bool SPLIT, int CL>
__global__ void __launch_bounds__(NW * 128 + 128, 1)
    decode_solo(const __grid_constant__ CUtensorMap mc, const __grid_constant__ CUtensorMap mr, const __grid_constant__ DecodeP d)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(1024) char smem_raw[];
    char *smem = smem_1024(smem_raw);
    constexpr int NT = SPLIT ? NW * N : N, ALONE = SPLIT ? 1 : NW;
    constexpr bool ROWS8 = decode_rows8(LAT, RB, NT, ALONE, FP8, CL);
    const DecodeSmem sm(NT, LAT / 64 + RB, d.slots, ALONE, ROWS8 ? decode_unit(LAT, RB) : BOX, CL);
    const uint32_t base = smem_u32(smem);
    if (threadIdx.x == 0)
        for (int i = 0; i < 8; i++) mbar_init(base + sm.bars + (2 * d.slots + i) * 8, 1); /* turns, exchanges, queries */
    init_ring(base + sm.bars, d.slots, SPLIT ? 4 * NW : 4);
    if (CL > 1) cluster_sync();
    if (threadIdx.x >= NW * 128) {
        regs_shrink<24>();
        if (threadIdx.x == NW * 128) fetch_maps(&mc, &mr, d);
        grid_wait();
        if (threadIdx.x < NW * 128 + 32) produce<LAT, RB, FP8, ROWS8, CL>(&mc, &mr, d, base, sm);
    } else {
        regs_grow<NW == 2 ? 240 : 160>();
        consume_solo<LAT, N, RB, FP8, NW, SPLIT, CL>(d, smem, sm);
    }
#endif
}
#endif
