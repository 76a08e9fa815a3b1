/* The trio kernel, for many query rows: within a block warpgroups have roles. Warpgroups 0 and 1 hold O, half of the block's
 * latents each; warpgroup 2 multiplies keys and queries and takes the softmax.
 *
 * CL = 2: two blocks of a cluster share the pages, each with half of the latents (LAT). The sums of S over a block's latents are halves, too. Each block takes the softmax of half of the N columns: it gets its
 * twin's sums for them, and sends its P to the twin. Own columns lie first, so block 1 has its rows turned by N / 2; a
 * column's maximum and total are kept in one place. While this goes on, the next page's S is multiplied.
 * What goes to the warpgroups of O is a message: P of a page, and a note: whether the maximum moved and by which factors; or,
 * at the end of a sequence, a note of the factors that finish O. Two buffers of both. */
#ifndef MLA_CUDA_DECODE_TWIN_CUH
#define MLA_CUDA_DECODE_TWIN_CUH
#include "cuda/decode_twin_softmax.cuh"
#include "cuda/decode_twin_sums.cuh"

enum { TWIN_THREADS = 384 };

#ifdef MLA_HOPPER
/* Both roles walk over the sequences and pages of the block's part of the plan; b = -1: queries of nobody (decode_walk.cuh). */
template <int CL, typename Role, typename F> static __device__ __forceinline__ void twin_walk(const DecodeP &d, Role &k, F pages)
{
    const int part = blockIdx.x / CL;
    int2 from = make_int2(0, 0), to = from;
    for (int b = -1; b < 0 || (b <= to.x && b < d.B); b++) {
        const int len = b < 0 ? 0 : d.len[b], n = (len + 63) >> 6, i0 = b == from.x ? from.y : 0, i1 = b == to.x ? to.y : n;
        if (b >= 0 && i0 >= i1) continue;
        k.queries(b, len);
        if (b < 0) {
            grid_wait();
            from = part_begin(d, part), to = part_begin(d, part + 1);
            b = from.x - 1;
            continue;
        }
        k.begin();
        pages(len, i0, i1);
        if (b >= to.x - (to.y == 0)) grid_release(); /* the last sequence; the merge may be launched, it waits before it reads */
        k.finish(b, i0 == 0 && i1 == n, ((blockIdx.z * gridDim.y + blockIdx.y) * (gridDim.x / CL) + part) * 2 + (i0 > 0 ? 0 : 1));
    }
}
#endif

/* LAT: latents of one block. */
template <int LAT, int N, bool FP8, int CL>
__global__ void __launch_bounds__(TWIN_THREADS + 128, 1)
    decode_twin(const __grid_constant__ CUtensorMap mc, const __grid_constant__ CUtensorMap mr, const __grid_constant__ DecodeP d)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(1024) char smem_raw[];
    char *smem = smem_1024(smem_raw);
    constexpr bool ROWS8 = false, WIDE = LAT / 128 * (N / 2) > 96; /* more sums than fit 152 registers */
    const DecodeSmem sm(N, LAT / 64 + 1, d.slots, TWIN, ROWS8 ? decode_unit(LAT, 1) : BOX, CL);
    const uint32_t base = smem_u32(smem);
    if (threadIdx.x == 0) {
        const uint32_t bar = base + sm.bars + 16 * d.slots;
        const int counts[8] = {4, 4, 8 * CL, 8 * CL, 1, 4, 8, 4}; /* as TwinRole names them */
        for (int i = 0; i < 8; i++) mbar_init(bar + i * 8, counts[i]);
    }
    if (threadIdx.x < 2 * decode_note(N) / 4) ((int *)(smem + sm.note))[threadIdx.x] = 0;
    init_ring(base + sm.bars, d.slots, ROWS8 ? 8 : 4);
    if (CL > 1) cluster_sync();
    if (threadIdx.x >= TWIN_THREADS) {
        regs_shrink<40>();
        grid_wait();
        if (threadIdx.x < TWIN_THREADS + 32) produce<LAT, 1, FP8, 0, ROWS8, CL>(&mc, &mr, d, base, sm);
        __syncwarp();
    } else if (threadIdx.x < 256) {
        regs_grow<WIDE ? 168 : 152>();
        TwinSums<LAT, N, FP8, CL> k(d, smem, sm);
        twin_walk<CL>(d, k, [&](int, int i0, int i1) {
            for (int i = i0; i < i1; i++) k.page();
        });
    } else {
        regs_grow<WIDE ? 136 : 168>();
        TwinSoftmax<LAT, N, FP8, CL> k(d, smem, sm);
        twin_walk<CL>(d, k, [&](int len, int i0, int i1) {
            const int min_limit = len - d.s_q + 1;
            if (CL == 1) {
                for (int i = i0; i < i1; i++) {
                    k.multiply();
                    k.multiplied();
                    k.template page<false>(i, len, min_limit);
                }
                return;
            }
            k.multiply();
            k.multiplied();
            for (int i = i0; i + 1 < i1; i++) k.template page<true>(i, len, min_limit);
            k.template page<false>(i1 - 1, len, min_limit);
        });
    }
    if (CL > 1) cluster_sync(); /* the twin may still send to this block */
#endif
}
#endif
