/* The fused state update. Block = one value head of one sequence, its 64 KB of state in registers: warp w holds key rows
 * [16 w, 16 w + 16), a lane four neighbouring columns. All loads of the state are in flight before the norms are taken. */
#include <stdint.h>

#include "cuda/check.cuh"
#include "cuda/gdn.cuh"
#include "cuda/ptx.cuh"

enum { WARPS = 8, ROWS = GDN_D / WARPS };

static __device__ __forceinline__ double warp_sum(double x)
{
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}
static __device__ __forceinline__ float4 mul_add(float k, float4 x, float4 y)
{
    return make_float4(fmaf(k, x.x, y.x), fmaf(k, x.y, y.y), fmaf(k, x.z, y.z), fmaf(k, x.w, y.w));
}

/* What one token brings: normalised q (times 128^-1/2) and k, v, decay, beta and k . q. */
struct alignas(16) Token {
    float q[GDN_D], k[GDN_D], v[GDN_D];
    float alpha, beta, kq;
};
/* By one warp. */
static __device__ void prepare(Token &x, const GdnStep &p, size_t row, int h)
{
    const int lane = threadIdx.x & 31, hk = h / (int)(p.nv / p.nk);
    const float *from = p.qkv + row * (2 * p.nk + p.nv) * GDN_D;
    const float4 q = *(const float4 *)(from + (size_t)hk * GDN_D + lane * 4), k = *(const float4 *)(from + (p.nk + hk) * GDN_D + lane * 4);
    *(float4 *)(x.v + lane * 4) = *(const float4 *)(from + (2 * p.nk + h) * GDN_D + lane * 4);
    const double z = (double)p.a[row * p.nv + h] + p.dt_bias[h], b = p.b[row * p.nv + h], rate = p.A_log[h];
    const double qq = warp_sum((double)q.x * q.x + (double)q.y * q.y + (double)q.z * q.z + (double)q.w * q.w),
                 kk = warp_sum((double)k.x * k.x + (double)k.y * k.y + (double)k.z * k.z + (double)k.w * k.w),
                 kq = warp_sum((double)q.x * k.x + (double)q.y * k.y + (double)q.z * k.z + (double)q.w * k.w),
                 qs = 1.0 / sqrt((double)GDN_D) / sqrt(qq + 1e-6), ks = 1.0 / sqrt(kk + 1e-6);
    *(float4 *)(x.q + lane * 4) = make_float4((float)(q.x * qs), (float)(q.y * qs), (float)(q.z * qs), (float)(q.w * qs));
    *(float4 *)(x.k + lane * 4) = make_float4((float)(k.x * ks), (float)(k.y * ks), (float)(k.z * ks), (float)(k.w * ks));
    if (lane) return;
    x.alpha = (float)exp(-exp(rate) * ((z > 0 ? z : 0) + log1p(exp(-fabs(z)))));
    x.beta = (float)(1.0 / (1.0 + exp(-b)));
    x.kq = (float)(kq * qs * ks);
}

/* With u = S' k and r = S' q before the token: delta = beta (v - e^g u), o = e^g r + (k . q) delta, S <- e^g S + k delta'. */
static __global__ void __launch_bounds__(WARPS * 32, 2) gdn_step_kernel(GdnStep p)
{
    __shared__ Token tokens[WARPS];
    __shared__ float4 us[2][WARPS][32], rs[2][WARPS][32];
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, h = blockIdx.x;
    const size_t b = blockIdx.y;
    grid_release(); /* the kernel after this one may come: it waits, too */
    grid_wait();
    float4 *state = (float4 *)(p.state + ((b * p.nv + h) * GDN_D + w * ROWS) * GDN_D) + lane, s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) s[i] = __ldcs(state + i * (GDN_D / 4));
    for (size_t t = 0; t < p.T; t++) {
        const size_t row = b * p.T + t;
        if (t % WARPS == 0) { /* as many tokens as warps at a time */
            if (t) __syncthreads();
            if (t + w < p.T) prepare(tokens[w], p, row + w, h);
            __syncthreads();
        }
        const Token &x = tokens[t % WARPS];
        float4 u = make_float4(0.f, 0.f, 0.f, 0.f), r = u;
#pragma unroll
        for (int i = 0; i < ROWS; i++) u = mul_add(x.k[w * ROWS + i], s[i], u), r = mul_add(x.q[w * ROWS + i], s[i], r);
        us[t & 1][w][lane] = u, rs[t & 1][w][lane] = r;
        __syncthreads(); /* two buffers: a token's sums are read before the one after next is written */
        u = r = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int i = 0; i < WARPS; i++) u = mul_add(1.f, us[t & 1][i][lane], u);
        const float4 v = *(const float4 *)(x.v + lane * 4);
        const float4 d = make_float4(x.beta * (v.x - x.alpha * u.x), x.beta * (v.y - x.alpha * u.y), x.beta * (v.z - x.alpha * u.z), x.beta * (v.w - x.alpha * u.w));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            s[i] = mul_add(x.k[w * ROWS + i], d, make_float4(x.alpha * s[i].x, x.alpha * s[i].y, x.alpha * s[i].z, x.alpha * s[i].w));
        if (w != (int)(t % WARPS)) continue; /* the warps take turns with the outputs */
#pragma unroll
        for (int i = 0; i < WARPS; i++) r = mul_add(1.f, rs[t & 1][i][lane], r);
        *((float4 *)(p.o + (row * p.nv + h) * GDN_D) + lane) = mul_add(x.kq, d, make_float4(x.alpha * r.x, x.alpha * r.y, x.alpha * r.z, x.alpha * r.w));
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) __stcs(state + i * (GDN_D / 4), s[i]);
}

mla_status gdn_step(const GdnStep *p, cudaStream_t stream, mla_err *err)
{
    if (!p->B || !p->T || !p->nk || !p->nv || p->nv % p->nk || p->B > 65535)
        return mla_fail(err, MLA_EINVAL, "delta step: %zu sequences of %zu tokens, %zu value heads over %zu key heads", p->B, p->T, p->nv, p->nk);
    if ((uintptr_t)p->qkv % 16 || (uintptr_t)p->o % 16 || (uintptr_t)p->state % 16)
        return mla_fail(err, MLA_EINVAL, "delta step: inputs, outputs and state must start on 16 bytes");
    return cu_early("delta step", err, gdn_step_kernel, dim3((unsigned)p->nv, (unsigned)p->B), WARPS * 32, 0, stream, *p);
}
