/* The few Hopper instructions the kernels use, one small function each: mbarriers, bulk tensor copies, named barriers,
 * wgmma descriptors and fences, ldmatrix's store twin, fp8 conversion. Shared addresses are 32-bit "shared" addresses. */
#ifndef MLA_CUDA_PTX_CUH
#define MLA_CUDA_PTX_CUH
#include <cuda.h>
#include <stdint.h>

/* d (16 x 8, fp32) += a (16 x 16) b (16 x 8), bf16, each lane's fragments of them. */
static __device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ uint32_t smem_u32(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
static __device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void mbar_arrive_if(uint32_t bar, int yes)
{
    asm volatile("{.reg .pred q; setp.ne.b32 q, %1, 0; @q mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(bar), "r"(yes)
                 : "memory");
}
/* The loop lives inside the asm: a branch the compiler sees would make it serialise the wgmmas around it. */
static __device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{.reg .pred q;\n"
                 "WAIT: mbarrier.try_wait.parity.shared::cta.b64 q, [%0], %1;\n"
                 "@!q bra WAIT;}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
/* Whether it is that far. */
static __device__ __forceinline__ bool mbar_ready(uint32_t bar, uint32_t parity)
{
    uint32_t r;
    asm volatile("{.reg .pred q; mbarrier.test_wait.parity.shared::cta.b64 q, [%1], %2; selp.u32 %0, 1, 0, q;}" : "=r"(r) : "r"(bar), "r"(parity) : "memory");
    return r;
}
/* mbar_wait, if yes. */
static __device__ __forceinline__ void mbar_wait_if(uint32_t bar, uint32_t parity, int yes)
{
    asm volatile("{.reg .pred q, r; setp.eq.b32 r, %2, 0;\n"
                 "@r bra DONE;\n"
                 "WAIT: mbarrier.try_wait.parity.shared::cta.b64 q, [%0], %1;\n"
                 "@!q bra WAIT;\n"
                 "DONE:}" ::"r"(bar),
                 "r"(parity), "r"(yes)
                 : "memory");
}
static __device__ __forceinline__ void store_if(uint32_t addr, float x, int yes)
{
    asm volatile("{.reg .pred q; setp.ne.b32 q, %2, 0; @q st.shared.f32 [%0], %1;}" ::"r"(addr), "f"(x), "r"(yes) : "memory");
}
/* True in one lane of a warp that is together. */
static __device__ __forceinline__ bool elect_one(void)
{
    uint32_t r;
    asm volatile("{.reg .pred q; elect.sync _|q, 0xffffffff; selp.u32 %0, 1, 0, q;}" : "=r"(r));
    return r;
}
static __device__ __forceinline__ void bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void bar_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* A barrier that also tells every thread whether any of them said yes. */
static __device__ __forceinline__ bool bar_any(int id, int threads, bool yes)
{
    uint32_t r;
    asm volatile("{.reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q;}"
                 : "=r"(r)
                 : "r"(id), "r"(threads), "r"((uint32_t)yes)
                 : "memory");
    return r != 0;
}
static __device__ __forceinline__ void fence_async_smem(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* 16 bytes into shared memory, zeros unless `yes`; cp_wait ends all of the thread's. */
static __device__ __forceinline__ void cp16_if(uint32_t dst, const void *src, bool yes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(yes ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void cp_wait(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The same, in its place among copies, products and barriers. */
static __device__ __forceinline__ float exp2_here(float x)
{
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Programmatic launches: this grid waits until the one before is complete and visible; lets the next one start. */
static __device__ __forceinline__ void grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void grid_release(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MLA_HOPPER 1
static __device__ __forceinline__ uint64_t evict_first_policy(void)
{
    uint64_t p;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
/* A tensor map on its way to where copies look for it. */
static __device__ __forceinline__ void map_fetch(const CUtensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
/* Box at element (x, y, z) of the tensor map into shared memory; completes `bar` by its bytes. */
static __device__ __forceinline__ void tma_box(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint64_t policy, int x,
                                               int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(dst),
                 "l"(map), "r"(bar), "l"(policy), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
/* The same into both blocks of a cluster: their places and barriers alike. */
static __device__ __forceinline__ void tma_box_both(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint64_t policy, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
                 "[%0], [%1, {%4, %5, %6}], [%2], %7, %3;" ::"r"(dst),
                 "l"(map), "r"(bar), "l"(policy), "r"(x), "r"(y), "r"(z), "h"((uint16_t)3)
                 : "memory");
}
static __device__ __forceinline__ void tma_box4(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint64_t policy, int x,
                                                int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(dst),
                 "l"(map), "r"(bar), "l"(policy), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
static __device__ __forceinline__ void tma_box5(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint64_t policy, int x, int y, int z, int v, int w)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(dst),
                 "l"(map), "r"(bar), "l"(policy), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w)
                 : "memory");
}
/* The same of a 3-dimensional map, kept in L2 as usual. */
static __device__ __forceinline__ void tma_box_keep(uint32_t dst, const CUtensorMap *map, uint32_t bar, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
/* Contiguous bytes (a multiple of 16) into shared memory, counted by `bar`; out of it; until all of the thread's have left it. */
static __device__ __forceinline__ void bulk_get(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar)
                 : "memory");
}
/* The same with a cache policy. */
static __device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src),
                 "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
/* Global memory to L2 alone. */
static __device__ __forceinline__ void l2_fetch(const void *p, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void bulk_put(void *dst, uint32_t src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void bulk_put_end(void)
{
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
/* A box out of shared memory, if yes: a group of its own; until the thread's groups have left shared memory. */
static __device__ __forceinline__ void tma_put_if(const CUtensorMap *map, uint32_t src, int x, int y, int z, int yes)
{
    asm volatile("{.reg .pred q; setp.ne.b32 q, %5, 0;\n"
                 "@q cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n"
                 "@q cp.async.bulk.commit_group;}" ::"l"(map), "r"(src), "r"(x), "r"(y), "r"(z), "r"(yes)
                 : "memory");
}
static __device__ __forceinline__ void bulk_put_wait(void) { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
static __device__ __forceinline__ void lds128(uint32_t (&v)[4], uint32_t addr)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(addr) : "memory");
}
static __device__ __forceinline__ uint2 lds64(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ uint32_t lds32(uint32_t addr)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(addr) : "memory");
    return v;
}
static __device__ __forceinline__ void sts32(uint32_t addr, uint32_t v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(addr), "r"(v) : "memory"); }
static __device__ __forceinline__ void wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/* Pins accumulators in registers before a fence: the compiler may not sink their last ordinary write below it. */
template <int N> static __device__ __forceinline__ void wgmma_pin(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
static __device__ __forceinline__ void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* A warpgroup's share of the registers. A checker's instructions between a kernel's need some of their own: MLA_CUDA_CHECKED leaves them as
 * they are at launch. */
template <int REGS> static __device__ __forceinline__ void regs_grow(void)
{
#ifndef MLA_CUDA_CHECKED
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGS));
#endif
}
template <int REGS> static __device__ __forceinline__ void regs_shrink(void)
{
#ifndef MLA_CUDA_CHECKED
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGS));
#endif
}
template <int LEFT> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Descriptor of a 128-byte swizzled operand whose 8-row groups are GROUP bytes apart: K-major, or M-major with 64 columns.
 * Its low word moves with the address (16 bytes a step), so a tile's low word is made once and offsets are added. */
static __device__ __forceinline__ uint32_t wgmma_lo(uint32_t addr) { return ((addr & 0x3ffffu) >> 4) | (1u << 16); }
template <uint32_t GROUP = 1024> static __device__ __forceinline__ uint64_t wgmma_at(uint32_t lo, uint32_t bytes)
{
    return (uint64_t)(lo + (bytes >> 4)) | ((uint64_t)(0x40000000u | GROUP >> 4) << 32);
}
/* M-major operands wider than 64: the next 64 columns are `next` bytes further. */
static __device__ __forceinline__ uint64_t wgmma_wide_at(uint32_t lo, uint32_t next)
{
    return (uint64_t)((lo & 0xffffu) | (next >> 4) << 16) | (uint64_t)(0x40000000u | 1024 >> 4) << 32;
}
/* Stores the 8x8 16-bit matrix held across the warp transposed; lanes 0-7 give the addresses of its 8 columns. */
static __device__ __forceinline__ void stmatrix_trans(uint32_t addr, uint32_t v)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(addr), "r"(v) : "memory");
}
/* Two such matrices; lanes 0-7 address the columns of the first, lanes 8-15 of the second. */
static __device__ __forceinline__ void stmatrix_trans2(uint32_t addr, uint32_t v0, uint32_t v1)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(addr), "r"(v0), "r"(v1) : "memory");
}
/* Four 8x8 matrices as they lie, if yes, which must be the same in all lanes; lanes 8i..8i+7 address the rows of matrix i. */
static __device__ __forceinline__ void stmatrix4_if(uint32_t addr, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3, int yes)
{
    asm volatile("{.reg .pred q; setp.ne.b32 q, %5, 0; @q stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};}" ::"r"(addr), "r"(v0), "r"(v1),
                 "r"(v2), "r"(v3), "r"(yes)
                 : "memory");
}
/* Four, if yes, which must be the same in all lanes; lanes 8i..8i+7 address the columns of matrix i. */
static __device__ __forceinline__ void stmatrix_trans4_if(uint32_t addr, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3, int yes)
{
    asm volatile("{.reg .pred q; setp.ne.b32 q, %5, 0; @q stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};}" ::"r"(addr), "r"(v0),
                 "r"(v1), "r"(v2), "r"(v3), "r"(yes)
                 : "memory");
}
/* Four 8x8 16-bit matrices into the fragments of a 16x16 A operand; lanes 8i..8i+7 give the rows of matrix i. */
static __device__ __forceinline__ void ldmatrix4(uint32_t (&a)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(addr)
                 : "memory");
}
/* The same of matrices that are transposed on the way. */
static __device__ __forceinline__ void ldmatrix4_trans(uint32_t (&a)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(addr) : "memory");
}
/* Clusters: this block's rank, another block's copy of a shared address, 16 bytes into it counted by its mbarrier. */
static __device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
static __device__ __forceinline__ uint32_t cluster_addr(uint32_t addr, uint32_t rank)
{
    uint32_t r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}
static __device__ __forceinline__ void cluster_put(uint32_t addr, uint32_t bar, float x, float y, float z, float w)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(addr), "r"(bar),
                 "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}
/* Arrives on another block's mbarrier (by cluster_addr). Releasing to the cluster would be a fence of 2000 clocks: what is
 * announced here are reads, and they are done. */
static __device__ __forceinline__ void cluster_arrive_if(uint32_t bar, int yes)
{
    asm volatile("{.reg .pred q; setp.ne.b32 q, %1, 0; @q mbarrier.arrive.shared::cluster.b64 _, [%0];}" ::"r"(bar), "r"(yes) : "memory");
}
static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Four e4m3 values (low byte first) as two f16x2, exact. One asm: its second conversion then takes the upper half as it is. */
static __device__ __forceinline__ void e4m3x4_f16(uint32_t &lo, uint32_t &hi, uint32_t four)
{
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}" : "=r"(lo), "=r"(hi) : "r"(four));
}
#endif
#endif
