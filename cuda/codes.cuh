/* Packed weights on the device: rows of codes with their scales in stored precision (tensor/coded.h), decoded by the
 * kernels that need them. Private to cuda/. */
#ifndef MLA_CUDA_CODES_CUH
#define MLA_CUDA_CODES_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "cuda/codes_tile.cuh"
#include "tensor/coded.h"

/* How codes of up to 6 bits become values: n + b, sixteen numbers, or those of e2m1. */
enum CodeValues { VALUES_LINE, VALUES_TABLE, VALUES_E2M1 };

/* What kernels get. A row: plane a, plane b, scales, offsets, super scales, super offsets, each on 16 bytes; or tiles (codes_tile.cuh). */
struct Codes {
    const uint8_t *data;
    const uint32_t *perm;   /* (in): place p holds input perm[p]; NULL: p = i */
    const float *table;     /* (256) of MLA_SCALE_TABLE */
    long long row_bytes;    /* of a row, or of a tile */
    int out, in, octets;    /* octets: ceil(in / 8); places beyond in hold code 0 */
    int group, super_group; /* in octets; 0: one for the whole row */
    int b, scales, offsets, supers, super_offs;
    mla_code code;
    mla_scale_kind scale;
    mla_offset_kind offset;
    /* Tiled, for codes_mma.cu: units of a row, 0: not tiled; steps of the last one; bytes of a unit of 4 steps; groups and super groups of a unit.
     * Planes begin where a unit does, `scales` and the others count from the codes' end. shift: log2 of group and super_group, of a unit at
     * most. below: b - 2^bits, where v = n + b; 1 or 2, where v is so many of e2m1's. */
    int units, last_steps, unit_bytes, unit_groups, unit_supers, shift, super_shift;
    CodeValues values;
    float below;
    float lo[16], hi[16];
};

/* Bits of a code in planes a and b. */
static inline __host__ __device__ constexpr int code_bits_a(mla_code c)
{
    return c == MLA_CODE_NIBBLE || c == MLA_CODE_NIBBLE_BIT || c == MLA_CODE_NIBBLE_CRUMB ? 4 : c == MLA_CODE_CRUMB || c == MLA_CODE_CRUMB_BIT ? 2
           : c == MLA_CODE_INT8 || c == MLA_CODE_E4M3                                     ? 8
                                                                                          : 16;
}
static inline __host__ __device__ constexpr int code_bits_b(mla_code c) { return c == MLA_CODE_NIBBLE_BIT || c == MLA_CODE_CRUMB_BIT ? 1 : c == MLA_CODE_NIBBLE_CRUMB ? 2 : 0; }

/* How far words of planes a and b are rotated: n is the top of the mantissa of the bf16 number 2^bits + n. */
static inline __host__ __device__ constexpr int code_turn(mla_code c, CodeValues v, bool high) { return v == VALUES_LINE ? 7 - code_bits_b(c) - (high ? 0 : code_bits_a(c)) : 0; }

/* Steps of unit u, and bytes of its codes. */
static inline __host__ __device__ int unit_steps(const Codes &c, int u) { return u == c.units - 1 ? c.last_steps : UNIT_STEPS; }
static inline __host__ __device__ int unit_codes(const Codes &c, int u) { return unit_steps(c, u) * (step_bytes(code_bits_a(c.code)) + step_bytes(code_bits_b(c.code))); }

static __device__ __forceinline__ float half_at(const uint8_t *p, int i) { return __half2float(((const __half *)p)[i]); }

/* s and m at place g of scales and offsets and place u of super scales; table: of MLA_SCALE_TABLE. */
static __device__ __forceinline__ void code_scale_at(const Codes &c, const uint8_t *row, int g, int u, const float *table, float *s, float *m)
{
    const uint8_t *at = row + c.scales;
    *m = 0.f;
    switch (c.scale) {
    case MLA_SCALE_ONE: *s = 1.f; break;
    case MLA_SCALE_F32: *s = ((const float *)at)[g]; break;
    case MLA_SCALE_F16: *s = half_at(at, g); break;
    case MLA_SCALE_BF16: *s = __uint_as_float((uint32_t)((const uint16_t *)at)[g] << 16); break;
    case MLA_SCALE_TABLE: *s = table[at[g]]; break;
    case MLA_SCALE_SUPER_I8: *s = half_at(row + c.supers, u) * (float)(int8_t)at[g]; break;
    case MLA_SCALE_SUPER_U4: *s = half_at(row + c.supers, u) * (float)(at[g] & 15); break;
    }
    switch (c.offset) {
    case MLA_OFFSET_NONE: break;
    case MLA_OFFSET_F16: *m = half_at(row + c.offsets, g); break;
    case MLA_OFFSET_ZERO: *m = -((float)(int8_t)row[c.offsets + g] * *s); break;
    case MLA_OFFSET_SUPER_U8: *m = -(half_at(row + c.super_offs, u) * (float)row[c.offsets + g]); break;
    case MLA_OFFSET_SUPER_U4: *m = -(half_at(row + c.super_offs, u) * (float)(at[g] >> 4)); break;
    }
}

/* Where the unit of octet o of a row begins in tiles. */
static __device__ __forceinline__ const uint8_t *unit_at(const Codes &c, size_t row, int o) { return c.data + row / CODE_ROWS * (size_t)c.row_bytes + (size_t)(o / UNIT_OCTETS) * (size_t)c.unit_bytes; }
/* s and m of octet o. */
static __device__ __forceinline__ void code_scale(const Codes &c, size_t row, int o, float *s, float *m)
{
    if (!c.units) {
        code_scale_at(c, c.data + row * (size_t)c.row_bytes, c.group ? o / c.group : 0, c.super_group ? o / c.super_group : 0, c.table, s, m);
        return;
    }
    const int u = o / UNIT_OCTETS, in = o % UNIT_OCTETS, r = (int)(row % CODE_ROWS);
    code_scale_at(c, unit_at(c, row, o) + unit_codes(c, u), scale_place(c.unit_groups, in >> c.shift, r), super_place(in >> c.super_shift, r), c.table, s, m);
}

static __device__ __forceinline__ float e4m3_of(uint32_t b) /* 0x7f and 0xff: NaN */
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)b, __NV_E4M3)));
}
/* The value of a code: of up to 6 bits n by tables, or a byte. */
template <mla_code CODE> static __device__ __forceinline__ float code_value(uint32_t n, uint32_t high, const float *lo, const float *hi)
{
    if constexpr (CODE == MLA_CODE_INT8) return (float)(int8_t)n;
    else if constexpr (CODE == MLA_CODE_E4M3) return e4m3_of(n);
    else return code_bits_b(CODE) ? lo[n] + hi[high] : lo[n];
}
/* Pair p of a fragment of e2m1 as bf16 numbers 2^126 smaller. */
static __device__ __forceinline__ uint32_t e2m1_pair(uint32_t w, int p)
{
    const uint32_t v = __funnelshift_r(w, w, p == 0 ? 0 : p == 1 ? 4 : p == 2 ? 10 : 6) & (p < 3 ? 0x81c081c0u : 0x81808180u);
    return p < 3 ? v : v | (__funnelshift_r(w, w, 14) & 0x00400040u);
}
/* The eight values v of octet o of a row: CODE is code, lo and hi its tables. */
template <mla_code CODE> static __device__ __forceinline__ void code_values(float (&v)[8], const Codes &c, size_t row, int o, const float *lo, const float *hi)
{
    constexpr int A = code_bits_a(CODE), B = code_bits_b(CODE);
    if constexpr (A == 16) {
        const uint4 w = ((const uint4 *)(c.data + row * (size_t)c.row_bytes))[o];
        const uint32_t q[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t x = q[i / 2] >> 16 * (i & 1) & 0xffff;
            v[i] = CODE == MLA_CODE_BF16 ? __uint_as_float(x << 16) : __half2float(__ushort_as_half((unsigned short)x));
        }
    } else if (!c.units) {
        const uint8_t *at = c.data + row * (size_t)c.row_bytes;
        uint64_t w = 0, h = 0;
        memcpy(&w, __builtin_assume_aligned(at + (size_t)o * A, A), A);
        if (B) memcpy(&h, __builtin_assume_aligned(at + c.b + (size_t)o * (B ? B : 1), B ? B : 1), B);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = code_value<CODE>((uint32_t)(w >> A * i) & ((1 << A) - 1), (uint32_t)(h >> B * i) & ((1 << B) - 1), lo, hi);
    } else {
        const int u = o / UNIT_OCTETS, in = o % UNIT_OCTETS, r = (int)(row % CODE_ROWS);
        const uint8_t *a = unit_at(c, row, o) + in / 8 * step_bytes(A), *b = unit_at(c, row, o) + unit_steps(c, u) * step_bytes(A) + in / 8 * step_bytes(B);
#pragma unroll
        for (int k = 0; k < 2; k++) { /* of two lanes */
            const int lane = r % 8 * 4 + in % 2 * 2 + k, m = in / 2 % 4, half = r / 8;
            if constexpr (A == 8) {
#pragma unroll
                for (int e = 0; e < 4; e++) v[4 * k + e] = code_value<CODE>(a[bytes_at(lane, m) + byte_at(half, e)], 0, lo, hi);
                continue;
            }
            const uint32_t w = ((const uint32_t *)a)[word_at(A, lane, m)], h = B ? ((const uint32_t *)b)[word_at(B, lane, m)] : 0;
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const int p = half + e;
                if (CODE == MLA_CODE_NIBBLE && c.values == VALUES_E2M1) {
                    const uint32_t x = half ? e2m1_pair(w, e + 1) : e2m1_pair(w, e);
                    v[4 * k + e] = __uint_as_float(x << 16) * 0x1p126f * c.below, v[4 * k + e + 1] = __uint_as_float(x & 0xffff0000u) * 0x1p126f * c.below;
                    continue;
                }
                const uint32_t n = __funnelshift_r(w, w, pair_at(A, m, p) + code_turn(CODE, c.values, false));
                const uint32_t f = B ? __funnelshift_r(h, h, pair_at(B, m, p) + code_turn(CODE, c.values, true)) : 0;
                v[4 * k + e] = code_value<CODE>(n & ((1 << A) - 1), f & ((1 << B) - 1), lo, hi);
                v[4 * k + e + 1] = code_value<CODE>(n >> 16 & ((1 << A) - 1), f >> 16 & ((1 << B) - 1), lo, hi);
            }
        }
    }
}
/* The eight weights of octet o, the very numbers of the format. */
template <mla_code CODE> static __device__ __forceinline__ void code_weights(float (&w)[8], const Codes &c, size_t row, int o, const float *lo, const float *hi)
{
    code_values<CODE>(w, c, row, o, lo, hi);
    if (CODE == MLA_CODE_BF16 || CODE == MLA_CODE_F16) return;
    float s, m;
    code_scale(c, row, o, &s, &m);
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = c.offset == MLA_OFFSET_NONE ? w[i] * s : fmaf(w[i], s, m);
}
#endif
