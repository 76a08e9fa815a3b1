/* What the CUDA benchmarks share: timing by events, medians, the ceilings of this process, lines of the goals table. */
#ifndef MLA_BENCH_CUDA_CEILINGS_H
#define MLA_BENCH_CUDA_CEILINGS_H
#include <cublas_v2.h>

#include <algorithm>
#include <functional>

#include "cut.h"

/* A call of the toolkit, whose error the program keeps in `err`. */
#define OK(x)                                                                 \
    do {                                                                      \
        if ((x) != MLA_OK) fprintf(stderr, "%s: %s\n", #x, err.msg), exit(3); \
    } while (0)

static __global__ void fill_random(void *p, bool f32, size_t n, uint64_t seed, float size)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const float x = cut_normal(seed, i) * size;
        if (f32) ((float *)p)[i] = x;
        else ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
    }
}
static inline double ms_of(cudaEvent_t a, cudaEvent_t b)
{
    float ms = 0;
    CU(cudaEventSynchronize(b));
    CU(cudaEventElapsedTime(&ms, a, b));
    return ms;
}
static inline double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

static __global__ void __launch_bounds__(512) read_all(const uint4 *p, size_t n, uint4 *out)
{
    uint4 s = make_uint4(0, 0, 0, 0);
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = __ldcs(p + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++) s.x ^= v[j].x, s.y ^= v[j].y, s.z ^= v[j].z, s.w ^= v[j].w;
    }
    for (; i < n; i += step) s.x ^= p[i].x;
    if (s.x == 0x12345678 && s.y == 1 && s.z == 2) *out = s;
}
static __global__ void __launch_bounds__(512) copy_all(uint4 *d, const uint4 *p, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = __ldcs(p + i + j * step);
#pragma unroll
        for (int j = 0; j < 4; j++) __stcs(d + i + j * step, v[j]);
    }
}

/* GB/s of a read-only sweep and of a copy (read + written) over 4 GiB of random data. */
static inline void ceilings(double *read_bw, double *copy_bw)
{
    const size_t bytes = (size_t)4 << 30;
    uint4 *a, *b;
    CU(cudaMalloc(&a, bytes));
    CU(cudaMalloc(&b, bytes));
    fill_random<<<2048, 256>>>(a, true, bytes / 4, 1, 1.f);
    cudaEvent_t e[2];
    CU(cudaEventCreate(e));
    CU(cudaEventCreate(e + 1));
    std::vector<double> r, c;
    for (int i = 0; i < 7; i++) {
        for (int blocks : {132 * 2, 132 * 4, 132 * 8}) {
            CU(cudaEventRecord(e[0]));
            read_all<<<blocks, 512>>>(a, bytes / 16, b);
            CU(cudaEventRecord(e[1]));
            r.push_back(bytes / 1e6 / ms_of(e[0], e[1]));
        }
        CU(cudaEventRecord(e[0]));
        copy_all<<<132 * 8, 512>>>(b, a, bytes / 16);
        CU(cudaEventRecord(e[1]));
        c.push_back(2 * bytes / 1e6 / ms_of(e[0], e[1]));
    }
    for (int g = 0; g < 3; g++) { /* the best of three grids, each by its median */
        std::vector<double> x;
        for (size_t i = 3 + (size_t)g; i < r.size(); i += 3) x.push_back(r[i]);
        *read_bw = std::max(*read_bw, median(x));
    }
    *copy_bw = median(c);
    CU(cudaFree(a));
    CU(cudaFree(b));
}
/* Milliseconds of one call: the median of `rounds`, each `n` calls between two events, after two warm-up calls. */
static inline double ms_per_call(const std::function<void()> &f, int n = 10, int rounds = 3)
{
    cudaEvent_t e[2];
    CU(cudaEventCreate(e));
    CU(cudaEventCreate(e + 1));
    std::vector<double> r;
    for (int i = 0; i < 2; i++) f();
    for (int k = 0; k < rounds; k++) {
        CU(cudaEventRecord(e[0]));
        for (int i = 0; i < n; i++) f();
        CU(cudaEventRecord(e[1]));
        r.push_back(ms_of(e[0], e[1]) / n);
    }
    CU(cudaEventDestroy(e[0]));
    CU(cudaEventDestroy(e[1]));
    return median(r);
}
/* TFLOP/s of an 8192 x 8192 x 8192 bf16 product on random data. */
static inline double gemm_rate(void)
{
    const size_t n = 8192;
    void *a, *b, *c;
    cublasHandle_t h;
    CU(cudaMalloc(&a, n * n * 2));
    CU(cudaMalloc(&b, n * n * 2));
    CU(cudaMalloc(&c, n * n * 2));
    fill_random<<<2048, 256>>>(a, false, n * n, 1, 1.f);
    fill_random<<<2048, 256>>>(b, false, n * n, 2, 1.f);
    if (cublasCreate(&h) != CUBLAS_STATUS_SUCCESS) fprintf(stderr, "cuBLAS does not start\n"), exit(3);
    const float one = 1.f, zero = 0.f;
    const double ms = ms_per_call([&] {
        if (cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)n, (int)n, &one, a, CUDA_R_16BF, (int)n, b, CUDA_R_16BF, (int)n, &zero, c, CUDA_R_16BF,
                         (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS)
            fprintf(stderr, "cuBLAS product fails\n"), exit(3);
    });
    cublasDestroy(h);
    for (void *p : {a, b, c}) CU(cudaFree(p));
    return 2.0 * n * n * n / ms / 1e9;
}
/* One line of the goals table; bigger: whether a larger value is better. */
static inline void goal(const char *row, const char *what, double got, double min, double aim, bool bigger)
{
    const bool ok = bigger ? got >= min : got <= min, aimed = bigger ? got >= aim : got <= aim;
    printf("%-4s %-58s %8.3f  min %6.3g  aim %6.3g  %s\n", row, what, got, min, aim, aimed ? "aim" : ok ? "min" : "short");
}
#endif
