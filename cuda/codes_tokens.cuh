/* The tokens of codes_mma.cu: from global memory, rounded to bf16, to shared memory, with their sums where a format needs them. */
#ifndef MLA_CUDA_CODES_TOKENS_CUH
#define MLA_CUDA_CODES_TOKENS_CUH
#include "cuda/codes_ring.cuh"
#include "cuda/codes_unit.cuh"

/* An octet of a token in bf16, and the sum of its group in whole warps: of 32 inputs, lane q of a product's has 16 bytes, quads q and q + 4. */
template <bool ONE> static __device__ __forceinline__ void put_octet(unsigned char *smem, const MmaSmem &at, const Codes &c, const MmaP &a, int t, int o, const float (&v)[8], float by)
{
    uint8_t *to = smem + at.x + t * a.pitch + o / 4 * 64 + o % 2 * 32 + o / 2 % 2 * 8;
    uint32_t u[4];
    float s = 0.f;
#pragma unroll
    for (int k = 0; k < 4; k++) u[k] = bits(__floats2bfloat162_rn(by * v[2 * k], by * v[2 * k + 1])), s += lower(u[k]) + upper(u[k]);
    *(uint2 *)to = make_uint2(u[0], u[1]);
    *(uint2 *)(to + 16) = make_uint2(u[2], u[3]);
    if (at.bytes == at.sums) return;
    for (int k = 0; k < c.shift; k++) s += __shfl_xor_sync(~0u, s, 1 << k);
    if (o & ((1 << c.shift) - 1)) return;
    const int n = (o >> c.shift) * (ONE ? 1 : TOKENS) + t;
    if (at.starts > at.sums) ((float *)(smem + at.sums))[n] = s;
    if (at.bytes > at.starts) ((float *)(smem + at.starts))[n] = c.below * s;
}
template <bool ONE> static __device__ __forceinline__ void stage_tokens(unsigned char *smem, const MmaSmem &at, const Codes &c, const MmaP &a, float by)
{
    const int octets = c.units * UNIT_OCTETS, step = a.teams * WARPS * 32; /* whole warps */
    if (!a.wide || c.perm) {
        for (int t = 0; t < a.tokens; t++)
            for (int o = threadIdx.x; o < octets; o += step) {
                float v[8];
#pragma unroll
                for (int e = 0; e < 8; e++) v[e] = o * 8 + e < c.in ? __ldcg(a.x + (size_t)t * a.ldx + (c.perm ? c.perm[o * 8 + e] : (uint32_t)(o * 8 + e))) : 0.f;
                put_octet<ONE>(smem, at, c, a, t, o, v, by);
            }
        return;
    }
    constexpr int OCTETS = ONE ? 4 : 1, COUNT = ONE ? 1 : 4; /* in flight: octets of a token, tokens */
    for (int o0 = threadIdx.x; o0 < octets; o0 += step * OCTETS)
        for (int t0 = 0; t0 < a.tokens; t0 += COUNT) {
            float v[OCTETS * COUNT][8];
#pragma unroll
            for (int k = 0; k < OCTETS * COUNT; k++) {
                const int o = o0 + k % OCTETS * step, t = t0 + k / OCTETS;
                const float *from = a.x + (size_t)t * a.ldx + o * 8;
                if (t >= a.tokens) continue;
                if (o * 8 + 8 <= c.in) *(float4 *)v[k] = __ldcg((const float4 *)from), *(float4 *)(v[k] + 4) = __ldcg((const float4 *)from + 1);
                else
#pragma unroll
                    for (int e = 0; e < 8; e++) v[k][e] = o * 8 + e < c.in ? __ldcg(from + e) : 0.f;
            }
#pragma unroll
            for (int k = 0; k < OCTETS * COUNT; k++) {
                const int o = o0 + k % OCTETS * step, t = t0 + k / OCTETS;
                if (t < a.tokens && o < octets) put_octet<ONE>(smem, at, c, a, t, o, v[k], by);
            }
        }
}
#endif
