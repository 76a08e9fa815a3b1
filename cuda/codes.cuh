/* Packed weights on the device: rows of codes with their scales in stored precision (tensor/coded.h), decoded by the
 * kernels that need them. Private to cuda/. */
#ifndef MLA_CUDA_CODES_CUH
#define MLA_CUDA_CODES_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "tensor/coded.h"

/* What kernels get. A row: plane a, plane b, scales, offsets, super scales, super offsets, each on 16 bytes. */
struct Codes {
    const uint8_t *data;
    const uint32_t *perm;   /* (in): place p holds input perm[p]; NULL: p = i */
    const float *table;     /* (256) of MLA_SCALE_TABLE */
    long long row_bytes;
    int out, in, octets;    /* octets: ceil(in / 8); places beyond in hold code 0 */
    int group, super_group; /* in octets; 0: one for the whole row */
    int b, scales, offsets, supers, super_offs;
    mla_code code;
    mla_scale_kind scale;
    mla_offset_kind offset;
    /* For codes_mma.cu. vector: octets of a lane's 16 bytes (code_vector), 0: this layer is not for it. shift: log2 of group and
     * super_group, 31: one for the row. table_pairs: values by a table; otherwise v = a n + b as bf16 pairs (a, a), (b - 128 a) twice. */
    int vector, shift, super_shift, table_pairs;
    uint32_t mul, add;
    float lo[16], hi[16];
};

/* Bits of a code in planes a and b. */
static inline __host__ __device__ int code_bits_a(mla_code c)
{
    return c == MLA_CODE_NIBBLE || c == MLA_CODE_NIBBLE_BIT || c == MLA_CODE_NIBBLE_CRUMB ? 4 : c == MLA_CODE_CRUMB || c == MLA_CODE_CRUMB_BIT ? 2
           : c == MLA_CODE_INT8 || c == MLA_CODE_E4M3                                     ? 8
                                                                                          : 16;
}
static inline __host__ __device__ int code_bits_b(mla_code c) { return c == MLA_CODE_NIBBLE_BIT || c == MLA_CODE_CRUMB_BIT ? 1 : c == MLA_CODE_NIBBLE_CRUMB ? 2 : 0; }

/* Octets in 16 bytes of plane a. */
static inline __host__ __device__ constexpr int code_vector(mla_code c)
{
    return c == MLA_CODE_CRUMB || c == MLA_CODE_CRUMB_BIT ? 8 : c == MLA_CODE_INT8 || c == MLA_CODE_E4M3 ? 2 : 4;
}
/* Where octet o stands in planes a and b: whole blocks of 4 V are transposed, so that 16 bytes of place 4 V k + V q hold the
 * q-th octet of each of the block's V runs of four. */
static inline __host__ __device__ int octet_place(const Codes &c, int o)
{
    const int v = c.vector;
    if (!v || o / (4 * v) >= c.octets / (4 * v)) return o;
    return o / (4 * v) * (4 * v) + o % 4 * v + o / 4 % v;
}

static __device__ __forceinline__ float half_at(const uint8_t *p, int i) { return __half2float(((const __half *)p)[i]); }

/* s and m of group g within super group u of a row; table: of MLA_SCALE_TABLE. */
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

/* The same of octet o. */
static __device__ __forceinline__ void code_scale(const Codes &c, const uint8_t *row, int o, float *s, float *m)
{
    code_scale_at(c, row, c.group ? o / c.group : 0, c.super_group ? o / c.super_group : 0, c.table, s, m);
}

static __device__ __forceinline__ float e4m3_of(uint32_t b) /* 0x7f and 0xff: NaN */
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)b, __NV_E4M3)));
}
/* The eight values v of the octet at place o: CODE is code, lo and hi its tables. */
template <mla_code CODE> static __device__ __forceinline__ void code_values(float (&v)[8], const uint8_t *row, int b, int o, const float *lo, const float *hi)
{
    if constexpr (CODE == MLA_CODE_NIBBLE || CODE == MLA_CODE_NIBBLE_BIT || CODE == MLA_CODE_NIBBLE_CRUMB) {
        const uint32_t w = ((const uint32_t *)row)[o];
        const uint32_t h = CODE == MLA_CODE_NIBBLE_BIT ? row[b + o] : CODE == MLA_CODE_NIBBLE_CRUMB ? ((const uint16_t *)(row + b))[o] : 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = lo[w >> 4 * i & 15];
            if (CODE == MLA_CODE_NIBBLE_BIT) v[i] += hi[h >> i & 1];
            if (CODE == MLA_CODE_NIBBLE_CRUMB) v[i] += hi[h >> 2 * i & 3];
        }
    } else if constexpr (CODE == MLA_CODE_CRUMB || CODE == MLA_CODE_CRUMB_BIT) {
        const uint32_t w = ((const uint16_t *)row)[o], h = CODE == MLA_CODE_CRUMB_BIT ? row[b + o] : 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = lo[w >> 2 * i & 3];
            if (CODE == MLA_CODE_CRUMB_BIT) v[i] += hi[h >> i & 1];
        }
    } else if constexpr (CODE == MLA_CODE_INT8 || CODE == MLA_CODE_E4M3) {
        const uint2 w = ((const uint2 *)row)[o];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t q = (i < 4 ? w.x : w.y) >> 8 * (i & 3) & 255;
            v[i] = CODE == MLA_CODE_INT8 ? (float)(int8_t)q : e4m3_of(q);
        }
    } else {
        const uint4 w = ((const uint4 *)row)[o];
        const uint32_t q[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t x = q[i / 2] >> 16 * (i & 1) & 0xffff;
            v[i] = CODE == MLA_CODE_BF16 ? __uint_as_float(x << 16) : __half2float(__ushort_as_half((unsigned short)x));
        }
    }
}
/* The eight weights of octet o, the very numbers of the format. */
template <mla_code CODE> static __device__ __forceinline__ void code_weights(float (&w)[8], const Codes &c, const uint8_t *row, int o, const float *lo, const float *hi)
{
    code_values<CODE>(w, row, c.b, octet_place(c, o), lo, hi);
    if (CODE == MLA_CODE_BF16 || CODE == MLA_CODE_F16) return;
    float s, m;
    code_scale(c, row, o, &s, &m);
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = c.offset == MLA_OFFSET_NONE ? w[i] * s : fmaf(w[i], s, m);
}
#endif
