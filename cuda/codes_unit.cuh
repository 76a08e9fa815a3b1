/* One unit of packed weights (codes_tile.cuh) times its inputs of up to 8 tokens, by one warp: y += sum over groups of s (sum of v x) + m (sum of x),
 * the inner sums by mma.m16n8k16 with fp32 accumulators, so weights stay the very numbers of their format: v is held in bf16 exactly.
 * Weights' rows on the 16 rows, tokens on the 8 columns; of one token with groups of 16 or 32 inputs, eight groups on the columns, so that
 * a lane scales the sums of two groups and not all lanes those of all. The sums are the same bits either way: four chains, of which each
 * has every fourth pair of groups. */
#ifndef MLA_CUDA_CODES_UNIT_CUH
#define MLA_CUDA_CODES_UNIT_CUH
#include "cuda/codes.cuh"
#include "cuda/ptx.cuh"

static __device__ __forceinline__ __nv_bfloat162 two(uint32_t x) { return *(const __nv_bfloat162 *)&x; }
static __device__ __forceinline__ uint32_t bits(__nv_bfloat162 x) { return *(const uint32_t *)&x; }
static __device__ __forceinline__ float upper(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
static __device__ __forceinline__ float lower(uint32_t x) { return __uint_as_float(x << 16); }

/* (x & mask) | with, one instruction. */
static __device__ __forceinline__ uint32_t pick(uint32_t x, uint32_t mask, uint32_t with)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(with));
    return r;
}

/* What a lane has of a step: four fragments. */
template <mla_code CODE> struct Step {
    uint32_t w[code_bits_a(CODE) == 8 ? 8 : code_bits_a(CODE) == 4 ? 4 : 2], h[2];
};
/* a, b: the step's part of both planes. */
template <mla_code CODE> static __device__ __forceinline__ Step<CODE> step_at(const uint8_t *a, const uint8_t *b)
{
    constexpr int A = code_bits_a(CODE), B = code_bits_b(CODE);
    const int lane = threadIdx.x % 32;
    Step<CODE> s;
    s.h[0] = s.h[1] = 0;
    if constexpr (A == 2) *(uint2 *)s.w = ((const uint2 *)a)[lane];
    else
#pragma unroll
        for (int i = 0; i < A / 4; i++) *(uint4 *)(s.w + 4 * i) = ((const uint4 *)a)[i * 32 + lane];
    if (B == 1) s.h[0] = ((const uint32_t *)b)[lane];
    if (B == 2) *(uint2 *)s.h = ((const uint2 *)b)[lane];
    return s;
}
/* What operands and tokens are multiplied by, so that widening takes no product: e4m3's bits are a bf16 number 2^120 smaller, e2m1's 2^126. */
template <mla_code CODE, CodeValues VALUES> struct Powers {
    static constexpr bool SMALL = CODE == MLA_CODE_E4M3 || VALUES == VALUES_E2M1;
    static constexpr float TOKEN = SMALL ? 0x1p64f : 1.f, SCALE = CODE == MLA_CODE_E4M3 ? 0x1p56f : SMALL ? 0x1p62f : 1.f;
    static constexpr bool LINE = VALUES == VALUES_LINE && code_bits_a(CODE) < 8; /* operands are 2^bits + n */
};
/* Fragment m as an operand. table: of pairs. */
template <mla_code CODE, CodeValues VALUES> static __device__ __forceinline__ void values(uint32_t (&v)[4], const Step<CODE> &s, int m, const uint32_t *table)
{
#pragma unroll
    for (int p = 0; p < 4; p++) {
        if constexpr (CODE == MLA_CODE_INT8) { /* 128 + low bits, and -128 or -256 */
            const uint32_t x = s.w[2 * m + p / 2] >> 8 * (p & 1);
            v[p] = bits(__hadd2(two(pick(x, 0x007f007fu, 0x43004300u)), two(pick(x, 0x00800080u, 0xc300c300u))));
        } else if constexpr (CODE == MLA_CODE_E4M3) {
            const uint32_t w = s.w[2 * m + p / 2];
            v[p] = pick(p & 1 ? w >> 4 : w << 4, 0x07f007f0u, (p & 1 ? w : w << 8) & 0x80008000u);
        } else if constexpr (VALUES == VALUES_TABLE) v[p] = table[(s.w[m] >> 4 * p & 15) | (s.w[m] >> (4 * p + 12) & 0xf0)];
        else if constexpr (VALUES == VALUES_E2M1) v[p] = e2m1_pair(s.w[m], p);
        else {
            constexpr int A = code_bits_a(CODE), B = code_bits_b(CODE), LOW = 7 - A - B;
            constexpr uint32_t EVERY = 0x00010001u, MASK_A = ((1 << A) - 1) << LOW, MASK_B = ((1 << B) - 1) << (LOW + A), ONE = (127 + A + B) << 7;
            const uint32_t w = s.w[m * A / 4];
            v[p] = pick(__funnelshift_r(w, w, pair_at(A, m, p)), EVERY * MASK_A, EVERY * ONE);
            if (B) v[p] = pick(__funnelshift_r(s.h[m * B / 4], s.h[m * B / 4], pair_at(B, m, p)), EVERY * MASK_B, v[p]);
        }
    }
}

enum { ANY = -1 }; /* kind of scales and offsets: whatever the layer says, or one the kernel is made for */

/* s and m at places [e, e + N) behind a unit's codes, rows g and g + 8 in turn; u: place of row g's super scale. */
template <int SCALE, int OFFSET, int N> static __device__ __forceinline__ void scales_at(float (&s)[N], float (&m)[N], const Codes &c, const uint8_t *tail, int e, int u, const float *table)
{
    const int scale = SCALE == ANY ? (int)c.scale : SCALE, offset = OFFSET == ANY ? (int)c.offset : OFFSET;
    const uint8_t *at = tail + c.scales;
    uint32_t byte = 0;
    float super[2] = {}, off[2] = {};
    if (scale >= MLA_SCALE_SUPER_I8) {
        const __half2 d = *(const __half2 *)(tail + c.supers + 2 * u);
        super[0] = __low2float(d), super[1] = __high2float(d);
    }
    if (scale >= MLA_SCALE_TABLE) byte = N == 4 ? *(const uint32_t *)(at + e) : *(const uint16_t *)(at + e);
    switch (scale) {
    case MLA_SCALE_ONE:
        for (int j = 0; j < N; j++) s[j] = 1.f;
        break;
    case MLA_SCALE_F32:
#pragma unroll
        for (int j = 0; j < N; j += 2) *(float2 *)(s + j) = *(const float2 *)(at + 4 * (e + j));
        break;
    case MLA_SCALE_F16:
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const __half2 h = *(const __half2 *)(at + 2 * (e + j));
            s[j] = __low2float(h), s[j + 1] = __high2float(h);
        }
        break;
    case MLA_SCALE_BF16:
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const uint32_t h = *(const uint32_t *)(at + 2 * (e + j));
            s[j] = lower(h), s[j + 1] = upper(h);
        }
        break;
    case MLA_SCALE_TABLE:
#pragma unroll
        for (int j = 0; j < N; j++) s[j] = table[byte >> 8 * j & 255];
        break;
    case MLA_SCALE_SUPER_I8:
#pragma unroll
        for (int j = 0; j < N; j++) s[j] = super[j & 1] * (float)(int8_t)(byte >> 8 * j);
        break;
    case MLA_SCALE_SUPER_U4:
#pragma unroll
        for (int j = 0; j < N; j++) s[j] = super[j & 1] * (float)(byte >> 8 * j & 15);
        break;
    }
    if (offset == MLA_OFFSET_NONE) return;
    if (offset >= MLA_OFFSET_SUPER_U8) {
        const __half2 d = *(const __half2 *)(tail + c.super_offs + 2 * u);
        off[0] = __low2float(d), off[1] = __high2float(d);
    }
    at = tail + c.offsets;
    if (offset == MLA_OFFSET_F16) {
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const __half2 h = *(const __half2 *)(at + 2 * (e + j));
            m[j] = __low2float(h), m[j + 1] = __high2float(h);
        }
        return;
    }
    if (offset != MLA_OFFSET_SUPER_U4) byte = N == 4 ? *(const uint32_t *)(at + e) : *(const uint16_t *)(at + e);
#pragma unroll
    for (int j = 0; j < N; j++)
        m[j] = offset == MLA_OFFSET_ZERO     ? -((float)(int8_t)(byte >> 8 * j) * s[j])
               : offset == MLA_OFFSET_SUPER_U8 ? -(off[j & 1] * (float)(byte >> 8 * j & 255))
                                                 : -(off[j & 1] * (float)(byte >> (8 * j + 4) & 15));
}

/* Chains of sums: of rows g and g + 8, tokens 2 q and 2 q + 1 of each; ONE: of rows g and g + 8 in 0 and 2 alone, of lane q's chain. */
template <int GROUP, bool ONE> struct Sums {
    static constexpr int CHAINS = GROUP < 64 && !ONE ? 4 : 1;
    float y[CHAINS][4];
};

/* What stays from unit to unit. x: tokens in shared memory, `pitch` bytes apart; sums: of x, (groups of units, tokens or 1); starts: the same times
 * Codes.below; tables of scales and of pairs. */
struct Inputs {
    const uint8_t *x;
    const float *sums, *starts, *scales;
    const uint32_t *pairs;
    int pitch, tokens;
};

/* GROUP: inputs of a group, 16 to 256, or more; ONE: one token. */
template <mla_code CODE, CodeValues VALUES, int GROUP, int SCALE, int OFFSET, bool ONE>
static __device__ __forceinline__ void take_unit(Sums<GROUP, ONE> &y, const Codes &c, const uint8_t *unit, int u, const Inputs &in)
{
    constexpr int SA = step_bytes(code_bits_a(CODE)), SB = step_bytes(code_bits_b(CODE)), COLUMNS = ONE ? 1 : 8;
    const int lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3, steps = unit_steps(c, u);
    const uint8_t *b = unit + steps * SA, *tail = unit + steps * (SA + SB), *x = in.x + u * (CODE_UNIT * 2) + q * 16;
    const int first = u * (CODE_UNIT / GROUP) * COLUMNS + (ONE ? 0 : 2 * q);
    const float *xsum = in.sums + first, *start = in.starts + first;
    constexpr bool LINE = Powers<CODE, VALUES>::LINE;
    const float by = VALUES == VALUES_E2M1 ? Powers<CODE, VALUES>::SCALE * c.below : Powers<CODE, VALUES>::SCALE;
    auto begin = [&](float (&sum)[4], int n) { /* sums of group n before its products; of one token, of groups n and n + 1 or of n alone */
        sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
        if (!LINE) return;
        if (ONE && GROUP >= 64) sum[0] = sum[2] = start[n];
        else {
            const float2 s = *(const float2 *)(start + n * COLUMNS);
            sum[0] = sum[2] = s.x, sum[1] = sum[3] = s.y;
        }
    };
    const bool offset = (OFFSET == ANY ? (int)c.offset : OFFSET) != MLA_OFFSET_NONE;
    auto step = [&](int st) { /* beyond the last: any finite numbers, whose inputs are zero */
        const int k = st < steps ? st : steps - 1;
        return step_at<CODE>(unit + k * SA, b + k * SB);
    };
    if (!ONE) x += (g < in.tokens ? g : 0) * in.pitch;
    if constexpr (GROUP >= 64) {
        constexpr int PER = GROUP / CODE_STEP, GROUPS = UNIT_STEPS / PER; /* steps of a group, groups of a unit */
        float sum[4], f[2 * GROUPS], o[2 * GROUPS];
        if constexpr (GROUPS == 1) scales_at<SCALE, OFFSET>(f, o, c, tail, scale_place(1, 0, g), super_place(0, g), in.scales);
        else if constexpr (GROUPS == 2) scales_at<SCALE, OFFSET>(f, o, c, tail, scale_place(2, 0, g), super_place(0, g), in.scales);
        else {
#pragma unroll
            for (int n = 0; n < GROUPS; n += 2) {
                float f2[4], o2[4];
                scales_at<SCALE, OFFSET>(f2, o2, c, tail, scale_place(GROUPS, n, g), super_place(n << c.shift >> c.super_shift, g), in.scales);
#pragma unroll
                for (int e = 0; e < 4; e++) f[2 * n + e] = f2[e], o[2 * n + e] = o2[e];
            }
        }
#pragma unroll
        for (int st = 0; st < UNIT_STEPS; st++) {
            const Step<CODE> s = step(st);
            const uint4 t[2] = {*(const uint4 *)(x + st * 128), *(const uint4 *)(x + st * 128 + 64)};
            if (st % PER == 0) begin(sum, st / PER);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                uint32_t v[4];
                values<CODE, VALUES>(v, s, m, in.pairs);
                mma_bf16(sum, v[0], v[1], v[2], v[3], m & 1 ? t[m / 2].z : t[m / 2].x, m & 1 ? t[m / 2].w : t[m / 2].y);
            }
            if ((st + 1) % PER) continue;
            const int n = st / PER;
#pragma unroll
            for (int e = 0; e < 4; e++) y.y[0][e] = fmaf(by * f[2 * n + e / 2], sum[e], y.y[0][e]);
        }
        if (offset)
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
                const float xs[2] = {xsum[n * COLUMNS], ONE ? xsum[n * COLUMNS] : xsum[n * COLUMNS + 1]};
#pragma unroll
                for (int e = 0; e < 4; e++) y.y[0][e] = fmaf(o[2 * n + e / 2], xs[e & 1], y.y[0][e]);
            }
    } else {
        constexpr int ROUNDS = CODE_UNIT / GROUP / 8, PER = GROUP / 16; /* of eight groups; products of a group */
        float f[ROUNDS][4], o[ROUNDS][4];
        Step<CODE> s;
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
            scales_at<SCALE, OFFSET>(f[r], o[r], c, tail, scale_place(16, r * 8 + 2 * q, g), super_place((r * 8 + 2 * q) << c.shift >> c.super_shift, g), in.scales);
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            if constexpr (ONE) {
                float sum[4];
                uint4 t; /* of group g of the eight */
                begin(sum, r * 8 + 2 * q);
                if (GROUP == 16) *(uint2 *)&t = *(const uint2 *)(x + r * 256 + g / 2 * 64 + g % 2 * 8);
                else t = *(const uint4 *)(x + g * 64);
#pragma unroll
                for (int i = 0; i < 8; i++) {
#pragma unroll
                    for (int k = 0; k < PER; k++) {
                        const int m = (r * 8 + i) * PER + k;
                        uint32_t v[4];
                        if (m % 4 == 0) s = step(m / 4);
                        values<CODE, VALUES>(v, s, m % 4, in.pairs);
                        mma_bf16(sum, v[0], v[1], v[2], v[3], g == i ? (k ? t.z : t.x) : 0u, g == i ? (k ? t.w : t.y) : 0u);
                    }
                }
#pragma unroll
                for (int j = 0; j < 2; j++) y.y[0][0] = fmaf(by * f[r][2 * j], sum[j], y.y[0][0]), y.y[0][2] = fmaf(by * f[r][2 * j + 1], sum[2 + j], y.y[0][2]);
                if (offset)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const float xs = xsum[r * 8 + 2 * q + j];
                        y.y[0][0] = fmaf(o[r][2 * j], xs, y.y[0][0]), y.y[0][2] = fmaf(o[r][2 * j + 1], xs, y.y[0][2]);
                    }
            } else {
                uint4 t;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float sum[4];
                    begin(sum, r * 8 + i);
#pragma unroll
                    for (int k = 0; k < PER; k++) {
                        const int m = (r * 8 + i) * PER + k;
                        uint32_t v[4];
                        if (m % 4 == 0) s = step(m / 4);
                        if (m % 2 == 0) t = *(const uint4 *)(x + m / 2 * 64);
                        values<CODE, VALUES>(v, s, m % 4, in.pairs);
                        mma_bf16(sum, v[0], v[1], v[2], v[3], m & 1 ? t.z : t.x, m & 1 ? t.w : t.y);
                    }
                    float to[2];
#pragma unroll
                    for (int h = 0; h < 2; h++) to[h] = __shfl_sync(~0u, by * f[r][i % 2 * 2 + h], i / 2, 4);
#pragma unroll
                    for (int e = 0; e < 4; e++) y.y[i / 2][e] = fmaf(to[e / 2], sum[e], y.y[i / 2][e]);
                }
                if (offset)
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const float2 xs = *(const float2 *)(xsum + (r * 8 + i) * COLUMNS);
                        float to[2];
#pragma unroll
                        for (int h = 0; h < 2; h++) to[h] = __shfl_sync(~0u, o[r][i % 2 * 2 + h], i / 2, 4);
#pragma unroll
                        for (int e = 0; e < 4; e++) y.y[i / 2][e] = fmaf(to[e / 2], e & 1 ? xs.y : xs.x, y.y[i / 2][e]);
                    }
            }
        }
    }
}
/* The chains together: y[0 .. 3] of y.y[0], in all lanes. */
template <int GROUP, bool ONE> static __device__ __forceinline__ void conclude(Sums<GROUP, ONE> &y)
{
    if constexpr (GROUP < 64 && ONE) {
#pragma unroll
        for (int o = 1; o < 4; o *= 2) y.y[0][0] += __shfl_xor_sync(~0u, y.y[0][0], o), y.y[0][2] += __shfl_xor_sync(~0u, y.y[0][2], o);
    } else if constexpr (GROUP < 64) {
#pragma unroll
        for (int e = 0; e < 4; e++) y.y[0][e] = (y.y[0][e] + y.y[1][e]) + (y.y[2][e] + y.y[3][e]);
    }
}
#endif
