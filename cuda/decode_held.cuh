/* The held kernel (bf16, latent 512), for many query rows: a warpgroup holds the queries in registers, which leaves shared memory to
 * the cache. It multiplies them with a page's keys, S (rows x 64 tokens) = Q K', and takes the softmax of the page before; two
 * warpgroups add P to O' (latents x rows) += V' P', every other 64 latents each; four warps copy.
 *
 * What goes to the warpgroups of O is a message: P of a page, and a note: which warps' maxima moved and by which factors; or, at the
 * end of a sequence, a note of the factors that finish O. Two buffers of both.
 *
 * More rows than N: as many blocks side by side take the same pages, each rows of its own. Two are a cluster (of 32 rows where parts
 * are long), and a box comes into both at once; of more, L2 serves all but the first. */
#ifndef MLA_CUDA_DECODE_HELD_CUH
#define MLA_CUDA_DECODE_HELD_CUH
#include "cuda/decode_held_copy.cuh"
#include "cuda/decode_held_softmax.cuh"
#include "cuda/decode_held_sums.cuh"

enum { HELD_THREADS = 384 };

#ifdef MLA_HOPPER
/* Both roles walk over the sequences and pages of the block's part of the plan. */
template <typename Role> static __device__ __forceinline__ void held_walk(const DecodeP &d, Role &k)
{
    const int part = blockIdx.x / d.tiles;
    grid_wait();
    const int2 from = part_begin(d, part), to = part_begin(d, part + 1);
    for (int b = from.x; b <= to.x && b < d.B; b++) {
        const int len = d.len[b], n = (len + 63) >> 6, i0 = b == from.x ? from.y : 0, i1 = b == to.x ? to.y : n;
        if (i0 >= i1) continue;
        k.queries(b, len);
        k.pages(len, i0, i1);
        if (b >= to.x - (to.y == 0)) grid_release(); /* the last sequence; the merge may be launched, it waits before it reads */
        k.finish(b, i0 == 0 && i1 == n, part_slot(d, blockIdx.z * d.tiles + k.tile, part, i0 == 0));
    }
}
#endif

template <int N, int CL>
__global__ void __launch_bounds__(HELD_THREADS + 128, 1)
    decode_held(const __grid_constant__ CUtensorMap mc, const __grid_constant__ CUtensorMap mr, const __grid_constant__ DecodeP d)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(1024) char smem_raw[];
    char *smem = smem_1024(smem_raw);
    constexpr int SLOTS = HeldSmem::slots(N);
    constexpr HeldSmem sm(N, SLOTS);
    if (threadIdx.x == 0) {
        const uint32_t bar = smem_u32(smem) + sm.bars;
        constexpr int T = HeldSmem::THIRDS, P = HeldSmem::PER;
        const int counts[4] = {N / 16, N / 16, 8, 8}; /* as HeldRole names them */
        for (int i = 0; i < SLOTS; i++) mbar_init(bar + i * 8, 4 * CL);
        for (int i = 0; i < 4 * T; i++) mbar_init(bar + (SLOTS + i) * 8, ((i % T + 1) * P + T - 1) / T - (i % T * P + T - 1) / T);
        for (int i = 0; i < 4; i++) mbar_init(bar + (SLOTS + 4 * T + i) * 8, counts[i]);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < 2 * HeldSmem::NOTE / 4) ((int *)(smem + sm.note))[threadIdx.x] = 0;
    if (CL > 1) cluster_sync();
    else __syncthreads();
    if (threadIdx.x >= HELD_THREADS) {
        regs_shrink<24>();
        if (threadIdx.x == HELD_THREADS) fetch_maps(&mc, &mr, d);
        grid_wait();
        HeldCopy<N, CL> k(&mc, &mr, d, smem);
        k.run();
    } else if (threadIdx.x < 256) {
        regs_grow<128>();
        HeldSums<N, CL> k(d, smem);
        held_walk(d, k);
    } else {
        regs_grow<232>();
        HeldSoftmax<N, CL> k(d, smem);
        held_walk(d, k);
    }
    __syncwarp();
    if (CL > 1) cluster_sync(); /* nothing more comes into this block from the other */
#endif
}
#endif
