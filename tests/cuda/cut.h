/* What the CUDA tests share: counted checks, the skip without a GPU, comparison (non-finite first), random fills. */
#ifndef MLA_TESTS_CUDA_CUT_H
#define MLA_TESTS_CUDA_CUT_H
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "base/err.h"
#include "small.h"

static int cut_passed, cut_failed, cut_skipped;

#define CU(x)                                                                                            \
    do {                                                                                                 \
        cudaError_t e_ = (x);                                                                            \
        if (e_ != cudaSuccess) {                                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_));          \
            exit(3);                                                                                     \
        }                                                                                                \
    } while (0)

static inline bool cut_has_gpu(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}
/* Records one case; prints failures only. */
static inline bool cut_check(bool ok, const char *what)
{
    ok ? cut_passed++ : cut_failed++;
    if (!ok) fprintf(stderr, "FAIL %s\n", what);
    return ok;
}
static inline int cut_end(const char *name)
{
    printf("%s: %d passed, %d failed, %d skipped\n", name, cut_passed, cut_failed, cut_skipped);
    return cut_failed ? 1 : 0;
}
static inline int cut_skip_all(const char *name, int cases)
{
    printf("SKIP %s: no CUDA device (%d)\n", name, cases);
    cut_skipped += cases;
    return cut_end(name);
}

struct Cmp {
    size_t nonfinite;
    double rel, max_abs, max_want;
};
static inline Cmp cut_compare(const float *got, const float *want, size_t n)
{
    Cmp c = {};
    double d2 = 0, w2 = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i]) || !isfinite(want[i])) {
            c.nonfinite++;
            continue;
        }
        const double d = (double)got[i] - want[i];
        d2 += d * d, w2 += (double)want[i] * want[i];
        if (fabs(d) > c.max_abs) c.max_abs = fabs(d);
        if (fabs(want[i]) > c.max_want) c.max_want = fabs(want[i]);
    }
    c.rel = w2 > 0 ? sqrt(d2 / w2) : sqrt(d2);
    return c;
}
/* Passes only in positive form: NaN never does. */
static inline bool cut_close(Cmp c, double tol) { return c.nonfinite == 0 && c.rel <= tol; }

static __host__ __device__ inline uint64_t cut_hash(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
/* About normal: the sum of four uniforms, scaled to variance 1. */
static __host__ __device__ inline float cut_normal(uint64_t seed, uint64_t i)
{
    const uint64_t h = cut_hash(seed * 0x100000001b3ull + i);
    const float u = (float)(h & 0xffff) + (float)(h >> 16 & 0xffff) + (float)(h >> 32 & 0xffff) + (float)(h >> 48);
    return (u * (1.f / 65536.f) - 2.f) * 1.7320508f;
}
#endif
