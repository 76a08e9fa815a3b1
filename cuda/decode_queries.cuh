/* MLA decode for Hopper, query rows of a tile into shared memory, as boxes, as rows on 16 bytes or as any rows; for e4m3 as scaled f16. */
#ifndef MLA_CUDA_DECODE_QUERIES_CUH
#define MLA_CUDA_DECODE_QUERIES_CUH
#include "cuda/decode_smem.cuh"
#include "cuda/decode_tiles.cuh"

#ifdef MLA_HOPPER
/* 2^e for -126 <= e <= 127, and the e that brings a row's largest value near 2^8 (0 for zero and non-finite rows). */
static __device__ __forceinline__ float pow2f(int e) { return __int_as_float((e + 127) << 23); }
static __device__ __forceinline__ int row_exponent(float amax)
{
    return amax > 0.f && amax < CUDART_INF_F ? min(100, max(-100, (__float_as_int(amax) >> 23) - 127 - 8)) : 0;
}
/* 16 bytes where `yes`, zero elsewhere: no branch, so a thread's loads stay in flight together. */
static __device__ __forceinline__ uint4 load16_if(const void *p, bool yes)
{
    uint4 v;
    asm("{.reg .pred q; setp.ne.b32 q, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
        "@q ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(p), "r"((int)yes));
    return v;
}

/* Eight query values as they came: bf16 in a, or f32 in a and b. */
struct Raw8 {
    uint4 a, b;
    __device__ __forceinline__ void widen(float (&x)[8], bool f32) const
    {
        const uint32_t u[4] = {a.x, a.y, a.z, a.w}, v[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[2 * j] = f32 ? __uint_as_float(j < 2 ? u[2 * j] : v[2 * j - 4]) : __uint_as_float(u[j] << 16);
            x[2 * j + 1] = f32 ? __uint_as_float(j < 2 ? u[2 * j + 1] : v[2 * j - 3]) : __uint_as_float(u[j] & 0xffff0000u);
        }
    }
};

/* The slow way for rows that do not start on 16 bytes. */
static __device__ __noinline__ Raw8 load8_unaligned(const void *p, bool f32, size_t i)
{
    uint32_t u[8];
    for (int j = 0; j < 8; j++) {
        const float x = load_f32(p, f32, i + j), y = load_f32(p, f32, i + (j ^ 1));
        u[j] = f32 ? __float_as_uint(x) : j & 1 ? __float_as_uint(x) | __float_as_uint(y) >> 16 : 0;
    }
    Raw8 r;
    r.a = f32 ? make_uint4(u[0], u[1], u[2], u[3]) : make_uint4(u[1], u[3], u[5], u[7]);
    r.b = make_uint4(u[4], u[5], u[6], u[7]);
    return r;
}

/* Where load_q keeps what it knows of the rows: limits, largest magnitudes, first elements of q and q2, rotary column. */
struct QRows {
    float *colscale;
    int *limit, *seg;
    long long *offset; /* (N, 2) */
    __device__ __forceinline__ QRows(char *smem, const DecodeSmem &sm)
        : colscale((float *)(smem + sm.colscale)), limit((int *)(smem + sm.limit)), seg((int *)(smem + sm.rows)), offset((long long *)(smem + sm.red))
    {
    }
};
/* FP8: eight values of row n from column k on, scaled by `down`, as f16 in the order of the cache's fragments. */
static __device__ __forceinline__ void put_q_f16(char *row, int n, int k, const float (&x)[8], float down)
{
    const int c = k >> 4 & 3, hi = k >> 3 & 1;
#pragma unroll
    for (int j = 0; j < 4; j++) { /* values 2j, 2j + 1: k-step 2 hi + j / 2, upper half j % 2 */
        const int c8 = 2 * (2 * hi + (j >> 1)) + (j & 1);
        *(uint32_t *)(row + ((c8 ^ (n & 7)) << 4) + 4 * c) = pack2<true>(x[2 * j] * down, x[2 * j + 1] * down);
    }
}

/* bf16 rows in shared memory to scaled f16, in place, a warp per row. */
template <int LAT, int N, int RB, int WARPS>
static __device__ __forceinline__ void narrow_q(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    constexpr int CHUNKS = LAT / 8 + RB * 8, T = WARPS * 32;
    const QRows rows(smem, sm);
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int n = threadIdx.x >> 5; n < N; n += WARPS) {
        constexpr int PER_LANE = (CHUNKS + 31) / 32;
        float x[PER_LANE][8], amax = 0.f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int k = (lane + 32 * i) * 8;
            Raw8 raw = {};
            if (k < CHUNKS * 8) raw.a = *(const uint4 *)(smem + sm.q + (k >> 6) * N * 128 + n * 128 + (((k >> 3 & 7) ^ (n & 7)) << 4));
            raw.widen(x[i], false);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (k >= LAT) x[i][j] *= d.rope_ratio;
                amax = x[i][j] == x[i][j] ? fmaxf(amax, fabsf(x[i][j])) : CUDART_INF_F;
            }
        }
        for (int o = 16; o; o >>= 1) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, o));
        if (lane == 0) rows.colscale[n] = amax;
        const float down = pow2f(-row_exponent(amax)); /* every lane has read its part of the row: the shuffles say so */
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int k = (lane + 32 * i) * 8;
            if (k < CHUNKS * 8) put_q_f16(smem + sm.q + (k >> 6) * N * 128 + n * 128, n, k, x[i], down);
        }
    }
    bar_sync(BAR_ALL, T);
}

/* bf16 rows on 16-byte boundaries: copied as they are, all at once; FP8: then converted in place, a warp per row. Short
 * code: it runs once a block, from a cold instruction cache. */
template <int LAT, int N, int RB, bool FP8, int WARPS>
static __device__ __forceinline__ void load_q_rows(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    constexpr int CHUNKS = LAT / 8 + RB * 8, T = WARPS * 32;
    const QRows rows(smem, sm);
    const uint32_t base = smem_u32(smem) + sm.q;
#pragma unroll 1
    for (int i = threadIdx.x; i < N * CHUNKS; i += T) {
        const int n = i / CHUNKS, k = i % CHUNKS * 8, r = k - LAT - rows.seg[n];
        const bool lat = k < LAT, in = rows.limit[n] >= 0 && (lat || (r >= 0 && r < d.rope));
        const size_t at = in ? (size_t)(lat ? rows.offset[2 * n] + k : rows.offset[2 * n + 1] + r) : 0;
        cp16_if(base + (k >> 6) * N * 128 + n * 128 + (((k >> 3 & 7) ^ (n & 7)) << 4), (const char *)(lat ? d.q.p : d.q2.p) + at * 2, in);
    }
    cp_wait();
    bar_sync(BAR_ALL, T);
    if (FP8) narrow_q<LAT, N, RB, WARPS>(d, smem, sm);
}

/* Any rows. */
template <int LAT, int N, int RB, bool FP8, int WARPS>
static __device__ __forceinline__ void load_q_any(const DecodeP &d, char *smem, const DecodeSmem &sm)
{
    constexpr int CHUNKS = LAT / 8 + RB * 8, T = WARPS * 32, ITEMS = (N * CHUNKS + T - 1) / T, BATCH = ITEMS < 2 ? ITEMS : 2;
    const QRows rows(smem, sm);
#pragma unroll 1
    for (int pass = FP8 ? 0 : 1; pass < 2; pass++) { /* pass 0: largest magnitudes; the second read hits the cache */
#pragma unroll 1
        for (int i0 = threadIdx.x; i0 < N * CHUNKS; i0 += T * BATCH) {
            Raw8 raw[BATCH];
#pragma unroll
            for (int it = 0; it < BATCH; it++) {
                const int i = i0 + it * T, n = min(i / CHUNKS, N - 1), k = i % CHUNKS * 8, r = k - LAT - rows.seg[n];
                const bool lat = k < LAT, in = i < N * CHUNKS && rows.limit[n] >= 0 && (lat || (r >= 0 && r < d.rope));
                const DecodeRows &src = lat ? d.q : d.q2;
                const size_t at = (size_t)(lat ? rows.offset[2 * n] + k : rows.offset[2 * n + 1] + r);
                if (src.vec) {
                    const char *p = (const char *)src.p + at * (src.f32 ? 4 : 2);
                    raw[it].a = load16_if(p, in);
                    raw[it].b = load16_if(p + 16, in && src.f32);
                } else
                    raw[it] = in ? load8_unaligned(src.p, src.f32, at) : Raw8{};
            }
#pragma unroll
            for (int it = 0; it < BATCH; it++) {
                const int i = i0 + it * T, n = i / CHUNKS, k = i % CHUNKS * 8;
                if (i >= N * CHUNKS) break;
                float x[8];
                raw[it].widen(x, k < LAT ? d.q.f32 : d.q2.f32);
                if (k >= LAT)
                    for (int j = 0; j < 8; j++) x[j] *= d.rope_ratio;
                const uint32_t row = sm.q + (k >> 6) * N * 128 + n * 128;
                if (FP8 && pass == 0) {
                    float amax = 0.f;
                    for (int j = 0; j < 8; j++) amax = x[j] == x[j] ? fmaxf(amax, fabsf(x[j])) : CUDART_INF_F;
                    atomicMax((int *)&rows.colscale[n], __float_as_int(amax)); /* the order of non-negative floats */
                } else if (FP8) {
                    put_q_f16(smem + row, n, k, x, pow2f(-row_exponent(rows.colscale[n])));
                } else
                    *(uint4 *)(smem + row + (((k >> 3 & 7) ^ (n & 7)) << 4)) =
                        make_uint4(pack2<false>(x[0], x[1]), pack2<false>(x[2], x[3]), pack2<false>(x[4], x[5]), pack2<false>(x[6], x[7]));
            }
        }
        bar_sync(BAR_ALL, T);
    }
}

/* One thread fetches the tile's bf16 rows by q_map and q2_map: the same places in shared memory, a dozen instructions. */
template <int LAT, int N, int RB>
static __device__ __forceinline__ void fetch_q(const DecodeP &d, uint32_t q, uint32_t bar, int b, int lat0)
{
    const int row = blockIdx.z * d.Hg + blockIdx.y * N;
    mbar_expect(bar, (LAT / 64 + RB) * N * 128);
#pragma unroll 1
    for (int i = 0; i < LAT / 64 + RB; i++)
        tma_box_keep(q + i * N * 128, i < LAT / 64 ? &d.q_map : &d.q2_map, bar, i < LAT / 64 ? lat0 + 64 * i : 64 * i - LAT, row, b);
}

/* Query rows of one tile into shared memory, K-major swizzled boxes of 64: latent boxes first, then rotary; WARPS warps,
 * 8 values a thread at a time; b = -1: zeros, nothing is read. FP8: f16
 * after an exact power of two that brings the row's largest value near 2^8, so that f16 neither overflows nor flushes;
 * values are permuted within 64 as the fragments of the cache are. bar: the boxes are on their way (fetch_q). */
template <int LAT, int N, int RB, bool FP8, int WARPS>
static __device__ __forceinline__ void load_q(const DecodeP &d, char *smem, const DecodeSmem &sm, int b, int len, int lat0 = 0, uint32_t bar = 0, uint32_t phase = 0)
{
    constexpr int T = WARPS * 32;
    const QRows rows(smem, sm);
    float *colscale = rows.colscale;
    int *limit = rows.limit;
    if (threadIdx.x < N) {
        const int n = threadIdx.x, row = blockIdx.y * N + n, t = row / d.Hg, h = blockIdx.z * d.Hg + row % d.Hg;
        limit[n] = b >= 0 && row < d.rows ? min(len, len - d.s_q + t + 1) : -1; /* negative: not a row; made positive below */
        colscale[n] = FP8 ? 0.f : d.scale;                           /* FP8: the row's largest magnitude first */
        rows.offset[2 * n] = b * d.q.b + t * d.q.t + h * d.q.h + lat0;
        rows.offset[2 * n + 1] = b * d.q2.b + t * d.q2.t + h * d.q2.h;
        rows.seg[n] = (int)((unsigned)h * (unsigned)d.rope_heads / (unsigned)d.H) * d.rope;
    }
    bar_sync(BAR_ALL, T);
    const bool plain = d.q.vec && !d.q.f32 && (!d.rope || (d.q2.vec && !d.q2.f32)) && (FP8 || d.rope_ratio == 1.f);
    if (bar) {
        mbar_wait(bar, phase);
        if (FP8) narrow_q<LAT, N, RB, WARPS>(d, smem, sm);
    } else if (plain) load_q_rows<LAT, N, RB, FP8, WARPS>(d, smem, sm);
    else load_q_any<LAT, N, RB, FP8, WARPS>(d, smem, sm);
    if (threadIdx.x < N) {
        if (FP8) colscale[threadIdx.x] = d.scale * pow2f(row_exponent(colscale[threadIdx.x]));
        if (limit[threadIdx.x] < 0) limit[threadIdx.x] = len;
    }
}
#endif
#endif
