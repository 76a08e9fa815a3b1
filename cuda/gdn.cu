/* Gated delta net: the causal convolution before it and the gated delta rule.
 *
 * Per head and token (S is the state, dk x dv):  S <- e^g S;  delta = beta (v - S' k);  S <- S + k delta';  o = S' q.
 * With u = S' k and r = S' q of the state before the token: delta = beta (v - e^g u), o = e^g r + (k . q) delta, so one
 * pass over the state per token serves both. The chunked form computes the same function and is served by these kernels, too; with
 * bf16 products the mixer as a whole goes another way (delta.cu). */
#include "cuda/be.cuh"
#include "cuda/gdn.cuh"
#include "cuda/ptx.cuh"

enum { CONV = 128, RUN = 16, WARPS = 4, COLS = 4 * WARPS, CHUNK = 16, DK_MAX = 256, STEP_TOKENS = 8 }; /* up to STEP_TOKENS the fused step is faster */

static __device__ __forceinline__ float conv_input(const float *x, const float *state, size_t C, size_t K, size_t c, long long t)
{
    return __ldcg(t >= 0 ? x + (size_t)t * C + c : state + (size_t)((long long)(K - 1) + t) * C + c);
}
static __device__ __forceinline__ void conv_token(float *y, const float *x, const float *w, const float *state, size_t C, size_t K, size_t c, size_t t)
{
    float s = 0.f;
    for (size_t j = 0; j < K; j++) s = fmaf(w[c * K + j], conv_input(x, state, C, K, c, (long long)t - (long long)(K - 1) + (long long)j), s);
    y[t * C + c] = s / (1.f + expf(-s));
}
static __global__ void conv_kernel(float *y, const float *x, const float *w, const float *state, size_t T, size_t C, size_t K)
{
    const size_t c = blockIdx.x * (size_t)CONV + threadIdx.x, t = blockIdx.y + (size_t)blockIdx.z * 65535;
    if (c < C && t < T) conv_token(y, x, w, state, C, K, c, t);
}
/* The same, four taps: a thread takes RUN tokens of its channel and reads every input once. */
static __global__ void conv_run(float *y, const float *x, const float *w, const float *state, size_t T, size_t C)
{
    const size_t c = blockIdx.x * (size_t)CONV + threadIdx.x, t0 = blockIdx.y * (size_t)RUN;
    if (c >= C) return;
    const float k0 = w[c * 4], k1 = w[c * 4 + 1], k2 = w[c * 4 + 2], k3 = w[c * 4 + 3];
    float v[RUN + 3];
#pragma unroll
    for (int i = 0; i < RUN + 3; i++) {
        const long long t = (long long)t0 + i - 3;
        v[i] = t < (long long)T ? conv_input(x, state, C, 4, c, t) : 0.f;
    }
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        if (t0 + i >= T) return;
        const float s = fmaf(k3, v[i + 3], fmaf(k2, v[i + 2], fmaf(k1, v[i + 1], fmaf(k0, v[i], 0.f))));
        y[(t0 + i) * C + c] = s / (1.f + expf(-s));
    }
}
/* The K - 1 inputs before token T, after `tokens` tokens themselves (all of T, or none: conv_kernel did them). A thread per
 * channel reads all before it writes. */
static __global__ void conv_state(float *y, float *state, const float *x, const float *w, size_t tokens, size_t T, size_t C, size_t K)
{
    const size_t c = blockIdx.x * (size_t)CONV + threadIdx.x;
    float v[15];
    grid_release();
    grid_wait();
    if (c >= C) return;
    for (size_t t = 0; t < tokens; t++) conv_token(y, x, w, state, C, K, c, t);
    for (size_t j = 0; j + 1 < K; j++) v[j] = conv_input(x, state, C, K, c, (long long)T - (long long)(K - 1) + (long long)j);
    for (size_t j = 0; j + 1 < K; j++) state[j * C + c] = v[j];
}

mla_status cu_conv(mla_backend *be, const mla_conv_args *a, mla_err *err)
{
    if (a->K < 1 || a->K > 16) return mla_fail(err, MLA_EUNSUPPORTED, "convolution of %zu taps: expected 1..16", a->K);
    if (!a->T || !a->C) return MLA_OK;
    const dim3 grid(grid_of(a->C, CONV), (unsigned)(a->T < 65535 ? a->T : 65535), grid_of(a->T, 65535));
    const bool few = a->T <= STEP_TOKENS; /* one launch: conv_state does both */
    if (!few && a->K == 4 && a->T >= RUN && a->T < (size_t)RUN * 65535)
        conv_run<<<dim3(grid.x, grid_of(a->T, RUN)), CONV, 0, cu_of(be)->stream>>>(f32p(a->y), cf32p(a->x), cf32p(a->w), cf32p(a->state), a->T, a->C);
    else if (!few) conv_kernel<<<grid, CONV, 0, cu_of(be)->stream>>>(f32p(a->y), cf32p(a->x), cf32p(a->w), cf32p(a->state), a->T, a->C, a->K);
    mla_status st = launched("convolution", err);
    if (!st && (few || a->K > 1))
        st = cu_launch(cu_of(be), "convolution", err, conv_state, grid.x, CONV, f32p(a->y), f32p(a->state), cf32p(a->x), cf32p(a->w), few ? a->T : (size_t)0, a->T, a->C, a->K);
    return st;
}

struct GdnP {
    const float *qkv, *a, *b, *A_log, *dt_bias;
    float *o, *state;
    float *q, *k, *kq, *alpha, *beta; /* prepared: (T, nk, dk) twice, (T, nk), (T, nv) twice */
    size_t T;
    int nk, nv, dk, dv;
};

/* A warp per token and key head: l2-normalised q (times dk^-1/2) and k, their product. */
static __global__ void gdn_prepare(GdnP p)
{
    const size_t i = blockIdx.x * (size_t)(blockDim.x / 32) + threadIdx.x / 32, t = i / p.nk, h = i % p.nk;
    const int lane = threadIdx.x % 32;
    if (t >= p.T) return;
    const size_t width = (size_t)2 * p.nk * p.dk + (size_t)p.nv * p.dv;
    const float *q = p.qkv + t * width + h * p.dk, *k = q + (size_t)p.nk * p.dk;
    double qq = 0.0, kk = 0.0, kq = 0.0;
    for (int e = lane; e < p.dk; e += 32) qq += (double)q[e] * q[e], kk += (double)k[e] * k[e], kq += (double)k[e] * q[e];
    for (int o = 16; o; o >>= 1) {
        qq += __shfl_xor_sync(~0u, qq, o);
        kk += __shfl_xor_sync(~0u, kk, o);
        kq += __shfl_xor_sync(~0u, kq, o);
    }
    const double qs = 1.0 / sqrt((double)p.dk) / sqrt(qq + 1e-6), ks = 1.0 / sqrt(kk + 1e-6);
    for (int e = lane; e < p.dk; e += 32) {
        p.q[i * p.dk + e] = (float)(q[e] * qs);
        p.k[i * p.dk + e] = (float)(k[e] * ks);
    }
    if (lane == 0) p.kq[i] = (float)(kq * qs * ks);
}
static __global__ void gdn_gates(GdnP p)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= p.T * p.nv) return;
    const int h = (int)(i % p.nv);
    const double x = (double)p.a[i] + p.dt_bias[h], softplus = (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
    p.alpha[i] = (float)exp(-exp((double)p.A_log[h]) * softplus);
    p.beta[i] = (float)(1.0 / (1.0 + exp(-(double)p.b[i])));
}

/* Tokens [t0, t0 + CHUNK) of one head into a stage of shared memory: q and k, padded with zeros to R * 8 rows; v of the
 * block's columns; the gates. Copies are queued, stage_wait ends them. */
template <int R> struct Stage {
    float q[CHUNK][8 * R], k[CHUNK][8 * R], v[CHUNK][COLS], gate[CHUNK][4];
};
static __device__ __forceinline__ void copy4(float *dst, const float *src, bool yes)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(dst), bytes = yes ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(src), "r"(bytes) : "memory");
}
template <int R> static __device__ __forceinline__ void stage_fetch(Stage<R> &s, const GdnP &p, size_t t0, int h, int hk)
{
    const size_t width = (size_t)2 * p.nk * p.dk + (size_t)p.nv * p.dv;
    const int col0 = blockIdx.x * COLS;
    for (int i = threadIdx.x; i < CHUNK * 8 * R; i += WARPS * 32) {
        const int n = i / (8 * R), e = i % (8 * R);
        const bool in = t0 + n < p.T && e < p.dk;
        const size_t at = in ? ((t0 + n) * p.nk + hk) * p.dk + e : 0;
        copy4(&s.q[n][e], p.q + at, in);
        copy4(&s.k[n][e], p.k + at, in);
    }
    for (int i = threadIdx.x; i < CHUNK * COLS; i += WARPS * 32) {
        const int n = i / COLS, e = i % COLS;
        const bool in = t0 + n < p.T && col0 + e < p.dv;
        copy4(&s.v[n][e], p.qkv + (in ? (t0 + n) * width + (size_t)2 * p.nk * p.dk + (size_t)h * p.dv + col0 + e : 0), in);
    }
    for (int i = threadIdx.x; i < CHUNK * 3; i += WARPS * 32) {
        const int n = i / 3, e = i % 3;
        const bool in = t0 + n < p.T;
        const float *from = e == 0 ? p.alpha + (in ? (t0 + n) * p.nv + h : 0) : e == 1 ? p.beta + (in ? (t0 + n) * p.nv + h : 0) : p.kq + (in ? (t0 + n) * p.nk + hk : 0);
        copy4(&s.gate[n][e], from, in);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Grid (columns / COLS, nv). A warp holds four columns of the state and needs no other: lane = 4 * row group + column, its
 * rows are 4 group + 32 i + {0..3}. Tokens in order; the next CHUNK of them arrives meanwhile. */
template <int R> static __global__ void __launch_bounds__(WARPS * 32) gdn_tokens(GdnP p)
{
    extern __shared__ __align__(16) char raw[];
    Stage<R> *stage = (Stage<R> *)raw;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, h = blockIdx.y, hk = h / (p.nv / p.nk), rg = lane / 4, c = w * 4 + lane % 4,
              col = blockIdx.x * COLS + c;
    const bool in = col < p.dv;
    float *state = p.state + (size_t)h * p.dk * p.dv + col, s[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = 4 * rg + 32 * (i / 4) + i % 4;
        s[i] = in && row < p.dk ? state[(size_t)row * p.dv] : 0.f;
    }
    stage_fetch(stage[0], p, 0, h, hk);
    for (size_t t0 = 0, z = 0; t0 < p.T; t0 += CHUNK, z ^= 1) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads(); /* this chunk is here, the one before is read */
        if (t0 + CHUNK < p.T) stage_fetch(stage[z ^ 1], p, t0 + CHUNK, h, hk);
        const Stage<R> &x = stage[z];
        const int n = (int)(p.T - t0 < CHUNK ? p.T - t0 : CHUNK);
#pragma unroll 2
        for (int t = 0; t < n; t++) {
            float k[R], u[2] = {0.f, 0.f}, r[2] = {0.f, 0.f};
#pragma unroll
            for (int i = 0; i < R / 4; i++) {
                const float4 kk = *(const float4 *)&x.k[t][4 * rg + 32 * i], qq = *(const float4 *)&x.q[t][4 * rg + 32 * i];
                k[4 * i] = kk.x, k[4 * i + 1] = kk.y, k[4 * i + 2] = kk.z, k[4 * i + 3] = kk.w;
                u[i & 1] = fmaf(s[4 * i + 3], kk.w, fmaf(s[4 * i + 2], kk.z, fmaf(s[4 * i + 1], kk.y, fmaf(s[4 * i], kk.x, u[i & 1]))));
                r[i & 1] = fmaf(s[4 * i + 3], qq.w, fmaf(s[4 * i + 2], qq.z, fmaf(s[4 * i + 1], qq.y, fmaf(s[4 * i], qq.x, r[i & 1]))));
            }
            u[0] += u[1], r[0] += r[1];
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) u[0] += __shfl_xor_sync(~0u, u[0], o), r[0] += __shfl_xor_sync(~0u, r[0], o);
            const float alpha = x.gate[t][0], beta = x.gate[t][1], kq = x.gate[t][2], delta = beta * (x.v[t][c] - alpha * u[0]);
#pragma unroll
            for (int i = 0; i < R; i++) s[i] = fmaf(k[i], delta, alpha * s[i]);
            if (rg == 0 && in) p.o[((t0 + t) * p.nv + h) * p.dv + col] = fmaf(kq, delta, alpha * r[0]);
        }
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = 4 * rg + 32 * (i / 4) + i % 4;
        if (in && row < p.dk) state[(size_t)row * p.dv] = s[i];
    }
}
template <int R> static mla_status run_tokens(const GdnP &p, cudaStream_t stream, mla_err *err)
{
    const int bytes = (int)(2 * sizeof(Stage<R>));
    mla_status st = cu_ok(cudaFuncSetAttribute(gdn_tokens<R>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "delta net: shared memory", err);
    if (st) return st;
    gdn_tokens<R><<<dim3(grid_of((size_t)p.dv, COLS), (unsigned)p.nv), WARPS * 32, bytes, stream>>>(p);
    return launched("delta net", err);
}

mla_status cu_gdn(mla_backend *be, const mla_gdn_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    if (!a->nk || !a->nv || a->nv % a->nk || !a->dk || !a->dv)
        return mla_fail(err, MLA_EINVAL, "delta net: %zu value heads over %zu key heads of %zu and %zu", a->nv, a->nk, a->dk, a->dv);
    if (a->dk > DK_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "delta net: key heads of %zu, at most %d", a->dk, (int)DK_MAX);
    if (!a->T) return MLA_OK;
    const bool aligned = !(((uintptr_t)a->qkv | (uintptr_t)a->o | (uintptr_t)a->state) % 16);
    if (a->dk == GDN_D && a->dv == GDN_D && a->T <= STEP_TOKENS && aligned) {
        const GdnStep g = {cf32p(a->qkv), cf32p(a->a), cf32p(a->b), cf32p(a->A_log), cf32p(a->dt_bias), f32p(a->o), f32p(a->state), 1, a->T, a->nk, a->nv};
        return gdn_step(&g, c->stream, err);
    }
    const size_t rows = pad256(a->T * a->nk * a->dk * 4), small = pad256(a->T * a->nk * 4), gate = pad256(a->T * a->nv * 4);
    char *s;
    mla_status st = cu_scratch(c, 2 * rows + small + 2 * gate, "delta net", &s, err);
    if (st) return st;
    GdnP p = {cf32p(a->qkv), cf32p(a->a), cf32p(a->b), cf32p(a->A_log), cf32p(a->dt_bias), f32p(a->o), f32p(a->state),
              (float *)s, (float *)(s + rows), (float *)(s + 2 * rows), (float *)(s + 2 * rows + small), (float *)(s + 2 * rows + small + gate),
              a->T, (int)a->nk, (int)a->nv, (int)a->dk, (int)a->dv};
    gdn_prepare<<<grid_of(a->T * a->nk, 4), 128, 0, c->stream>>>(p);
    gdn_gates<<<grid_of(a->T * a->nv, 256), 256, 0, c->stream>>>(p);
    return a->dk <= 128 ? run_tokens<16>(p, c->stream, err) : run_tokens<32>(p, c->stream, err);
}
