/* The fused state update. Block = one value head of one sequence, its 64 KB of state in registers: warp w holds key rows
 * [16 w, 16 w + 16), a lane four neighbouring columns. All loads of the state are in flight before the norms are taken.
 * With what stands around it (GdnMix) a block convolves its head's 384 channels itself, and where the kernel before touches no state, the
 * state is in registers when that ends. Those of q and k serve several
 * heads: the last block that has read their old inputs replaces them. */
#include <stdint.h>

#include "cuda/check.cuh"
#include "cuda/gdn.cuh"
#include "cuda/rows.cuh"

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
/* By one warp: a token whose q, k and v are as they came. */
static __device__ void prepare(Token &x)
{
    const int lane = threadIdx.x & 31;
    const float4 q = *(const float4 *)(x.q + lane * 4), k = *(const float4 *)(x.k + lane * 4);
    const double qq = warp_sum((double)q.x * q.x + (double)q.y * q.y + (double)q.z * q.z + (double)q.w * q.w),
                 kk = warp_sum((double)k.x * k.x + (double)k.y * k.y + (double)k.z * k.z + (double)k.w * k.w),
                 kq = warp_sum((double)q.x * k.x + (double)q.y * k.y + (double)q.z * k.z + (double)q.w * k.w),
                 qs = 1.0 / sqrt((double)GDN_D) / sqrt(qq + 1e-6), ks = 1.0 / sqrt(kk + 1e-6);
    *(float4 *)(x.q + lane * 4) = make_float4((float)(q.x * qs), (float)(q.y * qs), (float)(q.z * qs), (float)(q.w * qs));
    *(float4 *)(x.k + lane * 4) = make_float4((float)(k.x * ks), (float)(k.y * ks), (float)(k.z * ks), (float)(k.w * ks));
    if (lane == 0) x.kq = (float)(kq * qs * ks);
}
/* By one thread: the token's decay and beta. */
static __device__ void gates(Token &x, const GdnStep &p, size_t row, int h)
{
    const double z = (double)__ldcg(p.a + row * p.nv + h) + p.dt_bias[h], b = __ldcg(p.b + row * p.nv + h), rate = p.A_log[h];
    x.alpha = (float)exp(-exp(rate) * ((z > 0 ? z : 0) + log1p(exp(-fabs(z)))));
    x.beta = (float)(1.0 / (1.0 + exp(-b)));
}
static __device__ __forceinline__ float4 cg4(const float *x) { return __ldcg((const float4 *)x); }

/* Where channel i (of q, k and v, 128 each) of head h lies among all. */
static __device__ __forceinline__ size_t channel(const GdnStep &p, int h, int i)
{
    const size_t per = p.nv / p.nk, part = i / GDN_D;
    return (part == 0 ? h / per : part == 1 ? p.nk + h / per : 2 * p.nk + h) * GDN_D + i % GDN_D;
}
/* The inputs of channel i before the call, and its taps. */
static __device__ __forceinline__ void old_inputs(const GdnStep &p, const GdnMix &m, int h, int i, float (&next)[GDN_TAPS - 1], float4 &w)
{
    const size_t C = (2 * p.nk + p.nv) * GDN_D, c = channel(p, h, i);
#pragma unroll
    for (int j = 0; j < GDN_TAPS - 1; j++) next[j] = __ldcg(m.conv_state + j * C + c);
    w = *(const float4 *)(m.w + c * GDN_TAPS);
}
/* All tokens of channel i convolved, to `tokens` and to p.qkv; next: the inputs the next call finds. */
static __device__ __forceinline__ void convolve(Token *tokens, const GdnStep &p, const GdnMix &m, int h, int i, float4 w, float (&next)[GDN_TAPS - 1], float x0)
{
    const size_t C = (2 * p.nk + p.nv) * GDN_D, per = p.nv / p.nk, part = i / GDN_D, c = channel(p, h, i);
    for (size_t t = 0; t < p.T; t++) {
        const float x = t ? __ldcg(m.x + t * C + c) : x0, s = fmaf(w.w, x, fmaf(w.z, next[2], fmaf(w.y, next[1], fmaf(w.x, next[0], 0.f)))), y = s / (1.f + expf(-s));
        next[0] = next[1], next[1] = next[2], next[2] = x;
        (part == 0 ? tokens[t].q : part == 1 ? tokens[t].k : tokens[t].v)[i % GDN_D] = y;
        if (part == 2 || h % per == 0) ((float *)p.qkv)[t * C + c] = y;
    }
}
static __device__ __forceinline__ void put_state(const GdnStep &p, const GdnMix &m, int h, int i, const float (&next)[GDN_TAPS - 1])
{
    const size_t C = (2 * p.nk + p.nv) * GDN_D, c = channel(p, h, i);
#pragma unroll
    for (int j = 0; j < GDN_TAPS - 1; j++) m.conv_state[j * C + c] = next[j];
}
/* Whether this block is the last one to have read the old inputs of key head hk: by one thread, after all have. What is announced
 * are reads, and they are done: a fence would wait for what the block has written meanwhile. */
static __device__ __forceinline__ bool last_turn(unsigned *turn, unsigned blocks)
{
    const bool last = atomicAdd(turn, 1u) == blocks - 1;
    if (last) *turn = 0;
    return last;
}
/* rmsnorm(o) * gain * silu(z) of one token, by one warp, in norm_short's order (rows.cu). */
static __device__ __forceinline__ void norm_head(const GdnMix &m, const float *o, const float (&z)[GDN_D / 32], const float (&gain)[GDN_D / 32], size_t at)
{
    const int lane = threadIdx.x & 31;
    float v[GDN_D / 32];
    double s = 0.0;
#pragma unroll
    for (int k = 0; k < GDN_D / 32; k++) v[k] = o[lane + 32 * k], s += (double)v[k] * v[k];
    const float inv = (float)(1.0 / sqrt(warp_sum(s) / (double)GDN_D + m.eps));
#pragma unroll
    for (int k = 0; k < GDN_D / 32; k++) m.y[at + lane + 32 * k] = v[k] * inv * gain[k] * silu(z[k]);
}

/* With u = S' k and r = S' q before the token: delta = beta (v - e^g u), o = e^g r + (k . q) delta, S <- e^g S + k delta'.
 * MIX: with what m says, TOKENS at most; otherwise TOKENS at a time. 112 registers: beside them a block of linear_few.cu, the kernel
 * after it, finds room and fills its ring. */
template <bool MIX, int TOKENS> static __global__ void __maxnreg__(112) gdn_step_kernel(GdnStep p, GdnMix m)
{
    constexpr int PLACES = TOKENS > 1 ? 2 : 1; /* a token's sums are read before the one after next is written */
    __shared__ Token tokens[TOKENS];
    __shared__ float4 us[PLACES][WARPS][32], rs[PLACES][WARPS][32];
    __shared__ float os[MIX ? TOKENS : 1][GDN_D];
    __shared__ bool last;
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, h = blockIdx.x, hk = h / (int)(p.nv / p.nk);
    const size_t b = blockIdx.y, width = (2 * p.nk + p.nv) * GDN_D;
    float4 *state = (float4 *)(p.state + ((b * p.nv + h) * GDN_D + w * ROWS) * GDN_D) + lane, s[ROWS];
    grid_release(); /* the kernel after this one may come: it waits, too */
    float4 tap_qk, tap_v;
    float z[GDN_D / 32], gain[GDN_D / 32], qk[GDN_TAPS - 1], vs[GDN_TAPS - 1], x_qk, x_v;
    bool turn = false; /* of the thread that takes it */
    auto old = [&] { /* what the call before left, and what never changes */
        if (MIX) {
            old_inputs(p, m, h, threadIdx.x, qk, tap_qk);
            if (threadIdx.x < GDN_D) old_inputs(p, m, h, 2 * GDN_D + threadIdx.x, vs, tap_v);
            if (m.z && w < (int)p.T)
#pragma unroll
                for (int k = 0; k < GDN_D / 32; k++) gain[k] = m.gain[lane + 32 * k];
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) s[i] = __ldcs(state + i * (GDN_D / 4));
    };
    const bool early = MIX && m.early;
    if (early) old();
    grid_wait();
    if (MIX) { /* before the state, whose 64 KB take longer */
        x_qk = __ldcg(m.x + channel(p, h, threadIdx.x));
        if (threadIdx.x < GDN_D) x_v = __ldcg(m.x + channel(p, h, 2 * GDN_D + threadIdx.x));
        if (m.z && w < (int)p.T)
#pragma unroll
            for (int k = 0; k < GDN_D / 32; k++) z[k] = __ldcg(m.z + (w * p.nv + h) * GDN_D + lane + 32 * k);
    }
    if (!early) old();
    if (MIX && w == WARPS - 1 && lane < TOKENS && lane < (int)p.T) gates(tokens[lane], p, lane, h);
    for (size_t t = 0; t < p.T; t++) {
        const size_t row = b * p.T + t;
        if (t % TOKENS == 0) { /* as many tokens as there is room for */
            if (t) __syncthreads();
            if (MIX) {
                convolve(tokens, p, m, h, threadIdx.x, tap_qk, qk, x_qk);
                if (threadIdx.x < GDN_D) convolve(tokens, p, m, h, 2 * GDN_D + threadIdx.x, tap_v, vs, x_v), put_state(p, m, h, 2 * GDN_D + threadIdx.x, vs);
                __syncthreads();
                if (threadIdx.x == (WARPS - 2) * 32) turn = last_turn(m.turns + hk, (unsigned)(p.nv / p.nk));
            }
            if (w < TOKENS && t + w < p.T) {
                const float *from = p.qkv + (row + w) * width + lane * 4;
                Token &x = tokens[w];
                if (!MIX) {
                    *(float4 *)(x.q + lane * 4) = cg4(from + (size_t)hk * GDN_D);
                    *(float4 *)(x.k + lane * 4) = cg4(from + (p.nk + hk) * GDN_D);
                    *(float4 *)(x.v + lane * 4) = cg4(from + (2 * p.nk + h) * GDN_D);
                }
                prepare(x);
            }
            if (!MIX && w == WARPS - 1 && lane < TOKENS && t + lane < p.T) gates(tokens[lane], p, row + lane, h);
            __syncthreads();
        }
        const Token &x = tokens[t % TOKENS];
        const int at = (int)(t % PLACES);
        float4 u = make_float4(0.f, 0.f, 0.f, 0.f), r = u;
#pragma unroll
        for (int i = 0; i < ROWS; i++) u = mul_add(x.k[w * ROWS + i], s[i], u), r = mul_add(x.q[w * ROWS + i], s[i], r);
        us[at][w][lane] = u, rs[at][w][lane] = r;
        if (MIX && t == 0 && threadIdx.x == (WARPS - 2) * 32) last = turn; /* has come meanwhile */
        __syncthreads();
        u = r = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int i = 0; i < WARPS; i++) u = mul_add(1.f, us[at][i][lane], u);
        const float4 v = *(const float4 *)(x.v + lane * 4);
        const float4 d = make_float4(x.beta * (v.x - x.alpha * u.x), x.beta * (v.y - x.alpha * u.y), x.beta * (v.z - x.alpha * u.z), x.beta * (v.w - x.alpha * u.w));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            s[i] = mul_add(x.k[w * ROWS + i], d, make_float4(x.alpha * s[i].x, x.alpha * s[i].y, x.alpha * s[i].z, x.alpha * s[i].w));
        if (w != (int)(t % WARPS)) continue; /* the warps take turns with the outputs */
#pragma unroll
        for (int i = 0; i < WARPS; i++) r = mul_add(1.f, rs[at][i][lane], r);
        const float4 o = mul_add(x.kq, d, make_float4(x.alpha * r.x, x.alpha * r.y, x.alpha * r.z, x.alpha * r.w));
        *((float4 *)(p.o + (row * p.nv + h) * GDN_D) + lane) = o;
        if (!MIX || !m.z) continue;
        *((float4 *)os[t % TOKENS] + lane) = o;
        __syncwarp();
        norm_head(m, os[t % TOKENS], z, gain, (row * p.nv + h) * GDN_D);
    }
    if (MIX && last) put_state(p, m, h, threadIdx.x, qk);
#pragma unroll
    for (int i = 0; i < ROWS; i++) __stcs(state + i * (GDN_D / 4), s[i]);
}

static mla_status check(const GdnStep *p, mla_err *err)
{
    if (!p->B || !p->T || !p->nk || !p->nv || p->nv % p->nk || p->B > 65535)
        return mla_fail(err, MLA_EINVAL, "delta step: %zu sequences of %zu tokens, %zu value heads over %zu key heads", p->B, p->T, p->nv, p->nk);
    if ((uintptr_t)p->qkv % 16 || (uintptr_t)p->o % 16 || (uintptr_t)p->state % 16)
        return mla_fail(err, MLA_EINVAL, "delta step: inputs, outputs and state must start on 16 bytes");
    return MLA_OK;
}
mla_status gdn_step(const GdnStep *p, cudaStream_t stream, mla_err *err)
{
    const mla_status st = check(p, err);
    return st ? st : cu_early("delta step", err, p->T > 1 ? gdn_step_kernel<false, WARPS> : gdn_step_kernel<false, 1>, dim3((unsigned)p->nv, (unsigned)p->B), WARPS * 32, 0, stream, *p, GdnMix{});
}
mla_status gdn_mix(const GdnStep *p, const GdnMix *m, cudaStream_t stream, mla_err *err)
{
    const mla_status st = check(p, err);
    if (st) return st;
    if (p->B != 1 || p->T > GDN_MIX_TOKENS || p->nk > GDN_HEADS || (uintptr_t)m->w % 16)
        return mla_fail(err, MLA_EINVAL, "delta step: %zu sequences of %zu tokens with what stands around it", p->B, p->T);
    return cu_early("delta step", err, p->T > 1 ? gdn_step_kernel<true, GDN_MIX_TOKENS> : gdn_step_kernel<true, 1>, dim3((unsigned)p->nv), WARPS * 32, 0, stream, *p, *m);
}
