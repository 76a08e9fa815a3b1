/* Weights on their way to the device: pieces through a ring of pinned buffers and a stream of their own, so that a piece is
 * filled while the one before crosses, and a layer may load while the operations queued before are computed. Their memory
 * comes from the device's pool, which keeps what is given back: layer after layer takes the same. */
#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "cuda/be.cuh"
#include "cuda/codes.cuh"

enum { PIECE = 16 << 20, RING = 4, FILLERS = 8 }; /* bytes; buffers; threads at most */

struct CuLoader {
    cudaStream_t stream;
    char *host[RING], *dev[RING]; /* pinned; the same size on the device for rows that are converted there */
    cudaEvent_t used[RING];       /* the buffer's last copy is done */
    size_t bytes;                 /* of a buffer */
    int *bad, next;
    mla_pool *pool;
};

static __global__ void store_f32_t(float *w, const float *rows, size_t row0, size_t n, size_t in, size_t out)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n * in) w[i % in * out + row0 + i / in] = rows[i];
}
static __global__ void store_bf16(__nv_bfloat16 *w, const float *rows, size_t row0, size_t n, size_t in, size_t in8)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n * in8) w[(row0 + i / in8) * in8 + i % in8] = __float2bfloat16_rn(i % in8 < in ? rows[i / in8 * in + i % in8] : 0.f);
}
/* n: pairs of bf16 numbers. */
static __global__ void find_nonfinite(int *bad, const uint32_t *w, size_t n)
{
    bool seen = false;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t x = w[i];
        seen |= (x & 0x7f80u) == 0x7f80u || (x & 0x7f800000u) == 0x7f800000u;
    }
    if (seen) *bad = 1;
}

void cu_loader_free(CuLoader *l)
{
    if (!l) return;
    if (l->stream) cudaStreamSynchronize(l->stream);
    for (int i = 0; i < RING; i++) {
        cudaFreeHost(l->host[i]);
        cudaFree(l->dev[i]);
        if (l->used[i]) cudaEventDestroy(l->used[i]);
    }
    cudaFree(l->bad);
    if (l->stream) cudaStreamDestroy(l->stream);
    mla_pool_free(l->pool);
    free(l);
}

/* A copy from pageable memory may wait for all that is queued before it; small ones go through pinned slots and do not. */
mla_status cu_upload(mla_backend *be, mla_mem *dst, const void *src, size_t bytes, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    mla_status st = cu_not_recording(c, "upload", err);
    if (st) return st;
    if (bytes > CU_MAIL) {
        st = cu_ok(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, c->stream), "upload", err);
        return st ? st : cu_settle(c, "upload", err);
    }
    const size_t k = c->mails++ % CU_MAILS;
    char *slot = c->mail + k * CU_MAIL;
    st = cu_ok(cudaEventSynchronize(c->mailed[k]), "upload", err);
    if (st) return st;
    memcpy(slot, src, bytes);
    st = cu_ok(cudaMemcpyAsync(dst, slot, bytes, cudaMemcpyHostToDevice, c->stream), "upload", err);
    if (!st) st = cu_ok(cudaEventRecord(c->mailed[k], c->stream), "upload", err);
    return st ? st : cu_settle(c, "upload", err);
}

/* The backend's loader with buffers of at least `bytes`, made by the first weight. */
static mla_status loader_of(mla_cuda *c, size_t bytes, CuLoader **out, mla_err *err)
{
    const char *what = "weight staging";
    bytes = bytes < PIECE ? (size_t)PIECE : bytes;
    if (c->loader && c->loader->bytes < bytes) {
        cu_loader_free(c->loader);
        c->loader = NULL;
    }
    *out = c->loader;
    if (c->loader) return MLA_OK;
    CuLoader *l = (CuLoader *)calloc(1, sizeof *l);
    if (!l) return mla_fail(err, MLA_ENOMEM, "%s", what);
    l->bytes = bytes;
    mla_status st = mla_pool_new(&l->pool, c->threads && c->threads < FILLERS ? c->threads : (size_t)FILLERS, err);
    if (!st) st = cu_ok(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), what, err);
    if (!st) st = cu_ok(cudaMalloc((void **)&l->bad, 4), what, err);
    for (int i = 0; !st && i < RING; i++) {
        st = cu_ok(cudaMallocHost((void **)&l->host[i], bytes), what, err);
        if (!st) st = cu_ok(cudaMalloc((void **)&l->dev[i], bytes), what, err);
        if (!st) st = cu_ok(cudaEventCreateWithFlags(&l->used[i], cudaEventDisableTiming), what, err);
    }
    if (st) {
        cu_loader_free(l);
        return st;
    }
    *out = c->loader = l;
    return MLA_OK;
}

/* Rows into a pinned buffer, several threads at a time: stored bf16 numbers as they are, codes with their scales, or a
 * trellis' tiles, whose rows are bytes. */
struct Fill {
    const mla_weight *w;
    const mla_coded *coded;
    char *to, *room; /* room: room_bytes for each thread */
    size_t row0, row_bytes, room_bytes;
    mla_err err[FILLERS];
};
static void fill_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    Fill *f = (Fill *)ctx;
    for (size_t r = begin; r < end && f->err[worker].status == MLA_OK; r++) {
        uint8_t *at = (uint8_t *)f->to + r * f->row_bytes;
        const mla_coded_row to = {at, NULL, NULL, NULL, NULL};
        if (f->w->trellis) memcpy(at, f->coded->trellis.tiles + (f->row0 + r) * f->row_bytes, f->row_bytes);
        else if (f->w->codes) f->err[worker].status = codes_row(f->w, f->coded, f->row0 + r, at, (uint8_t *)f->room + worker * f->room_bytes, &f->err[worker]);
        else f->err[worker].status = f->coded->fill(f->coded, f->row0 + r, &to, &f->err[worker]);
    }
}
static mla_status fill(CuLoader *l, const mla_weight *w, const mla_coded *coded, char *to, size_t row0, size_t n, size_t row_bytes, mla_err *err)
{
    Fill f = {w, coded, to, NULL, row0, row_bytes, w->codes ? codes_room(coded) : 0, {}};
    const size_t grain = ((size_t)1 << 20) / row_bytes + 1;
    if (w->codes && !(f.room = (char *)malloc(f.room_bytes * FILLERS))) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): rows", w->out, w->in);
    mla_par_for(l->pool, n, grain, fill_rows, &f);
    free(f.room);
    for (int i = 0; i < FILLERS; i++)
        if (f.err[i].status != MLA_OK) {
            *err = f.err[i];
            return err->status;
        }
    return MLA_OK;
}

/* What rows of a weight are while they cross: row_bytes each as they stand on the device (stored bf16 numbers: but for the
 * padding), or 0: decoded f32. */
struct Sent {
    size_t rows, row_bytes;
};

/* Rows [row0, row0 + n): filled into the ring's next buffer, sent, and stored in the device's layout. */
static mla_status send(CuLoader *l, mla_weight *w, const mla_weight_desc *d, Sent s, size_t row0, size_t n, mla_err *err)
{
    const char *what = "weight";
    const int k = l->next++ % RING;
    mla_status st = cu_ok(cudaEventSynchronize(l->used[k]), what, err); /* the buffer is free again */
    if (!st) st = s.row_bytes ? fill(l, w, d->coded, l->host[k], row0, n, s.row_bytes, err) : d->rows(d->ctx, row0, n, (float *)l->host[k], err);
    if (st) return st;
    if (s.row_bytes) {
        const bool packed = w->codes || w->trellis;
        char *to = (char *)w->data + row0 * (packed ? s.row_bytes : w->in8 * 2);
        if (packed || w->in8 == w->in) st = cu_ok(cudaMemcpyAsync(to, l->host[k], n * s.row_bytes, cudaMemcpyHostToDevice, l->stream), what, err);
        else st = cu_ok(cudaMemcpy2DAsync(to, w->in8 * 2, l->host[k], d->in * 2, d->in * 2, n, cudaMemcpyHostToDevice, l->stream), what, err);
        return st ? st : cu_ok(cudaEventRecord(l->used[k], l->stream), what, err);
    }
    const float *rows = (const float *)l->dev[k];
    st = cu_ok(cudaMemcpyAsync(l->dev[k], l->host[k], n * d->in * 4, cudaMemcpyHostToDevice, l->stream), what, err);
    if (st) return st;
    if (w->precision == MLA_PREC_F32) store_f32_t<<<grid_of(n * d->in, 256), 256, 0, l->stream>>>((float *)w->data, rows, row0, n, d->in, d->out);
    else store_bf16<<<grid_of(n * w->in8, 256), 256, 0, l->stream>>>((__nv_bfloat16 *)w->data, rows, row0, n, d->in, w->in8);
    st = launched(what, err);
    return st ? st : cu_ok(cudaEventRecord(l->used[k], l->stream), what, err);
}

/* Whether stored numbers are all finite; whoever reads them as rows names the one that is not. */
static mla_status check_finite(CuLoader *l, const mla_weight *w, mla_err *err)
{
    int bad = 0;
    mla_status st = cu_ok(cudaMemsetAsync(l->bad, 0, 4, l->stream), "weight", err);
    if (st) return st;
    if (w->codes) st = codes_find_odd(w, l->bad, l->stream, err);
    else find_nonfinite<<<528, 256, 0, l->stream>>>(l->bad, (const uint32_t *)w->data, w->bytes / 4);
    if (st) return st;
    st = cu_ok(cudaMemcpyAsync(&bad, l->bad, 4, cudaMemcpyDeviceToHost, l->stream), "weight", err);
    if (!st) st = cu_ok(cudaStreamSynchronize(l->stream), "weight", err);
    return st || !bad ? st : mla_fail(err, MLA_EFORMAT, "weight (%zu, %zu): a number is not finite", w->out, w->in);
}

/* What a packed weight has beside its codes: a table of scales and a permutation, in one block. */
static mla_status codes_sides(mla_weight *w, const mla_coded *c, cudaStream_t stream, mla_err *err)
{
    const size_t table = c->scale == MLA_SCALE_TABLE ? sizeof c->table : 0, perm = c->perm ? c->in * 4 : 0;
    Codes *d = w->codes;
    d->data = (const uint8_t *)w->data;
    if (!table && !perm) return MLA_OK;
    mla_status st = cu_ok(cudaMallocAsync(&w->side, table + perm, stream), "weight", err);
    if (!st && table) st = cu_ok(cudaMemcpyAsync(w->side, c->table, table, cudaMemcpyHostToDevice, stream), "weight", err);
    if (!st && perm) st = cu_ok(cudaMemcpyAsync((char *)w->side + table, c->perm, perm, cudaMemcpyHostToDevice, stream), "weight", err);
    d->table = (const float *)w->side, d->perm = perm ? (const uint32_t *)((char *)w->side + table) : NULL;
    w->bytes += table + perm;
    return st;
}

/* Sizes of what will stand on the device, and how it crosses. */
static mla_status lay_out(mla_weight *w, const mla_weight_desc *d, bool stored, Sent *s, mla_err *err)
{
    *s = Sent{d->out, stored ? d->in * 2 : 0};
    if (d->coded && !stored) {
        const bool trellis = d->coded->code == MLA_CODE_TRELLIS;
        const mla_status st = trellis ? trellis_new(w, d->coded, err) : codes_new(w, d->coded, err);
        if (st) return st;
        *s = trellis ? Sent{d->coded->trellis.in128 / 16, w->bytes / (d->coded->trellis.in128 / 16)} : Sent{d->out, (size_t)w->codes->row_bytes};
        return MLA_OK;
    }
    const bool f32 = d->precision == MLA_PREC_F32;
    if (__builtin_mul_overflow(f32 ? d->in : w->in8, d->out, &w->bytes) || __builtin_mul_overflow(w->bytes, f32 ? 4u : 2u, &w->bytes))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", d->out, d->in);
    return MLA_OK;
}

mla_status cu_weight_new(mla_backend *be, mla_weight **out, const mla_weight_desc *d, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    CuLoader *l = NULL;
    if (!d->out || !d->in || !d->rows) return mla_fail(err, MLA_EINVAL, "weight (%zu, %zu): empty", d->out, d->in);
    mla_weight *w = (mla_weight *)calloc(1, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu)", d->out, d->in);
    w->out = d->out, w->in = d->in, w->in8 = (d->in + 7) / 8 * 8, w->precision = d->precision;
    const bool stored = d->precision == MLA_PREC_BF16 && d->coded && d->coded->code == MLA_CODE_BF16 && !d->coded->perm;
    Sent s;
    mla_status st = lay_out(w, d, stored, &s, err);
    if (!st) st = loader_of(c, s.row_bytes > d->in * 4 ? s.row_bytes : d->in * 4, &l, err);
    if (!st) st = cu_ok(cudaMallocAsync(&w->data, w->bytes, l->stream), "weight", err);
    if (!st && stored && w->in8 != w->in) st = cu_ok(cudaMemsetAsync(w->data, 0, w->bytes, l->stream), "weight", err);
    if (!st && w->codes) st = codes_sides(w, d->coded, l->stream, err);
    if (!st && w->trellis) st = trellis_sides(w, d->coded, l->stream, err);
    const size_t at_once = l ? l->bytes / (s.row_bytes ? s.row_bytes : d->in * 4) : 1;
    for (size_t r = 0; !st && r < s.rows; r += at_once) st = send(l, w, d, s, r, at_once < s.rows - r ? at_once : s.rows - r, err);
    if (l) { /* also after an error: buffers and the weight are no longer in use */
        const mla_status last = cu_ok(cudaStreamSynchronize(l->stream), "weight", st ? NULL : err);
        st = st ? st : last;
    }
    if (!st && (stored || w->codes)) st = check_finite(l, w, err);
    if (st) {
        cu_weight_free(be, w);
        return st;
    }
    *out = w;
    return MLA_OK;
}

void cu_weight_free(mla_backend *be, mla_weight *w)
{
    if (!w) return;
    if (w->data) cudaFreeAsync(w->data, cu_of(be)->stream); /* what is queued may still read it */
    if (w->side) cudaFreeAsync(w->side, cu_of(be)->stream);
    free(w->codes);
    free(w->trellis);
    free(w);
}
size_t cu_weight_bytes(const mla_weight *w) { return w->bytes; }
