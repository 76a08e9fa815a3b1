/* Packed weights times up to 8 tokens on the tensor cores: y = sum over groups of s (sum of v x) + m (sum of x), the inner sums by
 * mma.m16n8k16 with fp32 accumulators, so weights stay the very numbers of their format: v is held in bf16 exactly (or the layer
 * is none of this file's, codes_mma_fits). Weights' rows on the 16 rows, tokens on the 8 columns.
 *
 * A block takes 16 rows, its warps share the inputs in blocks of 4 V octets and add up in order. A lane reads 16 bytes, V octets,
 * of two rows at a time, two blocks ahead; in memory octets stand so (octet_place) that the four lanes of a row have neighbouring
 * ones of each. What stands behind a row's codes is copied to shared memory a tile ahead, and scales and offsets made of
 * it once for all tokens. */
#include "cuda/be.cuh"
#include "cuda/codes.cuh"

enum { WARPS = 8, TILE = 16, TOKENS = 8, SMEM_MOST = 208 << 10 };

static __device__ __forceinline__ void mma16816(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ __nv_bfloat162 two(uint32_t x) { return *(const __nv_bfloat162 *)&x; }
static __device__ __forceinline__ uint32_t bits(__nv_bfloat162 x) { return *(const uint32_t *)&x; }

/* Place within its octet of the input on half `hi` of pair p: codes of up to 6 bits (0,4) (1,5) .., bytes (0,2) (1,3) (4,6) (5,7),
 * pairs of a table (0,1) (2,3) .. */
template <mla_code CODE, bool TABLE> static __device__ __forceinline__ int place(int p, int hi)
{
    return TABLE ? 2 * p + hi : CODE == MLA_CODE_INT8 || CODE == MLA_CODE_E4M3 ? p / 2 * 4 + p % 2 + 2 * hi : p + 4 * hi;
}

/* An octet as stored: w (nibbles and crumbs in x), h its high bits. */
struct Octet {
    uint2 w;
    uint32_t h;
};
/* Its values in bf16, four pairs; a, b: v = a n + b of the codes n of up to 6 bits, as (a, a) and (b - 128 a) twice. */
template <mla_code CODE, bool TABLE> static __device__ __forceinline__ void values(uint32_t (&v)[4], const Octet &q, uint32_t a, uint32_t b, const uint32_t *table)
{
    if constexpr (TABLE) {
#pragma unroll
        for (int p = 0; p < 4; p++) v[p] = table[q.w.x >> 8 * p & 255];
    } else if constexpr (CODE == MLA_CODE_INT8) { /* 128 + low bits, and -128 or -256 */
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint32_t x = (p < 2 ? q.w.x : q.w.y) >> 8 * (p & 1);
            v[p] = bits(__hadd2(two((x & 0x007f007fu) | 0x43004300u), two((x & 0x00800080u) | 0xc300c300u)));
        }
    } else if constexpr (CODE == MLA_CODE_E4M3) { /* the same bits are a bf16 number 2^120 smaller */
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint32_t w = p < 2 ? q.w.x : q.w.y, x = p & 1 ? w : w << 8;
            v[p] = bits(__hmul2(two((x & 0x80008000u) | (x >> 4 & 0x07f007f0u)), two(0x7b807b80u)));
        }
    } else {
        constexpr int BITS = CODE == MLA_CODE_CRUMB || CODE == MLA_CODE_CRUMB_BIT ? 2 : 4;
        constexpr uint32_t MASK = BITS == 2 ? 0x00030003u : 0x000f000fu;
        const uint32_t w = BITS == 4 ? q.w.x : __byte_perm(q.w.x, 0, 0x4140); /* codes 4 to 7 on the upper half */
        uint32_t h = 0;
        if (CODE == MLA_CODE_NIBBLE_CRUMB) h = __byte_perm(q.h, 0, 0x4140);
        if (CODE == MLA_CODE_NIBBLE_BIT || CODE == MLA_CODE_CRUMB_BIT) h = (q.h & 15) | (q.h >> 4 & 15) << 16;
#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t n = (w >> BITS * p & MASK) | 0x43004300u;
            if (CODE == MLA_CODE_NIBBLE_CRUMB) n |= (h >> 2 * p & 0x00030003u) << 4;
            if (CODE == MLA_CODE_NIBBLE_BIT || CODE == MLA_CODE_CRUMB_BIT) n |= (h >> p & 0x00010001u) << BITS;
            v[p] = bits(__hfma2(two(n), two(a), two(b)));
        }
    }
}

/* 16 bytes of plane a from place `first` on, V octets, and what plane b has for them. */
struct Vector {
    uint4 w;
    uint2 h;
};
template <mla_code CODE> static __device__ __forceinline__ Vector vector_at(const uint8_t *row, int b, int first)
{
    Vector x = {__ldg((const uint4 *)(row + (size_t)first * (16 / code_vector(CODE)))), make_uint2(0, 0)};
    if (CODE == MLA_CODE_NIBBLE_BIT) x.h.x = __ldg((const uint32_t *)(row + b + first));
    if (CODE == MLA_CODE_CRUMB_BIT) x.h = __ldg((const uint2 *)(row + b + first));
    if (CODE == MLA_CODE_NIBBLE_CRUMB) x.h = __ldg((const uint2 *)(row + b + 2 * first));
    return x;
}
template <mla_code CODE> static __device__ __forceinline__ Octet octet_of(const Vector &x, int i)
{
    const uint32_t w[4] = {x.w.x, x.w.y, x.w.z, x.w.w}, h[2] = {x.h.x, x.h.y};
    Octet o = {};
    if (CODE == MLA_CODE_INT8 || CODE == MLA_CODE_E4M3) o.w = make_uint2(w[2 * (i & 1)], w[2 * (i & 1) + 1]);
    else if (CODE == MLA_CODE_CRUMB || CODE == MLA_CODE_CRUMB_BIT) o.w.x = w[i / 2] >> 16 * (i & 1) & 0xffff;
    else o.w.x = w[i & 3];
    if (CODE == MLA_CODE_NIBBLE_CRUMB) o.h = h[i / 2 & 1] >> 16 * (i & 1) & 0xffff;
    else o.h = h[i / 4] >> 8 * (i & 3) & 255;
    return o;
}
/* The octet at one place. */
template <mla_code CODE> static __device__ __forceinline__ Octet octet_at(const uint8_t *row, int b, int at)
{
    Octet o = {};
    if (CODE == MLA_CODE_INT8 || CODE == MLA_CODE_E4M3) o.w = ((const uint2 *)row)[at];
    else o.w.x = CODE == MLA_CODE_CRUMB || CODE == MLA_CODE_CRUMB_BIT ? ((const uint16_t *)row)[at] : ((const uint32_t *)row)[at];
    if (CODE == MLA_CODE_NIBBLE_CRUMB) o.h = ((const uint16_t *)(row + b))[at];
    if (CODE == MLA_CODE_NIBBLE_BIT || CODE == MLA_CODE_CRUMB_BIT) o.h = row[b + at];
    return o;
}

struct MmaP {
    const float *x, *bias;
    float *y;
    size_t ldx, ldy;
    int tokens, accumulate, stride, tail; /* stride: of a token in shared memory, elements; tail: bytes of a row behind its codes */
    bool wide; /* rows of x start on 16 bytes */
};
/* Shared memory: tokens; a tile's scales (groups, TILE) and with offsets as many of them and sums of x (groups, TOKENS); tails. */
struct MmaSmem {
    size_t scales, offsets, sums, tails, bytes;
    int groups;
    __host__ __device__ MmaSmem(const Codes &c, int tokens, int stride, int tail) : groups(((c.octets - 1) >> c.shift) + 1)
    {
        const size_t n = c.offset == MLA_OFFSET_NONE ? 0 : (size_t)groups;
        scales = (size_t)tokens * stride * 2;
        offsets = scales + (size_t)groups * TILE * 4;
        sums = offsets + n * TILE * 4;
        tails = sums + n * TOKENS * 4;
        bytes = tails + (size_t)TILE * tail;
    }
};

/* Tokens in bf16, an octet a thread, in the order that values() gives. */
template <mla_code CODE, bool TABLE> static __device__ void stage_tokens(__nv_bfloat16 *xs, const Codes &c, const MmaP &a, int octets)
{
    for (int t = 0; t < a.tokens; t++)
#pragma unroll 4
        for (int o = threadIdx.x; o < octets; o += WARPS * 32) {
            const float *from = a.x + (size_t)t * a.ldx + o * 8;
            float v[8];
            if (a.wide && !c.perm && o * 8 + 8 <= c.in) *(float4 *)v = *(const float4 *)from, *(float4 *)(v + 4) = *(const float4 *)(from + 4);
            else
                for (int e = 0; e < 8; e++) v[e] = o * 8 + e < c.in ? (c.perm ? a.x[(size_t)t * a.ldx + c.perm[o * 8 + e]] : from[e]) : 0.f;
            uint32_t u[4];
#pragma unroll
            for (int p = 0; p < 4; p++) u[p] = bits(__floats2bfloat162_rn(v[place<CODE, TABLE>(p, 0)], v[place<CODE, TABLE>(p, 1)]));
            *(uint4 *)(xs + t * a.stride + o * 8) = make_uint4(u[0], u[1], u[2], u[3]);
        }
}
/* xsum (groups, TOKENS): a thread a sum, or a warp where the group is the row. */
static __device__ void sum_tokens(float *xsum, const __nv_bfloat16 *xs, const Codes &c, const MmaP &a, int octets)
{
    const bool row = c.shift >= 31;
    const int groups = ((c.octets - 1) >> c.shift) + 1, per = row ? octets : 1 << c.shift, lanes = row ? 32 : 1, lane = threadIdx.x % lanes;
    for (int i = threadIdx.x / lanes; i < groups * TOKENS; i += WARPS * 32 / lanes) {
        const int t = i % TOKENS, from = i / TOKENS * per;
        float s = 0.f;
        for (int o = from + lane; t < a.tokens && o < from + per && o < octets; o += lanes) {
            const uint4 v = *(const uint4 *)(xs + t * a.stride + o * 8);
            const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int p = 0; p < 4; p++) s += __uint_as_float(u[p] << 16) + __uint_as_float(u[p] & 0xffff0000u);
        }
        for (int o = lanes / 2; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
        if (lane == 0) xsum[i] = s;
    }
}
static __device__ __forceinline__ void copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

/* GROUP: sums of v x are scaled after 0: 4 V octets; 1: four octets; 2: two. */
template <mla_code CODE, bool TABLE, int GROUP> static __global__ void __launch_bounds__(WARPS * 32, 2) codes_mma(const __grid_constant__ Codes c, const __grid_constant__ MmaP a)
{
    constexpr int V = code_vector(CODE), BLOCK = 4 * V;
    extern __shared__ __align__(16) unsigned char smem[];
    __shared__ float part[WARPS][TILE][TOKENS], scale_table[256];
    __shared__ uint32_t table[TABLE ? 256 : 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, q = lane & 3, octets = (c.octets + 3) & ~3, full = c.octets / BLOCK;
    const MmaSmem at(c, a.tokens, a.stride, a.tail);
    __nv_bfloat16 *xs = (__nv_bfloat16 *)smem;
    float *xsum = (float *)(smem + at.sums), *scales = (float *)(smem + at.scales), *offsets = (float *)(smem + at.offsets);
    const int first = (int)blockIdx.x * TILE, step = (int)gridDim.x * TILE;
    auto fetch_tails = [&](int row0) { /* what stands behind the codes of 16 rows */
        for (int i = threadIdx.x; i < TILE * (a.tail / 16); i += WARPS * 32) {
            const int r = i / (a.tail / 16), e = i % (a.tail / 16) * 16, row = row0 + r < c.out ? row0 + r : c.out - 1;
            copy16(smem + at.tails + (size_t)r * a.tail + e, c.data + (size_t)row * (size_t)c.row_bytes + c.scales + e);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    /* this warp's vectors, tile after tile, two ahead */
    Vector queue[2][2];
    int ahead_row = first, ahead_k = warp;
    auto fetch = [&](Vector (&to)[2]) {
        if (ahead_k >= full) ahead_row += step, ahead_k = warp;
        if (ahead_row >= c.out || ahead_k >= full) return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = ahead_row + g + 8 * r < c.out ? ahead_row + g + 8 * r : c.out - 1;
            to[r] = vector_at<CODE>(c.data + (size_t)row * (size_t)c.row_bytes, c.b, ahead_k * BLOCK + q * V);
        }
        ahead_k += WARPS;
    };
    fetch_tails(first);
    fetch(queue[0]);
    fetch(queue[1]);
    if (TABLE) table[threadIdx.x] = bits(__floats2bfloat162_rn(c.lo[threadIdx.x & 15], c.lo[threadIdx.x >> 4]));
    if (c.scale == MLA_SCALE_TABLE) scale_table[threadIdx.x] = c.table[threadIdx.x];
    stage_tokens<CODE, TABLE>(xs, c, a, octets);
    __syncthreads();
    if (c.offset != MLA_OFFSET_NONE) sum_tokens(xsum, xs, c, a, octets);
    const uint4 *xt = (const uint4 *)(xs + (g < a.tokens ? g : 0) * a.stride);
    const int inside = c.shift >= 31 ? ~0 : (1 << c.shift) - 1;
    for (int row0 = first; row0 < c.out; row0 += step) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        for (int i = threadIdx.x; i < at.groups * TILE; i += WARPS * 32) {
            const int n = i / TILE;
            float s, m;
            code_scale_at(c, smem + at.tails + (size_t)(i % TILE) * a.tail - c.scales, n, n << c.shift >> c.super_shift, scale_table, &s, &m);
            scales[i] = s;
            if (c.offset != MLA_OFFSET_NONE) offsets[i] = m;
        }
        __syncthreads();
        if (row0 + step < c.out) fetch_tails(row0 + step);
        float y[4] = {};
        auto scale = [&](const float (&sum)[4], int o) { /* of the group of octet o; the first octets of a group bring its offset */
            const int n = o >> c.shift;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float s = scales[n * TILE + g + 8 * r];
                y[2 * r] = fmaf(s, sum[2 * r], y[2 * r]), y[2 * r + 1] = fmaf(s, sum[2 * r + 1], y[2 * r + 1]);
                if (c.offset == MLA_OFFSET_NONE || (o & inside)) continue;
                const float2 x = *(const float2 *)(xsum + n * TOKENS + 2 * q);
                const float m = offsets[n * TILE + g + 8 * r];
                y[2 * r] = fmaf(m, x.x, y[2 * r]), y[2 * r + 1] = fmaf(m, x.y, y[2 * r + 1]);
            }
        };
        /* octets [o, o + 4), this lane's q-th of rows g and g + 8 */
        auto chunk = [&](const Octet &lo, const Octet &hi, int o, float (&sum)[4]) {
            uint32_t u[4], w[4];
            values<CODE, TABLE>(u, lo, c.mul, c.add, table);
            values<CODE, TABLE>(w, hi, c.mul, c.add, table);
            const uint4 x = xt[o + q];
            if (GROUP == 2) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const bool on = (q >> 1) == half;
                    float s[4] = {};
                    mma16816(s, u[0], w[0], u[1], w[1], on ? x.x : 0u, on ? x.y : 0u);
                    mma16816(s, u[2], w[2], u[3], w[3], on ? x.z : 0u, on ? x.w : 0u);
                    if (o + 2 * half < c.octets) scale(s, o + 2 * half);
                }
                return;
            }
            mma16816(sum, u[0], w[0], u[1], w[1], x.x, x.y);
            mma16816(sum, u[2], w[2], u[3], w[3], x.z, x.w);
            if (GROUP == 1) {
                scale(sum, o);
                sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
            }
        };
        for (int k = warp; k < full; k += WARPS) {
            Vector now[2];
#pragma unroll
            for (int r = 0; r < 2; r++) now[r] = queue[0][r], queue[0][r] = queue[1][r];
            fetch(queue[1]);
            float sum[4] = {};
#pragma unroll
            for (int i = 0; i < V; i++) chunk(octet_of<CODE>(now[0], i), octet_of<CODE>(now[1], i), k * BLOCK + 4 * i, sum);
            if (GROUP == 0) scale(sum, k * BLOCK);
        }
        for (int o = full * BLOCK + 4 * warp; o < c.octets; o += 4 * WARPS) { /* what is left stands in order */
            Octet e[2] = {};
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (o + q < c.octets) e[r] = octet_at<CODE>(c.data + (size_t)(row0 + g + 8 * r < c.out ? row0 + g + 8 * r : c.out - 1) * (size_t)c.row_bytes, c.b, o + q);
            float sum[4] = {};
            chunk(e[0], e[1], o, sum);
            if (GROUP == 0) scale(sum, o);
        }
        *(float2 *)&part[warp][g][2 * q] = make_float2(y[0], y[1]);
        *(float2 *)&part[warp][g + 8][2 * q] = make_float2(y[2], y[3]);
        __syncthreads();
        const int r = threadIdx.x % TILE, t = threadIdx.x / TILE;
        if (t < a.tokens && row0 + r < c.out) {
            float v = part[0][r][t];
            for (int i = 1; i < WARPS; i++) v += part[i][r][t];
            if (a.bias) v += a.bias[row0 + r];
            float *to = a.y + (size_t)t * a.ldy + row0 + r;
            *to = a.accumulate ? *to + v : v;
        }
    }
}

template <mla_code CODE, bool TABLE, int GROUP> static mla_status run(mla_cuda *c, const Codes *d, const MmaP &p, size_t smem, mla_err *err)
{
    const int tiles = (d->out + TILE - 1) / TILE, most = 2 * c->sms;
    const mla_status st = cu_ok(cudaFuncSetAttribute(codes_mma<CODE, TABLE, GROUP>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_MOST), "packed weight: shared memory", err);
    if (st) return st;
    codes_mma<CODE, TABLE, GROUP><<<(unsigned)(tiles < most ? tiles : most), WARPS * 32, smem, c->stream>>>(*d, p);
    return launched("packed weight", err);
}
template <mla_code CODE, bool TABLE> static mla_status of_group(mla_cuda *c, const Codes *d, const MmaP &p, size_t smem, mla_err *err)
{
    const int octets = d->shift >= 31 ? INT32_MAX : 1 << d->shift;
    if (octets >= 4 * code_vector(CODE)) return run<CODE, TABLE, 0>(c, d, p, smem, err);
    return octets >= 4 ? run<CODE, TABLE, 1>(c, d, p, smem, err) : run<CODE, TABLE, 2>(c, d, p, smem, err);
}

static int stride_of(const Codes *d)
{
    const int n = (d->octets + 3) / 4 * 32;
    return n % 64 == 32 ? n : n + 32; /* eight tokens' rows on different banks */
}
static int tail_of(const Codes *d) { return (int)(d->row_bytes - d->scales); }
static size_t smem_of(const Codes *d, size_t tokens) { return MmaSmem(*d, (int)tokens, stride_of(d), tail_of(d)).bytes; }
bool codes_mma_fits(const mla_weight *w, size_t T) { return w->codes && w->codes->vector && T <= TOKENS && smem_of(w->codes, 1) <= SMEM_MOST; }

mla_status codes_mma_run(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    const Codes *d = w->codes;
    size_t at_once = a->T;
    mla_status st = MLA_OK;
    while (smem_of(d, at_once) > SMEM_MOST) at_once--;
    for (size_t t = 0; !st && t < a->T; t += at_once) {
        const size_t n = a->T - t < at_once ? a->T - t : at_once, smem = smem_of(d, n);
        const MmaP p = {cf32p(a->x) + t * a->ldx, a->bias ? cf32p(a->bias) : NULL, f32p(a->y) + t * a->ldy, a->ldx, a->ldy, (int)n, a->accumulate, stride_of(d), tail_of(d),
                        a->ldx % 4 == 0 && (uintptr_t)a->x % 16 == 0};
        switch (d->code) {
        case MLA_CODE_NIBBLE: st = d->table_pairs ? of_group<MLA_CODE_NIBBLE, true>(c, d, p, smem, err) : of_group<MLA_CODE_NIBBLE, false>(c, d, p, smem, err); break;
        case MLA_CODE_NIBBLE_BIT: st = of_group<MLA_CODE_NIBBLE_BIT, false>(c, d, p, smem, err); break;
        case MLA_CODE_NIBBLE_CRUMB: st = of_group<MLA_CODE_NIBBLE_CRUMB, false>(c, d, p, smem, err); break;
        case MLA_CODE_CRUMB: st = of_group<MLA_CODE_CRUMB, false>(c, d, p, smem, err); break;
        case MLA_CODE_CRUMB_BIT: st = of_group<MLA_CODE_CRUMB_BIT, false>(c, d, p, smem, err); break;
        case MLA_CODE_INT8: st = of_group<MLA_CODE_INT8, false>(c, d, p, smem, err); break;
        default: st = of_group<MLA_CODE_E4M3, false>(c, d, p, smem, err); break;
        }
    }
    return st;
}
