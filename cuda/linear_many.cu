/* Linear layers of many tokens in bf16: activations are rounded once for all layers that read them, in the kernel that norms
 * them or multiplies gate and up; products by cuBLASLt, which also adds to what is there. The same bits as one by one. */
#include <stdlib.h>

#include "cuda/be.cuh"
#include "cuda/codes.cuh"
#include "cuda/rows.cuh"

enum { ROWS_Y = 65535, TILE_BYTES = 64 << 20 };

static __device__ __forceinline__ void put8(__nv_bfloat16 *to, const float (&v)[8])
{
    uint32_t r[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * e], v[2 * e + 1]);
        r[e] = *(const uint32_t *)&two;
    }
    *(uint4 *)to = make_uint4(r[0], r[1], r[2], r[3]);
}
static __device__ __forceinline__ void get8(float (&v)[8], const float *from, size_t i, size_t in, bool wide)
{
    if (wide && i + 8 <= in) {
        *(float4 *)v = *(const float4 *)from;
        *(float4 *)(v + 4) = *(const float4 *)(from + 4);
    } else {
        for (int e = 0; e < 8; e++) v[e] = i + e < in ? from[e] : 0.f;
    }
}
/* Grid (in8 / 8 / 128, rows): a thread rounds 8 neighbours; wide: rows of x start on 16 bytes. up: silu(x) * up, both dense. */
template <bool GATED>
static __global__ void __launch_bounds__(128) round_rows(__nv_bfloat16 *y, const float *x, size_t ldx, const float *up, size_t T, size_t in, size_t in8, bool wide)
{
    const size_t i = (blockIdx.x * (size_t)128 + threadIdx.x) * 8, t = blockIdx.y + blockIdx.z * (size_t)ROWS_Y;
    if (i >= in8 || t >= T) return;
    float v[8];
    get8(v, x + t * ldx + i, i, in, wide);
    if (GATED) {
        float u[8];
        get8(u, up + t * ldx + i, i, in, wide);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = silu(v[e]) * u[e];
    }
    put8(y + t * in8 + i, v);
}
/* A block per row: rmsnorm, rounded. */
static __global__ void __launch_bounds__(ROW) norm_round(__nv_bfloat16 *y, const float *x, size_t ldx, size_t d, size_t d8, const float *gain, double eps, bool wide)
{
    const float *from = x + blockIdx.x * ldx;
    const float inv = row_scale(from, d, eps);
    for (size_t i = threadIdx.x * (size_t)8; i < d8; i += ROW * 8) {
        float v[8], g[8];
        get8(v, from + i, i, d, wide);
        get8(g, gain + i, i, d, (uintptr_t)gain % 16 == 0);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = v[e] * inv * g[e];
        put8(y + blockIdx.x * d8 + i, v);
    }
}
static __global__ void put_rows(float *y, size_t ldy, const float *sum, size_t ldsum, size_t T, size_t out, const float *bias, bool accumulate)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= T * out) return;
    const float s = sum[i / out * ldsum + i % out], v = bias ? s + bias[i % out] : s;
    float *to = y + i / out * ldy + i % out;
    *to = accumulate ? *to + v : v;
}

/* C (T, out; ldc) = or += X (T, in8) W^T, in cuBLAS's column-major eyes C^T = W X^T. */
static mla_status gemm(mla_cuda *c, const mla_weight *w, const void *x, float *y, size_t ldc, size_t T, bool add, mla_err *err)
{
    cublasLtMatmulDesc_t op = NULL;
    cublasLtMatrixLayout_t A = NULL, B = NULL, C = NULL;
    cublasLtMatmulPreference_t pref = NULL;
    cublasLtMatmulHeuristicResult_t found = {};
    int n = 0;
    const float one = 1.f, beta = add ? 1.f : 0.f;
    const cublasOperation_t t = CUBLAS_OP_T;
    const size_t space = LT_SPACE;
    cublasStatus_t s = cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    if (!s) s = cublasLtMatrixLayoutCreate(&A, CUDA_R_16BF, w->in8, w->out, (int64_t)w->in8);
    if (!s) s = cublasLtMatrixLayoutCreate(&B, CUDA_R_16BF, w->in8, T, (int64_t)w->in8);
    if (!s) s = cublasLtMatrixLayoutCreate(&C, CUDA_R_32F, w->out, T, (int64_t)ldc);
    if (!s) s = cublasLtMatmulPreferenceCreate(&pref);
    if (!s) s = cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space, sizeof space);
    if (!s) s = cublasLtMatmulAlgoGetHeuristic(c->lt, op, A, B, C, C, pref, 1, &found, &n);
    if (!s && n == 0) s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!s) s = cublasLtMatmul(c->lt, op, &one, w->data, A, x, B, &beta, y, C, y, C, &found.algo, c->lt_space, LT_SPACE, c->stream);
    if (pref) cublasLtMatmulPreferenceDestroy(pref);
    if (C) cublasLtMatrixLayoutDestroy(C);
    if (B) cublasLtMatrixLayoutDestroy(B);
    if (A) cublasLtMatrixLayoutDestroy(A);
    if (op) cublasLtMatmulDescDestroy(op);
    return cublas_ok(s, "linear bf16", err);
}

/* Whether cuBLASLt may write y itself. */
static bool direct(const mla_linear_args *a) { return !a->bias && !((uintptr_t)a->y % 16) && a->ldy % 4 == 0; }
/* Scratch of a product that goes another way. */
static size_t sum_bytes(const mla_weight *w, const mla_linear_args *a) { return direct(a) ? 0 : a->T * ((w->out + 3) / 4 * 4) * 4; }

static mla_status product(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, const void *x, float *sum, mla_err *err)
{
    if (direct(a)) return gemm(c, w, x, f32p(a->y), a->ldy, a->T, a->accumulate, err);
    const size_t ld = (w->out + 3) / 4 * 4;
    const mla_status st = gemm(c, w, x, sum, ld, a->T, false, err);
    if (st) return st;
    put_rows<<<grid_of(a->T * w->out, 256), 256, 0, c->stream>>>(f32p(a->y), a->ldy, sum, ld, a->T, w->out, a->bias ? cf32p(a->bias) : NULL, a->accumulate);
    return launched("linear bf16", err);
}

size_t tile_outputs(const mla_weight *w)
{
    const size_t row = w->precision == MLA_PREC_F32 ? w->in * 4 : w->in8 * 2, n = TILE_BYTES / row / 8 * 8;
    return n < 64 ? 64 : n;
}

/* One layer on rounded tokens; codes tile by tile. */
static mla_status layer(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, const void *x, float *sum, mla_err *err)
{
    if (!w->codes) return product(c, w, a, x, sum, err);
    return each_tile(c, w, a, err, [&](const mla_weight *part, const mla_linear_args *b) { return product(c, part, b, x, sum, err); });
}

static mla_status round_x(mla_cuda *c, __nv_bfloat16 *to, const mla_norm_args *norm, const mla_linear_args *a, const float *up, size_t in, mla_err *err)
{
    const size_t in8 = (in + 7) / 8 * 8;
    const float *x = cf32p(norm ? norm->x : a->x);
    const size_t ldx = norm ? norm->ldx : a->ldx;
    const bool wide = ldx % 4 == 0 && (uintptr_t)x % 16 == 0 && (uintptr_t)up % 16 == 0;
    if (norm) {
        norm_round<<<(unsigned)a->T, ROW, 0, c->stream>>>(to, x, ldx, in, in8, cf32p(norm->gain), norm->eps, wide);
        return launched("norm", err);
    }
    const dim3 grid(grid_of(in8, 1024), (unsigned)(a->T < ROWS_Y ? a->T : (size_t)ROWS_Y), grid_of(a->T, ROWS_Y));
    if (up) round_rows<true><<<grid, 128, 0, c->stream>>>(to, x, ldx, up, a->T, in, in8, wide);
    else round_rows<false><<<grid, 128, 0, c->stream>>>(to, x, ldx, NULL, a->T, in, in8, wide);
    return launched("linear bf16", err);
}

bool many_fits(const mla_norm_args *norm, const mla_linear_job *jobs, size_t n)
{
    const mla_linear_args *a = &jobs[0].a;
    for (size_t i = 0; i < n; i++) {
        const mla_weight *w = jobs[i].w;
        const mla_linear_args *b = &jobs[i].a;
        if (w->precision != MLA_PREC_BF16 || w->trellis || w->in != jobs[0].w->in || b->x != a->x || b->ldx != a->ldx || b->T != a->T) return false;
    }
    return n && (!norm || (norm->d > SHORT && norm->d == jobs[0].w->in && norm->rows == a->T && norm->y == a->x && norm->ldy == a->ldx && a->T < ((size_t)1 << 31)));
}

mla_status many_run(mla_cuda *c, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, mla_err *err)
{
    const mla_linear_args *a = &jobs[0].a;
    const size_t in = jobs[0].w->in, xb = pad256(a->T * jobs[0].w->in8 * 2);
    size_t sums = 0;
    char *s;
    for (size_t i = 0; i < n; i++) sums = sum_bytes(jobs[i].w, &jobs[i].a) > sums ? sum_bytes(jobs[i].w, &jobs[i].a) : sums;
    for (size_t i = 0; i < n; i++) /* a tile's outputs may begin anywhere */
        if (jobs[i].w->codes && a->T * (jobs[i].w->out + 3) * 4 > sums) sums = a->T * (jobs[i].w->out + 3) * 4;
    mla_status st = cu_scratch(c, xb + sums, "linear bf16", &s, err);
    if (!st) st = round_x(c, (__nv_bfloat16 *)s, norm, a, NULL, in, err);
    for (size_t i = 0; !st && i < n; i++) st = layer(c, jobs[i].w, &jobs[i].a, s, (float *)(s + xb), err);
    return st;
}

mla_status many_mlp(mla_cuda *c, const mla_norm_args *norm, const mla_gated_args *a, const mla_linear_job *down, mla_err *err)
{
    const mla_linear_job two[2] = {{a->gate, {a->g, a->out, a->x, a->ldx, a->T, NULL, false}}, {a->up, {a->u, a->out, a->x, a->ldx, a->T, NULL, false}}};
    mla_status st = many_run(c, norm, two, 2, err);
    const size_t xb = pad256(a->T * down->w->in8 * 2), one = sum_bytes(down->w, &down->a), whole = down->w->codes ? a->T * (down->w->out + 3) * 4 : 0;
    char *s;
    if (!st) st = cu_scratch(c, xb + (one > whole ? one : whole), "linear bf16", &s, err);
    const mla_linear_args g = {NULL, 0, a->g, a->out, a->T, NULL, false};
    if (!st) st = round_x(c, (__nv_bfloat16 *)s, NULL, &g, cf32p(a->u), a->out, err);
    return st ? st : layer(c, down->w, &down->a, s, (float *)(s + xb), err);
}
