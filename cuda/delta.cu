/* A gated delta-net mixer of a prompt with bf16 products: what passes between its steps is bf16, so that each moves half as much.
 * Projections are rounded by cuBLASLt as it writes them; the convolution lays its results out in chunks of 64 tokens per sequence
 * (gdn_chunk.cuh); the gated norm writes the rounded input of the last layer. */
#include "cuda/be.cuh"
#include "cuda/gdn_chunk.cuh"
#include "cuda/linear_few.cuh"
#include "cuda/ptx.cuh"
#include "cuda/rows.cuh"

enum { TAPS = 4, RUN = 16, CONV = 128, NORM = 256 };

struct ConvStates {
    float *of[GDN_SEQS]; /* (TAPS - 1, C), oldest first */
};

/* Grid (C / 8 / CONV, GDN_C / RUN, chunks): 8 channels of RUN tokens a thread; y (chunks, GDN_C, C), zero behind a sequence's end. */
static __global__ void __launch_bounds__(CONV) conv_chunks(__nv_bfloat16 *y, const __nv_bfloat16 *x, const float *w, const __grid_constant__ GdnSeqs seqs,
                                                           const __grid_constant__ ConvStates states, int C)
{
    const int c = (blockIdx.x * CONV + threadIdx.x) * 8, chunk = blockIdx.z;
    if (c >= C) return;
    const int seq = seqs.of(chunk), t0 = (chunk - seqs.chunk[seq]) * GDN_C + blockIdx.y * RUN, T = seqs.start[seq + 1] - seqs.start[seq];
    const __nv_bfloat16 *from = x + (size_t)seqs.start[seq] * C + c;
    uint4 in[RUN];
    float tap[8][TAPS], v[TAPS][8];
#pragma unroll
    for (int i = 0; i < RUN; i++) in[i] = t0 + i < T ? __ldg((const uint4 *)(from + (size_t)(t0 + i) * C)) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 1; i < TAPS; i++) { /* v[i]: token t0 - TAPS + i */
        const int t = t0 - TAPS + i;
        if (t >= T) continue;
        if (t >= 0) widen8(v[i], __ldg((const uint4 *)(from + (size_t)t * C)));
        else
#pragma unroll
            for (int e = 0; e < 8; e += 4) *(float4 *)(v[i] + e) = *(const float4 *)(states.of[seq] + (size_t)(TAPS - 1 + t) * C + c + e);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) *(float4 *)tap[e] = __ldg((const float4 *)(w + (size_t)(c + e) * TAPS));
    __nv_bfloat16 *to = y + ((size_t)chunk * GDN_C + blockIdx.y * RUN) * C + c;
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        float r[8];
#pragma unroll
        for (int e = 0; e < 8; e++) v[0][e] = v[1][e], v[1][e] = v[2][e], v[2][e] = v[3][e];
        widen8(v[3], in[i]);
#pragma unroll
        for (int e = 0; e < 8; e++) r[e] = silu_fast(fmaf(tap[e][3], v[3][e], fmaf(tap[e][2], v[2][e], fmaf(tap[e][1], v[1][e], tap[e][0] * v[0][e]))));
        *(uint4 *)(to + (size_t)i * C) = t0 + i < T ? round8(r) : make_uint4(0, 0, 0, 0);
    }
}
/* Grid (C / CONV, sequences): the TAPS - 1 inputs before a sequence's next token; a thread reads all before it writes. */
static __global__ void __launch_bounds__(CONV) conv_keep(const __nv_bfloat16 *x, const __grid_constant__ GdnSeqs seqs, const __grid_constant__ ConvStates states, int C)
{
    const int c = blockIdx.x * CONV + threadIdx.x, seq = blockIdx.y, T = seqs.start[seq + 1] - seqs.start[seq];
    float v[TAPS - 1], *state = states.of[seq] + c;
    if (c >= C) return;
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) {
        const int t = T - (TAPS - 1) + j;
        v[j] = t >= 0 ? __bfloat162float(x[(size_t)(seqs.start[seq] + t) * C + c]) : state[(size_t)(TAPS - 1 + t) * C];
    }
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) state[(size_t)j * C] = v[j];
}

/* Grid (GDN_C, chunks), 16 lanes a head: y = rmsnorm(o) gain silu(z), y and z (tokens, nv, 128), o in chunks. */
static __global__ void __launch_bounds__(NORM) norm_chunks(__nv_bfloat16 *y, const __nv_bfloat16 *o, const __nv_bfloat16 *z, const float *gain, float eps,
                                                           const __grid_constant__ GdnSeqs seqs, int nv)
{
    const int chunk = blockIdx.y, seq = seqs.of(chunk), t = (chunk - seqs.chunk[seq]) * GDN_C + blockIdx.x, l = threadIdx.x & 15;
    if (t >= seqs.start[seq + 1] - seqs.start[seq]) return;
    const size_t row = (size_t)chunk * GDN_C + blockIdx.x, token = (size_t)seqs.start[seq] + t;
    float g[8];
#pragma unroll
    for (int e = 0; e < 8; e += 4) *(float4 *)(g + e) = __ldg((const float4 *)(gain + l * 8 + e));
    for (int h = threadIdx.x >> 4; h < (nv + 1) / 2 * 2; h += NORM / 16) { /* whole warps */
        const size_t at = (size_t)min(h, nv - 1) * GDN_D + l * 8;
        float v[8], gate[8], s = 0.f;
        widen8(v, __ldg((const uint4 *)(o + row * nv * GDN_D + at)));
        widen8(gate, __ldg((const uint4 *)(z + token * nv * GDN_D + at)));
#pragma unroll
        for (int e = 0; e < 8; e++) s = fmaf(v[e], v[e], s);
#pragma unroll
        for (int m = 8; m; m >>= 1) s += __shfl_xor_sync(~0u, s, m);
        const float inv = 1.f / sqrtf(s * (1.f / GDN_D) + eps);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = v[e] * inv * g[e] * silu_fast(gate[e]);
        if (h < nv) *(uint4 *)(y + token * nv * GDN_D + at) = round8(v);
    }
}

static bool fits(const mla_cuda *c, const mla_norm_args *norm, const mla_delta_args *a)
{
    const size_t V = a->nv * GDN_D, C = 2 * a->nk * GDN_D + V;
    uintptr_t odd = (uintptr_t)a->in[0].a.y | (uintptr_t)a->in[1].a.y | (uintptr_t)a->mixed | (uintptr_t)a->conv_w | (uintptr_t)a->gain;
    size_t T = 0;
    for (size_t i = 0; i < a->n; i++) {
        odd |= (uintptr_t)a->seq[i].conv | (uintptr_t)a->seq[i].state, T += a->seq[i].T;
        if (!a->seq[i].T) return false;
    }
    for (size_t i = 0; i < 2; i++)
        if (a->in[i].a.bias || a->in[i].a.accumulate || a->in[i].a.ldy != (i ? V : C) || a->in[i].w->out != (i ? V : C)) return false;
    return a->bf16 && c->major == 9 && a->T > FEW_TOKENS && T == a->T && a->dk == GDN_D && a->dv == GDN_D && a->K == TAPS && a->nk && a->nv && a->nv % a->nk == 0 &&
           a->nv <= 65535 / 2 && a->in[2].a.ldy == a->nv && a->in[3].a.ldy == a->nv && odd % 16 == 0 && many_fits(norm, a->in, 4) && many_fits(NULL, a->out, 1) &&
           a->out->w->in == V && a->T < (size_t)1 << 24;
}

/* The sequences of `seqs`, whose tokens start at row `row` of the call. */
static mla_status some(mla_cuda *c, const mla_delta_args *a, GdnChunk *g, const ConvStates &states, __nv_bfloat16 *rows, size_t row, mla_err *err)
{
    const GdnSeqs &seqs = g->seqs;
    const size_t V = a->nv * GDN_D, C = 2 * a->nk * GDN_D + V;
    const unsigned chunks = (unsigned)seqs.chunk[seqs.n];
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)a->in[0].a.y + row * C;
    conv_chunks<<<dim3(grid_of(C, 8 * CONV), GDN_C / RUN, chunks), CONV, 0, c->stream>>>(rows, x, cf32p(a->conv_w), seqs, states, (int)C);
    conv_keep<<<dim3(grid_of(C, CONV), (unsigned)seqs.n), CONV, 0, c->stream>>>(x, seqs, states, (int)C);
    mla_status st = launched("convolution", err);
    g->a = cf32p(a->in[3].a.y) + row * a->nv, g->b = cf32p(a->in[2].a.y) + row * a->nv;
    if (!st) st = gdn_chunk(g, c->stream, err);
    if (st) return st;
    norm_chunks<<<dim3(GDN_C, chunks), NORM, 0, c->stream>>>((__nv_bfloat16 *)a->mixed + row * V, g->o, (const __nv_bfloat16 *)a->in[1].a.y + row * V, cf32p(a->gain),
                                                             (float)a->eps, seqs, (int)a->nv);
    return launched("gated norm", err);
}

mla_status cu_delta(mla_backend *be, const mla_norm_args *norm, const mla_delta_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    if (!fits(c, norm, a)) return mla_delta_singly(be, norm, a, err);
    const size_t V = a->nv * GDN_D, C = 2 * a->nk * GDN_D + V;
    size_t most = 0; /* chunks that are in work at once */
    for (size_t i = 0, n = 0; i < a->n; i++) {
        if (i % GDN_SEQS == 0) n = 0;
        n += (a->seq[i].T + GDN_C - 1) / GDN_C;
        most = n > most ? n : most;
    }
    const size_t rows = pad256(most * GDN_C * C * 2), o = pad256(most * GDN_C * V * 2), tp = pad256(most * a->nv * GDN_TP);
    char *s;
    mla_status st = cu_arrived(c, err);
    if (!st) st = cu_flush(c, err);
    if (!st) st = many_run(c, norm, a->in, 4, 2, err);
    if (!st) st = cu_scratch(c, rows + o + tp + many_room(a->out), "delta net", &s, err);
    for (size_t i = 0, row = 0; !st && i < a->n;) {
        GdnChunk g = {(const __nv_bfloat16 *)s, NULL, NULL, cf32p(a->A_log), cf32p(a->dt_bias), (__nv_bfloat16 *)(s + rows), a->nk, a->nv, {}, s + rows + o};
        ConvStates states = {};
        const size_t first = row;
        for (int k = 0; k < GDN_SEQS && i < a->n; k++, i++) {
            states.of[k] = f32p(a->seq[i].conv);
            if (!gdn_seqs_add(&g.seqs, a->seq[i].T, f32p(a->seq[i].state))) return mla_fail(err, MLA_EINVAL, "delta net: %zu tokens", a->T);
            row += a->seq[i].T;
        }
        st = some(c, a, &g, states, (__nv_bfloat16 *)s, first, err);
    }
    return st ? st : many_layer(c, a->out, a->mixed, s + rows + o + tp, err);
}
