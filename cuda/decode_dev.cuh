/* What the decode kernels share: the device-side parameters and typed element access. */
#ifndef MLA_CUDA_DECODE_DEV_CUH
#define MLA_CUDA_DECODE_DEV_CUH
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/decode.h"

struct DecodeRows {
    const void *p;
    long long b, t, h;
    bool f32;
    bool vec; /* every 8 values of a row start on 16 bytes */
};

struct DecodeP {
    int B, s_q, H, Hg, rows;        /* rows = s_q * Hg query rows per group: row = t * Hg + head in group */
    int rope, rope_heads;
    int lat_col, rope_col, v_col, slots, parts, tiles;
    const int2 *begin;              /* (parts + 1): first (sequence, page) of each part; NULL: one sequence */
    const int2 *split;              /* (B): first and last part of each sequence; (1, 0): none */
    const int32_t *table;
    long long table_stride;
    const int32_t *len;
    DecodeRows q, q2, o;
    float *lse;
    float scale;                    /* softmax scale * k_scale * log2(e) */
    float rope_ratio, out_scale;    /* kr_scale / k_scale folded into q2; k_scale of the output */
    bool joined;                    /* bf16: latents and rotary keys are neighbours: a box is 16 tokens of both */
    bool maps;                      /* queries come by q_map and q2_map: boxes of 64 values x the rows of a tile */
    CUtensorMap q_map, q2_map;
    float *po, *plse;               /* partial outputs (slot, N, lat), their log2-sum-exp (slot, N) */
};

/* begin and split of one sequence need no plan: part p has pages [p n / P, (p + 1) n / P). */
static __device__ __forceinline__ int2 part_begin(const DecodeP &d, int p)
{
    if (d.begin) return d.begin[p];
    const int n = (d.len[0] + 63) >> 6, P = min(d.parts, max(n, 1));
    return p < P && n > 0 ? make_int2(0, (int)((long long)p * n / P)) : make_int2(1, 0);
}
static __device__ __forceinline__ int2 part_split(const DecodeP &d, int b)
{
    if (d.begin) return d.split[b];
    const int n = (d.len[0] + 63) >> 6;
    return n > 0 ? make_int2(0, min(d.parts, n) - 1) : make_int2(1, 0);
}

/* Number of the partial output that a part leaves of a sequence that begins in it, or that began before; tile: of all groups. What one
 * sequence leaves lies side by side, but for its first: the merge meets half as many pages of memory. */
static __device__ __forceinline__ int part_slot(const DecodeP &d, int tile, int part, bool begins)
{
    return (tile * 2 + (begins ? 1 : 0)) * d.parts + part;
}

static __device__ __forceinline__ float load_f32(const void *p, bool f32, size_t i)
{
    return f32 ? ((const float *)p)[i] : __bfloat162float(((const __nv_bfloat16 *)p)[i]);
}
static __device__ __forceinline__ void store_f32(void *p, bool f32, size_t i, float x)
{
    if (f32) ((float *)p)[i] = x;
    else ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
}

enum { TRIO = -1, HELD = -2 };

/* One built kernel of the Hopper family. */
struct DecodeKernel {
    int lat, n, rb, fp8;
    int wgs;  /* consumer warpgroups; 0: keys and values of their own (decode_gqa.cuh) */
    int solo; /* warpgroups sharing the rows (1: each has its own); 0: a pair; TRIO: two for the softmax, two for the sums; HELD: one and two, queries in registers */
    int cl; /* blocks of a cluster that share the latents (2), or 1 */
    const void *fn; /* kernel (CUtensorMap, CUtensorMap, DecodeP) */
    const void *pair = nullptr; /* HELD: the same, two tiles a cluster */
};
/* Each instantiation file contributes a list, ended by lat == 0. */
extern const DecodeKernel mla_decode_k256[], mla_decode_k512[], mla_decode_k768[], mla_decode_k1792[], mla_decode_trio512[], mla_decode_held512[], mla_decode_gqa[];

/* The plan (decode_plan.cu): prefix (B + 1) units before each sequence, begin and split as in DecodeP; overhead: of a piece, in pages. */
mla_status decode_cut(const int32_t *len, int B, int parts, int overhead, long long *prefix, int2 *begin, int2 *split, cudaStream_t stream, mla_err *err);
/* Sums the partial outputs of sequences cut over several parts (decode_merge.cu); N rows of a tile. */
mla_status decode_merge(const DecodeP &p, int N, int tiles, int lat, cudaStream_t stream, mla_err *err);
#endif
