/* The multiplying warps of linear_few.cu: 8 of them take a tile together, each every eighth pair of groups of 32 columns. Columns are
 * permuted within 32, in weights and tokens alike: a thread reads 16 bytes of a row at a time, of which words 0, 2 are the upper rows of a
 * product (mma_two) and 1, 3 the lower; of a token 8 bytes, either half of what put_x makes of 16. The warps' sums are added in warp order. */
#ifndef MLA_CUDA_LINEAR_FEW_MUL_CUH
#define MLA_CUDA_LINEAR_FEW_MUL_CUH
#include "cuda/linear_few_ring.cuh"

#ifdef MLA_HOPPER
/* d (16 x 8) += a (16 x 16) b (16 x 8): a's upper rows are 8 rows of weights in some columns, the lower rows the same 8 in as many
 * others; b's left half is 4 tokens in the former, its right half the same 4 in the latter. Two quarters of d are sums, two are nothing. */
static __device__ __forceinline__ void mma_two(float (&d)[4], const uint4 &a, const uint2 &b) { mma_bf16(d, a.x, a.y, a.z, a.w, b.x, b.y); }
/* A tile's products with the tokens at `x` of shared memory, this warp's share, SETS of four tokens: lane (g, c) has row g, tokens
 * 2 (c % 2) and the next of a set. */
template <int SETS> static __device__ __forceinline__ void multiply(float2 (&s)[SETS], char *smem, int x, int in, int T, int stages, int &slot, uint32_t &parity)
{
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
    const bool odd = g & 1; /* odd rows read the second half of a line first: rows that lie whole lines apart then meet other banks */
    const uint32_t notes = smem_u32(smem) + bars_at(stages);
    uint32_t wf = smem_u32(smem) + g * PITCH + c * 16 + w * 128 + (odd ? 64 : 0), ws = wf + (odd ? -64 : 64), xs[SETS];
    float acc[SETS][4][4] = {}; /* as many sums as instructions may be under way */
#pragma unroll
    for (int n = 0; n < SETS; n++) xs[n] = smem_u32(smem) + x + min((g & 3) + 4 * n, T - 1) * x_pitch(in) + c * 16 + (g >> 2) * 8 + w * 128;
    asm volatile("" : "+r"(wf), "+r"(ws)); /* not to be made again and again */
    for (int k0 = 0; k0 < in; k0 += KC) {
        const uint32_t bar = notes + slot * NOTE, at = slot * STAGE;
        const int left = (in - k0) / 32 - 2 * w; /* groups of 32 columns from this warp's first pair of them on */
        uint32_t first[2][4], second[2][4];
        mbar_wait(bar, parity);
#pragma unroll
        for (int n = 0; n < 2; n++) lds128(first[n], wf + at + n * WARPS * 128), lds128(second[n], ws + at + n * WARPS * 128);
        uint2 xk[SETS][4] = {};
#pragma unroll
        for (int m = 0; m < SETS; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (left > (n >> 1) * 2 * WARPS + (n & 1)) xk[m][n] = lds64(xs[m] + k0 * 2 + (n >> 1) * WARPS * 128 + (n & 1) * 64);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t(&u)[4] = first[n >> 1], (&v)[4] = second[n >> 1];
            const bool swap = odd != (n & 1);
            const uint4 a = make_uint4(swap ? v[0] : u[0], swap ? v[1] : u[1], swap ? v[2] : u[2], swap ? v[3] : u[3]);
            if (left > (n >> 1) * 2 * WARPS + (n & 1)) /* the same for all of a warp */
#pragma unroll
                for (int m = 0; m < SETS; m++) mma_two(acc[m][n], a, xk[m][n]);
        }
        __syncwarp();
        mbar_arrive_if(bar + 8, lane == 0);
        if (++slot == stages) slot = 0, parity ^= 1;
    }
#pragma unroll
    for (int m = 0; m < SETS; m++) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) v[e] = (acc[m][0][e] + acc[m][1][e]) + (acc[m][2][e] + acc[m][3][e]);
        s[m].x = (c < 2 ? v[0] : v[2]) + __shfl_xor_sync(~0u, c < 2 ? v[0] : v[2], 2);
        s[m].y = (c < 2 ? v[1] : v[3]) + __shfl_xor_sync(~0u, c < 2 ? v[1] : v[3], 2);
    }
}

/* Of a tile's sums the first 16 lanes have two in a set: row lane / 2, tokens 2 (lane % 2) and the next. What is there, where they go. */
template <int SETS> static __device__ __forceinline__ void load_old(const FewPhase &p, const FewJob &job, int row, float *old)
{
    const int lane = threadIdx.x & 31, o = row + (lane >> 1), t = 2 * (lane & 1);
    if (o >= job.out || lane >= 16) return;
#pragma unroll
    for (int n = 0; n < 2 * SETS; n++)
        if (const int u = t + (n & 1) + 4 * (n >> 1); u < p.T) old[n] = __ldcg(job.y + u * job.ldy + o);
}
/* The warps' sums s of the tile that begins at `row`; old: what was there, where it accumulates; w's and w2's rows alternate. */
static __device__ __forceinline__ void put_tile(const FewPhase &p, const FewJob &job, int row, int t0, float2 s, const float *old, const FewLink &link)
{
    const int lane = threadIdx.x & 31, o = row + (lane >> 1), t = t0 + 2 * (lane & 1);
    const float v[2] = {s.x, s.y};
    if (p.pairs) {
        const float up[2] = {__shfl_down_sync(~0u, v[0], 2), __shfl_down_sync(~0u, v[1], 2)};
        if (lane >= 16 || (o & 1) || o >> 1 >= job.out) return;
#pragma unroll
        for (int e = 0; e < 2 && t + e < p.T; e++) {
            const long long at = (t + e) * job.ldy + (o >> 1);
            const float x = silu(v[e]) * up[e];
            job.y[at] = x;
            if (job.half) job.half[at] = __float2bfloat16_rn(x);
        }
        return;
    }
    if (lane >= 16 || o >= job.out) return;
#pragma unroll
    for (int e = 0; e < 2 && t + e < p.T; e++) {
        const float x = job.bias ? v[e] + job.bias[o] : v[e];
        const float y = job.accumulate ? old[e] + x : x;
        if (link.to) put_link(link, o, y); /* one token */
        job.y[(t + e) * job.ldy + o] = y;
    }
}

/* The phase's tiles as they come. SETS: of four tokens. */
template <int SETS> static __device__ __forceinline__ void take_tiles(const FewP &p, int f, char *smem, int &slot, uint32_t &parity, int &tiles, const FewLink &link)
{
    const FewPhase &ph = p.phase[f];
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    const uint32_t notes = smem_u32(smem) + bars_at(p.stages);
    for (;;) {
        mbar_wait(notes + slot * NOTE, parity);
        const int2 tile = *(const int2 *)(smem + bars_at(p.stages) + slot * NOTE + 16);
        if (tile.x < 0) {
            __syncwarp();
            mbar_arrive_if(notes + slot * NOTE + 8, lane == 0);
            if (++slot == p.stages) slot = 0, parity ^= 1;
            break;
        }
        const FewJob &job = p.job[tile.x];
        const bool adds = w == tiles % WARPS;
        float old[2 * SETS] = {};
        if (adds && job.accumulate) load_old<SETS>(ph, job, tile.y, old);
        float2 s[SETS];
        multiply<SETS>(s, smem, x_at(p.stages) + job.xs, job.in, ph.T, p.stages, slot, parity);
        /* every warp's sums to one of two places, one warp adds them, in turn */
        float2 *part = (float2 *)(smem + part_at(p.stages)) + (tiles & 1) * SETS_MAX * WARPS * 16;
#pragma unroll
        for (int i = 0; i < SETS; i++)
            if ((lane & 3) < 2) part[(i * WARPS + w) * 16 + (lane >> 2) * 2 + (lane & 3)] = s[i];
        bar_sync(BAR_TILE, ROW);
        if (adds) {
#pragma unroll
            for (int n = 0; n < SETS; n++) {
                float2 v = part[n * WARPS * 16 + lane % 16];
#pragma unroll
                for (int i = 1; i < WARPS; i++) v.x += part[(n * WARPS + i) * 16 + lane % 16].x, v.y += part[(n * WARPS + i) * 16 + lane % 16].y;
                put_tile(ph, job, tile.y, 4 * n, v, old + 2 * n, link);
            }
        }
        tiles++;
    }
}
#endif
#endif
