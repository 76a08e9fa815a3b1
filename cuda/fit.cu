/* The operations of a local fit (backend/fit.h): products by cuBLAS in fp32, the rest one pass over its operands. Sums in fp64 in
 * fixed order. The reference is lib/backend/cpu/fit.c. */
#include "cuda/fit.cuh"

enum { THREADS = 128, ACROSS = 64, DOWN = 4, SLICES = 128 };

mla_status multiply(mla_cuda *c, const Product &p, mla_err *err)
{
    const size_t most = INT32_MAX;
    if (!p.M || !p.N || !p.count) return MLA_OK;
    if (p.M > most || p.N > most || p.K > most || p.lda > most || p.ldb > most || p.ldc > most || p.count > most)
        return mla_fail(err, MLA_EUNSUPPORTED, "product of %zu x %zu x %zu", p.M, p.N, p.K);
    /* column-major eyes: C' = B' A' */
    const cublasOperation_t ob = p.tb ? CUBLAS_OP_T : CUBLAS_OP_N, oa = p.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int m = (int)p.N, n = (int)p.M, k = (int)p.K, ldb = (int)p.ldb, lda = (int)p.lda, ldc = (int)p.ldc;
    if (p.count == 1) return cublas_ok(cublasSgemm(c->blas, ob, oa, m, n, k, &p.alpha, p.b, ldb, p.a, lda, &p.beta, p.c, ldc), "product", err);
    return cublas_ok(cublasSgemmStridedBatched(c->blas, ob, oa, m, n, k, &p.alpha, p.b, ldb, (long long)p.sb, p.a, lda, (long long)p.sa, &p.beta, p.c, ldc,
                                               (long long)p.sc, (int)p.count), "product", err);
}
static mla_status product(mla_backend *be, const mla_product_args *a, mla_err *err)
{
    return multiply(cu_of(be), {a->ta, a->tb, a->M, a->N, a->K, cf32p(a->a), cf32p(a->b), f32p(a->c), a->lda, a->ldb, a->ldc, a->sa, a->sb, a->sc, a->count, a->alpha,
                                a->beta}, err);
}

/* ACROSS threads along k, DOWN rows (i, j) a block; blockIdx.y: the part. */
static __global__ void __launch_bounds__(ACROSS * DOWN) spread_kernel(const mla_spread_args a)
{
    const size_t row = blockIdx.x * (size_t)DOWN + threadIdx.y, p = blockIdx.y, i = row / a.n[1], j = row % a.n[1];
    if (i >= a.n[0]) return;
    const size_t at = i * a.xs[0] + j * a.xs[1], to = p * a.yp + i * a.ys[0] + j * a.ys[1];
    const float *x = (const float *)a.x[p] + at;
    const __nv_bfloat16 *b = (const __nv_bfloat16 *)a.x[p] + at;
    const bool there = j < a.rows[p];
    for (size_t k = threadIdx.x; k < a.n[2]; k += ACROSS) {
        const float v = !there ? 0.f : a.bf16 ? __bfloat162float(b[k * a.xs[2]]) : x[k * a.xs[2]];
        if (a.to16) ((__nv_bfloat16 *)a.y)[to + k * a.ys[2]] = __float2bfloat16_rn(v);
        else ((float *)a.y)[to + k * a.ys[2]] = v;
    }
}
static mla_status spread(mla_backend *be, const mla_spread_args *a, mla_err *err)
{
    const size_t rows = a->n[0] * a->n[1];
    if (!rows || !a->n[2] || !a->parts) return MLA_OK;
    spread_kernel<<<dim3(grid_of(rows, DOWN), (unsigned)a->parts), dim3(ACROSS, DOWN), 0, cu_of(be)->stream>>>(*a);
    return launched("spread", err);
}

static __global__ void scale_kernel(float *y, size_t ld, size_t rows, size_t d, const float *row, const float *col)
{
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = n / d, i = n % d;
    if (r < rows) y[r * ld + i] *= col[i] * row[r];
}
static mla_status scale(mla_backend *be, mla_mem *y, size_t ld, size_t rows, size_t d, const mla_mem *row, const mla_mem *col, mla_err *err)
{
    if (!rows || !d) return MLA_OK;
    scale_kernel<<<grid_of(rows * d, 256), 256, 0, cu_of(be)->stream>>>(f32p(y), ld, rows, d, cf32p(row), cf32p(col));
    return launched("scale", err);
}

static __device__ double block_total(double x) /* a fixed tree; every thread gets it */
{
    __shared__ double part[THREADS / 32];
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0;
    for (int i = 0; i < THREADS / 32; i++) x += part[i];
    return x;
}
/* A block per query. */
static __global__ void __launch_bounds__(THREADS) softmax_kernel(const mla_softmax_args a)
{
    __shared__ float top[THREADS / 32];
    const size_t r = blockIdx.x, t = a.first[r / (a.heads * a.Q)] + r % a.Q * a.stride;
    float *x = (float *)a.x + r * a.T;
    if (t >= a.T) {
        for (size_t s = threadIdx.x; s < a.T; s += THREADS) x[s] = 0.f;
        return;
    }
    float m = x[0];
    for (size_t s = threadIdx.x; s <= t; s += THREADS) m = fmaxf(m, x[s]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (threadIdx.x % 32 == 0) top[threadIdx.x / 32] = m;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) m = fmaxf(m, top[i]);
    double sum = 0.0;
    for (size_t s = threadIdx.x; s <= t; s += THREADS) sum += (double)(x[s] = expf(x[s] - m));
    const float inv = (float)(1.0 / block_total(sum));
    for (size_t s = threadIdx.x; s < a.T; s += THREADS) x[s] = s <= t ? x[s] * inv : 0.f;
}
mla_status cu_softmax(mla_backend *be, const mla_softmax_args *a, mla_err *err)
{
    const size_t rows = a->parts * a->heads * a->Q;
    if (!rows || !a->T) return MLA_OK;
    if (rows > INT32_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "softmax of %zu rows", rows);
    softmax_kernel<<<(unsigned)rows, THREADS, 0, cu_of(be)->stream>>>(*a);
    return launched("softmax", err);
}

static __global__ void __launch_bounds__(THREADS) softmax_back_kernel(float *S, const float *P, size_t T)
{
    float *s = S + blockIdx.x * T;
    const float *p = P + blockIdx.x * T;
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < T; i += THREADS) sum += (double)s[i] * p[i];
    const float mean = (float)block_total(sum);
    for (size_t i = threadIdx.x; i < T; i += THREADS) s[i] = p[i] * (s[i] - mean);
}
static mla_status softmax_back(mla_backend *be, mla_mem *s, const mla_mem *p, size_t rows, size_t T, mla_err *err)
{
    if (!rows || !T) return MLA_OK;
    if (rows > INT32_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "softmax of %zu rows", rows);
    softmax_back_kernel<<<(unsigned)rows, THREADS, 0, cu_of(be)->stream>>>(f32p(s), cf32p(p), T);
    return launched("softmax", err);
}

/* Slice blockIdx.x of part blockIdx.y: elements THREADS apart within it. */
static __global__ void __launch_bounds__(THREADS) dot_slices(double *part, const float *a, const float *b, size_t n)
{
    const size_t each = (n + SLICES - 1) / SLICES, from = blockIdx.x * each, to = from + each < n ? from + each : n, at = blockIdx.y * n;
    double sum = 0.0;
    for (size_t i = from + threadIdx.x; i < to; i += THREADS) sum += (double)a[at + i] * b[at + i];
    sum = block_total(sum);
    if (threadIdx.x == 0) part[blockIdx.y * (size_t)SLICES + blockIdx.x] = sum;
}
static __global__ void dot_sums(double *out, const double *part)
{
    double sum = 0.0;
    for (int i = 0; i < SLICES; i++) sum += part[threadIdx.x * (size_t)SLICES + i];
    out[threadIdx.x] = sum;
}
static mla_status dots(mla_backend *be, mla_mem *out, const mla_mem *a, const mla_mem *b, size_t parts, size_t n, mla_err *err)
{
    char *s;
    if (!parts) return MLA_OK;
    if (parts > MLA_FIT_PARTS) return mla_fail(err, MLA_EUNSUPPORTED, "%zu sums of products", parts);
    const mla_status st = cu_scratch(cu_of(be), parts * SLICES * 8, "dots", &s, err);
    if (st) return st;
    dot_slices<<<dim3(SLICES, (unsigned)parts), THREADS, 0, cu_of(be)->stream>>>((double *)s, cf32p(a), cf32p(b), n);
    dot_sums<<<1, (unsigned)parts, 0, cu_of(be)->stream>>>(f64p(out), (const double *)s);
    return launched("dots", err);
}

static __global__ void adam_kernel(const mla_adam_args a)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < a.n) mla_adam_move((float *)a.x + i, (float *)a.m + i, (float *)a.v + i, ((const float *)a.g)[i], a.rate, a.fix1, a.fix2);
}
static mla_status adam(mla_backend *be, const mla_adam_args *a, mla_err *err)
{
    if (!a->n) return MLA_OK;
    adam_kernel<<<grid_of(a->n, 256), 256, 0, cu_of(be)->stream>>>(*a);
    return launched("Adam", err);
}

/* A thread per pair of rows and column of a head. */
static __global__ void commute_kernel(const mla_commute_args a)
{
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x, col = n % a.cols, j = col % a.d, row = n / a.cols, half = a.w / 2;
    if (row >= a.count * half) return;
    const size_t at = (row / half * a.w + row % half) * a.cols + col, im = half * a.cols;
    float *g = (float *)a.g + at;
    if (j < a.rot / 2) mla_commute_pair(g, (const float *)a.x + at, im, a.rot / 2);
    else if (j >= a.rot) g[0] = g[im] = 0.f;
}
static mla_status commute(mla_backend *be, const mla_commute_args *a, mla_err *err)
{
    const size_t n = a->count * (a->w / 2) * a->cols;
    if (!n) return MLA_OK;
    commute_kernel<<<grid_of(n, 256), 256, 0, cu_of(be)->stream>>>(*a);
    return launched("commute", err);
}

extern const mla_fit_ops cu_fit = {product, spread, scale, cu_softmax, softmax_back, dots, adam, commute};
