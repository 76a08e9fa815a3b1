/* Linear layers: f32 by the contract's own sequence of fused multiply-adds, bf16 by cuBLASLt, of few tokens by linear_few.cu. */
#include <stdlib.h>

#include "cuda/be.cuh"
#include "cuda/linear_few.cuh"
#include "cuda/rows.cuh"

enum { PANEL = 256, TILE = 64, STEP = 16, FEW = 16, COLS = 128, ROWS_Y = 65535, TILE_BYTES = 64 << 20 };

/* ---- f32: per output a chain of fmaf over k within each panel of 256 from zero, panels added in order */

static __device__ __forceinline__ void put(float *y, float sum, const float *bias, bool accumulate)
{
    const float v = bias ? sum + *bias : sum;
    *y = accumulate ? *y + v : v;
}

/* Many tokens: a 64 x 64 tile per block, 4 x 4 outputs per thread. */
static __global__ void __launch_bounds__(256) linear_f32_tile(const float *w, const float *x, float *y, size_t ldx, size_t ldy, size_t T,
                                                              size_t in, size_t out, const float *bias, bool accumulate)
{
    __shared__ float xs[STEP][TILE + 4], ws[STEP][TILE];
    const size_t n0 = blockIdx.x * (size_t)TILE, t0 = blockIdx.y * (size_t)TILE;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float total[4][4], sum[4][4];
    for (size_t k0 = 0; k0 < in; k0 += STEP) {
        for (int i = threadIdx.x; i < STEP * TILE; i += 256) {
            const size_t k = k0 + i % STEP, t = t0 + i / STEP, n = n0 + i % TILE, kw = k0 + i / TILE;
            xs[i % STEP][i / STEP] = t < T && k < in ? x[t * ldx + k] : 0.f;
            ws[i / TILE][i % TILE] = n < out && kw < in ? w[kw * out + n] : 0.f;
        }
        __syncthreads();
        const int steps = (int)(in - k0 < STEP ? in - k0 : STEP);
        if (k0 % PANEL == 0)
            for (int a = 0; a < 4; a++)
                for (int b = 0; b < 4; b++) sum[a][b] = 0.f;
        for (int k = 0; k < steps; k++)
#pragma unroll
            for (int a = 0; a < 4; a++)
#pragma unroll
                for (int b = 0; b < 4; b++) sum[a][b] = fmaf(xs[k][ty * 4 + a], ws[k][tx + 16 * b], sum[a][b]);
        if ((k0 + STEP) % PANEL == 0 || k0 + STEP >= in)
            for (int a = 0; a < 4; a++)
                for (int b = 0; b < 4; b++) total[a][b] = k0 < PANEL ? sum[a][b] : total[a][b] + sum[a][b];
        __syncthreads();
    }
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            const size_t t = t0 + ty * 4 + a, n = n0 + tx + 16 * b;
            if (t < T && n < out) put(y + t * ldy + n, total[a][b], bias ? bias + n : NULL, accumulate);
        }
}

/* Few tokens: every panel on its own, sums (panel, T, out) to scratch, then added in order. */
static __global__ void __launch_bounds__(COLS) linear_f32_panel(const float *w, const float *x, float *part, size_t ldx, size_t T, size_t in, size_t out)
{
    __shared__ float xs[PANEL];
    const size_t n = blockIdx.x * (size_t)COLS + threadIdx.x, k0 = blockIdx.y * (size_t)PANEL, t = blockIdx.z;
    const int steps = (int)(in - k0 < PANEL ? in - k0 : PANEL);
    for (int k = threadIdx.x; k < steps; k += COLS) xs[k] = x[t * ldx + k0 + k];
    __syncthreads();
    if (n >= out) return;
    float sum = 0.f;
#pragma unroll 16
    for (int k = 0; k < steps; k++) sum = fmaf(xs[k], w[(k0 + k) * out + n], sum);
    part[(blockIdx.y * T + t) * out + n] = sum;
}
static __global__ void add_panels(const float *part, float *y, size_t ldy, size_t T, size_t out, size_t panels, const float *bias, bool accumulate)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= T * out) return;
    float total = part[i];
    for (size_t p = 1; p < panels; p++) total += part[p * T * out + i];
    put(y + i / out * ldy + i % out, total, bias ? bias + i % out : NULL, accumulate);
}

static mla_status linear_f32(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    const float *bias = a->bias ? cf32p(a->bias) : NULL, *wd = (const float *)w->data;
    const size_t panels = (w->in + PANEL - 1) / PANEL;
    if (a->T > FEW) {
        for (size_t t0 = 0; t0 < a->T; t0 += 65535 * (size_t)TILE) {
            const size_t n = a->T - t0 < 65535 * (size_t)TILE ? a->T - t0 : 65535 * (size_t)TILE;
            linear_f32_tile<<<dim3(grid_of(w->out, TILE), grid_of(n, TILE)), 256, 0, c->stream>>>(
                wd, cf32p(a->x) + t0 * a->ldx, f32p(a->y) + t0 * a->ldy, a->ldx, a->ldy, n, w->in, w->out, bias, a->accumulate);
        }
        return launched("linear f32", err);
    }
    char *part;
    mla_status st = cu_scratch(c, panels * a->T * w->out * 4, "linear f32", &part, err);
    if (st) return st;
    linear_f32_panel<<<dim3(grid_of(w->out, COLS), (unsigned)panels, (unsigned)a->T), COLS, 0, c->stream>>>(wd, cf32p(a->x), (float *)part,
                                                                                                         a->ldx, a->T, w->in, w->out);
    add_panels<<<grid_of(a->T * w->out, 256), 256, 0, c->stream>>>((float *)part, f32p(a->y), a->ldy, a->T, w->out, panels, bias, a->accumulate);
    return launched("linear f32", err);
}

/* ---- bf16 */

/* Grid (in8 / 8 / 128, rows): a thread rounds 8 neighbours; wide: rows of x start on 16 bytes. */
static __global__ void __launch_bounds__(128) round_rows(__nv_bfloat16 *y, const float *x, size_t ldx, size_t T, size_t in, size_t in8, bool wide)
{
    const size_t i = (blockIdx.x * (size_t)128 + threadIdx.x) * 8, t = blockIdx.y + blockIdx.z * (size_t)ROWS_Y;
    if (i >= in8 || t >= T) return;
    const float *from = x + t * ldx + i;
    float v[8];
    if (wide && i + 8 <= in) {
        *(float4 *)v = *(const float4 *)from;
        *(float4 *)(v + 4) = *(const float4 *)(from + 4);
    } else {
        for (int e = 0; e < 8; e++) v[e] = i + e < in ? from[e] : 0.f;
    }
    uint32_t r[4];
    for (int e = 0; e < 4; e++) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * e], v[2 * e + 1]);
        r[e] = *(const uint32_t *)&two;
    }
    *(uint4 *)(y + t * in8 + i) = make_uint4(r[0], r[1], r[2], r[3]);
}
static __global__ void put_rows(float *y, size_t ldy, const float *sum, size_t ldsum, size_t T, size_t out, const float *bias, bool accumulate)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < T * out) put(y + i / out * ldy + i % out, sum[i / out * ldsum + i % out], bias ? bias + i % out : NULL, accumulate);
}

/* C (T, out; ldc) = X (T, in8) W^T, in cuBLAS's column-major eyes C^T = W X^T. */
static mla_status gemm_bf16(mla_cuda *c, const mla_weight *w, const void *x, float *y, size_t ldc, size_t T, mla_err *err)
{
    cublasLtMatmulDesc_t op = NULL;
    cublasLtMatrixLayout_t A = NULL, B = NULL, C = NULL;
    cublasLtMatmulPreference_t pref = NULL;
    cublasLtMatmulHeuristicResult_t found = {};
    int n = 0;
    const float one = 1.f, zero = 0.f;
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
    if (!s) s = cublasLtMatmul(c->lt, op, &one, w->data, A, x, B, &zero, y, C, y, C, &found.algo, c->lt_space, LT_SPACE, c->stream);
    if (pref) cublasLtMatmulPreferenceDestroy(pref);
    if (C) cublasLtMatrixLayoutDestroy(C);
    if (B) cublasLtMatrixLayoutDestroy(B);
    if (A) cublasLtMatrixLayoutDestroy(A);
    if (op) cublasLtMatmulDescDestroy(op);
    return cublas_ok(s, "linear bf16", err);
}

/* Few tokens where linear_few.cu does not serve: a warp takes R rows of W, a lane 8 neighbouring values at a time; x is rounded on the way and comes from L1. */
template <int T, int R>
static __global__ void __launch_bounds__(256) linear_bf16_few(const __nv_bfloat16 *w, size_t in, size_t out, const float *x, size_t ldx, int tokens,
                                                              float *y, size_t ldy, const float *bias, bool accumulate)
{
    const size_t row0 = (blockIdx.x * (size_t)8 + threadIdx.x / 32) * R;
    const int lane = threadIdx.x % 32;
    const uint4 *rows[R];
    float sum[R][T] = {};
    if (row0 >= out) return;
    for (int r = 0; r < R; r++) rows[r] = (const uint4 *)(w + (row0 + r < out ? row0 + r : out - 1) * in);
#pragma unroll 4
    for (size_t i = lane; i < in / 8; i += 32) {
        uint4 v[R];
#pragma unroll
        for (int r = 0; r < R; r++) v[r] = __ldcs(rows[r] + i);
#pragma unroll
        for (int t = 0; t < T; t++) {
            const float4 *xt = (const float4 *)(x + (t < tokens ? t : 0) * ldx) + 2 * i, a = xt[0], b = xt[1];
            const float e[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            float q[8];
#pragma unroll
            for (int k = 0; k < 8; k++) q[k] = __bfloat162float(__float2bfloat16_rn(e[k]));
#pragma unroll
            for (int r = 0; r < R; r++) {
                const uint32_t u[4] = {v[r].x, v[r].y, v[r].z, v[r].w};
#pragma unroll
                for (int k = 0; k < 4; k++)
                    sum[r][t] = fmaf(__uint_as_float(u[k] & 0xffff0000u), q[2 * k + 1], fmaf(__uint_as_float(u[k] << 16), q[2 * k], sum[r][t]));
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int t = 0; t < T; t++) {
            for (int o = 16; o; o >>= 1) sum[r][t] += __shfl_xor_sync(~0u, sum[r][t], o);
            if (lane == 0 && row0 + r < out && t < tokens) put(y + t * ldy + row0 + r, sum[r][t], bias ? bias + row0 + r : NULL, accumulate);
        }
}
template <int T, int R> static mla_status run_few(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    linear_bf16_few<T, R><<<grid_of(w->out, 8 * R), 256, 0, c->stream>>>((const __nv_bfloat16 *)w->data, w->in, w->out, cf32p(a->x), a->ldx, (int)a->T,
                                                                         f32p(a->y), a->ldy, a->bias ? cf32p(a->bias) : NULL, a->accumulate);
    return launched("linear bf16", err);
}

static mla_status linear_bf16(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    const bool direct = !a->bias && !a->accumulate && !((uintptr_t)a->y % 16) && a->ldy % 4 == 0;
    if (a->T <= 8 && w->in == w->in8 && a->ldx % 4 == 0 && (uintptr_t)a->x % 16 == 0)
        return a->T == 1 ? run_few<1, 2>(c, w, a, err) : a->T == 2 ? run_few<2, 2>(c, w, a, err) : a->T <= 4 ? run_few<4, 4>(c, w, a, err) : run_few<8, 4>(c, w, a, err);
    const size_t ld = (w->out + 3) / 4 * 4, xb = pad256(a->T * w->in8 * 2);
    char *s;
    mla_status st = cu_scratch(c, xb + (direct ? 0 : a->T * ld * 4), "linear bf16", &s, err);
    if (st) return st;
    const dim3 grid(grid_of(w->in8, 1024), (unsigned)(a->T < ROWS_Y ? a->T : (size_t)ROWS_Y), grid_of(a->T, ROWS_Y));
    round_rows<<<grid, 128, 0, c->stream>>>((__nv_bfloat16 *)s, cf32p(a->x), a->ldx, a->T, w->in, w->in8, a->ldx % 4 == 0 && (uintptr_t)a->x % 16 == 0);
    if ((st = launched("linear bf16", err))) return st;
    if (direct) return gemm_bf16(c, w, s, f32p(a->y), a->ldy, a->T, err);
    float *sum = (float *)(s + xb);
    if ((st = gemm_bf16(c, w, s, sum, ld, a->T, err))) return st;
    put_rows<<<grid_of(a->T * w->out, 256), 256, 0, c->stream>>>(f32p(a->y), a->ldy, sum, ld, a->T, w->out, a->bias ? cf32p(a->bias) : NULL, a->accumulate);
    return launched("linear bf16", err);
}

/* The layers as one launch of linear_few.cu; false: they do not fit it. */
static bool few_of(FewP *p, mla_cuda *c, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n)
{
    *p = FewP{};
    if (c->major != 9 || n == 0 || n > FEW_JOBS || jobs[0].a.T > FEW_TOKENS || (norm && norm->d <= SHORT)) return false; /* short rows have a norm of their own */
    p->n = (int)n, p->T = (int)jobs[0].a.T;
    for (size_t i = 0; i < n; i++) {
        const mla_linear_args *a = &jobs[i].a;
        const mla_weight *w = jobs[i].w;
        if (a->T != jobs[0].a.T || w->precision != MLA_PREC_BF16 || w->in != w->in8 || w->codes || w->trellis) return false;
        if (norm && (norm->y != a->x || norm->ldy != a->ldx || norm->rows != a->T || norm->d != w->in || (uintptr_t)norm->gain % 16)) return false;
        p->job[i] = FewJob{(const __nv_bfloat16 *)w->data, NULL, cf32p(norm ? norm->x : a->x), a->bias ? cf32p(a->bias) : NULL, f32p(a->y),
                           (long long)(norm ? norm->ldx : a->ldx), (long long)a->ldy, (int)w->in, (int)w->out, a->accumulate, 0, 0, 0};
    }
    if (norm) p->gain = cf32p(norm->gain), p->eps = norm->eps;
    return few_fits(p);
}

mla_status linear_decoded(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    return w->precision == MLA_PREC_F32 ? linear_f32(c, w, a, err) : linear_bf16(c, w, a, err);
}

size_t tile_outputs(const mla_weight *w)
{
    const size_t row = w->precision == MLA_PREC_F32 ? w->in * 4 : w->in8 * 2, n = TILE_BYTES / row / 8 * 8;
    return n < 64 ? 64 : n;
}

/* Codes: tiles of outputs are decoded one after the other, each multiplied as a weight of its own. */
static mla_status linear_codes(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    char *tile;
    const size_t most = tile_outputs(w);
    mla_status st = cu_tile(c, (most < w->out ? most : w->out) * (w->precision == MLA_PREC_F32 ? w->in * 4 : w->in8 * 2), "packed weight", &tile, err);
    for (size_t o = 0; !st && o < w->out; o += most) {
        const mla_weight part = {most < w->out - o ? most : w->out - o, w->in, w->in8, 0, w->precision, tile, NULL, NULL, NULL};
        mla_linear_args b = *a;
        b.y = mla_at(a->y, o);
        if (a->bias) b.bias = mla_at(a->bias, o);
        st = codes_decode(c, w, tile, o, part.out, err);
        if (!st) st = linear_decoded(c, &part, &b, err);
    }
    return st;
}

mla_status cu_linear(mla_backend *be, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    const mla_linear_job job = {w, *a};
    mla_cuda *c = cu_of(be);
    FewP p;
    if (a->T == 0) return MLA_OK;
    if (w->trellis) return trellis_linear(c, w, a, err);
    if (w->codes) return w->precision == MLA_PREC_BF16 && codes_few_fits(w, a->T) ? codes_few_run(c, w, a, err) : linear_codes(c, w, a, err);
    if (few_of(&p, c, NULL, &job, 1)) return few_run(&p, c->sms, c->stream, err);
    return linear_decoded(c, w, a, err);
}

mla_status cu_linears(mla_backend *be, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, mla_err *err)
{
    FewP p;
    if (!norm && n > FEW_JOBS) { /* several launches of as many as one takes */
        for (mla_status st; n > FEW_JOBS; jobs += FEW_JOBS, n -= FEW_JOBS)
            if ((st = cu_linears(be, NULL, jobs, FEW_JOBS, err))) return st;
    }
    if (n && jobs[0].a.T && few_of(&p, cu_of(be), norm, jobs, n)) return few_run(&p, cu_of(be)->sms, cu_of(be)->stream, err);
    return mla_linears_singly(be, norm, jobs, n, err);
}

mla_status cu_gated(mla_backend *be, const mla_norm_args *norm, const mla_gated_args *a, mla_err *err)
{
    const mla_linear_job job = {a->gate, {a->g, a->out, a->x, a->ldx, a->T, NULL, false}};
    FewP p;
    if (a->gate->out != a->out || a->up->out != a->out || a->gate->in != a->up->in)
        return mla_fail(err, MLA_EINVAL, "gated layer: (%zu, %zu) and (%zu, %zu), expected (%zu, in) both", a->gate->out, a->gate->in, a->up->out, a->up->in, a->out);
    if (!a->T || a->up->precision != MLA_PREC_BF16 || a->up->codes || a->up->trellis || !few_of(&p, cu_of(be), norm, &job, 1)) return mla_gated_singly(be, norm, a, err);
    p.pairs = 1, p.job[0].w2 = (const __nv_bfloat16 *)a->up->data;
    return few_run(&p, cu_of(be)->sms, cu_of(be)->stream, err);
}

static __global__ void embed_rows(float *y, const void *w, const int32_t *ids, size_t T, size_t in, size_t in8, size_t out, bool f32)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= T * in) return;
    const size_t id = (size_t)ids[i / in], k = i % in;
    y[i] = f32 ? ((const float *)w)[k * out + id] : __bfloat162float(((const __nv_bfloat16 *)w)[id * in8 + k]);
}

mla_status cu_embed(mla_backend *be, const mla_weight *w, mla_mem *y, const int32_t *ids, size_t T, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    char *s;
    for (size_t t = 0; t < T; t++)
        if (ids[t] < 0 || (size_t)ids[t] >= w->out)
            return mla_fail(err, MLA_EINVAL, "token id %d at %zu: vocabulary has %zu", (int)ids[t], t, w->out);
    if (T == 0) return MLA_OK;
    mla_status st = cu_scratch(c, T * 4, "embed", &s, err);
    if (!st) st = cu_put_i32(c, s, ids, T, "embed", err);
    if (st) return st;
    if (w->codes) return codes_embed(c, w, f32p(y), (const int32_t *)s, T, err);
    if (w->trellis) return mla_fail(err, MLA_EUNSUPPORTED, "embed: rows of a packed EXL3 matrix");
    embed_rows<<<grid_of(T * w->in, 256), 256, 0, c->stream>>>(f32p(y), w->data, (const int32_t *)s, T, w->in, w->in8, w->out,
                                                               w->precision == MLA_PREC_F32);
    return launched("embed", err);
}
