/* Linear layers: f32 by the contract's own sequence of fused multiply-adds, bf16 of many tokens by linear_many.cu, of few by linear_few.cu. */
#include <stdlib.h>

#include "cuda/be.cuh"
#include "cuda/linear_few.cuh"
#include "cuda/rows.cuh"

enum { PANEL = 256, TILE = 64, STEP = 16, FEW = 16, COLS = 128 };

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
    const mla_linear_job job = {w, *a};
    if (!w->codes && a->T <= 8 && w->in == w->in8 && a->ldx % 4 == 0 && (uintptr_t)a->x % 16 == 0)
        return a->T == 1 ? run_few<1, 2>(c, w, a, err) : a->T == 2 ? run_few<2, 2>(c, w, a, err) : a->T <= 4 ? run_few<4, 4>(c, w, a, err) : run_few<8, 4>(c, w, a, err);
    return many_run(c, NULL, &job, 1, 0, err);
}

mla_status cu_few_flush(mla_cuda *c, mla_err *err)
{
    if (!c->few || !c->few->phases) return MLA_OK;
    const mla_status st = few_run(c->few, c->sms, c->few_sync, c->few_turn++, c->stream, err);
    c->few->phases = c->few->x = 0;
    return st;
}
/* The layers as a phase of linear_few.cu, queued at once or, while recording, together with the phases that follow; gated: the
 * one layer by its `up`. false: they do not fit. */
static bool few_queue(mla_cuda *c, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, const mla_gated_args *gated, mla_status *st, mla_err *err)
{
    FewPhase phase = {};
    FewJob job[FEW_JOBS];
    FewP p = {};
    if (c->major != 9 || n == 0 || n > FEW_JOBS || jobs[0].a.T > FEW_TOKENS || (norm && norm->d <= SHORT)) return false; /* short rows have a norm of their own */
    for (size_t i = 0; i < n; i++) {
        const mla_linear_args *a = &jobs[i].a;
        const mla_weight *w = jobs[i].w;
        if (a->T != jobs[0].a.T || w->precision != MLA_PREC_BF16 || w->in != w->in8 || w->codes || w->trellis) return false;
        if (norm && (norm->y != a->x || norm->ldy != a->ldx || norm->rows != a->T || norm->d != w->in || (uintptr_t)norm->gain % 16)) return false;
        job[i] = FewJob{(const __nv_bfloat16 *)w->data, NULL, cf32p(norm ? norm->x : a->x), a->bias ? cf32p(a->bias) : NULL, f32p(a->y),
                        (long long)(norm ? norm->ldx : a->ldx), (long long)a->ldy, (int)w->in, (int)w->out, a->accumulate, NULL, NULL, 0, 0, 0};
    }
    phase.jobs = (int)n, phase.T = (int)jobs[0].a.T;
    if (gated) phase.pairs = 1, job[0].w2 = (const __nv_bfloat16 *)gated->up->data;
    if (gated && c->recording) job[0].half = (__nv_bfloat16 *)gated->u;
    if (norm) phase.gain = cf32p(norm->gain), phase.eps = norm->eps;
    if (!few_phase(&p, &phase, job)) return false;
    *st = MLA_OK;
    if (c->recording) { /* the layer after a gated one takes its result rounded, if they come together */
        const FewPhase *before = c->few->phases ? &c->few->phase[c->few->phases - 1] : NULL;
        const FewJob *gave = before ? &c->few->job[before->job0] : NULL;
        if (before && before->pairs && n == 1 && !norm && gave->half && gave->y == job[0].x && gave->ldy == job[0].ldx && before->T == phase.T) job[0].xh = gave->half;
    }
    if (!c->recording) *st = few_run(&p, c->sms, c->few_sync, c->few_turn++, c->stream, err);
    else if (!(*st = cu_mix_flush(c, err)) && !(*st = cu_heads_flush(c, err)) && !few_phase(c->few, &phase, job) && !(*st = cu_few_flush(c, err))) *c->few = p;
    return true;
}

mla_status linear_decoded(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    return w->precision == MLA_PREC_F32 ? linear_f32(c, w, a, err) : linear_bf16(c, w, a, err);
}

/* Codes in f32: a tile is a weight of its own. */
static mla_status linear_codes(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    return each_tile(c, w, a, err, [&](const mla_weight *part, const mla_linear_args *b) { return linear_f32(c, part, b, err); });
}

mla_status cu_linear(mla_backend *be, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    const mla_linear_job job = {w, *a};
    mla_cuda *c = cu_of(be);
    mla_status st = cu_arrived(c, err);
    if (st) return st;
    if (a->T == 0 || few_queue(c, NULL, &job, 1, NULL, &st, err)) return a->T ? st : MLA_OK;
    if ((st = cu_flush(c, err))) return st;
    if (w->trellis) return trellis_linear(c, w, a, err);
    if (w->codes && w->precision == MLA_PREC_F32) return linear_codes(c, w, a, err);
    if (w->codes && codes_few_fits(w, a->T)) return codes_few_run(c, w, a, err);
    return linear_decoded(c, w, a, err);
}

mla_status cu_linears(mla_backend *be, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, mla_err *err)
{
    mla_status st = cu_arrived(cu_of(be), err);
    if (st) return st;
    if (!norm && n > FEW_JOBS) { /* several launches of as many as one takes */
        for (; n > FEW_JOBS; jobs += FEW_JOBS, n -= FEW_JOBS)
            if ((st = cu_linears(be, NULL, jobs, FEW_JOBS, err))) return st;
    }
    if (few_queue(cu_of(be), norm, jobs, n, NULL, &st, err) || (st = cu_flush(cu_of(be), err))) return st;
    if (n && jobs[0].a.T > FEW_TOKENS && many_fits(norm, jobs, n)) return many_run(cu_of(be), norm, jobs, n, 0, err);
    return mla_linears_singly(be, norm, jobs, n, err);
}

mla_status cu_gated(mla_backend *be, const mla_norm_args *norm, const mla_gated_args *a, mla_err *err)
{
    const mla_linear_job job = {a->gate, {a->g, a->out, a->x, a->ldx, a->T, NULL, false}};
    mla_status st = cu_arrived(cu_of(be), err);
    if (st) return st;
    if (a->gate->out != a->out || a->up->out != a->out || a->gate->in != a->up->in)
        return mla_fail(err, MLA_EINVAL, "gated layer: (%zu, %zu) and (%zu, %zu), expected (%zu, in) both", a->gate->out, a->gate->in, a->up->out, a->up->in, a->out);
    const bool bf16 = a->up->precision == MLA_PREC_BF16 && !a->up->codes && !a->up->trellis;
    return bf16 && few_queue(cu_of(be), norm, &job, 1, a, &st, err) ? st : mla_gated_singly(be, norm, a, err);
}

mla_status cu_mlp(mla_backend *be, const mla_norm_args *norm, const mla_gated_args *a, const mla_linear_job *down, mla_err *err)
{
    if (a->T <= FEW_TOKENS || !many_mlp_fits(norm, a, down)) return mla_mlp_singly(be, norm, a, down, err);
    mla_status st = cu_arrived(cu_of(be), err);
    if (!st) st = cu_flush(cu_of(be), err);
    return st ? st : many_mlp(cu_of(be), norm, a, down, err);
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
    mla_status st = cu_arrived(c, err);
    if (!st) st = cu_scratch(c, T * 4, "embed", &s, err);
    if (!st) st = cu_put_i32(c, s, ids, T, "embed", err);
    if (st) return st;
    if (w->codes) return codes_embed(c, w, f32p(y), (const int32_t *)s, T, err);
    if (w->trellis) return mla_fail(err, MLA_EUNSUPPORTED, "embed: rows of a packed EXL3 matrix");
    embed_rows<<<grid_of(T * w->in, 256), 256, 0, c->stream>>>(f32p(y), w->data, (const int32_t *)s, T, w->in, w->in8, w->out,
                                                               w->precision == MLA_PREC_F32);
    return launched("embed", err);
}
