/* Second moments and ranges in fp64. */
#include "cuda/be.cuh"

enum { PANEL_TOKENS = 4096, PARTS = 1024 };

/* y (n tokens, d) = x - shift, wy = w y (when w). */
static __global__ void widen_panel(double *y, double *wy, const float *x, size_t ldx, size_t T, size_t d, const double *w, const double *shift)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= T * d) return;
    const double v = shift ? x[i / d * ldx + i % d] - shift[i % d] : x[i / d * ldx + i % d];
    y[i] = v;
    if (w) wy[i] = w[i / d] * v;
}
/* One column per thread, tokens in order. */
static __global__ void sum_panel(double *sum, const double *wy, size_t T, size_t d)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= d) return;
    double s = 0.0;
    for (size_t t = 0; t < T; t++) s += wy[t * d + i];
    sum[i] += s;
}
static __global__ void mirror(double *acc, size_t d)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / d, c = i % d;
    if (i < d * d && c < r) acc[i] = acc[c * d + r];
}

/* Panels of 4096 tokens in token order. Column-major eyes: the row-major panel is y^T (d, T), so acc += y^T wy. */
mla_status cu_gram(mla_backend *be, const mla_gram_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    const double one = 1.0;
    if (!a->T || !a->n) return MLA_OK;
    if (a->n > INT32_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "gram of %zu features", a->n);
    const size_t P = a->T < PANEL_TOKENS ? a->T : (size_t)PANEL_TOKENS, bytes = pad256(P * a->n * 8);
    char *s;
    mla_status st = cu_scratch(c, a->w ? 2 * bytes : bytes, "gram", &s, err);
    double *y = (double *)s, *wy = a->w ? (double *)(s + bytes) : y;
    const int n = (int)a->n;
    for (size_t t0 = 0; !st && t0 < a->T; t0 += P) {
        const size_t T = a->T - t0 < P ? a->T - t0 : P;
        widen_panel<<<grid_of(T * a->n, 256), 256, 0, c->stream>>>(y, wy, cf32p(a->x) + t0 * a->ldx, a->ldx, T, a->n, a->w ? f64p(a->w) + t0 : NULL,
                                                                   a->shift ? f64p(a->shift) : NULL);
        if (a->acc && a->w)
            st = cublas_ok(cublasDgemm(c->blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, (int)T, &one, y, n, wy, n, &one, f64p(a->acc), n), "gram", err);
        else if (a->acc) /* column-major lower triangle = row-major upper one */
            st = cublas_ok(cublasDsyrk(c->blas, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, n, (int)T, &one, y, n, &one, f64p(a->acc), n), "gram", err);
        if (!st && a->sum) sum_panel<<<grid_of(a->n, 128), 128, 0, c->stream>>>(f64p(a->sum), wy, T, a->n);
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
