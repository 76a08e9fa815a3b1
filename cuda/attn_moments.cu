/* Attention-weighted moments of one layer on one row of tokens, all heads at once: dense fp32 products by cuBLAS, sums over
 * tokens, keys and heads in fp64 in fixed order. The reference is lib/retrofit/stats/moments.c, function by function. */
#include "cuda/fit.cuh"

enum { THREADS = 128, SAMPLES = 2 };

static __device__ double block_total(double x) /* a fixed tree; every thread gets it */
{
    __shared__ double part[THREADS / 32];
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0;
    for (int i = 0; i < THREADS / 32; i++) x += part[i];
    return x;
}
/* wh (H, T): sums of p^2 over the queries of every key. */
static __global__ void square_columns(double *wh, const float *P, int T)
{
    const int s = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y;
    if (s >= T) return;
    double sum = 0.0;
    for (int t = s; t < T; t++) {
        const double p = P[((size_t)h * T + t) * T + s];
        sum += p * p;
    }
    wh[(size_t)h * T + s] = sum;
}
/* One block: w (T) over heads in order, and their sum. */
static __global__ void __launch_bounds__(THREADS) token_weights(double *w, double *wsum, const double *wh, int T, int H)
{
    double all = 0.0;
    for (int s = threadIdx.x; s < T; s += THREADS) {
        double sum = 0.0;
        for (int h = 0; h < H; h++) sum += wh[(size_t)h * T + s];
        w[s] = sum, all += sum;
    }
    all = block_total(all);
    if (threadIdx.x == 0) *wsum += all;
}
/* y (rows) = |x|^2, a warp per row of d. */
static __global__ void __launch_bounds__(THREADS) square_rows(float *y, const float *x, size_t rows, int d)
{
    const size_t r = blockIdx.x * (size_t)(THREADS / 32) + threadIdx.x / 32;
    if (r >= rows) return;
    float s = 0.f;
    for (int i = threadIdx.x % 32; i < d; i += 32) s = fmaf(x[r * d + i], x[r * d + i], s);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x % 32 == 0) y[r] = s;
}
/* c (H, T, T) = p^2 |u_s - ub_t|^2 inv2_s from c = ub u'; total (H, T): its row sums. Grid (T, H). */
static __global__ void __launch_bounds__(THREADS) weigh(float *c, double *total, const float *P, const float *u2, const float *b2, const float *inv2, int T, int H, int G)
{
    const int t = blockIdx.x, h = blockIdx.y, g = h / (H / G);
    float *row = c + ((size_t)h * T + t) * T;
    const float *p = P + ((size_t)h * T + t) * T, *u = u2 + (size_t)h * T, b = b2[(size_t)h * T + t];
    double sum = 0.0;
    for (int s = threadIdx.x; s <= t; s += THREADS) {
        const float e = u[s] + b - 2 * row[s];
        float v = e > 0 ? p[s] * p[s] * e : 0.f;
        if (inv2) v *= inv2[(size_t)s * G + g];
        row[s] = v, sum += v;
    }
    sum = block_total(sum);
    if (threadIdx.x == 0) total[(size_t)h * T + t] = sum;
}
/* X (H, T, dk) = total^1/2 q gain over the last dk dims. */
static __global__ void scale_queries(float *X, const double *total, const float *q, const float *gain, size_t T, size_t H, size_t d, size_t dk)
{
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x, i = n % dk, t = n / dk % T, h = n / dk / T;
    if (h >= H) return;
    const float x = (float)sqrt(total[h * T + t]) * q[(t * H + h) * d + d - dk + i];
    X[n] = gain ? x * gain[i] : x;
}
/* Keys drawn by their weight: key (SAMPLES, H, T). A thread per query. */
static __global__ void draw_keys(int *key, const float *c, const double *total, int T, int H)
{
    const int n = blockIdx.x * blockDim.x + threadIdx.x, t = n % T;
    if (n >= H * T) return;
    const float *row = c + (size_t)n * T;
    for (int k = 0; k < SAMPLES; k++) {
        const double want = total[n] * ((double)k + fmod((double)t * 0.61803398874989485, 1.0)) / SAMPLES;
        double run = row[0];
        int s = 0;
        for (; s < t && run < want; run += row[s]) s++;
        key[(size_t)k * H * T + n] = s;
    }
}
/* X (H, T, d): queries in the frames of sample k's keys, weighted. */
static __global__ void turn_queries(float *X, const int *key, const double *total, const float *q_rot, const float *cs, const float *sn, size_t T, size_t H, size_t d, size_t half, double gain)
{
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x, i = n % d, t = n / d % T, h = n / d / T;
    if (h >= H || (i >= half && i < 2 * half)) return;
    const float *q = q_rot + (t * H + h) * d, r = (float)(gain * sqrt(total[h * T + t] / SAMPLES));
    float *x = X + (h * T + t) * d;
    if (i >= 2 * half) {
        x[i] = r * q[i];
        return;
    }
    const size_t at = (size_t)key[h * T + t] * half + i;
    const float u = r * q[i], w = r * q[i + half];
    x[i] = u * cs[at] + w * sn[at];
    x[i + half] = w * cs[at] - u * sn[at];
}
/* turn (H, half, 3) += the drawn distances by frequency. A thread per head and frequency. */
static __global__ void add_turns(double *turn, const int *key, const double *total, const float *q, const float *cs, const float *sn, size_t T, size_t H, size_t d, size_t half)
{
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x, i = n % half, h = n / half;
    if (h >= H) return;
    double a[3] = {turn[3 * n], turn[3 * n + 1], turn[3 * n + 2]};
    for (int k = 0; k < SAMPLES; k++)
        for (size_t t = 0; t < T; t++) {
            const float *x = q + (t * H + h) * d;
            const size_t s = (size_t)key[((size_t)k * H + h) * T + t];
            const double e = total[h * T + t] / SAMPLES * ((double)x[i] * x[i] + (double)x[i + half] * x[i + half]);
            const double c1 = cs[s * half + i], s1 = sn[s * half + i], c0 = cs[t * half + i], s0 = sn[t * half + i];
            a[0] += e * (c1 * c0 + s1 * s0), a[1] += e * (s1 * c0 - c1 * s0), a[2] += e;
        }
    for (int k = 0; k < 3; k++) turn[3 * n + k] = a[k];
}
/* to (groups, n) += sum over `per` parts in order of from (groups per, n), times `by`. */
static __global__ void add_parts(double *to, const float *from, size_t groups, size_t per, size_t n, double by)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, g = i / n;
    if (g >= groups) return;
    double s = to[i];
    for (size_t k = 0; k < per; k++) s += (double)from[(g * per + k) * n + i % n] * by;
    to[i] = s;
}
static __global__ void sigmoid_rows(float *y, const float *gate, size_t ld, size_t head, size_t T, size_t H, size_t d)
{
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x, t = n / (H * d), h = n / d % H;
    if (t < T) y[n] = 1.f / (1.f + expf(-gate[t * ld + h * head + n % d]));
}

struct Room { /* device scratch */
    float *P, *c, *u, *ub, *X, *u2, *b2, *tmp;
    double *wh, *total;
    int *key;
};

static mla_status gate_moments(mla_cuda *c, const mla_moments_args *a, float *gamma, float *tmp, mla_err *err)
{
    const size_t n = a->T * a->H * a->d, dim = a->gate_dim, all = a->H * a->d;
    sigmoid_rows<<<grid_of(n, 256), 256, 0, c->stream>>>(gamma, cf32p(a->gate), a->gate_ld, a->gate_h, a->T, a->H, a->d);
    const mla_status st = multiply(c, {true, false, dim, dim, a->T, gamma, gamma, tmp, all, all, dim, dim, dim, dim * dim, a->gate_blocks, 1.f}, err);
    if (st) return st;
    add_parts<<<grid_of(a->gate_blocks * dim * dim, 256), 256, 0, c->stream>>>(f64p(a->GG), tmp, a->gate_blocks, 1, dim * dim, 1.0);
    return launched("moments", err);
}

/* Probabilities, token weights, and every key's weight for every query. */
static mla_status weights(mla_cuda *c, const mla_moments_args *a, const Room &r, mla_err *err)
{
    const size_t T = a->T, H = a->H, G = a->G, d = a->d, m = H / G, TT = T * T;
    const dim3 rows((unsigned)T, (unsigned)H);
    mla_status st = MLA_OK;
    for (size_t g = 0; !st && g < G; g++)
        st = multiply(c, {false, true, T, T, d, cf32p(a->q_rot) + g * m * d, cf32p(a->k_rot) + g * d, r.P + g * m * TT, H * d, G * d, T, d, 0, TT, m, a->attn_scale}, err);
    if (st) return st;
    mla_softmax_args soft = {};
    soft.x = (mla_mem *)r.P, soft.parts = 1, soft.heads = H, soft.Q = soft.T = T, soft.stride = 1;
    if ((st = cu_softmax(&c->base, &soft, err))) return st;
    square_columns<<<dim3(grid_of(T, 128), (unsigned)H), 128, 0, c->stream>>>(r.wh, r.P, (int)T);
    token_weights<<<1, THREADS, 0, c->stream>>>(f64p(a->w), f64p(a->wsum), r.wh, (int)T, (int)H);
    for (size_t g = 0; !st && g < G; g++)
        st = multiply(c, {false, false, T, d, d, cf32p(a->v) + g * d, cf32p(a->R) + g * m * d * d, r.u + g * m * T * d, G * d, d, d, 0, d * d, T * d, m, 1.f}, err);
    if (!st) st = multiply(c, {false, false, T, d, d, cf32p(a->o), cf32p(a->R), r.ub, H * d, d, d, d, d * d, T * d, H, 1.f}, err);
    if (!st) st = multiply(c, {false, true, T, T, d, r.ub, r.u, r.c, d, d, T, T * d, T * d, TT, H, 1.f}, err);
    if (st) return st;
    square_rows<<<grid_of(H * T, THREADS / 32), THREADS, 0, c->stream>>>(r.u2, r.u, H * T, (int)d);
    square_rows<<<grid_of(H * T, THREADS / 32), THREADS, 0, c->stream>>>(r.b2, r.ub, H * T, (int)d);
    weigh<<<rows, THREADS, 0, c->stream>>>(r.c, r.total, r.P, r.u2, r.b2, a->inv2 ? cf32p(a->inv2) : NULL, (int)T, (int)H, (int)G);
    return launched("moments", err);
}

/* to (groups, dk, dk) += X' X of every head, over d. */
static mla_status add_metric(mla_cuda *c, const mla_moments_args *a, const Room &r, mla_mem *to, size_t groups, mla_err *err)
{
    const size_t dk = a->dk, T = a->T;
    const mla_status st = multiply(c, {true, false, dk, dk, T, r.X, r.X, r.tmp, dk, dk, dk, T * dk, T * dk, dk * dk, a->H, 1.f}, err);
    if (st) return st;
    add_parts<<<grid_of(groups * dk * dk, 256), 256, 0, c->stream>>>(f64p(to), r.tmp, groups, a->H / groups, dk * dk, 1.0 / (double)a->d);
    return launched("moments", err);
}

static mla_status metrics(mla_cuda *c, const mla_moments_args *a, const Room &r, mla_err *err)
{
    const size_t T = a->T, H = a->H, d = a->d, dk = a->dk, half = a->rot / 2;
    const bool turns = dk == d && a->rot > 0;
    const float *cs = cf32p(a->cos), *sn = cf32p(a->sin);
    mla_status st = MLA_OK;
    if (a->Q || !turns) scale_queries<<<grid_of(H * T * dk, 256), 256, 0, c->stream>>>(r.X, r.total, cf32p(a->q), a->gain ? cf32p(a->gain) : NULL, T, H, d, dk);
    if (a->Q) st = add_metric(c, a, r, a->Q, H, err);
    if (!turns) return st ? st : add_metric(c, a, r, a->M, a->G, err);
    draw_keys<<<grid_of(H * T, 64), 64, 0, c->stream>>>(r.key, r.c, r.total, (int)T, (int)H);
    if (a->turn) add_turns<<<grid_of(H * half, 64), 64, 0, c->stream>>>(f64p(a->turn), r.key, r.total, cf32p(a->q), cs, sn, T, H, d, half);
    for (size_t k = 0; !st && k < SAMPLES; k++) {
        turn_queries<<<grid_of(H * T * d, 256), 256, 0, c->stream>>>(r.X, r.key + k * H * T, r.total, cf32p(a->q_rot), cs, sn, T, H, d, half, a->rope_gain);
        st = add_metric(c, a, r, a->M, a->G, err);
    }
    return st;
}

/* kappa += the Gram of all heads' probabilities, a query at a time. */
static mla_status overlaps(mla_cuda *c, const mla_moments_args *a, const Room &r, mla_err *err)
{
    const size_t T = a->T, H = a->H;
    const mla_status st = multiply(c, {false, true, H, H, T, r.P, r.P, r.tmp, T * T, T * T, H, T, T, H * H, T, 1.f}, err);
    if (st) return st;
    add_parts<<<grid_of(H * H, 64), 64, 0, c->stream>>>(f64p(a->kappa), r.tmp, 1, T, H * H, 1.0);
    return launched("moments", err);
}

mla_status cu_moments(mla_backend *be, const mla_moments_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    const size_t T = a->T, H = a->H, d = a->d, TT = T * T, gate = a->gate ? a->gate_blocks * a->gate_dim * a->gate_dim : 0;
    if (!T) return MLA_OK;
    if (!H || !a->G || H % a->G || a->dk > d || a->rot > d || TT > INT32_MAX || H * T > INT32_MAX)
        return mla_fail(err, MLA_EINVAL, "moments: %zu tokens, %zu heads over %zu, %zu of %zu dims", T, H, a->G, a->dk, d);
    size_t tmp = H * a->dk * a->dk, bytes = 0;
    tmp = tmp > T * H * H ? tmp : T * H * H;
    tmp = tmp > gate ? tmp : gate;
    auto cut = [&](size_t n, size_t size) {
        const size_t at = bytes;
        bytes += pad256(n * size);
        return at;
    };
    const size_t P = cut(H * TT, 4), C = cut(H * TT, 4), u = cut(H * T * d, 4), ub = cut(H * T * d, 4), X = cut(H * T * d, 4), u2 = cut(H * T, 4), b2 = cut(H * T, 4),
                 t = cut(tmp, 4), wh = cut(H * T, 8), total = cut(H * T, 8), key = cut(SAMPLES * H * T, 4);
    char *s;
    mla_status st = cu_scratch(c, bytes, "moments", &s, err);
    if (st) return st;
    const Room r = {(float *)(s + P), (float *)(s + C), (float *)(s + u), (float *)(s + ub), (float *)(s + X), (float *)(s + u2), (float *)(s + b2), (float *)(s + t),
                    (double *)(s + wh), (double *)(s + total), (int *)(s + key)};
    if (a->gate_only) return a->gate ? gate_moments(c, a, r.X, r.tmp, err) : MLA_OK;
    st = weights(c, a, r, err);
    if (!st) st = metrics(c, a, r, err);
    if (!st) st = overlaps(c, a, r, err);
    if (!st && a->gate) st = gate_moments(c, a, r.X, r.tmp, err);
    return st;
}
