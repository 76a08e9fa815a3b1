/* Solo kernel, the end of a piece: totals and sums of its warpgroups together, outputs or partial ones to memory. */
#ifndef MLA_CUDA_DECODE_SOLO_SUMS_CUH
#define MLA_CUDA_DECODE_SOLO_SUMS_CUH
#include "cuda/decode_solo_values.cuh"

#ifdef MLA_HOPPER
template <int LAT, int N, int RB, bool FP8, int NW, bool SPLIT, int CL> struct SoloSums : SoloValues<LAT, N, RB, FP8, NW, SPLIT, CL> {
    using B = SoloValues<LAT, N, RB, FP8, NW, SPLIT, CL>;
    using B::B;
    using B::d, B::smem, B::sm, B::wg, B::w, B::g, B::c, B::t, B::rank, B::acc, B::m, B::l, B::TILES, B::NC, B::ALL, B::NT, B::column_reduce;

    /* What a thread needs at the end of a piece lies where P was (every product with it is done): a warpgroup's maxima, then
     * the factors of all its columns and where each row goes (NULL: nowhere). */
    __device__ __forceinline__ float *maxima(int of) const { return (float *)(smem + sm.p) + of * N * 32; }
    __device__ __forceinline__ float *factors(void) const { return (float *)(smem + sm.p + 512); }
    __device__ __forceinline__ char **targets(void) const { return (char **)(smem + sm.p + 1024); }
    /* A thread for every column of every warpgroup: sums over warps and warpgroups, log-sum-exp, factor and target. */
    __device__ __forceinline__ void conclude(int b, bool whole, int part_slot)
    {
        static_assert(NW * N <= 128 && NT * 8 + 1024 <= N * 128, "three tables in a P");
        column_reduce<false>(l);
        if (w == 0 && g == 0)
#pragma unroll
            for (int i = 0; i < NC; i++) maxima(wg)[8 * (i >> 1) + 2 * c + (i & 1)] = m[i];
        bar_sync(BAR_ALL, ALL);
        if (threadIdx.x < NW * N) {
            const int own = threadIdx.x / N, n = threadIdx.x % N, col = SPLIT ? (int)threadIdx.x : n, row = blockIdx.y * NT + col;
            const float mine = maxima(own)[n];
            float mx = mine, sum = 0.f;
            for (int k = 0; k < NW; k++) mx = SPLIT ? mx : fmaxf(mx, maxima(k)[n]);
            const float use = mx == -CUDART_INF_F ? 0.f : mx;
            for (int k = 0; k < NW; k++) {
                const float *red = (const float *)(smem + sm.red) + k * N * 4 + (n >> 1) * 8 + (n & 1);
                const float x = red[0] + red[2] + red[4] + red[6];
                if (!SPLIT) sum += x * exp2_fast(maxima(k)[n] - use);
                else if (k == own) sum = x;
            }
            const float inv = sum > 0.f ? d.out_scale / sum : (sum == 0.f ? 0.f : sum); /* NaN stays NaN */
            factors()[threadIdx.x] = exp2_fast(mine - use) * inv;
            if (SPLIT || own == 0) {
                const bool real = row < d.rows && b >= 0;
                const int tk = row / d.Hg, h = blockIdx.z * d.Hg + row % d.Hg;
                const size_t part = (((size_t)part_slot * NT + col) * CL + rank) * LAT, o = (size_t)(b * d.o.b + tk * d.o.t + h * d.o.h) + rank * LAT;
                targets()[col] = !real ? NULL : whole ? (char *)d.o.p + o * (d.o.f32 ? 4 : 2) : (char *)(d.po + part);
                const float lse2 = sum > 0.f || sum != sum ? mx + log2f(sum) : -CUDART_INF_F;
                if (real && !rank && !whole) d.plse[(size_t)part_slot * NT + col] = lse2;
                else if (real && !rank && d.lse) d.lse[((size_t)b * d.s_q + tk) * d.H + h] = lse2 * 0.693147180559945f;
            }
        }
        bar_sync(BAR_ALL, ALL);
    }

    /* This warpgroup's O of one half of the latents, times f, into (or onto) rows of HALF + 4 floats: the padding puts
     * the four columns of a store into different banks. */
    static constexpr int HALF = LAT / 2, LDH = HALF + 4;
    template <int H> __device__ __forceinline__ void put_half(float *rows, const float (&f)[NC], bool onto)
    {
#pragma unroll
        for (int k = 0; k < NC; k++) {
            const int e = 4 * (k >> 1) + (k & 1);
            float *row = rows + (8 * (k >> 1) + 2 * c + (k & 1)) * LDH;
#pragma unroll
            for (int i = H * (TILES / 2); i < (H + 1) * (TILES / 2); i += FP8 ? 2 : 1) {
                const int j = i - H * (TILES / 2);
                if (FP8) { /* a thread's four latents of a box lie side by side */
                    float4 x = make_float4(acc[i][e] * f[k], acc[i][e + 2] * f[k], acc[i + 1][e] * f[k], acc[i + 1][e + 2] * f[k]);
                    float4 *to = (float4 *)(row + 64 * j + (8 * w + g) * 4);
                    if (onto) x.x += to->x, x.y += to->y, x.z += to->z, x.w += to->w;
                    *to = x;
                } else {
                    float *to = row + 64 * j + 16 * w + g;
                    const float x = acc[i][e] * f[k], y = acc[i][e + 2] * f[k];
                    to[0] = onto ? to[0] + x : x;
                    to[8] = onto ? to[8] + y : y;
                }
            }
        }
    }
    template <int H> __device__ __forceinline__ void write_half(const float (&f)[NC], bool f32, bool wide)
    {
        float *rows = (float *)(smem + sm.q); /* half of O fits the queries' space */
        if (SPLIT) {
            put_half<H>(rows + wg * N * LDH, f, false);
            bar_sync(BAR_ALL, ALL);
        } else
#pragma unroll 1
            for (int k = 0; k < NW; k++) {
                if (wg == k) put_half<H>(rows, f, k > 0);
                bar_sync(BAR_ALL, ALL);
            }
#pragma unroll 1
        for (int i = threadIdx.x; i < NT * (HALF / 4); i += ALL) {
            const int n = i / (HALF / 4), at = i % (HALF / 4) * 4;
            char *to = targets()[n];
            if (!to) break;
            const float4 x = *(const float4 *)(rows + n * LDH + at);
            if (wide) {
                *(float4 *)((float *)to + H * HALF + at) = x;
                continue;
            }
            store_f32(to, f32, H * HALF + at, x.x);
            store_f32(to, f32, H * HALF + at + 1, x.y);
            store_f32(to, f32, H * HALF + at + 2, x.z);
            store_f32(to, f32, H * HALF + at + 3, x.w);
        }
        bar_sync(BAR_ALL, ALL);
    }

    /* bf16: sums go out as they lie in the fragments, 8 neighbouring values of each of 4 rows a store. Two warpgroups that
     * share rows give each other half of theirs, a quarter of the latents at a time. */
    static constexpr bool DIRECT = !FP8 && (SPLIT || (NW == 2 && TILES % 4 == 0));
    template <bool F32> static __device__ __forceinline__ void put_value(char *row, int at, float x)
    {
        if (F32) ((float *)row)[at] = x;
        else ((__nv_bfloat16 *)row)[at] = __float2bfloat16_rn(x);
    }
    static constexpr int QUARTER = SPLIT ? TILES : TILES / 4;
    __device__ __forceinline__ float *given(int by) const { return (float *)(smem + sm.q) + t + by * QUARTER * (N / 2) * 128; }
    template <int WG> __device__ __forceinline__ void give(int r, const float (&f)[NC])
    {
        float *to = given(WG);
#pragma unroll
        for (int i = 0; i < QUARTER; i++)
#pragma unroll
            for (int e = 0; e < N / 2; e++) to[(i * (N / 2) + e) * 128] = acc[(WG ? 0 : TILES / 2) + r * QUARTER + i][e] * f[2 * (e >> 2) + (e & 1)];
    }
    template <bool F32, int WG> __device__ __forceinline__ void put(int r, char *const (&rows)[NC], const float (&f)[NC])
    {
        const float *from = given(WG ^ 1);
        const int own = SPLIT ? 0 : (WG ? TILES / 2 : 0) + r * QUARTER;
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            const int k = 2 * (e >> 2) + (e & 1);
            if (!rows[k]) continue;
#pragma unroll
            for (int i = 0; i < QUARTER; i++)
                put_value<F32>(rows[k], 64 * (own + i) + 8 * (e >> 1 & 1), SPLIT ? acc[own + i][e] * f[k] : fmaf(acc[own + i][e], f[k], from[(i * (N / 2) + e) * 128]));
        }
    }
    template <bool F32> __device__ __forceinline__ void write_rows(char *const (&rows)[NC], const float (&f)[NC])
    {
        if constexpr (SPLIT) put<F32, 0>(0, rows, f);
        else
#pragma unroll
            for (int r = 0; r < 2; r++) { /* both warpgroups meet at the same barriers */
                if (wg == 0) give<0>(r, f);
                else give<1>(r, f);
                bar_sync(BAR_ALL, ALL);
                if (wg == 0) put<F32, 0>(r, rows, f);
                else put<F32, 1>(r, rows, f);
                bar_sync(BAR_ALL, ALL);
            }
    }

    /* whole: the block saw every page of the sequence and writes the output itself; otherwise a partial for the merge. */
    __device__ __forceinline__ void finish(int b, bool whole, int part_slot)
    {
        const bool f32 = !whole || d.o.f32;
        float f[NC];
        conclude(b, whole, part_slot);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 x = *(const float2 *)(factors() + wg * N + 8 * j + 2 * c);
            f[2 * j] = x.x, f[2 * j + 1] = x.y;
        }
        if constexpr (DIRECT) {
            char *rows[NC]; /* where this thread's columns go */
#pragma unroll
            for (int k = 0; k < NC; k++) {
                char *to = targets()[(SPLIT ? wg * N : 0) + 8 * (k >> 1) + 2 * c + (k & 1)];
                rows[k] = to ? to + (16 * w + g) * (f32 ? 4 : 2) : NULL;
            }
            if (f32) write_rows<true>(rows, f);
            else write_rows<false>(rows, f);
        } else {
            write_half<0>(f, f32, !whole || (d.o.f32 && d.o.vec));
            write_half<1>(f, f32, !whole || (d.o.f32 && d.o.vec));
        }
    }
};
#endif
#endif
