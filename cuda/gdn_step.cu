/* The fused state update. Block = one value head of one sequence, its 64 KB of state in registers: warp w holds key rows
 * [16 w, 16 w + 16), a lane four neighbouring columns. All loads of the state are in flight before the norms are taken. */
#include <stdint.h>

#include "cuda/check.cuh"
#include "cuda/gdn.cuh"


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

/* Normalised q (times 128^-1/2) and k of one token into shared memory, their product, the gates. Warp 0. */
static __device__ void prepare(const GdnStep &p, size_t row, int h, float *q, float *k, float *scalars)
{
    const int lane = threadIdx.x, hk = h / (int)(p.nv / p.nk);
    const float *from = p.qkv + row * (2 * p.nk + p.nv) * GDN_D + (size_t)hk * GDN_D;
    const float4 x = *(const float4 *)(from + lane * 4), y = *(const float4 *)(from + p.nk * GDN_D + lane * 4);
    const double qq = warp_sum((double)x.x * x.x + (double)x.y * x.y + (double)x.z * x.z + (double)x.w * x.w),
                 kk = warp_sum((double)y.x * y.x + (double)y.y * y.y + (double)y.z * y.z + (double)y.w * y.w),
                 kq = warp_sum((double)x.x * y.x + (double)x.y * y.y + (double)x.z * y.z + (double)x.w * y.w),
                 qs = 1.0 / sqrt((double)GDN_D) / sqrt(qq + 1e-6), ks = 1.0 / sqrt(kk + 1e-6);
    *(float4 *)(q + lane * 4) = make_float4((float)(x.x * qs), (float)(x.y * qs), (float)(x.z * qs), (float)(x.w * qs));
    *(float4 *)(k + lane * 4) = make_float4((float)(y.x * ks), (float)(y.y * ks), (float)(y.z * ks), (float)(y.w * ks));
    if (lane) return;
    const double z = (double)p.a[row * p.nv + h] + p.dt_bias[h], softplus = (z > 0 ? z : 0) + log1p(exp(-fabs(z)));
    scalars[0] = (float)exp(-exp((double)p.A_log[h]) * softplus);
    scalars[1] = (float)(1.0 / (1.0 + exp(-(double)p.b[row * p.nv + h])));
    scalars[2] = (float)(kq * qs * ks);
}

/* With u = S' k and r = S' q before the token: delta = beta (v - e^g u), o = e^g r + (k . q) delta, S <- e^g S + k delta'. */
static __global__ void __launch_bounds__(WARPS * 32, 2) gdn_step_kernel(GdnStep p)
{
    __shared__ float q[2][GDN_D], k[2][GDN_D], scalars[2][3];
    __shared__ float4 us[WARPS][32], rs[WARPS][32];
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, h = blockIdx.x;
    const size_t b = blockIdx.y;
    float4 *state = (float4 *)(p.state + ((b * p.nv + h) * GDN_D + w * ROWS) * GDN_D) + lane, s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) s[i] = __ldcs(state + i * (GDN_D / 4));
    for (size_t t = 0; t < p.T; t++) {
        const int z = t & 1;
        const size_t row = b * p.T + t;
        if (w == 0) prepare(p, row, h, q[z], k[z], scalars[z]);
        const float4 v = *(const float4 *)(p.qkv + (row * (2 * p.nk + p.nv) + 2 * p.nk + h) * GDN_D + lane * 4);
        __syncthreads();
        float4 u = make_float4(0.f, 0.f, 0.f, 0.f), r = u;
#pragma unroll
        for (int i = 0; i < ROWS; i++) u = mul_add(k[z][w * ROWS + i], s[i], u), r = mul_add(q[z][w * ROWS + i], s[i], r);
        us[w][lane] = u, rs[w][lane] = r;
        __syncthreads();
        u = r = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int i = 0; i < WARPS; i++) u = mul_add(1.f, us[i][lane], u), r = mul_add(1.f, rs[i][lane], r);
        const float alpha = scalars[z][0], beta = scalars[z][1], kq = scalars[z][2];
        const float4 d = make_float4(beta * (v.x - alpha * u.x), beta * (v.y - alpha * u.y), beta * (v.z - alpha * u.z), beta * (v.w - alpha * u.w));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            s[i] = mul_add(k[z][w * ROWS + i], d, make_float4(alpha * s[i].x, alpha * s[i].y, alpha * s[i].z, alpha * s[i].w));
        if (w == 0) *((float4 *)(p.o + (row * p.nv + h) * GDN_D) + lane) = mul_add(kq, d, make_float4(alpha * r.x, alpha * r.y, alpha * r.z, alpha * r.w));
        if (p.T > 1) __syncthreads(); /* us and rs are read */
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
    gdn_step_kernel<<<dim3((unsigned)p->nv, (unsigned)p->B), WARPS * 32, 0, stream>>>(*p);
    return cu_ok(cudaGetLastError(), "delta step", err);
}
