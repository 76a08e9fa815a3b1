/* MLA decode on the host side: which kernel, how the cache is cut over the SMs, and the merge of the pieces.
 *
 * Plan: pages of all sequences lie in one line, each sequence preceded by empty units (piece_cost: its queries, its output);
 * part p of P takes units [p T / P, (p+1) T / P). A sequence cut over several parts leaves partial outputs with their
 * log2-sum-exp, which merge_parts sums in part order. One sequence needs no plan (part_begin). */
#include <cuda.h>
#include <cuda_runtime.h>
#include <math_constants.h>

#include "cuda/attn.cuh"
#include "cuda/check.cuh"
#include "cuda/decode_dev.cuh"
#include "cuda/decode_gqa.cuh"
#include "cuda/tmap.cuh"

enum { PLAN_THREADS = 1024, MERGE = 256 };

/* Offsets within the workspace, bytes. */
struct DecodeWs {
    size_t prefix, begin, split, po, plse, bytes;
    DecodeWs(size_t B, size_t parts, size_t slots, size_t N, size_t lat)
    {
        auto up = [](size_t x) { return (x + 255) & ~(size_t)255; };
        prefix = 0;
        begin = up((B + 1) * 8);
        split = begin + up((parts + 1) * 8);
        po = split + up(B * 8);
        plse = po + up(slots * N * lat * 4);
        bytes = plse + up(slots * N * 4);
    }
};

/* prefix (B + 1): first unit of each sequence. One block; chunks of PLAN_THREADS sequences. */
static __global__ void plan_parts(const int32_t *len, int B, int parts, int overhead, long long *prefix, int2 *begin, int2 *split)
{
    __shared__ long long sums[PLAN_THREADS / 32], carry;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    if (tid == 0) carry = 0;
    __syncthreads();
    for (int b0 = 0; b0 < B; b0 += PLAN_THREADS) {
        const int b = b0 + tid, n = b < B && len[b] > 0 ? (len[b] + 63) >> 6 : 0;
        const long long own = n ? n + overhead : 0;
        long long x = own;
        for (int o = 1; o < 32; o <<= 1) {
            const long long y = __shfl_up_sync(~0u, x, o);
            if (lane >= o) x += y;
        }
        if (lane == 31) sums[warp] = x;
        __syncthreads();
        long long before = carry;
        for (int i = 0; i < warp; i++) before += sums[i];
        if (b < B) prefix[b] = before + x - own;
        __syncthreads();
        if (tid == PLAN_THREADS - 1) carry = before + x;
        __syncthreads();
    }
    const long long total = carry;
    if (tid == 0) prefix[B] = total;
    __syncthreads();
    const long long P = total < parts ? (total ? total : 1) : parts;
    for (int p = tid; p <= parts; p += PLAN_THREADS) {
        int2 at = make_int2(B, 0);
        const long long x = p < P ? p * total / P : total;
        if (x < total) { /* last sequence with prefix <= x: it has pages, since x lies inside its units */
            int lo = 0, hi = B;
            while (hi - lo > 1) {
                const int mid = (lo + hi) / 2;
                if (prefix[mid] <= x) lo = mid;
                else hi = mid;
            }
            const long long page = x - prefix[lo] - overhead;
            at = make_int2(lo, page > 0 ? (int)page : 0);
        }
        begin[p] = at;
    }
    for (int b = tid; b < B; b += PLAN_THREADS) {
        const long long first = prefix[b] + overhead, last = prefix[b + 1] - 1;
        split[b] = last < first ? make_int2(1, 0)
                                : make_int2((int)(((first + 1) * P - 1) / total), (int)(((last + 1) * P - 1) / total));
    }
}

/* Sums a sequence's partial outputs in a fixed order; zero for an empty sequence. A warp takes 128 latents of a row.
 * MANY: the block's warps share one row's parts, grid (lat / 128, rows, B * groups); otherwise every warp has a row of its
 * own, grid (lat / 128, rows / 8, B * groups). The first parts are fetched before their weights are known. */
template <bool MANY> static __global__ void __launch_bounds__(MERGE) merge_parts(DecodeP d, int N, int tiles, int parts, int lat)
{
    enum { AHEAD = 4 };
    __shared__ float4 sums[MERGE / 32][32];
    __shared__ float tot[MERGE / 32], top[MERGE / 32];
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, row = MANY ? blockIdx.y : blockIdx.y * (MERGE / 32) + w, b = blockIdx.z % d.B, grp = blockIdx.z / d.B,
              tile = row / N, n = row % N, t = row / d.Hg, h = grp * d.Hg + row % d.Hg, step = MANY ? MERGE / 32 : 1;
    grid_release(); /* the next decode may be launched: it waits, too */
    grid_wait();
    const int2 sp = part_split(d, b);
    if (sp.x == sp.y || row >= d.rows) return;
    const size_t base = (size_t)(grp * tiles + tile) * parts;
    auto slot = [&](int p) { return ((base + p) * 2 + (p == sp.x ? 1 : 0)) * N + n; };
    const int p0 = sp.x + (MANY ? w : 0);
    float4 v[AHEAD];
    float e[AHEAD];
    auto fetch = [&](int i, int p) {
        v[i] = make_float4(0.f, 0.f, 0.f, 0.f), e[i] = -CUDART_INF_F;
        if (p <= sp.y) v[i] = *(const float4 *)(d.po + slot(p) * lat + blockIdx.x * 128 + lane * 4), e[i] = d.plse[slot(p)];
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch(i, p0 + i * step);
    float mx = -CUDART_INF_F, sum = 0.f;
    for (int p = sp.x + (MANY ? (int)threadIdx.x : lane); p <= sp.y; p += MANY ? MERGE : 32) mx = fmaxf(mx, d.plse[slot(p)]);
    for (int o = 16; o; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, o));
    if (MANY) {
        if (lane == 0) top[w] = mx;
        __syncthreads();
        for (int i = 0; i < MERGE / 32; i++) mx = fmaxf(mx, top[i]);
    }
    const float use = mx == -CUDART_INF_F ? 0.f : mx;
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int p = p0; p <= sp.y; p += AHEAD * step) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (p + i * step > sp.y) break;
            const float k = exp2f(e[i] - use);
            x.x += k * v[i].x, x.y += k * v[i].y, x.z += k * v[i].z, x.w += k * v[i].w;
            sum += k;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) fetch(i, p + (AHEAD + i) * step);
    }
    if (MANY) {
        sums[w][lane] = x;
        if (lane == 0) tot[w] = sum;
        __syncthreads();
        if (w) return;
        for (int i = 1; i < MERGE / 32; i++) {
            const float4 v = sums[i][lane];
            x.x += v.x, x.y += v.y, x.z += v.z, x.w += v.w;
            sum += tot[i];
        }
    }
    const float inv = sum != 0.f ? 1.f / sum : 0.f;
    const size_t oo = (size_t)(b * d.o.b + t * d.o.t + h * d.o.h) + blockIdx.x * 128 + lane * 4;
    const float y[4] = {x.x * inv, x.y * inv, x.z * inv, x.w * inv};
    for (int i = 0; i < 4; i++) store_f32((void *)d.o.p, d.o.f32, oo + i, y[i]);
    if (lane == 0 && blockIdx.x == 0 && d.lse)
        d.lse[((size_t)b * d.s_q + t) * d.H + h] = (sum != 0.f ? mx + log2f(sum) : -CUDART_INF_F) * 0.693147180559945f;
}

struct Choice {
    const DecodeKernel *k; /* NULL: the plain kernel */
    int tiles, parts, slots;
    bool rows8;
    size_t smem;
};

static int device_attr(cudaDeviceAttr a)
{
    int dev = 0, v = 0;
    if (cudaGetDevice(&dev) != cudaSuccess || cudaDeviceGetAttribute(&v, a, dev) != cudaSuccess) return 0;
    return v;
}

/* Fewest tiles first (each tile reads the cache again), then the narrowest. */
static Choice choose(const mla_decode *d)
{
    Choice best = {};
    best.tiles = best.parts = 1;
    const size_t rows = d->s_q * (d->H / d->groups), rb = d->rope * d->rope_heads / 64;
    if (d->rope % 8 || d->variant == 1 || device_attr(cudaDevAttrComputeCapabilityMajor) != 9) return best;
    const DecodeKernel *lists[] = {mla_decode_k256, mla_decode_k512, mla_decode_k768, mla_decode_k1792, mla_decode_trio512, mla_decode_gqa};
    for (const DecodeKernel *list : lists)
        for (const DecodeKernel *k = list; k->lat; k++) {
            if ((size_t)k->lat != d->lat || (size_t)k->rb != rb || k->fp8 != (d->cache == MLA_F8_E4M3) || (k->wgs == 0) != (d->v.base != NULL)) continue;
            const int tiles = (int)((rows + (size_t)k->n - 1) / (size_t)k->n);
            if (best.k && (tiles > best.tiles || (tiles == best.tiles && k->n > best.k->n))) continue;
            best.k = k;
            best.tiles = tiles;
        }
    if (!best.k) return best;
    const DecodeKernel *k = best.k;
    const int sms = device_attr(cudaDevAttrMultiProcessorCount), blocks = best.tiles * (int)d->groups * k->cl;
    best.parts = sms / blocks > 0 ? sms / blocks : 1;
    if (d->max_parts && (size_t)best.parts > d->max_parts) best.parts = (int)d->max_parts;
    if (!k->wgs) {
        best.slots = (SMEM_MAX - 1024 - (int)GqaSmem(k->lat, 0).bytes) / (int)(GqaSmem(k->lat, 1).bytes - GqaSmem(k->lat, 0).bytes);
        best.smem = GqaSmem(k->lat, best.slots).bytes + 1024;
        return best;
    }
    const int lat = k->lat / k->cl, kb = lat / 64 + k->rb; /* of one block */
    best.rows8 = k->solo == TRIO ? decode_trio_rows8(k->fp8, k->cl) : k->solo && decode_rows8(lat, k->rb, k->n, k->solo, k->fp8, k->cl);
    const int unit = best.rows8 ? decode_unit(lat, k->rb) : BOX, per_page = best.rows8 ? 4 : lat / (k->fp8 ? 128 : 64) + k->rb;
    const DecodeSmem fixed(k->n, kb, 0, k->solo, unit, k->cl);
    best.slots = (int)((SMEM_MAX - 1024 - (int)fixed.bytes) / (unit + 16));
    if (k->solo > 0 && k->fp8) best.slots -= best.slots % per_page;
    best.smem = DecodeSmem(k->n, kb, best.slots, k->solo, unit, k->cl).bytes + 1024;
    if (best.slots < per_page - k->drop + (k->drop ? 1 : 0) || per_page + k->drop >= 3 * best.slots) best.k = NULL;
    return best;
}

static mla_status valid(const mla_decode *d, mla_err *err)
{
    const size_t per16 = d->cache == MLA_BF16 ? 8 : 16;
    if (d->cache != MLA_BF16 && d->cache != MLA_F8_E4M3)
        return mla_fail(err, MLA_EUNSUPPORTED, "decode: cache type %s, expected BF16 or F8_E4M3", mla_dtype_name(d->cache));
    if (!d->B || !d->s_q || !d->H || !d->groups || d->H % d->groups || !d->lat)
        return mla_fail(err, MLA_EINVAL, "decode: B %zu, s_q %zu, H %zu, groups %zu, lat %zu: all positive, groups divide H", d->B,
                        d->s_q, d->H, d->groups, d->lat);
    if (d->rope && (!d->rope_heads || d->H % d->rope_heads))
        return mla_fail(err, MLA_EINVAL, "decode: %zu rotary heads do not divide %zu heads", d->rope_heads, d->H);
    if (d->v.base && (d->rope || d->v.stride % (int64_t)per16))
        return mla_fail(err, MLA_EINVAL, "decode: values apart from keys, row stride %lld: a multiple of 16 bytes, and no rotary part", (long long)d->v.stride);
    if (d->c.stride % (int64_t)per16 || (d->rope && d->r.stride % (int64_t)per16))
        return mla_fail(err, MLA_EINVAL, "decode: cache row strides %lld, %lld are not multiples of 16 bytes",
                        (long long)d->c.stride, (long long)d->r.stride);
    const mla_dtype t[3] = {d->q.dtype, d->rope ? d->q2.dtype : d->q.dtype, d->o.dtype};
    for (int i = 0; i < 3; i++)
        if (t[i] != MLA_BF16 && t[i] != MLA_F32)
            return mla_fail(err, MLA_EUNSUPPORTED, "decode: query or output type %s, expected BF16 or F32", mla_dtype_name(t[i]));
    return MLA_OK;
}

static DecodeWs workspace(const mla_decode *d, const Choice &c)
{
    const size_t slots = c.k ? (size_t)c.parts * c.tiles * d->groups * 2 : 0;
    return DecodeWs(d->B, (size_t)c.parts, slots, c.k ? (size_t)c.k->n : 0, d->lat);
}

extern "C" size_t mla_decode_ws_bytes(const mla_decode *d)
{
    return valid(d, NULL) == MLA_OK ? workspace(d, choose(d)).bytes : 0;
}

/* What another piece of a sequence costs a block beside its pages, in pages: queries 5 us and sums out 5 us, against 2 us for
 * a page of bf16 and 1 us for one of e4m3 (latent 512), half of that in a cluster. */
static int piece_cost(const DecodeKernel *k) { return !k->wgs ? 2 : (k->fp8 ? 10 : 5) * (k->solo == TRIO ? k->cl : 1); }

extern "C" mla_status mla_decode_plan(const mla_decode *d, void *stream, mla_err *err)
{
    mla_status st = valid(d, err);
    if (st) return st;
    const Choice c = choose(d);
    if (!c.k || d->B == 1) return MLA_OK;
    const DecodeWs w = workspace(d, c);
    char *ws = (char *)d->ws;
    plan_parts<<<1, PLAN_THREADS, 0, (cudaStream_t)stream>>>(d->len, (int)d->B, c.parts, piece_cost(c.k), (long long *)(ws + w.prefix),
                                                             (int2 *)(ws + w.begin), (int2 *)(ws + w.split));
    return cu_ok(cudaGetLastError(), "decode: plan", err);
}

/* (pages, 64, row) with boxes of 64 tokens x `box` elements; groups: instead (pages, groups of 64 elements, 64, row) with
 * boxes of 8 tokens x all groups. */
static mla_status tensor_map(CUtensorMap *m, const mla_decode *d, const mla_decode_part *part, unsigned box, bool swizzle,
                             size_t groups, mla_err *err)
{
    const size_t el = d->cache == MLA_BF16 ? 2 : 1;
    const uint64_t row = (uint64_t)part->stride, page = row * el * MLA_DECODE_PAGE;
    TensorBox b = {3, (int)el, {row, MLA_DECODE_PAGE, d->pages}, {row * el, page}, {box, MLA_DECODE_PAGE, 1}, swizzle, true};
    if (groups)
        b = TensorBox{4, (int)el, {row, MLA_DECODE_PAGE, groups, d->pages}, {row * el, 64 * el, page}, {box, 8, (uint32_t)groups, 1}, swizzle, true};
    return tensor_box_map(m, part->base, &b, "decode", err);
}

static DecodeRows rows_of(const mla_decode_rows *r)
{
    const int64_t el = r->dtype == MLA_F32 ? 4 : 2;
    const bool vec = !((uintptr_t)r->p % 16) && !(r->b * el % 16) && !(r->t * el % 16) && !(r->h * el % 16);
    DecodeRows x = {r->p, r->b, r->t, r->h, r->dtype == MLA_F32, vec};
    return x;
}

static mla_status run_plain(const mla_decode *d, cudaStream_t stream, mla_err *err)
{
    AttnP a = {};
    a.B = (int)d->B, a.T = (int)d->s_q, a.H = (int)d->H;
    a.dk = a.dv = (int)d->lat, a.dk2 = d->rope ? (int)d->rope : 0;
    a.kh = a.vh = (int)d->groups, a.k2h = d->rope ? (int)d->rope_heads : 1;
    a.q = rows_of(&d->q), a.q2 = rows_of(&d->q2), a.o = rows_of(&d->o);
    AttnView c = {d->c.base, d->table, d->table_stride, d->c.stride, d->c.col, (long long)d->lat, MLA_DECODE_PAGE, d->cache,
                  d->c.scale};
    AttnView r = {d->r.base, d->table, d->table_stride, d->r.stride, d->r.col, (long long)d->rope, MLA_DECODE_PAGE, d->cache,
                  d->r.scale};
    a.k = a.v = c;
    if (d->v.base) a.v = AttnView{d->v.base, d->table, d->table_stride, d->v.stride, d->v.col, (long long)d->lat, MLA_DECODE_PAGE, d->cache, d->v.scale};
    a.k2 = r;
    a.len = d->len;
    a.scale = d->scale;
    a.lse = d->lse;
    return attn_plain(&a, stream, err);
}

extern "C" mla_status mla_decode_run(const mla_decode *d, void *stream_, mla_err *err)
{
    cudaStream_t stream = (cudaStream_t)stream_;
    mla_status st = valid(d, err);
    if (st) return st;
    const Choice c = choose(d);
    if (!c.k) return run_plain(d, stream, err);
    const DecodeWs w = workspace(d, c);
    char *ws = (char *)d->ws;
    DecodeP p = {};
    p.B = (int)d->B, p.s_q = (int)d->s_q, p.H = (int)d->H, p.Hg = (int)(d->H / d->groups), p.rows = p.s_q * p.Hg;
    p.rope = (int)d->rope, p.rope_heads = d->rope ? (int)d->rope_heads : 1;
    p.lat_col = (int)d->c.col, p.rope_col = (int)d->r.col, p.v_col = (int)d->v.col, p.slots = c.slots;
    p.parts = c.parts;
    if (d->B > 1) p.begin = (const int2 *)(ws + w.begin), p.split = (const int2 *)(ws + w.split);
    p.table = d->table, p.table_stride = d->table_stride, p.len = d->len;
    p.q = rows_of(&d->q), p.q2 = rows_of(&d->q2), p.o = rows_of(&d->o);
    p.lse = d->lse;
    p.scale = d->scale * d->c.scale * 1.44269504088896f;
    p.rope_ratio = d->rope ? d->r.scale / d->c.scale : 1.f, p.out_scale = d->v.base ? d->v.scale : d->c.scale;
    p.po = (float *)(ws + w.po), p.plse = (float *)(ws + w.plse);
    CUtensorMap mc = {}, mr = {};
    const bool fp8 = d->cache == MLA_F8_E4M3;
    st = tensor_map(&mc, d, &d->c, fp8 ? 128 : 64, true, c.rows8 ? d->lat / 64 / (size_t)c.k->cl : 0, err);
    if (!st && !c.k->wgs) st = tensor_map(&mr, d, &d->v, 64, true, 0, err);
    if (!st && d->rope) st = tensor_map(&mr, d, &d->r, 64, !fp8, c.rows8 ? (size_t)c.k->rb : 0, err);
    if (st) return st;
    st = cu_ok(cudaFuncSetAttribute(c.k->fn, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c.smem), "decode: shared memory", err);
    if (st) return st;
    void *args[] = {&mc, &mr, &p};
    const dim3 grid((unsigned)(c.parts * c.k->cl), (unsigned)c.tiles, (unsigned)d->groups);
    cudaLaunchAttribute attrs[2] = {}; /* the next kernel's launch overlaps this one's end; it waits before it reads */
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeClusterDimension;
    attrs[1].val.clusterDim.x = (unsigned)c.k->cl, attrs[1].val.clusterDim.y = attrs[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid, cfg.blockDim = dim3(c.k->wgs ? (unsigned)c.k->wgs * 128 + 128 : GQA_WARPS * 32 + 32), cfg.dynamicSmemBytes = c.smem;
    cfg.stream = stream, cfg.attrs = attrs, cfg.numAttrs = c.k->cl > 1 ? 2 : 1;
    st = cu_ok(cudaLaunchKernelExC(&cfg, c.k->fn, args), "decode: launch", err);
    if (st) return st;
    const bool many = (size_t)c.parts >= 12 * d->B; /* parts of a sequence, about */
    cfg.gridDim = dim3((unsigned)d->lat / 128, (unsigned)(many ? p.rows : (p.rows + MERGE / 32 - 1) / (MERGE / 32)), (unsigned)(d->B * d->groups)), cfg.blockDim = dim3(MERGE);
    cfg.dynamicSmemBytes = 0, cfg.numAttrs = 1;
    return cu_ok(cudaLaunchKernelEx(&cfg, many ? merge_parts<true> : merge_parts<false>, p, c.k->n, c.tiles, c.parts, (int)d->lat), "decode: merge", err);
}
