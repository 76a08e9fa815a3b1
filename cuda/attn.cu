/* Plain attention and the fp64 reference: simple and obviously right; every fast kernel is tested against them. */
#include <math_constants.h>

#include "cuda/attn.cuh"
#include "cuda/check.cuh"

enum { ATTN_THREADS = 128, CHUNK = 32, DV_MAX = 2048 };

static __device__ __forceinline__ float warp_sum(float x)
{
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

/* Logit of (t, h, s) by one warp, the same in every lane. */
static __device__ float warp_logit(const AttnP &a, int b, int t, int h, long long s)
{
    const int lane = threadIdx.x & 31;
    const size_t q = (size_t)(b * a.q.b + t * a.q.t + h * a.q.h), k = view_row(a.k, b, s, (int)((long long)h * a.kh / a.H));
    float x = 0.f;
    for (int i = lane; i < a.dk; i += 32) x = fmaf(load_f32(a.q.p, a.q.f32, q + i), view_value(a.k, k + i), x);
    if (a.divh) {
        x = (warp_sum(x) + (a.qb ? a.qb[q] : 0.f)) * view_inverse(a.div, view_row(a.div, b, s, (int)((long long)h * a.divh / a.H)));
        x = lane == 0 ? x : 0.f;
    }
    if (a.dk2) {
        const size_t q2 = (size_t)(b * a.q2.b + t * a.q2.t + h * a.q2.h), k2 = view_row(a.k2, b, s, (int)((long long)h * a.k2h / a.H));
        for (int i = lane; i < a.dk2; i += 32) x = fmaf(load_f32(a.q2.p, a.q2.f32, q2 + i), view_value(a.k2, k2 + i), x);
    }
    return warp_sum(x) * a.scale;
}

/* Keys in page order from token 0; the result of a query depends on nothing but its own keys. Grid (T * H, B). */
static __global__ void __launch_bounds__(ATTN_THREADS) attn_plain_kernel(AttnP a)
{
    __shared__ float logit[CHUNK];
    const int t = blockIdx.x / a.H, h = blockIdx.x % a.H, b = blockIdx.y, warp = threadIdx.x >> 5;
    const long long len = a.len ? a.len[b] : a.pos0 + a.T;
    const long long end = len > 0 ? len - a.T + t + 1 : 0;
    const int vhead = (int)((long long)h * a.vh / a.H);
    float acc[DV_MAX / ATTN_THREADS] = {}, m = -CUDART_INF_F, l = 0.f;
    for (long long s0 = 0; s0 < end; s0 += CHUNK) {
        const int n = (int)(end - s0 < CHUNK ? end - s0 : CHUNK);
        __syncthreads();
        for (int i = warp; i < n; i += ATTN_THREADS / 32) {
            const float x = warp_logit(a, b, t, h, s0 + i);
            if ((threadIdx.x & 31) == 0) logit[i] = x;
        }
        __syncthreads();
        float mx = m;
        for (int i = 0; i < n; i++) mx = fmaxf(mx, logit[i]);
        const float use = mx == -CUDART_INF_F ? 0.f : mx, alpha = expf(m - use);
        m = mx;
        l *= alpha;
        for (int j = 0; j < DV_MAX / ATTN_THREADS; j++) acc[j] *= alpha;
        for (int i = 0; i < n; i++) {
            const float p = expf(logit[i] - use);
            const size_t v = view_row(a.v, b, s0 + i, vhead);
            l += p;
            for (int j = 0, e = threadIdx.x; j < DV_MAX / ATTN_THREADS; j++, e += ATTN_THREADS)
                if (e < a.dv) acc[j] = fmaf(p, view_value(a.v, v + e), acc[j]);
        }
    }
    const size_t o = (size_t)(b * a.o.b + t * a.o.t + h * a.o.h);
    for (int j = 0, e = threadIdx.x; j < DV_MAX / ATTN_THREADS; j++, e += ATTN_THREADS)
        if (e < a.dv) store_f32((void *)a.o.p, a.o.f32, o + e, l == 0.f ? 0.f : acc[j] / l);
    if (a.lse && threadIdx.x == 0) a.lse[((size_t)b * a.T + t) * a.H + h] = l == 0.f ? -CUDART_INF_F : m + logf(l);
}

mla_status attn_plain(const AttnP *a, cudaStream_t stream, mla_err *err)
{
    if (a->dv > DV_MAX)
        return mla_fail(err, MLA_EUNSUPPORTED, "attention: value width %d, at most %d", a->dv, DV_MAX);
    attn_plain_kernel<<<dim3((unsigned)(a->T * a->H), (unsigned)a->B), ATTN_THREADS, 0, stream>>>(*a);
    return cu_ok(cudaGetLastError(), "attention", err);
}

/* One warp per cached token; (t, h) in order, so the sum has one order whatever runs beside it. */
static __global__ void attn_p2_kernel(AttnP a, double *p2)
{
    const long long s = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (s >= a.pos0 + a.T) return;
    double sum = 0.0;
    for (int t = 0; t < a.T; t++) {
        if (s > a.pos0 + t) continue;
        for (int h = 0; h < a.H; h++) {
            const float p = expf(warp_logit(a, 0, t, h, s) - a.lse[(size_t)t * a.H + h]);
            sum += (double)p * p;
        }
    }
    if ((threadIdx.x & 31) == 0) p2[s] += sum;
}

mla_status attn_p2(const AttnP *a, double *p2, cudaStream_t stream, mla_err *err)
{
    attn_p2_kernel<<<(unsigned)((a->pos0 + a->T + 3) / 4), 128, 0, stream>>>(*a, p2);
    return cu_ok(cudaGetLastError(), "attention weights", err);
}

static __global__ void attn_probs_kernel(AttnP a, float *probs)
{
    const long long S = a.pos0 + a.T, s = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const int t = blockIdx.y % a.T, h = blockIdx.y / a.T;
    if (s >= S) return;
    const float p = s <= a.pos0 + t ? expf(warp_logit(a, 0, t, h, s) - a.lse[(size_t)t * a.H + h]) : 0.f;
    if ((threadIdx.x & 31) == 0) probs[((size_t)h * a.T + t) * S + s] = p;
}
mla_status attn_probs(const AttnP *a, float *probs, cudaStream_t stream, mla_err *err)
{
    attn_probs_kernel<<<dim3((unsigned)((a->pos0 + a->T + 3) / 4), (unsigned)(a->T * a->H)), 128, 0, stream>>>(*a, probs);
    return cu_ok(cudaGetLastError(), "attention probabilities", err);
}

/* fp64 reference: logits (rows, maxlen), then two sums per output value, each a plain loop. */
static __global__ void ref_logits(AttnP a, double *logits, long long maxlen)
{
    const long long s = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y, b = row / (a.T * a.H), t = row / a.H % a.T, h = row % a.H;
    const long long end = a.len[b] > 0 ? a.len[b] - a.T + t + 1 : 0;
    if (s >= end) return;
    const size_t q = (size_t)(b * a.q.b + t * a.q.t + h * a.q.h), k = view_row(a.k, b, s, (int)((long long)h * a.kh / a.H));
    double x = 0.0;
    for (int i = 0; i < a.dk; i++) x += (double)load_f32(a.q.p, a.q.f32, q + i) * (double)view_value(a.k, k + i);
    if (a.dk2) {
        const size_t q2 = (size_t)(b * a.q2.b + t * a.q2.t + h * a.q2.h), k2 = view_row(a.k2, b, s, (int)((long long)h * a.k2h / a.H));
        for (int i = 0; i < a.dk2; i++) x += (double)load_f32(a.q2.p, a.q2.f32, q2 + i) * (double)view_value(a.k2, k2 + i);
    }
    logits[row * maxlen + s] = x * (double)a.scale;
}
static __global__ void ref_output(AttnP a, const double *logits, long long maxlen, float *o)
{
    const int e = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y, b = row / (a.T * a.H), t = row / a.H % a.T, h = row % a.H;
    const long long end = a.len[b] > 0 ? a.len[b] - a.T + t + 1 : 0;
    if (e >= a.dv) return;
    const double *x = logits + row * maxlen;
    double m = -CUDART_INF, l = 0.0, sum = 0.0;
    for (long long s = 0; s < end; s++) m = fmax(m, x[s]);
    for (long long s = 0; s < end; s++) {
        const double p = exp(x[s] - m);
        l += p;
        sum += p * (double)view_value(a.v, view_row(a.v, b, s, (int)((long long)h * a.vh / a.H)) + e);
    }
    o[(size_t)row * a.dv + e] = end > 0 ? (float)(sum / l) : 0.f;
}

extern "C" mla_status mla_decode_reference(const mla_decode *d, float *o, double *scratch, size_t maxlen, void *stream, mla_err *err)
{
    AttnP a = {};
    auto rows = [](const mla_decode_rows *r) { return DecodeRows{r->p, r->b, r->t, r->h, r->dtype == MLA_F32, false}; };
    auto view = [&](const mla_decode_part *p, size_t width) {
        return AttnView{p->base, d->table, d->table_stride, p->stride, p->col, (long long)width, MLA_DECODE_PAGE, d->cache, p->scale};
    };
    a.B = (int)d->B, a.T = (int)d->s_q, a.H = (int)d->H, a.dk = a.dv = (int)d->lat, a.dk2 = (int)d->rope;
    a.kh = a.vh = (int)d->groups, a.k2h = d->rope ? (int)d->rope_heads : 1;
    a.q = rows(&d->q), a.q2 = rows(&d->q2);
    a.k = view(&d->c, d->lat), a.v = d->v.base ? view(&d->v, d->lat) : a.k, a.k2 = view(&d->r, d->rope);
    a.len = d->len, a.scale = d->scale;
    const unsigned n = (unsigned)(d->B * d->s_q * d->H);
    ref_logits<<<dim3((unsigned)((maxlen + 127) / 128), n), 128, 0, (cudaStream_t)stream>>>(a, scratch, (long long)maxlen);
    ref_output<<<dim3((unsigned)((d->lat + 127) / 128), n), 128, 0, (cudaStream_t)stream>>>(a, scratch, (long long)maxlen, o);
    return cu_ok(cudaGetLastError(), "decode reference", err);
}
