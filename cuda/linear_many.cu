/* Linear layers of many tokens in bf16: activations are rounded once for all layers that read them, in the kernel that norms
 * them or multiplies gate and up; products by cuBLASLt, which also adds to what is there. The same bits as one by one. */
#include <stdlib.h>

#include "cuda/be.cuh"
#include "cuda/codes.cuh"
#include "cuda/rows.cuh"

enum { ROWS_Y = 65535, TILE_BYTES = 64 << 20 };

static __device__ __forceinline__ void put8(__nv_bfloat16 *to, const float (&v)[8]) { *(uint4 *)to = round8(v); }
static __device__ __forceinline__ void get8(float (&v)[8], const float *from, size_t i, size_t in, bool wide)
{
    if (wide && i + 8 <= in) {
        *(float4 *)v = *(const float4 *)from;
        *(float4 *)(v + 4) = *(const float4 *)(from + 4);
    } else {
        for (int e = 0; e < 8; e++) v[e] = i + e < in ? from[e] : 0.f;
    }
}
/* Grid (in8 / 8 / 128, rows): a thread rounds 8 neighbours; wide: rows of x start on 16 bytes. */
static __global__ void __launch_bounds__(128) round_rows(__nv_bfloat16 *y, const float *x, size_t ldx, size_t T, size_t in, size_t in8, bool wide)
{
    const size_t i = (blockIdx.x * (size_t)128 + threadIdx.x) * 8, t = blockIdx.y + blockIdx.z * (size_t)ROWS_Y;
    if (i >= in8 || t >= T) return;
    float v[8];
    get8(v, x + t * ldx + i, i, in, wide);
    put8(y + t * in8 + i, v);
}
/* y = silu(g) u, 8 neighbours a thread, n of them; y may be g. */
static __global__ void __launch_bounds__(256) gated_round(uint4 *y, const uint4 *g, const uint4 *u, size_t n)
{
    const size_t i = blockIdx.x * (size_t)256 + threadIdx.x;
    if (i >= n) return;
    float a[8], b[8];
    widen8(a, __ldcs(g + i));
    widen8(b, __ldcs(u + i));
#pragma unroll
    for (int e = 0; e < 8; e++) a[e] = silu_fast(a[e]) * b[e];
    y[i] = round8(a);
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

/* Large products run as fast as the power limit lets them, and smaller tiles need less power for the same product (H200, 8192
 * tokens, warm: 176 x 128 is 4 to 10 per cent faster than cuBLASLt's first choice). Of the kernels it offers, the first with this tile,
 * or the very first: a rule of the shape alone, so that every run takes the same. */
enum { OFFERS = 8, LARGE = 4096 };
static bool large(size_t out, size_t in, size_t T) { return out >= LARGE && in >= LARGE && T >= LARGE; }
static const cublasLtMatmulAlgo_t *choose(const cublasLtMatmulHeuristicResult_t *offer, int n, size_t in, bool add)
{
    const cublasLtMatmulTile_t want = !add ? CUBLASLT_MATMUL_TILE_176x128 : in > 2 * LARGE ? CUBLASLT_MATMUL_TILE_256x128 : CUBLASLT_MATMUL_TILE_128x160;
    for (int i = 0; i < n; i++) {
        uint32_t tile = 0;
        size_t got;
        if (!cublasLtMatmulAlgoConfigGetAttribute(&offer[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &got) && tile == (uint32_t)want) return &offer[i].algo;
    }
    return &offer[0].algo;
}

/* C (T, out; ldc) = or += X (T, in8) W^T, in cuBLAS's column-major eyes C^T = W X^T. half: C is bf16. */
static mla_status gemm(mla_cuda *c, const mla_weight *w, const void *x, void *y, bool half, size_t ldc, size_t T, bool add, mla_err *err)
{
    cublasLtMatmulDesc_t op = NULL;
    cublasLtMatrixLayout_t A = NULL, B = NULL, C = NULL;
    cublasLtMatmulPreference_t pref = NULL;
    cublasLtMatmulHeuristicResult_t found[OFFERS] = {};
    int n = 0;
    const float one = 1.f, beta = add ? 1.f : 0.f;
    const cublasOperation_t t = CUBLAS_OP_T;
    const size_t space = LT_SPACE;
    cublasStatus_t s = cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    if (!s) s = cublasLtMatrixLayoutCreate(&A, CUDA_R_16BF, w->in8, w->out, (int64_t)w->in8);
    if (!s) s = cublasLtMatrixLayoutCreate(&B, CUDA_R_16BF, w->in8, T, (int64_t)w->in8);
    if (!s) s = cublasLtMatrixLayoutCreate(&C, half ? CUDA_R_16BF : CUDA_R_32F, w->out, T, (int64_t)ldc);
    if (!s) s = cublasLtMatmulPreferenceCreate(&pref);
    if (!s) s = cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space, sizeof space);
    if (!s) s = cublasLtMatmulAlgoGetHeuristic(c->lt, op, A, B, C, C, pref, large(w->out, w->in8, T) ? (int)OFFERS : 1, found, &n);
    if (!s && n == 0) s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!s) s = cublasLtMatmul(c->lt, op, &one, w->data, A, x, B, &beta, y, C, y, C, choose(found, n, w->in8, add), c->lt_space, LT_SPACE, c->stream);
    if (pref) cublasLtMatmulPreferenceDestroy(pref);
    if (C) cublasLtMatrixLayoutDestroy(C);
    if (B) cublasLtMatrixLayoutDestroy(B);
    if (A) cublasLtMatrixLayoutDestroy(A);
    if (op) cublasLtMatmulDescDestroy(op);
    return cublas_ok(s, "linear bf16", err);
}

/* Whether cuBLASLt may write y itself. */
static bool direct(const mla_linear_args *a) { return !a->bias && !((uintptr_t)a->y % 16) && a->ldy % 4 == 0; }
/* Scratch of a product that may go another way; a tile's outputs may begin anywhere. */
static size_t sum_bytes(const mla_weight *w, const mla_linear_args *a) { return direct(a) && !w->codes ? 0 : a->T * (w->out + 3) * 4; }

static mla_status product(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, const void *x, bool half, float *sum, mla_err *err)
{
    if (half || direct(a)) return gemm(c, w, x, a->y, half, a->ldy, a->T, a->accumulate, err);
    const size_t ld = (w->out + 3) / 4 * 4;
    const mla_status st = gemm(c, w, x, sum, false, ld, a->T, false, err);
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
static mla_status layer(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, const void *x, bool half, float *sum, mla_err *err)
{
    if (!w->codes) return product(c, w, a, x, half, sum, err);
    return each_tile(c, w, a, err, [&](const mla_weight *part, const mla_linear_args *b) { return product(c, part, b, x, half, sum, err); }, half ? 2 : 4);
}

static mla_status round_x(mla_cuda *c, __nv_bfloat16 *to, const mla_norm_args *norm, const mla_linear_args *a, size_t in, mla_err *err)
{
    const size_t in8 = (in + 7) / 8 * 8;
    const float *x = cf32p(norm ? norm->x : a->x);
    const size_t ldx = norm ? norm->ldx : a->ldx;
    const bool wide = ldx % 4 == 0 && (uintptr_t)x % 16 == 0;
    if (norm) {
        norm_round<<<(unsigned)a->T, ROW, 0, c->stream>>>(to, x, ldx, in, in8, cf32p(norm->gain), norm->eps, wide);
        return launched("norm", err);
    }
    const dim3 grid(grid_of(in8, 1024), (unsigned)(a->T < ROWS_Y ? a->T : (size_t)ROWS_Y), grid_of(a->T, ROWS_Y));
    round_rows<<<grid, 128, 0, c->stream>>>(to, x, ldx, a->T, in, in8, wide);
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

mla_status many_run(mla_cuda *c, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, size_t halves, mla_err *err)
{
    const mla_linear_args *a = &jobs[0].a;
    const size_t in = jobs[0].w->in, xb = pad256(a->T * jobs[0].w->in8 * 2);
    size_t sums = 0;
    char *s;
    for (size_t i = halves; i < n; i++) sums = many_room(&jobs[i]) > sums ? many_room(&jobs[i]) : sums;
    mla_status st = cu_scratch(c, xb + sums, "linear bf16", &s, err);
    if (!st) st = round_x(c, (__nv_bfloat16 *)s, norm, a, in, err);
    for (size_t i = 0; !st && i < n; i++) st = layer(c, jobs[i].w, &jobs[i].a, s, i < halves, (float *)(s + xb), err);
    return st;
}
size_t many_room(const mla_linear_job *job) { return sum_bytes(job->w, &job->a); }
mla_status many_layer(mla_cuda *c, const mla_linear_job *job, const void *x, char *room, mla_err *err) { return layer(c, job->w, &job->a, x, false, (float *)room, err); }

bool many_mlp_fits(const mla_norm_args *norm, const mla_gated_args *a, const mla_linear_job *down)
{
    const mla_linear_job two[2] = {{a->gate, {a->g, a->out, a->x, a->ldx, a->T, NULL, false}}, {a->up, {a->u, a->out, a->x, a->ldx, a->T, NULL, false}}};
    return a->gate->out == a->out && a->up->out == a->out && down->w->in == a->out && a->out % 8 == 0 && ((uintptr_t)a->g | (uintptr_t)a->u) % 16 == 0 && down->a.x == a->g &&
           many_fits(norm, two, 2) && many_fits(NULL, down, 1);
}
/* Gate and up come rounded: what they are multiplied to is rounded anyway, and rounding them first moves it by another 2 roundings. */
mla_status many_mlp(mla_cuda *c, const mla_norm_args *norm, const mla_gated_args *a, const mla_linear_job *down, mla_err *err)
{
    const mla_linear_job two[2] = {{a->gate, {a->g, a->out, a->x, a->ldx, a->T, NULL, false}}, {a->up, {a->u, a->out, a->x, a->ldx, a->T, NULL, false}}};
    const size_t n = a->T * a->out / 8;
    char *s;
    mla_status st = many_run(c, norm, two, 2, 2, err);
    if (!st) st = cu_scratch(c, many_room(down), "linear bf16", &s, err);
    if (st) return st;
    gated_round<<<grid_of(n, 256), 256, 0, c->stream>>>((uint4 *)a->g, (const uint4 *)a->g, (const uint4 *)a->u, n);
    st = launched("linear bf16", err);
    return st ? st : many_layer(c, down, a->g, s, err);
}
