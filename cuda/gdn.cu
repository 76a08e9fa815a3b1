/* Gated delta net: the causal convolution before it and the gated delta rule.
 *
 * Per head and token (S is the state, dk x dv):  S <- e^g S;  delta = beta (v - S' k);  S <- S + k delta';  o = S' q.
 * With u = S' k and r = S' q of the state before the token: delta = beta (v - e^g u), o = e^g r + (k . q) delta, so one
 * pass over the state per token serves both. The chunked form computes the same function; it is served by this kernel. */
#include "cuda/be.cuh"

enum { CONV = 128, COLS = 32, GROUPS = 4, DK_MAX = 256 };

static __device__ __forceinline__ float conv_input(const float *x, const float *state, size_t C, size_t K, size_t c, long long t)
{
    return t >= 0 ? x[(size_t)t * C + c] : state[(size_t)((long long)(K - 1) + t) * C + c];
}
static __global__ void conv_kernel(float *y, const float *x, const float *w, const float *state, size_t T, size_t C, size_t K)
{
    const size_t c = blockIdx.x * (size_t)CONV + threadIdx.x, t = blockIdx.y + (size_t)blockIdx.z * 65535;
    if (c >= C || t >= T) return;
    float s = 0.f;
    for (size_t j = 0; j < K; j++) s = fmaf(w[c * K + j], conv_input(x, state, C, K, c, (long long)t - (long long)(K - 1) + (long long)j), s);
    y[t * C + c] = s / (1.f + expf(-s));
}
/* The K - 1 inputs before token T; a thread per channel reads all of them before it writes. */
static __global__ void conv_state(float *state, const float *x, size_t T, size_t C, size_t K)
{
    const size_t c = blockIdx.x * (size_t)CONV + threadIdx.x;
    float v[15];
    if (c >= C) return;
    for (size_t j = 0; j + 1 < K; j++) v[j] = conv_input(x, state, C, K, c, (long long)T - (long long)(K - 1) + (long long)j);
    for (size_t j = 0; j + 1 < K; j++) state[j * C + c] = v[j];
}

mla_status cu_conv(mla_backend *be, const mla_conv_args *a, mla_err *err)
{
    if (a->K < 1 || a->K > 16) return mla_fail(err, MLA_EUNSUPPORTED, "convolution of %zu taps: expected 1..16", a->K);
    if (!a->T || !a->C) return MLA_OK;
    const dim3 grid(grid_of(a->C, CONV), (unsigned)(a->T < 65535 ? a->T : 65535), grid_of(a->T, 65535));
    conv_kernel<<<grid, CONV, 0, cu_of(be)->stream>>>(f32p(a->y), cf32p(a->x), cf32p(a->w), cf32p(a->state), a->T, a->C, a->K);
    if (a->K > 1) conv_state<<<grid_of(a->C, CONV), CONV, 0, cu_of(be)->stream>>>(f32p(a->state), cf32p(a->x), a->T, a->C, a->K);
    return launched("convolution", err);
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

/* Grid (columns / 32, nv). Warp w holds state rows [w R, (w+1) R), lane = column; tokens in order. */
template <int R> static __global__ void __launch_bounds__(COLS *GROUPS) gdn_tokens(GdnP p)
{
    __shared__ float qs[2][DK_MAX], ks[2][DK_MAX], us[2][GROUPS][COLS], rs[2][GROUPS][COLS];
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, h = blockIdx.y, hk = h / (p.nv / p.nk), col = blockIdx.x * COLS + lane;
    const bool in = col < p.dv;
    const size_t width = (size_t)2 * p.nk * p.dk + (size_t)p.nv * p.dv;
    float *state = p.state + (size_t)h * p.dk * p.dv + col, s[R];
#pragma unroll
    for (int r = 0; r < R; r++) s[r] = in && w * R + r < p.dk ? state[(size_t)(w * R + r) * p.dv] : 0.f;
    for (size_t t = 0; t < p.T; t++) {
        const int z = t & 1;
        const size_t i = t * p.nk + hk;
        for (int e = threadIdx.x; e < R * GROUPS; e += COLS * GROUPS) {
            qs[z][e] = e < p.dk ? p.q[i * p.dk + e] : 0.f;
            ks[z][e] = e < p.dk ? p.k[i * p.dk + e] : 0.f;
        }
        const float alpha = p.alpha[t * p.nv + h], beta = p.beta[t * p.nv + h], kq = p.kq[i];
        const float v = in ? p.qkv[t * width + (size_t)2 * p.nk * p.dk + (size_t)h * p.dv + col] : 0.f;
        __syncthreads();
        float u = 0.f, r0 = 0.f;
#pragma unroll
        for (int r = 0; r < R; r++) u = fmaf(s[r], ks[z][w * R + r], u), r0 = fmaf(s[r], qs[z][w * R + r], r0);
        us[z][w][lane] = u, rs[z][w][lane] = r0;
        __syncthreads();
        u = r0 = 0.f;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) u += us[z][g][lane], r0 += rs[z][g][lane];
        const float delta = beta * (v - alpha * u);
#pragma unroll
        for (int r = 0; r < R; r++) s[r] = fmaf(ks[z][w * R + r], delta, alpha * s[r]);
        if (w == 0 && in) p.o[(t * p.nv + h) * p.dv + col] = fmaf(kq, delta, alpha * r0);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        if (in && w * R + r < p.dk) state[(size_t)(w * R + r) * p.dv] = s[r];
}

mla_status cu_gdn(mla_backend *be, const mla_gdn_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    if (!a->nk || !a->nv || a->nv % a->nk || !a->dk || !a->dv)
        return mla_fail(err, MLA_EINVAL, "delta net: %zu value heads over %zu key heads of %zu and %zu", a->nv, a->nk, a->dk, a->dv);
    if (a->dk > DK_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "delta net: key heads of %zu, at most %d", a->dk, (int)DK_MAX);
    if (!a->T) return MLA_OK;
    const size_t rows = pad256(a->T * a->nk * a->dk * 4), small = pad256(a->T * a->nk * 4), gate = pad256(a->T * a->nv * 4);
    char *s;
    mla_status st = cu_scratch(c, 2 * rows + small + 2 * gate, "delta net", &s, err);
    if (st) return st;
    GdnP p = {cf32p(a->qkv), cf32p(a->a), cf32p(a->b), cf32p(a->A_log), cf32p(a->dt_bias), f32p(a->o), f32p(a->state),
              (float *)s, (float *)(s + rows), (float *)(s + 2 * rows), (float *)(s + 2 * rows + small), (float *)(s + 2 * rows + small + gate),
              a->T, (int)a->nk, (int)a->nv, (int)a->dk, (int)a->dv};
    gdn_prepare<<<grid_of(a->T * a->nk, 4), 128, 0, c->stream>>>(p);
    gdn_gates<<<grid_of(a->T * a->nv, 256), 256, 0, c->stream>>>(p);
    const dim3 grid(grid_of(a->dv, COLS), (unsigned)a->nv);
    if (a->dk <= 128) gdn_tokens<32><<<grid, COLS * GROUPS, 0, c->stream>>>(p);
    else gdn_tokens<64><<<grid, COLS * GROUPS, 0, c->stream>>>(p);
    return launched("delta net", err);
}
