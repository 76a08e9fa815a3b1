/* EXL3: y = sv H V' H (su x) / 128. Activations are scaled and transformed in blocks of 128, multiplied with the values V of
 * the codebook, decoded from their rings tile by tile (a few tokens meet them in registers: trellis_few.cu), transformed again
 * and scaled (lib/backend/cpu/trellis.c). */
#include <math.h>
#include <stdlib.h>

#include "cuda/be.cuh"
#include "cuda/ptx.cuh"
#include "cuda/trellis.cuh"

enum { THREADS = 256 };

mla_status trellis_new(mla_weight *w, const mla_coded *c, mla_err *err)
{
    const mla_trellis *t = &c->trellis;
    if (t->in128 > INT32_MAX || t->out128 > INT32_MAX || __builtin_mul_overflow(t->in128 / 16 * (t->out128 / 16), (size_t)16 * t->twice_k, &w->bytes))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", w->out, w->in);
    w->trellis = (Trellis *)calloc(1, sizeof *w->trellis);
    if (!w->trellis) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu)", w->out, w->in);
    w->trellis->in128 = (int)t->in128, w->trellis->out128 = (int)t->out128, w->trellis->twice_k = (int)t->twice_k, w->trellis->codebook = (int)t->codebook;
    return MLA_OK;
}

mla_status trellis_sides(mla_weight *w, const mla_coded *c, cudaStream_t stream, mla_err *err)
{
    Trellis *t = w->trellis;
    const size_t n = (size_t)t->in128 + (size_t)t->out128;
    float *v = (float *)malloc(n * 4);
    if (!v) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu)", w->out, w->in);
    mla_status st = MLA_OK;
    c->sides(c, v, v + t->in128);
    for (size_t i = 0; !st && i < w->in; i++)
        if (!isfinite(v[i])) st = mla_fail(err, MLA_EFORMAT, "weight (%zu, %zu): scale of input %zu is not finite", w->out, w->in, i);
    for (size_t o = 0; !st && o < w->out; o++)
        if (!isfinite(v[t->in128 + o])) st = mla_fail(err, MLA_EFORMAT, "weight (%zu, %zu): scale of output %zu is not finite", w->out, w->in, o);
    for (int o = 0; o < t->out128; o++) v[t->in128 + o] *= 0x1p-7f;
    if (!st) st = cu_ok(cudaMallocAsync(&w->side, n * 4, stream), "weight", err);
    if (!st) st = cu_ok(cudaMemcpyAsync(w->side, v, n * 4, cudaMemcpyHostToDevice, stream), "weight", err);
    if (!st) st = cu_ok(cudaStreamSynchronize(stream), "weight", err);
    free(v);
    t->tiles = (const uint8_t *)w->data, t->su = (const float *)w->side, t->sv = t->su + t->in128;
    w->bytes += n * 4;
    return st;
}

/* A warp per block of 128: y (T, in128) = H (su x), x beyond in is zero. */
static __global__ void __launch_bounds__(THREADS) side_in(float *y, const float *x, size_t ldx, size_t T, int in, int in128, const float *su)
{
    const size_t i = blockIdx.x * (size_t)(THREADS / 32) + threadIdx.x / 32, blocks = (size_t)in128 / SIDE, t = i / blocks;
    const int k0 = (int)(i % blocks) * SIDE + threadIdx.x % 32 * 4;
    if (t >= T) return;
    float v[4];
    for (int k = 0; k < 4; k++) v[k] = k0 + k < in ? x[t * ldx + k0 + k] * su[k0 + k] : 0.f;
    hadamard(v);
    *(float4 *)(y + t * (size_t)in128 + k0) = make_float4(v[0], v[1], v[2], v[3]);
}
/* The same on the other side, of `parts` sums in order. */
static __global__ void __launch_bounds__(THREADS) side_out(float *y, size_t ldy, const float *mid, size_t parts, size_t T, int out, int out128, const float *sv, const float *bias, bool accumulate)
{
    const size_t i = blockIdx.x * (size_t)(THREADS / 32) + threadIdx.x / 32, blocks = (size_t)out128 / SIDE, t = i / blocks;
    const int o0 = (int)(i % blocks) * SIDE + threadIdx.x % 32 * 4;
    grid_wait();
    grid_release();
    if (t >= T) return;
    float v[4] = {};
#pragma unroll 8
    for (size_t p = 0; p < parts; p++) {
        const float4 m = __ldcg((const float4 *)(mid + (p * T + t) * (size_t)out128 + o0));
        v[0] += m.x, v[1] += m.y, v[2] += m.z, v[3] += m.w;
    }
    hadamard(v);
    for (int k = 0; k < 4 && o0 + k < out; k++) {
        float *to = y + t * ldy + o0 + k, u = v[k] * sv[o0 + k];
        if (bias) u += __ldcg(bias + o0 + k);
        *to = accumulate ? __ldcg(to) + u : u;
    }
}
mla_status trellis_out(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, const float *mid, size_t parts, mla_err *err)
{
    const Trellis *t = w->trellis;
    return cu_launch(c, "packed EXL3", err, side_out, grid_of(a->T * t->out128 / SIDE, THREADS / 32), THREADS, f32p(a->y), a->ldy, mid, parts, a->T, (int)w->out, t->out128, t->sv,
                     a->bias ? cf32p(a->bias) : NULL, a->accumulate);
}

/* The codebook's f16 number of a state; sums and products are exact before their one rounding. */
static __device__ __forceinline__ float value_of(uint32_t s, int codebook)
{
    if (codebook == 2) {
        const uint32_t x = s * 0x83dcd12du;
        const float n = 1024.f + (float)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24));
        return __half2float(__float2half_rn(fmaf(n, __half2float(__ushort_as_half(0x1eee)), __half2float(__ushort_as_half(0xc931)))));
    }
    uint32_t x = codebook == 1 ? s * 0xcbac1fedu : s * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return __half2float(__float2half_rn(__half2float(__ushort_as_half((unsigned short)(x & 0xffff))) + __half2float(__ushort_as_half((unsigned short)(x >> 16)))));
}

/* Tile columns [col0, col0 + cols) of V: W (16 cols, in128) in bf16, or transposed (in128, 16 cols) in f32. A block per tile,
 * a thread per step of its ring: the state after step t is the last 16 bits, around the ring. */
template <bool F32> static __global__ void __launch_bounds__(THREADS) decode_tiles(void *y, Trellis w, int col0, int cols)
{
    __shared__ uint32_t ring[65];
    __shared__ float v[16][17];
    const int k0 = blockIdx.x * 16, words = 4 * w.twice_k, t = threadIdx.x;
    const uint32_t *src = (const uint32_t *)(w.tiles + ((size_t)blockIdx.x * (size_t)(w.out128 / 16) + (size_t)(col0 + (int)blockIdx.y)) * 16 * (size_t)w.twice_k);
    if (t < words) ring[t] = src[t];
    if (t == 0) ring[words] = src[0];
    __syncthreads();
    const int end = w.twice_k * (t + 1) / 2, p = end >= 16 ? end - 16 : end + 128 * w.twice_k - 16;
    const uint64_t two = (uint64_t)ring[p / 32] << 32 | ring[p / 32 + 1];
    const int l = t / 8, j = t % 8;
    v[l % 4 * 2 + (j & 1) + (j & 2 ? 8 : 0)][l / 4 + (j & 4 ? 8 : 0)] = value_of((uint32_t)(two >> (48 - p % 32)) & 0xffffu, w.codebook);
    __syncthreads();
    const int n = cols * 16, o0 = blockIdx.y * 16;
    if (F32) ((float *)y)[(size_t)(k0 + t / 16) * n + o0 + t % 16] = v[t / 16][t % 16];
    else ((__nv_bfloat16 *)y)[(size_t)(o0 + t / 16) * w.in128 + k0 + t % 16] = __float2bfloat16_rn(v[t % 16][t / 16]);
}

mla_status trellis_linear(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    const Trellis *t = w->trellis;
    const char *what = "packed EXL3";
    const size_t in = (size_t)t->in128, out = (size_t)t->out128, x_bytes = pad256(a->T * in * 4), y_bytes = pad256(a->T * out * 4);
    const bool f32 = w->precision == MLA_PREC_F32;
    mla_weight part = {out, in, in, 0, w->precision, NULL, NULL, NULL, NULL};
    const size_t fit = tile_outputs(&part) / 16 * 16, most = fit < out ? fit : out;
    char *s;
    const bool few = !f32 && trellis_few_fits(c, t, a->T);
    mla_status st = cu_tile(c, few ? trellis_few_room(t, a->T) : x_bytes + y_bytes + most * in * (f32 ? 4 : 2), what, &s, err);
    if (st || few) return st ? st : trellis_few(c, w, a, s, err);
    float *x2 = (float *)s, *y2 = (float *)(s + x_bytes);
    part.data = s + x_bytes + y_bytes;
    side_in<<<grid_of(a->T * in / SIDE, THREADS / 32), THREADS, 0, c->stream>>>(x2, cf32p(a->x), a->ldx, a->T, (int)w->in, t->in128, t->su);
    for (size_t o = 0; !st && o < out; o += most) {
        part.out = most < out - o ? most : out - o;
        const dim3 grid((unsigned)(in / 16), (unsigned)(part.out / 16));
        if (f32) decode_tiles<true><<<grid, THREADS, 0, c->stream>>>(part.data, *t, (int)(o / 16), (int)(part.out / 16));
        else decode_tiles<false><<<grid, THREADS, 0, c->stream>>>(part.data, *t, (int)(o / 16), (int)(part.out / 16));
        const mla_linear_args b = {(mla_mem *)(y2 + o), out, (mla_mem *)x2, in, a->T, NULL, false};
        st = launched(what, err);
        if (!st) st = linear_decoded(c, &part, &b, err);
    }
    return st ? st : trellis_out(c, w, a, y2, 1, err);
}
