/* MLA decode on the host side: which kernel, its workspace, its tensor maps. A sequence cut over several parts (decode_plan.cu)
 * leaves partial outputs with their log2-sum-exp, which decode_merge.cu sums. One sequence needs no plan (part_begin). */
#include "cuda/attn.cuh"
#include "cuda/check.cuh"
#include "cuda/decode_gqa.cuh"
#include "cuda/decode_held_role.cuh"
#include "cuda/tmap.cuh"

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

struct Choice {
    const DecodeKernel *k; /* NULL: the plain kernel */
    int tiles, parts, slots;
    bool rows8, pair;
    size_t smem;
};

/* Pages of a part, at most, from which on two tiles of 32 rows are a cluster: its launch takes 1 us more, and a page 2 to 3 % less. */
enum { HELD_PAIR = 24 };

static int device_attr(cudaDeviceAttr a)
{
    int dev = 0, v = 0;
    if (cudaGetDevice(&dev) != cudaSuccess || cudaDeviceGetAttribute(&v, a, dev) != cudaSuccess) return 0;
    return v;
}

/* Fewest tiles first (each tile reads the cache again), then the narrowest; of two alike the later where there are several tiles, which
 * lie side by side there. */
static Choice choose(const mla_decode *d)
{
    Choice best = {};
    best.tiles = best.parts = 1;
    const size_t rows = d->s_q * (d->H / d->groups), rb = d->rope * d->rope_heads / 64;
    if (d->rope % 8 || d->variant == 1 || device_attr(cudaDevAttrComputeCapabilityMajor) != 9) return best;
    const DecodeKernel *lists[] = {mla_decode_k256, mla_decode_k512, mla_decode_k768, mla_decode_k1792, mla_decode_trio512, mla_decode_held512, mla_decode_gqa};
    for (const DecodeKernel *list : lists)
        for (const DecodeKernel *k = list; k->lat; k++) {
            if ((size_t)k->lat != d->lat || (size_t)k->rb != rb || k->fp8 != (d->cache == MLA_F8_E4M3) || (k->wgs == 0) != (d->v.base != NULL)) continue;
            const int tiles = (int)((rows + (size_t)k->n - 1) / (size_t)k->n);
            if (best.k && (tiles > best.tiles || (tiles == best.tiles && (k->n > best.k->n || (k->n == best.k->n && tiles == 1))))) continue;
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
    if (k->solo == TRIO) {
        best.slots = decode_trio_pages(k->lat, k->n), best.smem = DecodeSmem(k->n, k->lat / 64 + k->rb, best.slots, TRIO, decode_trio_page(k->lat)).bytes;
        return best;
    }
    if (k->solo == HELD) {
        const size_t named = d->B * (size_t)d->table_stride, pages = named < d->pages ? named : d->pages; /* at most */
        best.pair = best.tiles == 2 && (k->n > 32 || pages >= (size_t)best.parts * HELD_PAIR);
        best.slots = HeldSmem::slots(k->n), best.smem = HeldSmem(k->n, best.slots).bytes + 1024;
        return best;
    }
    const int lat = k->lat / k->cl, kb = lat / 64 + k->rb; /* of one block */
    best.rows8 = k->solo > 0 && decode_rows8(lat, k->rb, k->n, k->solo, k->fp8, k->cl);
    const int unit = best.rows8 ? decode_unit(lat, k->rb) : BOX, per_page = best.rows8 ? 4 : lat / (k->fp8 ? 128 : 64) + k->rb;
    const DecodeSmem fixed(k->n, kb, 0, k->solo, unit, k->cl);
    best.slots = (SMEM_MAX - 1024 - (int)fixed.bytes) / (unit + 16);
    if (k->solo > 0 && k->fp8) best.slots -= best.slots % per_page;
    best.smem = DecodeSmem(k->n, kb, best.slots, k->solo, unit, k->cl).bytes + 1024;
    if (best.slots < per_page) best.k = NULL;
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
 * a page of bf16 and 1 us for one of e4m3 (latent 512); of pages that several tiles share, a tile takes 1 us, too. */
static int piece_cost(const Choice &c) { return !c.k->wgs ? 2 : c.k->fp8 || (c.k->solo == HELD && c.tiles > 1) ? 10 : 5; }

extern "C" mla_status mla_decode_plan(const mla_decode *d, void *stream, mla_err *err)
{
    mla_status st = valid(d, err);
    if (st) return st;
    const Choice c = choose(d);
    if (!c.k || d->B == 1) return MLA_OK;
    const DecodeWs w = workspace(d, c);
    char *ws = (char *)d->ws;
    return decode_cut(d->len, (int)d->B, c.parts, piece_cost(c), (long long *)(ws + w.prefix), (int2 *)(ws + w.begin), (int2 *)(ws + w.split),
                      (cudaStream_t)stream, err);
}

/* (pages, 64, row) with boxes of 64 tokens x `box` elements; groups: instead (pages, groups of 64 elements, 64, row) with
 * boxes of 8 tokens x all groups, eights 2: of 16 tokens, 8 and then 8. */
static mla_status tensor_map(CUtensorMap *m, const mla_decode *d, const mla_decode_part *part, unsigned box, bool swizzle,
                             size_t groups, int eights, mla_err *err)
{
    const size_t el = d->cache == MLA_BF16 ? 2 : 1;
    const uint64_t row = (uint64_t)part->stride, page = row * el * MLA_DECODE_PAGE;
    TensorBox b = {3, (int)el, {row, MLA_DECODE_PAGE, d->pages}, {row * el, page}, {box, MLA_DECODE_PAGE, 1}, swizzle, true};
    if (groups)
        b = TensorBox{4, (int)el, {row, MLA_DECODE_PAGE, groups, d->pages}, {row * el, 64 * el, page}, {box, 8, (uint32_t)groups, 1}, swizzle, true};
    if (eights == 2) b = TensorBox{5, (int)el, {row, 8, groups, 8, d->pages}, {row * el, 64 * el, 8 * row * el, page}, {box, 8, (uint32_t)groups, 2, 1}, swizzle, true};
    return tensor_box_map(m, part->base, &b, "decode", err);
}

/* Queries as (values, rows, sequences), where they lie so: boxes of 64 values x the rows of a tile. */
static bool mapped(const mla_decode *d, const mla_decode_rows *q, const DecodeRows &r)
{
    return q->dtype == MLA_BF16 && r.vec && q->h > 0 && (d->B == 1 || q->b > 0) && (d->s_q == 1 || (d->groups == 1 && q->t == (int64_t)d->H * q->h));
}
static mla_status query_map(CUtensorMap *m, const mla_decode *d, const mla_decode_rows *q, size_t width, int rows, mla_err *err)
{
    const uint64_t n = d->s_q * d->H, row = (uint64_t)q->h * 2, all = d->B > 1 ? (uint64_t)q->b * 2 : n * row;
    const TensorBox b = {3, 2, {width, n, d->B}, {row, all}, {64, (uint32_t)rows, 1}, true, false};
    return tensor_box_map(m, q->p, &b, "decode", err);
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
    p.parts = c.parts, p.tiles = c.tiles;
    if (d->B > 1) p.begin = (const int2 *)(ws + w.begin), p.split = (const int2 *)(ws + w.split);
    p.table = d->table, p.table_stride = d->table_stride, p.len = d->len;
    p.q = rows_of(&d->q), p.q2 = rows_of(&d->q2), p.o = rows_of(&d->o);
    p.lse = d->lse;
    p.scale = d->scale * d->c.scale * 1.44269504088896f;
    p.rope_ratio = d->rope ? d->r.scale / d->c.scale : 1.f, p.out_scale = d->v.base ? d->v.scale : d->c.scale;
    p.po = (float *)(ws + w.po), p.plse = (float *)(ws + w.plse);
    CUtensorMap mc = {}, mr = {};
    const bool fp8 = d->cache == MLA_F8_E4M3;
    p.joined = c.rows8 && c.k->cl == 1 && d->groups == 1 && d->rope && d->r.base == d->c.base && d->r.stride == d->c.stride && d->r.col == d->c.col + (int64_t)d->lat;
    st = tensor_map(&mc, d, &d->c, fp8 ? 128 : 64, true, c.rows8 ? d->lat / 64 / (size_t)c.k->cl + (p.joined ? (size_t)c.k->rb : 0) : 0, p.joined ? 2 : 1, err);
    if (!st && !c.k->wgs) st = tensor_map(&mr, d, &d->v, 64, true, 0, 1, err);
    if (!st && d->rope) st = tensor_map(&mr, d, &d->r, 64, !fp8, c.rows8 ? (size_t)c.k->rb : 0, 1, err);
    if (st) return st;
    const void *fn = c.pair ? c.k->pair : c.k->fn;
    st = cu_ok(cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c.smem), "decode: shared memory", err);
    if (st) return st;
    p.maps = c.k->solo && d->rope_heads == 1 && mapped(d, &d->q, p.q) && mapped(d, &d->q2, p.q2) && (fp8 || p.rope_ratio == 1.f);
    if (p.maps) st = query_map(&p.q_map, d, &d->q, d->lat, c.k->n, err);
    if (p.maps && !st) st = query_map(&p.q2_map, d, &d->q2, d->rope, c.k->n, err);
    if (st) return st;
    void *args[] = {&mc, &mr, &p};
    const unsigned beside = c.k->solo == HELD ? (unsigned)c.tiles : 1; /* tiles of the same pages side by side */
    const unsigned cl = c.pair ? 2 : (unsigned)c.k->cl;
    const dim3 grid((unsigned)(c.parts * c.k->cl) * beside, (unsigned)c.tiles / beside, (unsigned)d->groups);
    cudaLaunchAttribute attrs[2] = {}; /* the next kernel's launch overlaps this one's end; it waits before it reads */
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeClusterDimension;
    attrs[1].val.clusterDim.x = cl, attrs[1].val.clusterDim.y = attrs[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid, cfg.blockDim = dim3(c.k->wgs ? (unsigned)c.k->wgs * 128 + 128 : GQA_WARPS * 32 + 32), cfg.dynamicSmemBytes = c.smem;
    cfg.stream = stream, cfg.attrs = attrs, cfg.numAttrs = cl > 1 ? 2 : 1;
    st = cu_ok(cudaLaunchKernelExC(&cfg, fn, args), "decode: launch", err);
    if (st) return st;
    return decode_merge(p, c.k->n, c.tiles, (int)d->lat, stream, err);
}
