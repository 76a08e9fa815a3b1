/* Weights on their way to the device. Those that stand in a file as they will on the device are queued (far.cu), and the first operation
 * that needs a weight waits for them. Of others, threads take a matrix' pieces in turn, each fills pinned buffers of its own and sends
 * them on a stream of their own, so that pieces of one matrix are filled while the last ones of the matrix before cross, and a layer may
 * load while the operations queued before are computed; what is queued later waits for the weight. Memory comes from the device's pool,
 * which keeps what is given back: layer after layer takes the same. */
#include <stdlib.h>

#include "cuda/codes.cuh"
#include "cuda/load.cuh"

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
void cu_loader_free(CuLoader *l)
{
    if (!l) return;
    far_free(l->far);
    if (l->stream) cudaStreamSynchronize(l->stream);
    cudaFreeHost(l->host);
    for (char *d : l->dev) cudaFree(d);
    for (cudaEvent_t e : l->used)
        if (e) cudaEventDestroy(e);
    if (l->loaded) cudaEventDestroy(l->loaded);
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
    bytes = bytes < PIECE ? (size_t)PIECE : (bytes + 4095) / 4096 * 4096;
    if (c->loader && c->loader->bytes < bytes) {
        const mla_status st = cu_arrived(c, err);
        if (st) return st;
        cu_loader_free(c->loader);
        c->loader = NULL;
    }
    *out = c->loader;
    if (c->loader) return MLA_OK;
    CuLoader *l = (CuLoader *)calloc(1, sizeof *l);
    if (!l) return mla_fail(err, MLA_ENOMEM, "%s", what);
    l->bytes = bytes, l->stride = bytes + MLA_CODED_ROOM;
    mla_status st = mla_pool_new(&l->pool, c->threads && c->threads < FILLERS ? c->threads : (size_t)FILLERS, err);
    if (!st) st = cu_ok(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), what, err);
    if (!st) st = cu_ok(cudaMalloc((void **)&l->bad, 4), what, err);
    if (!st) st = cu_ok(cudaMallocHost((void **)&l->host, BUFFERS * l->stride), what, err);
    for (int i = 0; !st && i < SLOTS; i++) st = cu_ok(cudaMalloc((void **)&l->dev[i], bytes), what, err);
    for (int i = 0; !st && i < BUFFERS; i++) st = cu_ok(cudaEventCreateWithFlags(&l->used[i], cudaEventDisableTiming), what, err);
    if (!st) st = cu_ok(cudaEventCreateWithFlags(&l->loaded, cudaEventDisableTiming), what, err);
    if (st) {
        cu_loader_free(l);
        return st;
    }
    *out = c->loader = l;
    return MLA_OK;
}

/* A weight on its way. */
struct Load {
    CuLoader *l;
    mla_weight *w;
    const mla_weight_desc *d;
    Sent s;
    size_t at_once;           /* rows of a piece */
    int device;
    char *room;               /* room_bytes for each thread, where codes are laid out anew */
    size_t room_bytes;
    mla_err err[FILLERS];
};

/* Rows [row0, row0 + n) into `to`, or nearby: *from. Stored bf16 numbers as they are, codes with their scales, a trellis' tiles (whose
 * rows are bytes), or decoded. */
static mla_status fill(Load *x, size_t worker, char *to, size_t row0, size_t n, const void **from, mla_err *err)
{
    const mla_coded *c = x->d->coded;
    const size_t rb = x->s.row_bytes;
    mla_status st = MLA_OK;
    *from = to;
    if (!rb) return x->d->rows(x->d->ctx, row0, n, (float *)to, err);
    if (x->w->trellis) memcpy(to, c->trellis.tiles + row0 * rb, n * rb);
    else
        for (size_t r = 0; !st && r < n; r++) {
            uint8_t *at = (uint8_t *)to + r * rb;
            const mla_coded_row row = {at, NULL, NULL, NULL, NULL};
            st = x->w->codes ? codes_row(x->w, c, row0 + r, at, (uint8_t *)x->room + worker * x->room_bytes, err) : c->fill(c, row0 + r, &row, err);
        }
    if (!st && !x->w->codes && !x->w->trellis && !finite_bf16(*from, n * x->d->in))
        return mla_fail(err, MLA_EFORMAT, "weight (%zu, %zu): a number is not finite", x->w->out, x->w->in);
    return st;
}

/* n rows of a filled buffer, from row0 on, into the device's layout. */
static mla_status store(const Load *x, size_t slot, size_t row0, size_t n, const void *from, mla_err *err)
{
    CuLoader *l = x->l;
    mla_weight *w = x->w;
    const char *what = "weight";
    const size_t in = x->d->in, out = x->d->out, rb = x->s.row_bytes;
    if (rb) return send_rows(l, w, rb, row0, n, from, err);
    float *rows = (float *)l->dev[slot];
    const mla_status st = cu_ok(cudaMemcpyAsync(rows, from, n * in * 4, cudaMemcpyHostToDevice, l->stream), what, err);
    if (st) return st;
    if (w->precision == MLA_PREC_F32) store_f32_t<<<grid_of(n * in, 256), 256, 0, l->stream>>>((float *)w->data, rows, row0, n, in, out);
    else store_bf16<<<grid_of(n * w->in8, 256), 256, 0, l->stream>>>((__nv_bfloat16 *)w->data, rows, row0, n, in, w->in8);
    return launched(what, err);
}

/* Pieces [begin, end), each through the worker's next buffer. */
static void send(void *ctx, size_t begin, size_t end, size_t worker)
{
    Load *x = (Load *)ctx;
    CuLoader *l = x->l;
    mla_err *err = &x->err[worker];
    cudaSetDevice(x->device); /* the thread may be new */
    for (size_t i = begin; i < end && err->status == MLA_OK; i++) {
        const size_t row0 = i * x->at_once, n = x->at_once < x->s.rows - row0 ? x->at_once : x->s.rows - row0, slot = l->next[worker]++ % SLOTS,
                     k = worker * SLOTS + slot;
        const void *from;
        mla_status st = cu_ok(cudaEventSynchronize(l->used[k]), "weight", err); /* the buffer is free again */
        if (!st) st = fill(x, worker, l->host + k * l->stride, row0, n, &from, err);
        if (!st) st = store(x, slot, row0, n, from, err);
        if (!st) st = cu_ok(cudaEventRecord(l->used[k], l->stream), "weight", err);
        err->status = st;
    }
}

/* All pieces filled and queued, through buffers that readers have left. */
static mla_status send_all(Load *x, mla_err *err)
{
    if (x->w->codes && !(x->room = (char *)malloc(x->room_bytes * FILLERS))) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): rows", x->w->out, x->w->in);
    mla_par_for(x->s.row_bytes ? x->l->pool : NULL, (x->s.rows + x->at_once - 1) / x->at_once, 1, send, x);
    free(x->room);
    return mla_first_error(x->err, FILLERS, err);
}

/* Whether codes and scales are such as decode to finite numbers; waits. */
static mla_status check_codes(CuLoader *l, const mla_weight *w, mla_err *err)
{
    int bad = 0;
    mla_status st = cu_ok(cudaMemsetAsync(l->bad, 0, 4, l->stream), "weight", err);
    if (!st) st = codes_find_odd(w, l->bad, l->stream, err);
    if (!st) st = cu_ok(cudaMemcpyAsync(&bad, l->bad, 4, cudaMemcpyDeviceToHost, l->stream), "weight", err);
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
        *s = trellis ? Sent{d->coded->trellis.in128 / 16, w->bytes / (d->coded->trellis.in128 / 16)} : Sent{w->bytes / (size_t)w->codes->row_bytes, (size_t)w->codes->row_bytes};
        return MLA_OK;
    }
    const bool f32 = d->precision == MLA_PREC_F32;
    if (__builtin_mul_overflow(f32 ? d->in : w->in8, d->out, &w->bytes) || __builtin_mul_overflow(w->bytes, f32 ? 4u : 2u, &w->bytes))
        return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu): size overflows", d->out, d->in);
    return MLA_OK;
}

/* What is queued from now on, kernels that come early, too, finds all weights that have been sent. */
static mla_status arrive(mla_cuda *c, mla_err *err)
{
    mla_status st = cu_ok(cudaEventRecord(c->loader->loaded, c->loader->stream), "weight", err);
    if (!st) st = cu_ok(cudaStreamWaitEvent(c->stream, c->loader->loaded, 0), "weight", err);
    return st ? st : cu_settle(c, "weight", err);
}
mla_status cu_await(mla_cuda *c, mla_err *err)
{
    mla_status st = far_wait(c->loader, err);
    if (!st) st = arrive(c, err);
    c->coming = st != MLA_OK;
    return st;
}

mla_status cu_weight_new(mla_backend *be, mla_weight **out, const mla_weight_desc *d, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    CuLoader *l = NULL;
    if (!d->out || !d->in || !d->rows) return mla_fail(err, MLA_EINVAL, "weight (%zu, %zu): empty", d->out, d->in);
    mla_status st = cu_not_recording(c, "weight", err);
    if (st) return st;
    mla_weight *w = (mla_weight *)calloc(1, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu)", d->out, d->in);
    w->out = d->out, w->in = d->in, w->in8 = (d->in + 7) / 8 * 8, w->precision = d->precision;
    const bool stored = d->precision == MLA_PREC_BF16 && d->coded && d->coded->code == MLA_CODE_BF16 && !d->coded->perm;
    Sent s;
    st = lay_out(w, d, stored, &s, err);
    if (!st) st = loader_of(c, s.row_bytes > d->in * 4 ? s.row_bytes : d->in * 4, &l, err);
    if (!st) st = cu_ok(cudaMallocAsync(&w->data, w->bytes, l->stream), "weight", err);
    if (!st && stored && w->in8 != w->in) st = cu_ok(cudaMemsetAsync(w->data, 0, w->bytes, l->stream), "weight", err);
    if (!st && w->codes) st = codes_sides(w, d->coded, l->stream, err);
    if (!st && w->trellis) st = trellis_sides(w, d->coded, l->stream, err);
    const bool far = !w->codes && d->coded && d->coded->read && s.row_bytes;
    if (!st && far) {
        if (!(st = far_add(l, c->device, w, d->coded, s, err))) c->coming = true;
    } else if (!st) {
        Load x = {l, w, d, s, 1, c->device, NULL, w->codes ? codes_room(d->coded) : 0, {}};
        x.at_once = l->bytes / (s.row_bytes ? s.row_bytes : d->in * 4);
        if (c->coming) st = far_wait(l, err);
        if (!st) st = send_all(&x, err);
        if (!st && w->codes) st = check_codes(l, w, err);
        if (!st) st = arrive(c, err);
    }
    if (st && l) cudaStreamSynchronize(l->stream); /* nobody writes to the weight any more */
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
    mla_err why;
    if (cu_of(be)->coming) {
        far_forget(cu_of(be)->loader, w);
        (void)!arrive(cu_of(be), &why); /* its memory is free behind the copies into it */
    }
    if (w->data) cudaFreeAsync(w->data, cu_of(be)->stream); /* what is queued may still read it */
    if (w->side) cudaFreeAsync(w->side, cu_of(be)->stream);
    free(w->codes);
    free(w->trellis);
    free(w);
}
size_t cu_weight_bytes(const mla_weight *w) { return w->bytes; }
