/* Row-wise operations: norms, rotary embedding, activations, strided copies, reading and writing the cache. */
#include "cuda/be.cuh"
#include "cuda/ptx.cuh"
#include "cuda/row_ops.cuh"
#include "cuda/rows.cuh"

/* One block per row; z != NULL: times silu(z). */
static __global__ void __launch_bounds__(ROW) norm_kernel(float *y, size_t ldy, const float *x, size_t ldx, size_t d, const float *gain, const float *z, double eps)
{
    const size_t r = blockIdx.x;
    grid_release();
    grid_wait();
    const float inv = row_scale(x + r * ldx, d, eps);
    for (size_t i = threadIdx.x; i < d; i += ROW) {
        const float v = __ldcg(x + r * ldx + i) * inv * gain[i];
        y[r * ldy + i] = z ? v * silu(__ldcg(z + r * d + i)) : v;
    }
}
/* Short rows: a warp each. */
static __global__ void __launch_bounds__(ROW) norm_short(float *y, size_t ldy, const float *x, size_t ldx, size_t rows, size_t d, const float *gain, const float *z, double eps)
{
    const size_t r = blockIdx.x * (size_t)(ROW / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    float v[SHORT / 32];
    double s = 0.0;
    grid_release();
    grid_wait();
    if (r >= rows) return;
#pragma unroll
    for (int k = 0; k < SHORT / 32; k++) {
        const size_t i = lane + 32 * k;
        v[k] = i < d ? __ldcg(x + r * ldx + i) : 0.f;
        s += (double)v[k] * v[k];
    }
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    const float inv = (float)(1.0 / sqrt(s / (double)d + eps));
#pragma unroll
    for (int k = 0; k < SHORT / 32; k++) {
        const size_t i = lane + 32 * k;
        if (i >= d) continue;
        const float u = v[k] * inv * gain[i];
        y[r * ldy + i] = z ? u * silu(__ldcg(z + r * d + i)) : u;
    }
}
static mla_status run_norm(mla_backend *be, float *y, size_t ldy, const float *x, size_t ldx, size_t rows, size_t d, const float *gain, const float *z, double eps,
                           const char *what, mla_err *err)
{
    if (!rows || !d) return MLA_OK;
    if (d <= SHORT) return cu_launch(cu_of(be), what, err, norm_short, grid_of(rows, ROW / 32), ROW, y, ldy, x, ldx, rows, d, gain, z, eps);
    return cu_launch(cu_of(be), what, err, norm_kernel, (unsigned)rows, ROW, y, ldy, x, ldx, d, gain, z, eps);
}
mla_status cu_rmsnorm(mla_backend *be, const mla_norm_args *a, mla_err *err)
{
    return run_norm(be, f32p(a->y), a->ldy, cf32p(a->x), a->ldx, a->rows, a->d, cf32p(a->gain), NULL, a->eps, "rmsnorm", err);
}
mla_status cu_gated_norm(mla_backend *be, const mla_gated_norm_args *a, mla_err *err)
{
    return run_norm(be, f32p(a->y), a->d, cf32p(a->x), a->d, a->rows, a->d, cf32p(a->gain), cf32p(a->z), a->eps, "gated norm", err);
}

static __global__ void rope_kernel(const __grid_constant__ RowRope p)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    grid_release();
    grid_wait();
    if (i < p.T * p.heads * p.half) rope_item(p, i / p.half / p.heads, i / p.half % p.heads, i % p.half);
}
mla_status cu_rope(mla_backend *be, const mla_rope_args *a, mla_err *err)
{
    if (a->rot % 2) return mla_fail(err, MLA_EINVAL, "rope: %zu rotated dims, must be even", a->rot);
    const size_t n = a->T * a->heads * (a->rot / 2);
    return n ? cu_launch(cu_of(be), "rope", err, rope_kernel, grid_of(n, 256), 256, row_rope(a)) : MLA_OK;
}

enum Flat { ADD, ADD_ROWS, SILU_MUL, SIGMOID_MUL, COPY };
enum { LONG = 1 << 16 }; /* values from which on a thread takes four */
template <Flat OP> static __device__ __forceinline__ float flat_value(float old, float v, float b, float s)
{
    return OP == ADD ? old + v : OP == ADD_ROWS ? fmaf(s, v, old) : OP == SILU_MUL ? silu(v) * b : OP == SIGMOID_MUL ? gated(old, v) : v;
}
/* y (rows, d; ldy) with a (rows, d; lda) and b: one element per thread. */
template <Flat OP> static __global__ void flat(float *y, size_t ldy, const float *a, size_t lda, const float *b, size_t d, size_t n, float s)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    grid_release();
    grid_wait();
    if (i >= n) return;
    const size_t r = d == n ? 0 : i / d, e = i - r * d; /* one long row needs no division */
    float *o = y + r * ldy + e;
    const float v = __ldcg(OP == ADD_ROWS ? a + e : a + r * lda + e);
    *o = flat_value<OP>(OP == SILU_MUL || OP == COPY ? 0.f : __ldcg(o), v, OP == SILU_MUL ? __ldcg(b + i) : 0.f, s);
}
/* The same, four neighbours per thread, all rows on 16 bytes; d4, n4: fours of a row and of all. */
template <Flat OP> static __global__ void flat4(float *y, size_t ldy, const float *a, size_t lda, const float *b, uint32_t d4, uint32_t n4, float s)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    grid_release();
    grid_wait();
    if (i >= n4) return;
    const uint32_t r = i / d4, e = 4 * (i - r * d4);
    float4 *o = (float4 *)(y + r * ldy + e), old = make_float4(0.f, 0.f, 0.f, 0.f), u = old;
    const float4 v = __ldcg((const float4 *)(OP == ADD_ROWS ? a + e : a + r * lda + e));
    if (OP != SILU_MUL && OP != COPY) old = __ldcg(o);
    if (OP == SILU_MUL) u = __ldcg((const float4 *)b + i);
    *o = make_float4(flat_value<OP>(old.x, v.x, u.x, s), flat_value<OP>(old.y, v.y, u.y, s), flat_value<OP>(old.z, v.z, u.z, s), flat_value<OP>(old.w, v.w, u.w, s));
}
template <Flat OP>
static mla_status run_flat(mla_backend *be, mla_mem *y, size_t ldy, const mla_mem *a, size_t lda, const mla_mem *b, size_t rows, size_t d, float s,
                           const char *what, mla_err *err)
{
    const size_t n = rows * d;
    const float *bp = b ? cf32p(b) : nullptr;
    if (!n) return MLA_OK;
    if (n >= LONG && n / 4 < UINT32_MAX && d % 4 == 0 && ldy % 4 == 0 && lda % 4 == 0 && ((uintptr_t)y | (uintptr_t)a | (uintptr_t)b) % 16 == 0)
        return cu_launch(cu_of(be), what, err, flat4<OP>, grid_of(n / 4, 256), 256, f32p(y), ldy, cf32p(a), lda, bp, (uint32_t)(d / 4), (uint32_t)(n / 4), s);
    return cu_launch(cu_of(be), what, err, flat<OP>, grid_of(n, 256), 256, f32p(y), ldy, cf32p(a), lda, bp, d, n, s);
}
mla_status cu_add(mla_backend *be, mla_mem *y, const mla_mem *x, size_t n, mla_err *err) { return run_flat<ADD>(be, y, n, x, n, NULL, 1, n, 1.f, "add", err); }
mla_status cu_add_rows(mla_backend *be, mla_mem *y, size_t ldy, size_t rows, size_t d, const mla_mem *v, float s, mla_err *err)
{
    return run_flat<ADD_ROWS>(be, y, ldy, v, 0, NULL, rows, d, s, "add_rows", err);
}
mla_status cu_silu_mul(mla_backend *be, mla_mem *y, const mla_mem *a, const mla_mem *b, size_t n, mla_err *err)
{
    return run_flat<SILU_MUL>(be, y, n, a, n, b, 1, n, 1.f, "silu_mul", err);
}
mla_status cu_sigmoid_mul(mla_backend *be, mla_mem *x, const mla_mem *gate, size_t rows, size_t d, size_t ldg, mla_err *err)
{
    return run_flat<SIGMOID_MUL>(be, x, d, gate, ldg, NULL, rows, d, 1.f, "sigmoid_mul", err);
}
mla_status cu_copy_rows(mla_backend *be, mla_mem *y, size_t ldy, const mla_mem *x, size_t ldx, size_t rows, size_t d, mla_err *err)
{
    return run_flat<COPY>(be, y, ldy, x, ldx, NULL, rows, d, 1.f, "copy_rows", err);
}

static mla_status view_of(mla_cuda *c, AttnView *out, const mla_kv_view *v, const mla_cursor *at, size_t tokens, char *pages, const char *what, mla_err *err)
{
    const bool paged = v->pages || at;
    if (paged && (!v->page_tokens || v->page_tokens > INT32_MAX))
        return mla_fail(err, MLA_EINVAL, "%s: pages of %zu tokens", what, v->page_tokens);
    if (!(v->scale > 0)) return mla_fail(err, MLA_EINVAL, "%s: scale %g: expected > 0", what, (double)v->scale);
    *out = AttnView{v->data, NULL, 0, (long long)v->row_elems, (long long)v->col, (long long)v->head_stride,
                    paged ? (int)v->page_tokens : 1, v->dtype, v->scale};
    if (at) out->pages = (const int32_t *)at->pages;
    if (at || !v->pages) return MLA_OK;
    out->pages = (const int32_t *)pages;
    return cu_put_i32(c, pages, v->pages, (tokens + v->page_tokens - 1) / v->page_tokens, what, err);
}
mla_status cu_view(mla_cuda *c, AttnView *out, const mla_kv_view *v, const mla_cursor *at, size_t tokens, char *pages, const char *what, mla_err *err)
{
    if (v->dtype != MLA_F32 && v->dtype != MLA_BF16 && v->dtype != MLA_F8_E4M3)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: cache dtype %s: expected F32, BF16 or F8_E4M3", what, mla_dtype_name(v->dtype));
    return view_of(c, out, v, at, tokens, pages, what, err);
}
/* The same of divisors. */
static mla_status div_view(mla_cuda *c, AttnView *out, const mla_kv_view *v, const mla_cursor *at, size_t tokens, char *pages, const char *what, mla_err *err)
{
    if (v->dtype != MLA_F32 && v->dtype != MLA_F16 && v->dtype != MLA_U8)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: divisors in %s: expected F32, F16 or U8 (log2 code)", what, mla_dtype_name(v->dtype));
    return view_of(c, out, v, at, tokens, pages, what, err);
}

static __global__ void kv_write_kernel(const __grid_constant__ RowKvWrite p)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    grid_release();
    grid_wait();
    if (i >= p.T * p.width) return;
    const size_t t = i / p.width, e = i % p.width;
    kv_store(p.v, kv_row(p, t) + e, __ldcg(p.x + t * p.ldx + e));
}
mla_status cu_kv_write(mla_backend *be, const mla_kv_write_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    AttnView v = {};
    char *s;
    mla_status st = cu_scratch(c, a->to.pages && !a->at ? (a->pos0 + a->T) * 4 : 4, "kv_write", &s, err);
    if (!st) st = cu_view(c, &v, &a->to, a->at, a->pos0 + a->T, s, "kv_write", err);
    if (st || !a->T || !a->width) return st;
    return cu_launch(c, "kv_write", err, kv_write_kernel, grid_of(a->T * a->width, 256), 256, row_kv_write(a, v));
}

static __global__ void kv_read_kernel(AttnView v, float *y, size_t ldy, size_t width, size_t s0, size_t n)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i / width * ldy + i % width] = view_value(v, view_row(v, 0, (long long)(s0 + i / width), 0) + i % width);
}
mla_status cu_kv_read(mla_backend *be, const mla_kv_read_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    AttnView v = {};
    char *s;
    mla_status st = cu_scratch(c, a->from.pages ? (a->s0 + a->n) * 4 : 4, "kv_read", &s, err);
    if (!st) st = cu_view(c, &v, &a->from, NULL, a->s0 + a->n, s, "kv_read", err);
    if (st || !a->n || !a->width) return st;
    kv_read_kernel<<<grid_of(a->n * a->width, 256), 256, 0, c->stream>>>(v, f32p(a->y), a->ldy, a->width, a->s0, a->n * a->width);
    return launched("kv_read", err);
}

/* A warp per token and head; rounded as lib/backend/cpu/divisor.c says. */
static __global__ void divisor_kernel(AttnView v, const float *x, size_t ldx, size_t T, size_t heads, size_t d, size_t pos0, const float *center, double eps)
{
    const size_t i = blockIdx.x * (size_t)(ROW / 32) + threadIdx.x / 32, t = i / heads, h = i % heads;
    if (t >= T) return;
    double s = 0.0;
    for (size_t e = threadIdx.x % 32; e < d; e += 32) s += (double)x[t * ldx + h * d + e] * x[t * ldx + h * d + e];
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x % 32) return;
    const size_t at = view_row(v, 0, (long long)(pos0 + t), 0) + h;
    const float y = (float)(sqrt(s / (double)d + eps) / center[h]);
    if (v.dtype == MLA_F32) ((float *)v.data)[at] = y;
    else if (v.dtype == MLA_F16) ((__half *)v.data)[at] = __float2half_rn(y < 0x1p-14f ? 0x1p-14f : y > 65504.f ? 65504.f : y);
    else {
        const double c = y > 0 ? rint(log2((double)y) * MLA_LOG2_STEPS) + MLA_LOG2_ONE : 0.0;
        ((uint8_t *)v.data)[at] = c <= 0 ? 0 : c >= 255 ? 255 : (uint8_t)c;
    }
}
mla_status cu_divisor(mla_backend *be, const mla_divisor_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    AttnView v = {};
    char *s;
    mla_status st = cu_scratch(c, a->to.pages ? (a->pos0 + a->T) * 4 : 4, "divisors", &s, err);
    if (!st) st = div_view(c, &v, &a->to, NULL, a->pos0 + a->T, s, "divisors", err);
    if (st || !a->T || !a->heads) return st;
    divisor_kernel<<<grid_of(a->T * a->heads, ROW / 32), ROW, 0, c->stream>>>(v, cf32p(a->x), a->ldx, a->T, a->heads, a->d, a->pos0, cf32p(a->center), a->eps);
    return launched("divisors", err);
}

mla_status cu_attention(mla_backend *be, const mla_attn_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    const size_t S = a->pos0 + a->T, k2h = a->q2 ? a->k2h : 1, table = pad256(S * 4);
    if (!a->H || !a->kh || !a->vh || !k2h || a->H % a->kh || a->H % a->vh || a->H % k2h)
        return mla_fail(err, MLA_EINVAL, "attention: %zu heads over %zu K, %zu rotary K and %zu V heads: must divide", a->H, a->kh, k2h, a->vh);
    if (!a->dk || !a->dv || (a->q2 && !a->dk2)) return mla_fail(err, MLA_EINVAL, "attention: empty head");
    char *s;
    AttnP p = {};
    if (a->at && (a->p2 || a->probs || a->divh)) return mla_fail(err, MLA_EINVAL, "attention with a cursor: not observed, and without divisors");
    if (a->divh && a->H % a->divh) return mla_fail(err, MLA_EINVAL, "attention: %zu heads over %zu divisors: must divide", a->H, a->divh);
    if (attn_decode_fits(a)) return attn_decode(c, a, err);
    const bool fast = !a->at && attn_bf16_fits(a);
    const size_t lse = pad256(a->T * a->H * 4);
    mla_status st = cu_scratch(c, 4 * table + lse + (fast ? attn_bf16_bytes(a) : 0), "attention", &s, err);
    if (!st) st = cu_view(c, &p.k, &a->k, a->at, S, s, "attention k", err);
    if (!st && a->q2) st = cu_view(c, &p.k2, &a->k2, a->at, S, s + table, "attention k2", err);
    if (!st) st = cu_view(c, &p.v, &a->v, a->at, S, s + 2 * table, "attention v", err);
    if (!st && a->divh) st = div_view(c, &p.div, &a->div, NULL, S, s + 3 * table, "attention", err);
    if (st || !a->T) return st;
    p.B = 1, p.T = (int)a->T, p.H = (int)a->H, p.dk = (int)a->dk, p.dk2 = a->q2 ? (int)a->dk2 : 0, p.dv = (int)a->dv;
    p.kh = (int)a->kh, p.k2h = (int)k2h, p.vh = (int)a->vh;
    p.q = DecodeRows{a->q, 0, (long long)a->ldq, (long long)a->qh_stride, true, false};
    p.q2 = DecodeRows{a->q2, 0, (long long)a->ldq2, (long long)a->q2h_stride, true, false};
    p.o = DecodeRows{a->o, 0, (long long)a->ldo, (long long)a->dv, true, false};
    p.pos0 = (long long)a->pos0, p.scale = a->scale;
    p.divh = (int)a->divh, p.qb = a->qb ? cf32p(a->qb) : NULL;
    if (fast) return attn_bf16(c, a, &p, s + 4 * table + lse, err);
    p.lse = (float *)(s + 4 * table);
    p.len = a->at ? (const int32_t *)a->at->len : NULL;
    st = attn_plain(&p, c->stream, err);
    if (!st && a->p2) st = attn_p2(&p, f64p(a->p2), c->stream, err);
    if (!st && a->probs) st = attn_probs(&p, f32p(a->probs), c->stream, err);
    return st;
}
