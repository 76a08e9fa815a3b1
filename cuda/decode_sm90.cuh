/* MLA decode for Hopper: one block of two consumer warpgroups and a copying warp walks its share of the cached pages.
 *
 * A page is 64 tokens x (lat + rope) in boxes of 64 x 128 bytes, fetched by the bulk tensor engine into a ring of
 * slots. Tiles are transposed: tokens or latents lie on wgmma's 64 rows and the N query rows on its columns, so few heads
 * waste nothing and every query row (heads x s_q) shares one read of the cache.
 *   S^T (64 tokens x N)   = K Q^T     each warpgroup sums its own boxes; the halves are exchanged, 32 tokens each
 *   O^T (lat x N)        += V^T P^T   each warpgroup owns the latent tiles of its own boxes
 * bf16: both operands from shared memory. e4m3: the A operand goes through registers, converted exactly to f16; the
 * order of latents and tokens inside a tile is chosen so that every shared load is wide and free of bank conflicts:
 * tok(g) below permutes tokens within 8, and q is stored with its latents permuted within 64 to match. */
#ifndef MLA_CUDA_DECODE_SM90_CUH
#define MLA_CUDA_DECODE_SM90_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "cuda/decode_dev.cuh"
#include "cuda/ptx.cuh"
#include "cuda/wgmma.cuh"

enum { CONSUMERS = 256, THREADS = CONSUMERS + 128, BOX = 8192, BAR_ALL = 1, BAR_WG = 2 };

/* Shared memory of one block, bytes from a 1024-byte boundary; the one place of this arithmetic (host and device). */
struct DecodeSmem {
    uint32_t ring, q, p, ex, red, colscale, limit, bars, bytes;
    __host__ __device__ DecodeSmem(int N, int kboxes, int slots)
    {
        ring = 0;
        q = ring + (uint32_t)slots * BOX;
        p = q + (uint32_t)(kboxes * N * 128);
        ex = p + (uint32_t)N * 128;
        red = ex + (uint32_t)N * 256;
        colscale = red + (uint32_t)N * 32;
        limit = colscale + (uint32_t)N * 4;
        bars = limit + (uint32_t)N * 4;
        bytes = bars + (uint32_t)slots * 16;
    }
};

#ifdef MLA_HOPPER
template <int WRAPS> struct RingPosOf {
    int slot;
    uint32_t phase;
    __device__ __forceinline__ RingPosOf at(int ahead, int slots) const
    {
        RingPosOf r = {slot + ahead, phase}; /* ahead < 3 slots; selects, no branches between wgmmas */
#pragma unroll
        for (int i = 0; i < WRAPS; i++) {
            const bool over = r.slot >= slots;
            r.slot -= over ? slots : 0;
            r.phase ^= (uint32_t)over;
        }
        return r;
    }
};

static __device__ __forceinline__ int tok8(int g) { return g ^ ((g & 1) << 2); }

/* Query rows of one tile into shared memory, K-major swizzled boxes of 64: latent boxes first, then rotary. */
template <int LAT, int N, int RB, bool FP8>
static __device__ void load_q(const DecodeP &d, char *smem, const DecodeSmem &sm, int b, int len)
{
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, K = LAT + RB * 64;
    float *colscale = (float *)(smem + sm.colscale);
    int *limit = (int *)(smem + sm.limit);
    for (int n = warp; n < N; n += CONSUMERS / 32) {
        const int row = blockIdx.y * N + n;
        const bool real = row < d.rows;
        const int t = real ? row / d.Hg : 0, h = blockIdx.z * d.Hg + (real ? row % d.Hg : 0);
        const int seg = d.rope ? (int)((long long)h * d.rope_heads / d.H) * d.rope : 0;
        const size_t qo = (size_t)(b * d.q.b + t * d.q.t + h * d.q.h), q2o = (size_t)(b * d.q2.b + t * d.q2.t + h * d.q2.h);
        auto value = [&](int k) -> float {
            if (!real) return 0.f;
            if (k < LAT) return load_f32(d.q.p, d.q.f32, qo + k);
            const int r = k - LAT - seg;
            return r >= 0 && r < d.rope ? load_f32(d.q2.p, d.q2.f32, q2o + r) * d.rope_ratio : 0.f;
        };
        float down = 1.f, up = 1.f;
        if (FP8) { /* an exact power of two brings the row's largest value near 2^8: f16 neither overflows nor flushes */
            float amax = 0.f;
            for (int k = lane; k < K; k += 32) amax = fmaxf(amax, fabsf(value(k)));
            for (int o = 16; o; o >>= 1) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, o));
            if (amax > 0.f && amax < CUDART_INF_F) {
                const int e = min(100, max(-100, ilogbf(amax) - 8));
                down = ldexpf(1.f, -e);
                up = ldexpf(1.f, e);
            }
        }
        for (int chunk = lane; chunk < K / 8; chunk += 32) {
            const int box = chunk >> 3, c8 = chunk & 7;
            uint32_t out[4];
            for (int i = 0; i < 4; i++) { /* i = the fragment's lane column c */
                const int k = box * 64 + (FP8 ? 16 * i + 4 * (c8 >> 1) + 2 * (c8 & 1) : c8 * 8 + 2 * i);
                const float x = value(k), y = value(k + 1);
                if (FP8) {
                    __half2 v = __floats2half2_rn(x * down, y * down);
                    out[i] = *(uint32_t *)&v;
                } else {
                    __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
                    out[i] = *(uint32_t *)&v;
                }
            }
            *(uint4 *)(smem + sm.q + box * N * 128 + n * 128 + ((c8 ^ (n & 7)) << 4)) = make_uint4(out[0], out[1], out[2], out[3]);
        }
        if (lane == 0) {
            colscale[n] = d.scale * up;
            limit[n] = real ? min(len, len - d.s_q + t + 1) : len;
        }
    }
}

/* The copying warp: pages of the block's share, box by box, as slots come free. */
template <int LAT, int RB, bool FP8, int DROP>
static __device__ void produce(const CUtensorMap *mc, const CUtensorMap *mr, const DecodeP &d, uint32_t base, const DecodeSmem &sm)
{
    constexpr int NB = FP8 ? LAT / 128 : LAT / 64, BW = FP8 ? 128 : 64;
    const int lane = threadIdx.x & 31;
    const uint64_t policy = evict_first_policy();
    const uint32_t full = base + sm.bars, empty = full + d.slots * 8;
    const int2 from = d.begin[blockIdx.x], to = d.begin[blockIdx.x + 1];
    const int col = d.lat_col + blockIdx.z * LAT;
    int slot = 0;
    uint32_t phase = 0;
    for (int b = from.x; b <= to.x && b < d.B; b++) {
        const int n = (d.len[b] + 63) >> 6, i0 = b == from.x ? from.y : 0, i1 = b == to.x ? to.y : n;
        for (int at = i0; at < i1; at += 32) {
            const int mine = at + lane < i1 ? d.table[b * d.table_stride + at + lane] : 0;
            const int m = min(32, i1 - at);
            for (int i = 0; i < m; i++) {
                const int page = __shfl_sync(~0u, mine, i);
                for (int x = 0; x < NB + RB + DROP; x++) {
                    if (lane == 0) {
                        const bool rope = RB && x >= NB && x < NB + RB;
                        const int box = x < NB ? x : x - NB - RB;
                        mbar_wait(empty + slot * 8, phase ^ 1);
                        mbar_expect(full + slot * 8, rope && FP8 ? BOX / 2 : BOX);
                        tma_box(base + sm.ring + slot * BOX, rope ? mr : mc, full + slot * 8, policy,
                                rope ? d.rope_col + (x - NB) * 64 : col + box * BW, 0, page);
                    }
                    if (++slot == d.slots) slot = 0, phase ^= 1;
                }
                __syncwarp();
            }
        }
    }
}

/* S += the box's keys times q over STEPS k-steps of 16. bf16 box: 64 latents. */
template <int N, int STEPS> static __device__ __forceinline__ void qk_bf16(float (&s)[N / 2], uint32_t box, uint32_t q)
{
#pragma unroll
    for (int k = 0; k < STEPS; k++) Wgmma<N>::template ss<false, 0>(s, wgmma_desc(box + k * 32), wgmma_desc(q + k * 32));
}

/* Raw bytes of two token rows -> A fragments of STEPS k-steps: word k of a thread's 4 STEPS bytes feeds k-step k. */
template <int STEPS> static __device__ __forceinline__ void qk_frags(uint32_t (&a)[4][4], uint32_t lo, uint32_t hi)
{
    uint32_t x[4], y[4];
    if (STEPS == 4) {
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(lo));
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(hi));
    } else {
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(lo));
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(hi));
    }
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        a[k][0] = e4m3x2_f16x2((uint16_t)x[k]);
        a[k][1] = e4m3x2_f16x2((uint16_t)y[k]);
        a[k][2] = e4m3x2_f16x2((uint16_t)(x[k] >> 16));
        a[k][3] = e4m3x2_f16x2((uint16_t)(y[k] >> 16));
    }
}

template <int N, int STEPS>
static __device__ __forceinline__ void qk_steps(float (&s)[N / 2], const uint32_t (&a)[4][4], uint32_t q)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STEPS; k++) Wgmma<N>::template rs<true>(s, a[k], wgmma_desc(q + k * 32));
    wgmma_commit();
}

/* acc (2 tiles of 64 latents) += box^T P^T for 16 tokens: bytes of token pairs are interleaved, then widened. */
static __device__ __forceinline__ void pv_frags(uint32_t (&a)[2][4], const uint32_t (&v)[4])
{
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t x = __byte_perm(v[0], v[1], u ? 0x7362 : 0x5140), y = __byte_perm(v[2], v[3], u ? 0x7362 : 0x5140);
        a[u][0] = e4m3x2_f16x2((uint16_t)x);
        a[u][1] = e4m3x2_f16x2((uint16_t)(x >> 16));
        a[u][2] = e4m3x2_f16x2((uint16_t)y);
        a[u][3] = e4m3x2_f16x2((uint16_t)(y >> 16));
    }
}

/* One block of the ring walk for one warpgroup: everything a consumer keeps across pages. */
template <int LAT, int N, int RB, bool FP8, int DROP> struct Consumer {
    using RingPos = RingPosOf<DROP ? 3 : 1>;
    static constexpr int NB = FP8 ? LAT / 128 : LAT / 64, OWN = NB / 2, TILES = LAT / 128, NC = N / 4;
    const DecodeP &d;
    char *smem;
    uint32_t base;
    DecodeSmem sm;
    int wg, w, lane, g, c, t;
    float acc[TILES][N / 2], m[NC], l[NC];
    RingPos pos;

    __device__ __forceinline__ Consumer(const DecodeP &d_, char *smem_, const DecodeSmem &sm_)
        : d(d_), smem(smem_), base(smem_u32(smem_)), sm(sm_), pos{0, 0}
    {
        wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), t = threadIdx.x & 127, w = __shfl_sync(~0u, t >> 5, 0), lane = t & 31, g = lane >> 2, c = lane & 3;
    }
    __device__ __forceinline__ uint32_t slot_addr(RingPos r) const { return base + sm.ring + r.slot * BOX; }
    __device__ __forceinline__ void wait_full(RingPos r) const { mbar_wait(base + sm.bars + r.slot * 8, r.phase); }
    __device__ __forceinline__ void release(RingPos r) const
    {
        mbar_arrive_if(base + sm.bars + (d.slots + r.slot) * 8, lane == 0);
    }

    __device__ __forceinline__ void qk(float (&s)[N / 2])
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++) s[i] = 0.f;
        uint32_t a[2][4][4];
        const int rowa = 16 * w + tok8(g), sw = rowa & 7;
        wgmma_pin(s);
#pragma unroll
        for (int jj = 0; jj < OWN; jj++) {
            const int box = 2 * jj + wg;
            const RingPos r = pos.at(box, d.slots);
            const uint32_t at = slot_addr(r), q = base + sm.q;
            wait_full(r);
            if constexpr (FP8) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (jj || half) wgmma_wait<1>();
                    const uint32_t lo = at + rowa * 128 + (((half * 4 + c) ^ sw) << 4);
                    qk_frags<4>(a[half], lo, lo + 8 * 128);
                    qk_steps<N, 4>(s, a[half], q + (2 * box + half) * N * 128);
                }
            } else {
                wgmma_fence();
                qk_bf16<N, 4>(s, at, q + box * N * 128);
                if (DROP && 2 * jj < DROP) {
                    wgmma_commit();
                    wgmma_wait<0>();
                    release(r);
                    wgmma_fence();
                }
            }
        }
#pragma unroll
        for (int i = 0; i < RB; i++) { /* rotary boxes: half of the k-steps each */
            const RingPos r = pos.at(NB + i, d.slots);
            const uint32_t q = base + sm.q + (LAT / 64 + i) * N * 128 + wg * 64;
            wait_full(r);
            if constexpr (FP8) {
                wgmma_wait<1>();
                const uint32_t lo = slot_addr(r) + rowa * 64 + c * 16 + wg * 8;
                qk_frags<2>(a[i & 1], lo, lo + 8 * 64);
                qk_steps<N, 2>(s, a[i & 1], q);
            } else {
                wgmma_fence();
                qk_bf16<N, 2>(s, slot_addr(r) + wg * 64, q);
            }
        }
        if (!FP8) wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(s);
    }

    /* Tokens past the sequence's end hold anything; 0 x NaN must not reach the sum. */
    __device__ __forceinline__ void zero_tail(RingPos r, int valid) const
    {
        for (int i = valid * 8 + t; i < 64 * 8; i += 128)
            *(uint4 *)(smem + sm.ring + r.slot * BOX + i * 16) = make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void pv_box(int jj, RingPos r)
    {
        const uint32_t at = slot_addr(r), p = base + sm.p;
        if constexpr (FP8) {
            uint32_t a[2][2][4];
            const uint32_t off = (g & 3) * 4, ch = 2 * w + (g >> 2);
#pragma unroll
            for (int ks = 0; ks < 4; ks++) {
                uint32_t v[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int tk = 16 * ks + tok8(2 * c + (e & 1)) + 8 * (e >> 1);
                    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v[e]) : "r"(at + tk * 128 + ((ch ^ (tk & 7)) << 4) + off));
                }
                if (ks > 1) wgmma_wait<1>();
                pv_frags(a[ks & 1], v);
                wgmma_fence();
                Wgmma<N>::template rs<true>(acc[2 * jj], a[ks & 1][0], wgmma_desc(p + ks * 32));
                Wgmma<N>::template rs<true>(acc[2 * jj + 1], a[ks & 1][1], wgmma_desc(p + ks * 32));
                wgmma_commit();
            }
        } else {
#pragma unroll
            for (int ks = 0; ks < 4; ks++)
                Wgmma<N>::template ss<false, 1>(acc[jj], wgmma_desc(at + ks * 2048), wgmma_desc(p + ks * 32));
            wgmma_commit();
        }
    }

    __device__ __forceinline__ void pv(bool partial, int valid)
    {
        RingPos last = pos;
        bool any = false;
#pragma unroll
        for (int i = 0; i < TILES; i++) wgmma_pin(acc[i]);
        wgmma_fence();
#pragma unroll
        for (int jj = 0; jj < OWN; jj++) {
            if (2 * jj < DROP) continue;
            const RingPos r = pos.at(2 * jj + wg, d.slots);
            pv_box(jj, r);
            if (FP8) {
                wgmma_wait<0>();
                release(r);
            } else {
                if (any) {
                    wgmma_wait<1>();
                    release(last);
                }
                last = r, any = true;
            }
        }
        if (!FP8) {
            wgmma_wait<0>();
            release(last);
        }
        if constexpr (DROP > 0) {
#pragma unroll
            for (int jj = 0; jj < DROP / 2; jj++) { /* the boxes that did not stay: fetched again, from L2 */
                const RingPos r = pos.at(NB + RB + 2 * jj + wg, d.slots);
                wait_full(r);
                if (partial) {
                    zero_tail(r, valid);
                    fence_async_smem();
                    bar_sync(BAR_WG + wg, 128);
                }
                wgmma_fence();
                pv_box(jj, r);
                wgmma_wait<0>();
                release(r);
            }
        }
    }

    /* Online softmax of one page: own 32 tokens x N columns; leaves P in shared memory and acc rescaled. */
    __device__ __forceinline__ void softmax(float (&s)[N / 2], int blk, int len, int min_limit)
    {
        float2 *ex = (float2 *)(smem + sm.ex);
        float v[NC];
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            ex[(wg * (N / 8) + j) * 128 + t] = wg ? make_float2(s[4 * j], s[4 * j + 1]) : make_float2(s[4 * j + 2], s[4 * j + 3]);
        bar_sync(BAR_ALL, CONSUMERS);
        if (wg == 0)
            for (int i = 0; i < RB; i++) release(pos.at(NB + i, d.slots));
        const float2 *sc = (const float2 *)(smem + sm.colscale);
        const int2 *lim = (const int2 *)(smem + sm.limit);
        const int token = blk * 64 + 16 * w + 8 * wg + (FP8 ? tok8(g) : g);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 o = ex[((1 - wg) * (N / 8) + j) * 128 + t], k = sc[4 * j + c];
            v[2 * j] = ((wg ? s[4 * j + 2] : s[4 * j]) + o.x) * k.x;
            v[2 * j + 1] = ((wg ? s[4 * j + 3] : s[4 * j + 1]) + o.y) * k.y;
        }
        if (blk * 64 + 64 > min_limit)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const int2 k = lim[4 * j + c];
                if (token >= k.x) v[2 * j] = -CUDART_INF_F;
                if (token >= k.y) v[2 * j + 1] = -CUDART_INF_F;
            }
        column_reduce<true>(v);
        const float4 *red = (const float4 *)(smem + sm.red);
        bool moved = false;
        float alpha[NC];
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float2 mx = make_float2(m[2 * j], m[2 * j + 1]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 r = red[(4 * j + c) * 4 + i];
                mx.x = fmaxf(mx.x, fmaxf(r.x, r.z));
                mx.y = fmaxf(mx.y, fmaxf(r.y, r.w));
            }
            const float ux = mx.x == -CUDART_INF_F ? 0.f : mx.x, uy = mx.y == -CUDART_INF_F ? 0.f : mx.y;
            alpha[2 * j] = exp2_fast(m[2 * j] - ux);
            alpha[2 * j + 1] = exp2_fast(m[2 * j + 1] - uy);
            moved |= mx.x != m[2 * j] || mx.y != m[2 * j + 1];
            m[2 * j] = mx.x, m[2 * j + 1] = mx.y;
            const float px = exp2_fast(v[2 * j] - ux), py = exp2_fast(v[2 * j + 1] - uy);
            l[2 * j] = l[2 * j] * alpha[2 * j] + px;
            l[2 * j + 1] = l[2 * j + 1] * alpha[2 * j + 1] + py;
            uint32_t pk;
            if (FP8) {
                __half2 h = __floats2half2_rn(px, py);
                pk = *(uint32_t *)&h;
            } else {
                __nv_bfloat162 h = __floats2bfloat162_rn(px, py);
                pk = *(uint32_t *)&h;
            }
            const int r = lane & 7;
            stmatrix_trans(base + sm.p + (8 * j + r) * 128 + (((2 * w + wg) ^ r) << 4), pk);
        }
        const int valid = len - blk * 64;
        if (valid < 64)
#pragma unroll
            for (int jj = 0; jj < OWN; jj++)
                if (2 * jj >= DROP) zero_tail(pos.at(2 * jj + wg, d.slots), valid);
        fence_async_smem();
        bar_sync(BAR_ALL, CONSUMERS);
        if (__any_sync(~0u, moved))
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int j = 0; j < N / 2; j++) acc[i][j] *= alpha[2 * (j / 4) + (j & 1)];
    }

    /* Over the 8 lanes g of each warp (max or sum), then each warp's result into red[column pair][warp]; ends with a
     * barrier. Column 8j + 2c + e of warp i: float2 number (4j + c) * 8 + i. */
    template <bool MAX> __device__ __forceinline__ void column_reduce(const float (&v)[NC])
    {
        float2 *red = (float2 *)(smem + sm.red);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float2 x = make_float2(v[2 * j], v[2 * j + 1]);
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) {
                const float ax = __shfl_xor_sync(~0u, x.x, o), ay = __shfl_xor_sync(~0u, x.y, o);
                x.x = MAX ? fmaxf(x.x, ax) : x.x + ax;
                x.y = MAX ? fmaxf(x.y, ay) : x.y + ay;
            }
            if (g == 0) red[(4 * j + c) * 8 + (wg * 4 + w)] = x;
        }
        bar_sync(BAR_ALL, CONSUMERS);
    }

    __device__ __forceinline__ void begin()
    {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < N / 2; j++) acc[i][j] = 0.f;
#pragma unroll
        for (int j = 0; j < NC; j++) m[j] = -CUDART_INF_F, l[j] = 0.f;
    }

    /* whole: this block saw every page of the sequence and writes the output itself; otherwise a partial for the merge. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        column_reduce<false>(l);
        const float2 *red = (const float2 *)(smem + sm.red);
#pragma unroll
        for (int j = 0; j < NC; j++) l[j] = 0.f;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            for (int i = 0; i < 8; i++) {
                const float2 r = red[(4 * j + c) * 8 + i];
                l[2 * j] += r.x, l[2 * j + 1] += r.y;
            }
#pragma unroll
        for (int k = 0; k < NC; k++) {
            const int n = 8 * (k >> 1) + 2 * c + (k & 1), row = blockIdx.y * N + n;
            if (row >= d.rows) continue;
            const float inv = l[k] > 0.f ? d.out_scale / l[k] : (l[k] == 0.f ? 0.f : l[k]); /* NaN stays NaN */
            const int tk = row / d.Hg, h = blockIdx.z * d.Hg + row % d.Hg;
            const size_t oo = (size_t)(b * d.o.b + tk * d.o.t + h * d.o.h);
            const size_t po = ((size_t)part_slot * N + n) * LAT;
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int lat = FP8 ? 128 * (2 * (i >> 1) + wg) + (8 * w + g) * 4 + 2 * (i & 1) + half
                                        : 64 * (2 * i + wg) + 16 * w + g + 8 * half;
                    const float x = acc[i][4 * (k >> 1) + 2 * half + (k & 1)] * inv;
                    if (!whole) d.po[po + lat] = x;
                    else store_f32((void *)d.o.p, d.o.f32, oo + lat, x);
                }
            if (wg == 0 && w == 0 && g == 0) {
                const float lse2 = l[k] > 0.f || l[k] != l[k] ? m[k] + log2f(l[k]) : -CUDART_INF_F;
                if (!whole) d.plse[(size_t)part_slot * N + n] = lse2;
                else if (d.lse) d.lse[((size_t)b * d.s_q + tk) * d.H + h] = lse2 * 0.693147180559945f;
            }
        }
    }
};

template <int LAT, int N, int RB, bool FP8, int DROP>
static __device__ __forceinline__ void consume(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    Consumer<LAT, N, RB, FP8, DROP> k(d, smem, sm);
    const int2 from = d.begin[blockIdx.x], to = d.begin[blockIdx.x + 1];
    for (int b = from.x; b <= to.x && b < d.B; b++) {
        const int len = d.len[b], n = (len + 63) >> 6, i0 = b == from.x ? from.y : 0, i1 = b == to.x ? to.y : n;
        if (i0 >= i1) continue;
        bar_sync(BAR_ALL, CONSUMERS);
        load_q<LAT, N, RB, FP8>(d, smem, sm, b, len);
        fence_async_smem();
        bar_sync(BAR_ALL, CONSUMERS);
        k.begin();
        const int min_limit = len - d.s_q + 1;
        for (int blk = i0; blk < i1; blk++) {
            float s[N / 2];
            k.qk(s);
            k.softmax(s, blk, len, min_limit);
            k.pv(len - blk * 64 < 64, len - blk * 64);
            k.pos = k.pos.at(Consumer<LAT, N, RB, FP8, DROP>::NB + RB + DROP, d.slots);
        }
        k.finish(b, i0 == 0 && i1 == n,
                 ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * 2 + (i0 > 0 ? 0 : 1));
    }
}
#endif

template <int LAT, int N, int RB, bool FP8, int MINB, int DROP>
__global__ void __launch_bounds__(THREADS, MINB)
    decode_sm90(const __grid_constant__ CUtensorMap mc, const __grid_constant__ CUtensorMap mr, const __grid_constant__ DecodeP d)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(1024) char smem_raw[];
    char *smem = smem_raw + ((1024 - (smem_u32(smem_raw) & 1023)) & 1023);
    const DecodeSmem sm(N, LAT / 64 + RB, d.slots);
    const uint32_t base = smem_u32(smem);
    if (threadIdx.x == 0) {
        for (int i = 0; i < d.slots; i++) {
            mbar_init(base + sm.bars + i * 8, 1);
            mbar_init(base + sm.bars + (d.slots + i) * 8, 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        regs_shrink<24>();
        if (threadIdx.x < CONSUMERS + 32) produce<LAT, RB, FP8, DROP>(&mc, &mr, d, base, sm);
    } else {
        regs_grow<MINB == 1 ? 240 : 112>();
        consume<LAT, N, RB, FP8, DROP>(d, smem, sm);
    }
#endif
}
#endif
