/* The trio kernel (e4m3): within a block warps have three roles. Warpgroups 0 and 1 hold O, half of the block's
 * latents each; warpgroups 2 and 3 multiply keys and queries and take the softmax, every other page each; one warp copies.
 *
 * What goes to the warpgroups of O is a message: P of a page, and a note: whether the maximum moved and by which factors; or,
 * at the end of a sequence, a note of the factors that finish O. Two buffers of both; message i is warpgroup 2 + i % 2's. The
 * maximum is common to both: messages look at it, and may move it, in order. */
#ifndef MLA_CUDA_DECODE_TRIO_CUH
#define MLA_CUDA_DECODE_TRIO_CUH
#include "cuda/decode_trio_copy.cuh"
#include "cuda/decode_trio_softmax.cuh"
#include "cuda/decode_trio_sums.cuh"

enum { TRIO_THREADS = 512 };

#ifdef MLA_HOPPER
/* Both roles walk over the sequences and pages of the block's part of the plan; b = -1: queries of nobody (decode_walk.cuh). */
template <typename Role> static __device__ __forceinline__ void trio_walk(const DecodeP &d, Role &k)
{
    const int part = blockIdx.x;
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
        k.pages(len, i0, i1);
        if (b >= to.x - (to.y == 0)) grid_release(); /* the last sequence; the merge may be launched, it waits before it reads */
        k.finish(b, i0 == 0 && i1 == n, part_slot(d, blockIdx.z * d.tiles + blockIdx.y, part, i0 == 0));
    }
}
#endif

template <int LAT, int N>
__global__ void __launch_bounds__(TRIO_THREADS + 128, 1)
    decode_trio(const __grid_constant__ CUtensorMap mc, const __grid_constant__ CUtensorMap mr, const __grid_constant__ DecodeP d)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(1024) char smem_raw[];
    constexpr int SUMS = N <= 24 ? 120 : N <= 32 ? 136 : 144, SOFTMAX = N <= 24 ? 104 : N <= 32 ? 88 : 80; /* registers of a thread, 96 at the start: 224 together at most */
    constexpr DecodeSmem sm(N, LAT / 64 + 1, decode_trio_pages(LAT, N), TRIO, decode_trio_page(LAT));
    if (smem_u32(smem_raw) != TRIO_AT) __trap();
    if (threadIdx.x == 0) TrioRole<LAT, N>::init_bars(TRIO_AT + sm.bars);
    if (threadIdx.x < (2 * decode_note(N) + decode_top(N)) / 4) ((int *)(smem_raw + sm.note))[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x >= TRIO_THREADS) {
        regs_shrink<32>();
        if (threadIdx.x == TRIO_THREADS) fetch_maps(&mc, &mr, d);
        grid_wait();
        TrioCopy<LAT, N> k(&mc, &mr, d, smem_raw, sm);
        if (threadIdx.x < TRIO_THREADS + 32) k.run();
        __syncwarp();
    } else if (threadIdx.x < 256) {
        regs_grow<SUMS>();
        TrioSums<LAT, N> k(d, smem_raw, sm);
        trio_walk(d, k);
    } else {
        if constexpr (SOFTMAX > 96) regs_grow<SOFTMAX>();
        else regs_shrink<SOFTMAX>();
        TrioSoftmax<LAT, N> k(d, smem_raw, sm);
        trio_walk(d, k);
    }
#endif
}
#endif
