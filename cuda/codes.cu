/* Packed weights on the device: decoded, by pieces, for many tokens, and multiplied as they are with a few where codes_mma.cu does not
 * serve. A packed matrix takes its stored bytes; a decoded piece is scratch. */
#include "cuda/be.cuh"
#include "cuda/codes.cuh"

enum { WARPS = 8, ROWS = 2, X_BYTES = 200 << 10 }; /* of a block that multiplies; rows of a warp; its tokens in shared memory */

/* Runs f<CODE> for the code at hand. */
#define CODES(c, F)                                              \
    switch (c) {                                                 \
    case MLA_CODE_NIBBLE: F(MLA_CODE_NIBBLE); break;             \
    case MLA_CODE_NIBBLE_BIT: F(MLA_CODE_NIBBLE_BIT); break;     \
    case MLA_CODE_NIBBLE_CRUMB: F(MLA_CODE_NIBBLE_CRUMB); break; \
    case MLA_CODE_CRUMB: F(MLA_CODE_CRUMB); break;               \
    case MLA_CODE_CRUMB_BIT: F(MLA_CODE_CRUMB_BIT); break;       \
    case MLA_CODE_INT8: F(MLA_CODE_INT8); break;                 \
    case MLA_CODE_E4M3: F(MLA_CODE_E4M3); break;                 \
    case MLA_CODE_F16: F(MLA_CODE_F16); break;                   \
    default: F(MLA_CODE_BF16); break;                            \
    }

/* ---- decoded */

struct Tables {
    float lo[16], hi[16];
};
static __device__ __forceinline__ void load_tables(Tables *t, const Codes &c)
{
    if (threadIdx.x < 16) t->lo[threadIdx.x] = c.lo[threadIdx.x], t->hi[threadIdx.x] = c.hi[threadIdx.x];
    __syncthreads();
}

/* Rows [row0, row0 + n) as bf16, in8 apart: an octet a thread. */
template <mla_code CODE> static __global__ void decode_bf16(__nv_bfloat16 *y, const __grid_constant__ Codes c, size_t row0, size_t n)
{
    __shared__ Tables t;
    load_tables(&t, c);
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / (size_t)c.octets;
    const int o = (int)(i % (size_t)c.octets);
    if (r >= n) return;
    float w[8];
    code_weights<CODE>(w, c, row0 + r, o, t.lo, t.hi);
    __nv_bfloat16 *to = y + r * (size_t)c.octets * 8;
    if (c.perm) {
        for (int k = 0; k < 8; k++) {
            const int p = o * 8 + k;
            to[p < c.in ? c.perm[p] : p] = __float2bfloat16_rn(p < c.in ? w[k] : 0.f);
        }
        return;
    }
    uint32_t u[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(o * 8 + 2 * k < c.in ? w[2 * k] : 0.f, o * 8 + 2 * k + 1 < c.in ? w[2 * k + 1] : 0.f);
        u[k] = *(const uint32_t *)&two;
    }
    *(uint4 *)(to + o * 8) = make_uint4(u[0], u[1], u[2], u[3]);
}
/* The same transposed, f32 (in, n): neighbouring threads have neighbouring rows. */
template <mla_code CODE> static __global__ void decode_f32(float *y, const __grid_constant__ Codes c, size_t row0, size_t n)
{
    __shared__ Tables t;
    load_tables(&t, c);
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i % n;
    const int o = (int)(i / n);
    if (o >= c.octets) return;
    float w[8];
    code_weights<CODE>(w, c, row0 + r, o, t.lo, t.hi);
    for (int k = 0; k < 8 && o * 8 + k < c.in; k++) y[(size_t)(c.perm ? c.perm[o * 8 + k] : (uint32_t)(o * 8 + k)) * n + r] = w[k];
}
template <mla_code CODE> static __global__ void find_odd(int *bad, const __grid_constant__ Codes c)
{
    __shared__ Tables t;
    load_tables(&t, c);
    const size_t all = (size_t)c.out * (size_t)c.octets;
    bool odd = false;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        const int o = (int)(i % (size_t)c.octets);
        float w[8];
        code_weights<CODE>(w, c, i / (size_t)c.octets, o, t.lo, t.hi);
        for (int k = 0; k < 8 && o * 8 + k < c.in; k++) odd |= !isfinite(w[k]);
    }
    if (odd) *bad = 1;
}
template <mla_code CODE> static __global__ void embed_codes(float *y, const __grid_constant__ Codes c, const int32_t *ids, size_t T)
{
    __shared__ Tables t;
    load_tables(&t, c);
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / (size_t)c.octets;
    const int o = (int)(i % (size_t)c.octets);
    if (r >= T) return;
    float w[8];
    code_weights<CODE>(w, c, (size_t)ids[r], o, t.lo, t.hi);
    for (int k = 0; k < 8 && o * 8 + k < c.in; k++) y[r * (size_t)c.in + (c.perm ? c.perm[o * 8 + k] : (uint32_t)(o * 8 + k))] = w[k];
}

mla_status codes_decode(mla_cuda *c, const mla_weight *w, void *to, size_t row0, size_t n, mla_err *err)
{
    const Codes *d = w->codes;
    const unsigned grid = grid_of(n * (size_t)d->octets, 256);
#define DECODE(K)                                                                                                  \
    if (w->precision == MLA_PREC_F32) decode_f32<K><<<grid, 256, 0, c->stream>>>((float *)to, *d, row0, n);        \
    else decode_bf16<K><<<grid, 256, 0, c->stream>>>((__nv_bfloat16 *)to, *d, row0, n)
    CODES(d->code, DECODE)
#undef DECODE
    return launched("packed weight", err);
}
mla_status codes_find_odd(const mla_weight *w, int *bad, cudaStream_t stream, mla_err *err)
{
#define FIND(K) find_odd<K><<<528, 256, 0, stream>>>(bad, *w->codes)
    CODES(w->codes->code, FIND)
#undef FIND
    return launched("packed weight", err);
}
mla_status codes_embed(mla_cuda *c, const mla_weight *w, float *y, const int32_t *ids, size_t T, mla_err *err)
{
#define EMBED(K) embed_codes<K><<<grid_of(T * (size_t)w->codes->octets, 256), 256, 0, c->stream>>>(y, *w->codes, ids, T)
    CODES(w->codes->code, EMBED)
#undef EMBED
    return launched("embed", err);
}

/* ---- multiplied as they are where codes_mma.cu does not serve: tokens rounded to bf16 in shared memory, a warp per ROWS rows, an octet a lane at a time */

struct Few {
    const float *x, *bias;
    float *y;
    size_t ldx, ldy;
    int tokens, accumulate;
};
template <mla_code CODE, int T> static __global__ void __launch_bounds__(WARPS * 32) codes_few(const __grid_constant__ Codes c, const Few a)
{
    extern __shared__ __align__(16) unsigned char smem[];
    __shared__ Tables t;
    __nv_bfloat16 *xs = (__nv_bfloat16 *)smem;
    const int wide = c.octets * 8, lane = threadIdx.x % 32;
    load_tables(&t, c);
    for (int i = threadIdx.x; i < a.tokens * wide; i += WARPS * 32) {
        const int p = i % wide;
        xs[i] = __float2bfloat16_rn(p < c.in ? a.x[(size_t)(i / wide) * a.ldx + (c.perm ? c.perm[p] : (uint32_t)p)] : 0.f);
    }
    __syncthreads();
    for (int row0 = (int)(blockIdx.x * WARPS + threadIdx.x / 32) * ROWS; row0 < c.out; row0 += (int)gridDim.x * WARPS * ROWS) {
        float sum[ROWS][T] = {};
        size_t row[ROWS];
        for (int r = 0; r < ROWS; r++) row[r] = (size_t)(row0 + r < c.out ? row0 + r : row0);
#pragma unroll 2
        for (int o = lane; o < c.octets; o += 32) {
            float w[ROWS][8];
#pragma unroll
            for (int r = 0; r < ROWS; r++) code_weights<CODE>(w[r], c, row[r], o, t.lo, t.hi);
#pragma unroll
            for (int k = 0; k < T; k++) {
                const uint4 v = ((const uint4 *)(xs + (size_t)(k < a.tokens ? k : 0) * wide))[o];
                const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[r][k] = fmaf(__uint_as_float(u[e] & 0xffff0000u), w[r][2 * e + 1], fmaf(__uint_as_float(u[e] << 16), w[r][2 * e], sum[r][k]));
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int k = 0; k < T; k++) {
                for (int s = 16; s; s >>= 1) sum[r][k] += __shfl_xor_sync(~0u, sum[r][k], s);
                if (lane || row0 + r >= c.out || k >= a.tokens) continue;
                float *y = a.y + (size_t)k * a.ldy + row0 + r, v = a.bias ? sum[r][k] + a.bias[row0 + r] : sum[r][k];
                *y = a.accumulate ? *y + v : v;
            }
    }
}
template <mla_code CODE, int T> static mla_status run_few(mla_cuda *c, const Codes *d, const Few &a, mla_err *err)
{
    const size_t shared = (size_t)a.tokens * d->octets * 16;
    const mla_status st = cu_ok(cudaFuncSetAttribute(codes_few<CODE, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, X_BYTES), "packed weight: shared memory", err);
    if (st) return st;
    const unsigned per_sm = shared <= X_BYTES / 4 ? 4 : shared <= X_BYTES / 2 ? 2 : 1, need = grid_of((size_t)d->out, WARPS * ROWS), most = per_sm * (unsigned)c->sms;
    codes_few<CODE, T><<<need < most ? need : most, WARPS * 32, shared, c->stream>>>(*d, a);
    return launched("packed weight", err);
}

bool codes_few_fits(const mla_weight *w, size_t T)
{
    if (!w->codes) return false;
    return w->codes->units ? codes_mma_fits(w, T) : T <= 8 && (size_t)w->codes->octets * 16 <= X_BYTES;
}

mla_status codes_few_run(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err)
{
    const Codes *d = w->codes;
    if (d->units) return codes_mma_run(c, w, a, err);
    const size_t fit = (size_t)X_BYTES / ((size_t)d->octets * 16), at_once = fit < a->T ? fit : a->T;
    mla_status st = MLA_OK;
    for (size_t t = 0; !st && t < a->T; t += at_once) {
        const size_t n = a->T - t < at_once ? a->T - t : at_once;
        const Few f = {cf32p(a->x) + t * a->ldx, a->bias ? cf32p(a->bias) : NULL, f32p(a->y) + t * a->ldy, a->ldx, a->ldy, (int)n, a->accumulate};
#define FEW(K) st = n == 1 ? run_few<K, 1>(c, d, f, err) : n == 2 ? run_few<K, 2>(c, d, f, err) : n <= 4 ? run_few<K, 4>(c, d, f, err) : run_few<K, 8>(c, d, f, err)
        CODES(d->code, FEW)
#undef FEW
    }
    return st;
}
