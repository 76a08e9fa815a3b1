/* The symmetric eigenproblem by cuSOLVER, with its proof. The host's array crosses once each way; checking, scaling, the
 * proof and the signs stay on the device. */
#include <math.h>
#include <string.h>

#include <vector>

#include "cuda/be.cuh"

enum { THREADS = 256, BLOCKS = 1024 };

/* What a matrix shows before it is solved: bits of its largest magnitude, index of the first element that is not finite. */
struct Survey {
    unsigned long long top, bad;
};
/* Over the lower triangle, rows first. Bits of magnitudes order as the magnitudes do. */
static __global__ void __launch_bounds__(THREADS) survey_kernel(Survey *out, const double *a, size_t n)
{
    __shared__ unsigned long long tops[THREADS], bads[THREADS];
    unsigned long long top = 0, bad = ~0ull;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n * n; i += (size_t)BLOCKS * THREADS) {
        if (i % n > i / n) continue;
        const unsigned long long x = (unsigned long long)__double_as_longlong(fabs(a[i]));
        if (x >= 0x7ff0000000000000ull) bad = i < bad ? i : bad;
        else top = x > top ? x : top;
    }
    tops[threadIdx.x] = top, bads[threadIdx.x] = bad;
    for (int o = THREADS / 2; o; o >>= 1) {
        __syncthreads();
        if ((int)threadIdx.x < o) {
            tops[threadIdx.x] = max(tops[threadIdx.x], tops[threadIdx.x + o]);
            bads[threadIdx.x] = min(bads[threadIdx.x], bads[threadIdx.x + o]);
        }
    }
    if (threadIdx.x == 0) atomicMax(&out->top, tops[0]), atomicMin(&out->bad, bads[0]);
}
/* a := its lower triangle times 2^e, mirrored; v := the same. */
static __global__ void scale_both(double *a, double *v, size_t n, int e)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / n, c = i % n;
    if (i >= n * n || c > r) return;
    const double x = scalbn(a[i], e);
    a[i] = a[c * n + r] = v[i] = v[c * n + r] = x;
}
static __global__ void scale_values(double *w, size_t n, int e)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) w[i] = scalbn(w[i], e);
}
/* A block per vector: its component of largest magnitude is positive, the lowest index deciding ties. */
static __global__ void __launch_bounds__(THREADS) fix_signs(double *v, size_t n)
{
    __shared__ double size[THREADS];
    __shared__ size_t at[THREADS];
    double *r = v + blockIdx.x * n;
    double best = -1.0;
    size_t where = 0;
    for (size_t j = threadIdx.x; j < n; j += THREADS)
        if (fabs(r[j]) > best) best = fabs(r[j]), where = j;
    size[threadIdx.x] = best, at[threadIdx.x] = where;
    for (int o = THREADS / 2; o; o >>= 1) {
        __syncthreads();
        const int i = threadIdx.x, j = i + o;
        if (i < o && (size[j] > size[i] || (size[j] == size[i] && at[j] < at[i]))) size[i] = size[j], at[i] = at[j];
    }
    __syncthreads();
    if (r[at[0]] >= 0.0) return;
    __syncthreads(); /* all have looked before one writes */
    for (size_t j = threadIdx.x; j < n; j += THREADS) r[j] = -r[j];
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

/* On the device: A (n, n) as the host gave it -> rows of V, W ascending; t: scratch of A's size. A is divided by a power of two
 * near its largest value (exact), solved, proven, and W multiplied back. */
struct Eigen {
    double *A, *V, *t, *W;
    Survey *survey;
    int *info;
    void *work;
    size_t work_bytes;
};
static mla_status solve(mla_cuda *c, cusolverDnParams_t params, const Eigen &x, size_t n, size_t host_bytes, mla_err *err)
{
    const char *what = "eigenproblem";
    Survey seen = {0, ~0ull};
    int e = 0, info = 0;
    std::vector<char> host(host_bytes + 1);
    mla_status st = cu_ok(cudaMemcpyAsync(x.survey, &seen, sizeof seen, cudaMemcpyHostToDevice, c->stream), what, err);
    if (st) return st;
    survey_kernel<<<BLOCKS, THREADS, 0, c->stream>>>(x.survey, x.A, n);
    st = cu_ok(cudaMemcpyAsync(&seen, x.survey, sizeof seen, cudaMemcpyDeviceToHost, c->stream), what, err);
    if (!st) st = cu_ok(cudaStreamSynchronize(c->stream), what, err);
    if (st) return st;
    if (seen.bad != ~0ull)
        return mla_fail(err, MLA_EINVAL, "eigenproblem of %zu: element (%zu, %zu) is not finite", n, (size_t)seen.bad / n, (size_t)seen.bad % n);
    double top;
    memcpy(&top, &seen.top, sizeof top);
    if (top > 0) frexp(top, &e);
    scale_both<<<grid_of(n * n, THREADS), THREADS, 0, c->stream>>>(x.A, x.V, n, -e);
    st = cu_ok(cudaMemsetAsync(x.info, 0, 256 + x.work_bytes, c->stream), what, err); /* syevd reads words of its workspace it never wrote */
    if (!st && cusolverDnXsyevd(c->solver, params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, (int64_t)n, CUDA_R_64F, x.V, (int64_t)n, CUDA_R_64F, x.W,
                                CUDA_R_64F, x.work, x.work_bytes, host.data(), host_bytes, x.info) != CUSOLVER_STATUS_SUCCESS)
        st = mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: syevd fails", n);
    if (!st) st = cu_ok(cudaMemcpyAsync(&info, x.info, 4, cudaMemcpyDeviceToHost, c->stream), what, err);
    if (!st) st = cu_ok(cudaStreamSynchronize(c->stream), what, err);
    if (!st && info) st = mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: syevd does not converge (info %d)", n, info);
    if (!st) st = prove(c, x.A, x.V, x.W, x.t, n, err);
    if (st) return st;
    fix_signs<<<(unsigned)n, THREADS, 0, c->stream>>>(x.V, n);
    scale_values<<<grid_of(n, THREADS), THREADS, 0, c->stream>>>(x.W, n, e);
    return launched(what, err);
}

static mla_status eigh(mla_cuda *c, double *a, double *w, size_t n, mla_err *err)
{
    const char *what = "eigenproblem";
    if (n == 0) return MLA_OK;
    if (n > 46340) return mla_fail(err, MLA_EUNSUPPORTED, "eigenproblem of %zu: at most 46340", n);
    const size_t mat = pad256(n * n * 8), vec = pad256(n * 8);
    size_t dev_bytes = 0, host_bytes = 0;
    cusolverDnParams_t params = NULL;
    char *s = NULL;
    mla_status st = MLA_OK;
    if (cusolverDnCreateParams(&params) != CUSOLVER_STATUS_SUCCESS ||
        cusolverDnXsyevd_bufferSize(c->solver, params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, (int64_t)n, CUDA_R_64F, NULL, (int64_t)n,
                                    CUDA_R_64F, NULL, CUDA_R_64F, &dev_bytes, &host_bytes) != CUSOLVER_STATUS_SUCCESS)
        st = mla_fail(err, MLA_EINTERNAL, "eigenproblem of %zu: cuSOLVER refuses the size", n);
    if (!st) st = cu_scratch(c, 3 * mat + vec + 512 + dev_bytes, what, &s, err);
    if (!st) {
        char *at = s + 3 * mat + vec;
        const Eigen x = {(double *)s, (double *)(s + mat), (double *)(s + 2 * mat), (double *)(s + 3 * mat), (Survey *)at, (int *)(at + 256), at + 512, dev_bytes};
        st = cu_ok(cudaMemcpyAsync(x.A, a, n * n * 8, cudaMemcpyHostToDevice, c->stream), what, err);
        if (!st) st = solve(c, params, x, n, host_bytes, err);
        if (!st) st = cu_ok(cudaMemcpyAsync(a, x.V, n * n * 8, cudaMemcpyDeviceToHost, c->stream), what, err);
        if (!st) st = cu_ok(cudaMemcpyAsync(w, x.W, n * 8, cudaMemcpyDeviceToHost, c->stream), what, err);
        if (!st) st = cu_ok(cudaStreamSynchronize(c->stream), what, err);
    }
    if (params) cusolverDnDestroyParams(params);
    return st;
}

mla_status cu_eigh(mla_backend *be, double *a, double *w, size_t n, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    pthread_mutex_lock(&c->eigh_turn);
    cudaSetDevice(c->device); /* the calling thread may be new */
    const mla_status st = eigh(c, a, w, n, err);
    pthread_mutex_unlock(&c->eigh_turn);
    return st;
}
