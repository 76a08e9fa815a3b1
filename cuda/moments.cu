/* Second moments and ranges in fp64, and the symmetric eigenproblem with its proof. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

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

/* t = A V - V diag(w), or V'V - I: what a proof measures. */
static __global__ void minus_scaled(double *t, const double *v, const double *w, size_t n)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n * n) t[i] -= v ? v[i] * w[i / n] : (i / n == i % n ? 1.0 : 0.0);
}

static mla_status prove(mla_cuda *c, const double *a, const double *v, const double *w, double *t, size_t n, mla_err *err)
{
    const double one = 1.0, zero = 0.0, tol = 64.0 * (double)n * 0x1p-53;
    const int m = (int)n;
    double na = 0.0, res = NAN, ortho = NAN;
    mla_status st = cublas_ok(cublasDnrm2_64(c->blas, (int64_t)(n * n), a, 1, &na), "eigenproblem", err);
    if (!st) st = cublas_ok(cublasDgemm(c->blas, CUBLAS_OP_N, CUBLAS_OP_N, m, m, m, &one, a, m, v, m, &zero, t, m), "eigenproblem", err);
    if (st) return st;
    minus_scaled<<<grid_of(n * n, 256), 256, 0, c->stream>>>(t, v, w, n);
    st = cublas_ok(cublasDnrm2_64(c->blas, (int64_t)(n * n), t, 1, &res), "eigenproblem", err);
    if (!st) st = cublas_ok(cublasDgemm(c->blas, CUBLAS_OP_T, CUBLAS_OP_N, m, m, m, &one, v, m, v, m, &zero, t, m), "eigenproblem", err);
    if (st) return st;
    minus_scaled<<<grid_of(n * n, 256), 256, 0, c->stream>>>(t, NULL, NULL, n);
    st = cublas_ok(cublasDnrm2_64(c->blas, (int64_t)(n * n), t, 1, &ortho), "eigenproblem", err);
    if (st) return st;
    if (res <= tol * na && ortho <= tol) return MLA_OK;
    return mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: residual %.3g of %.3g and orthogonality %.3g exceed %.3g", n, res, na, ortho, tol);
}

/* The component of largest magnitude is positive, the lowest index deciding ties. */
static void fix_signs(double *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double *r = v + i * n;
        size_t top = 0;
        for (size_t j = 1; j < n; j++)
            if (fabs(r[j]) > fabs(r[top])) top = j;
        if (r[top] < 0)
            for (size_t j = 0; j < n; j++) r[j] = -r[j];
    }
}

/* a is divided by a power of two near its largest value (exact), solved, proven, and w multiplied back. */
mla_status cu_eigh(mla_backend *be, double *a, double *w, size_t n, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    if (n == 0) return MLA_OK;
    if (n > 46340) return mla_fail(err, MLA_EUNSUPPORTED, "eigenproblem of %zu: at most 46340", n);
    double top = 0.0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            if (!isfinite(a[i * n + j])) return mla_fail(err, MLA_EINVAL, "eigenproblem of %zu: element (%zu, %zu) is not finite", n, i, j);
            if (fabs(a[i * n + j]) > top) top = fabs(a[i * n + j]);
        }
    int e = 0, info = 0;
    if (top > 0) frexp(top, &e);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) a[j * n + i] = a[i * n + j] = ldexp(a[i * n + j], -e);
    const size_t mat = pad256(n * n * 8), vec = pad256(n * 8);
    size_t dev_bytes = 0, host_bytes = 0;
    cusolverDnParams_t params = NULL;
    char *s = NULL;
    std::vector<char> host;
    mla_status st = MLA_OK;
    if (cusolverDnCreateParams(&params) != CUSOLVER_STATUS_SUCCESS ||
        cusolverDnXsyevd_bufferSize(c->solver, params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, (int64_t)n, CUDA_R_64F, NULL, (int64_t)n,
                                    CUDA_R_64F, NULL, CUDA_R_64F, &dev_bytes, &host_bytes) != CUSOLVER_STATUS_SUCCESS)
        st = mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: cuSOLVER refuses the size", n);
    if (!st) st = cu_scratch(c, 3 * mat + vec + 256 + dev_bytes, "eigenproblem", &s, err);
    if (!st) {
        double *A = (double *)s, *V = (double *)(s + mat), *t = (double *)(s + 2 * mat), *W = (double *)(s + 3 * mat);
        int *d_info = (int *)(s + 3 * mat + vec);
        host.resize(host_bytes + 1);
        st = cu_ok(cudaMemsetAsync(s + 3 * mat + vec, 0, 256 + dev_bytes, c->stream), "eigenproblem", err); /* syevd reads words of its workspace it never wrote */
        if (!st) st = cu_ok(cudaMemcpyAsync(A, a, n * n * 8, cudaMemcpyHostToDevice, c->stream), "eigenproblem", err);
        if (!st) st = cu_ok(cudaMemcpyAsync(V, A, n * n * 8, cudaMemcpyDeviceToDevice, c->stream), "eigenproblem", err);
        if (!st && cusolverDnXsyevd(c->solver, params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, (int64_t)n, CUDA_R_64F, V, (int64_t)n, CUDA_R_64F,
                                    W, CUDA_R_64F, s + 3 * mat + vec + 256, dev_bytes, host.data(), host_bytes, d_info) != CUSOLVER_STATUS_SUCCESS)
            st = mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: syevd fails", n);
        if (!st) st = cu_ok(cudaMemcpyAsync(&info, d_info, 4, cudaMemcpyDeviceToHost, c->stream), "eigenproblem", err);
        if (!st) st = cu_ok(cudaStreamSynchronize(c->stream), "eigenproblem", err);
        if (!st && info) st = mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: syevd does not converge (info %d)", n, info);
        if (!st) st = prove(c, A, V, W, t, n, err);
        if (!st) st = cu_ok(cudaMemcpyAsync(a, V, n * n * 8, cudaMemcpyDeviceToHost, c->stream), "eigenproblem", err);
        if (!st) st = cu_ok(cudaMemcpyAsync(w, W, n * 8, cudaMemcpyDeviceToHost, c->stream), "eigenproblem", err);
        if (!st) st = cu_ok(cudaStreamSynchronize(c->stream), "eigenproblem", err);
    }
    if (params) cusolverDnDestroyParams(params);
    if (st) return st;
    for (size_t i = 0; i < n; i++) w[i] = ldexp(w[i], e);
    fix_signs(a, n);
    return MLA_OK;
}
