/* Second moments, in fp64 or of split bf16 numbers, and ranges. */
#include "cuda/be.cuh"

enum { PANEL_TOKENS = 4096, SPLIT_TOKENS = 512, SLICE = 64, PARTS = 1024 };

static __device__ __forceinline__ double centred(const mla_gram_args &a, size_t t, size_t i)
{
    const double v = ((const float *)a.x)[t * a.ldx + i];
    return a.shift ? v - ((const double *)a.shift)[i] : v;
}
/* y (n tokens, d) = x - shift, wy = w y (when w). */
static __global__ void widen_panel(double *y, double *wy, mla_gram_args a, size_t t0, size_t T)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, t = i / a.n;
    if (t >= T) return;
    const double v = centred(a, t0 + t, i % a.n);
    y[i] = v;
    if (a.w) wy[i] = ((const double *)a.w)[t0 + t] * v;
}
/* The same as hi + lo each, rows padded with zeros to ld; wy: two such panels behind y's when w. */
static __global__ void split_panel(__nv_bfloat16 *y, mla_gram_args a, size_t t0, size_t T, size_t ld)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, t = i / ld, c = i % ld, all = T * ld;
    if (t >= T) return;
    const double v = c < a.n ? centred(a, t0 + t, c) : 0.0;
    for (int k = 0; k < (a.w ? 2 : 1); k++) {
        const double x = k ? ((const double *)a.w)[t0 + t] * v : v;
        const __nv_bfloat16 hi = __double2bfloat16(x);
        y[2 * k * all + i] = hi, y[(2 * k + 1) * all + i] = __double2bfloat16(x - (double)__bfloat162float(hi));
    }
}
/* Upper triangle of acc += c, rows of c ld apart. */
static __global__ void add_panel(double *acc, const float *c, size_t n, size_t ld)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, row = i / n, col = i % n;
    if (row < n && col >= row) acc[i] += (double)c[row * ld + col];
}
/* Sums over SLICE tokens in order, then over the slices in order. */
static __global__ void sum_slices(double *part, mla_gram_args a, size_t t0, size_t T)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, from = blockIdx.y * (size_t)SLICE;
    if (i >= a.n) return;
    double s = 0.0;
    for (size_t t = t0 + from; t < t0 + T && t < t0 + from + SLICE; t++) s += (a.w ? ((const double *)a.w)[t] : 1.0) * centred(a, t, i);
    part[blockIdx.y * a.n + i] = s;
}
static __global__ void add_slices(double *sum, const double *part, size_t n, size_t slices)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    double s = sum[i];
    for (size_t k = 0; k < slices; k++) s += part[k * n + i];
    sum[i] = s;
}
static __global__ void mirror(double *acc, size_t d)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / d, c = i % d;
    if (i < d * d && c < r) acc[i] = acc[c * d + r];
}

/* One panel's products, fp64: column-major eyes see the row-major panel as y^T (d, T), so acc += y^T wy. */
static mla_status add_fp64(mla_cuda *c, const mla_gram_args *a, size_t t0, size_t T, char *s, mla_err *err)
{
    const double one = 1.0;
    const int n = (int)a->n;
    double *y = (double *)s, *wy = a->w ? y + T * a->n : y;
    widen_panel<<<grid_of(T * a->n, 256), 256, 0, c->stream>>>(y, wy, *a, t0, T);
    if (a->w) return cublas_ok(cublasDgemm(c->blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, (int)T, &one, y, n, wy, n, &one, f64p(a->acc), n), "gram", err);
    /* column-major lower triangle = row-major upper one */
    return cublas_ok(cublasDsyrk(c->blas, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, n, (int)T, &one, y, n, &one, f64p(a->acc), n), "gram", err);
}
/* The same of split numbers, the small products first; lo lo' is below what the split leaves. */
static mla_status add_split(mla_cuda *c, const mla_gram_args *a, size_t t0, size_t T, char *s, mla_err *err)
{
    const float one = 1.f, zero = 0.f;
    const size_t ld = (a->n + 7) / 8 * 8;
    const int n = (int)ld;
    float *sums = (float *)s;
    __nv_bfloat16 *hi = (__nv_bfloat16 *)(sums + ld * ld), *lo = hi + T * ld, *whi = a->w ? lo + T * ld : hi, *wlo = whi + T * ld;
    const __nv_bfloat16 *pair[3][2] = {{lo, whi}, {hi, wlo}, {hi, whi}};
    mla_status st = MLA_OK;
    split_panel<<<grid_of(T * ld, 256), 256, 0, c->stream>>>(hi, *a, t0, T, ld);
    for (int i = 0; !st && i < 3; i++) /* column-major eyes: sums^T, so the weighted one stands first */
        st = cublas_ok(cublasGemmEx(c->blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, (int)T, &one, pair[i][1], CUDA_R_16BF, n, pair[i][0], CUDA_R_16BF, n, i ? &one : &zero, sums,
                                    CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT), "gram", err);
    if (!st) add_panel<<<grid_of(a->n * a->n, 256), 256, 0, c->stream>>>(f64p(a->acc), sums, a->n, ld);
    return st;
}

/* Panels in token order. */
mla_status cu_gram(mla_backend *be, const mla_gram_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    if (!a->T || !a->n) return MLA_OK;
    if (a->n > INT32_MAX - 8) return mla_fail(err, MLA_EUNSUPPORTED, "gram of %zu features", a->n);
    const size_t most = a->split ? SPLIT_TOKENS : PANEL_TOKENS, P = a->T < most ? a->T : most, ld = (a->n + 7) / 8 * 8, both = a->w ? 2 : 1,
                 bytes = a->split ? ld * ld * 4 + both * 2 * P * ld * 2 : both * P * a->n * 8, slices = (P + SLICE - 1) / SLICE;
    char *s;
    mla_status st = cu_scratch(c, pad256(bytes) + slices * a->n * 8, "gram", &s, err);
    for (size_t t0 = 0; !st && t0 < a->T; t0 += P) {
        const size_t T = a->T - t0 < P ? a->T - t0 : P, n = (T + SLICE - 1) / SLICE;
        if (a->acc) st = a->split ? add_split(c, a, t0, T, s, err) : add_fp64(c, a, t0, T, s, err);
        if (!st && a->sum) {
            double *part = (double *)(s + pad256(bytes));
            sum_slices<<<dim3(grid_of(a->n, 128), (unsigned)n), 128, 0, c->stream>>>(part, *a, t0, T);
            add_slices<<<grid_of(a->n, 128), 128, 0, c->stream>>>(f64p(a->sum), part, a->n, n);
        }
        if (!st) st = launched("gram", err);
    }
    if (!st && a->acc) {
        mirror<<<grid_of(a->n * a->n, 256), 256, 0, c->stream>>>(f64p(a->acc), a->n);
        st = launched("gram", err);
    }
    return st;
}

/* Block b: elements b, b + PARTS, ... in chunks of blockDim; a fixed tree inside, partials added in order on the host. */
static __global__ void __launch_bounds__(256) range_kernel(const float *x, size_t rows, size_t d, size_t ld, mla_range *part)
{
    __shared__ double amax[256], sum2[256];
    __shared__ unsigned long long bad[256];
    double top = 0.0, s = 0.0;
    unsigned long long nf = 0;
    for (size_t i = blockIdx.x * (size_t)256 + threadIdx.x; i < rows * d; i += (size_t)PARTS * 256) {
        const float v = fabsf(x[i / d * ld + i % d]);
        if (!(v <= 3.402823466e38f)) {
            nf++;
            continue;
        }
        top = v > top ? v : top;
        s += (double)v * v;
    }
    amax[threadIdx.x] = top, sum2[threadIdx.x] = s, bad[threadIdx.x] = nf;
    for (int o = 128; o; o >>= 1) {
        __syncthreads();
        if ((int)threadIdx.x < o) {
            amax[threadIdx.x] = fmax(amax[threadIdx.x], amax[threadIdx.x + o]);
            sum2[threadIdx.x] += sum2[threadIdx.x + o];
            bad[threadIdx.x] += bad[threadIdx.x + o];
        }
    }
    if (threadIdx.x == 0) part[blockIdx.x] = mla_range{amax[0], sum2[0], 0, bad[0]};
}
mla_status cu_range(mla_backend *be, const mla_mem *x, size_t rows, size_t d, size_t ld, mla_range *out, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    mla_range host[PARTS];
    char *s;
    *out = mla_range{0, 0, (uint64_t)rows * d, 0};
    if (!rows || !d) return MLA_OK;
    mla_status st = cu_scratch(c, sizeof host, "range", &s, err);
    if (st) return st;
    range_kernel<<<PARTS, 256, 0, c->stream>>>(cf32p(x), rows, d, ld, (mla_range *)s);
    st = cu_ok(cudaMemcpyAsync(host, s, sizeof host, cudaMemcpyDeviceToHost, c->stream), "range", err);
    if (!st) st = cu_ok(cudaStreamSynchronize(c->stream), "range", err);
    for (int i = 0; !st && i < PARTS; i++) {
        out->amax = host[i].amax > out->amax ? host[i].amax : out->amax;
        out->sum2 += host[i].sum2;
        out->nonfinite += host[i].nonfinite;
    }
    return st;
}
