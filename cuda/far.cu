/* Weights that are read from a file: a queue of their pieces, in the order in which weights were asked for, which threads take, read
 * into buffers of their own, check and send. Nobody waits for a matrix, so that disk, memory and bus have always as much to do; who needs
 * the weights (cu_arrived) waits for all of them. What the page cache holds goes through half of each buffer: as copies of 2 MB still
 * cross at 94 % of the bus' rate, and all buffers together stay in the host's last cache even where others use it. */
#include <stdlib.h>

#include "cuda/load.cuh"

struct FarWeight {
    mla_weight *w;
    mla_coded coded;
    Sent s;
    size_t at_once, pieces, taken, sent; /* rows of a piece; pieces of all, on their way or done, done */
    bool failed;
    FarWeight *next;
};
struct CuFar {
    CuLoader *l;
    int device;
    pthread_mutex_t turn;
    pthread_cond_t more, done;
    FarWeight *first, *last;  /* not all of which is sent */
    FarWeight *failed;        /* what was queued when something failed, until it is freed: */
    mla_err err;              /* meanwhile, and nothing is read */
    pthread_t thread[FILLERS];
    size_t threads;
    bool stop;
};

mla_status send_rows(const CuLoader *l, const mla_weight *w, size_t row_bytes, size_t row0, size_t n, const void *from, mla_err *err)
{
    const bool packed = w->codes || w->trellis;
    char *to = (char *)w->data + row0 * (packed ? row_bytes : w->in8 * 2);
    if (packed || w->in8 == w->in) return cu_ok(cudaMemcpyAsync(to, from, n * row_bytes, cudaMemcpyHostToDevice, l->stream), "weight", err);
    return cu_ok(cudaMemcpy2DAsync(to, w->in8 * 2, from, w->in * 2, w->in * 2, n, cudaMemcpyHostToDevice, l->stream), "weight", err);
}

/* Piece i through buffer k. */
static mla_status bring(CuLoader *l, const FarWeight *x, size_t i, size_t k, mla_err *err)
{
    const size_t rb = x->s.row_bytes, row0 = i * x->at_once, n = x->at_once < x->s.rows - row0 ? x->at_once : x->s.rows - row0;
    const void *from;
    mla_status st = cu_ok(cudaEventSynchronize(l->used[k]), "weight", err); /* the buffer is free again */
    if (!st) st = x->coded.read(&x->coded, row0 * rb, n * rb, l->host + k * l->stride, &from, err);
    if (!st && !x->w->trellis && !finite_bf16(from, n * x->w->in))
        st = mla_fail(err, MLA_EFORMAT, "%s%sweight (%zu, %zu): a number is not finite", x->coded.name ? x->coded.name : "", x->coded.name ? ": " : "", x->w->out, x->w->in);
    if (!st) st = send_rows(l, x->w, rb, row0, n, from, err);
    if (!st) st = cu_ok(cudaEventRecord(l->used[k], l->stream), "weight", err);
    return st;
}

/* n pieces of x are done. With the last of them x leaves the queue; one that failed is kept. */
static void end_pieces(CuFar *f, FarWeight *x, size_t n, mla_status st, const mla_err *err)
{
    if (st && !f->err.status) f->err = *err, f->err.status = st;
    x->failed |= st != MLA_OK;
    x->sent += n;
    if (x->sent < x->pieces) return;
    FarWeight **at = &f->first, *before = NULL;
    while (*at != x) before = *at, at = &before->next;
    *at = x->next;
    if (f->last == x) f->last = before;
    if (x->failed) x->next = f->failed, f->failed = x;
    else free(x);
    pthread_cond_broadcast(&f->done);
}

static void *reader(void *ctx)
{
    CuFar *f = (CuFar *)ctx;
    mla_err err;
    size_t turn = 0;
    cudaSetDevice(f->device);
    pthread_mutex_lock(&f->turn);
    const size_t me = f->threads++;
    for (;;) {
        FarWeight *x = f->first;
        while (x && x->taken == x->pieces) x = x->next;
        if (!x && f->stop) break;
        if (!x) {
            pthread_cond_wait(&f->more, &f->turn);
            continue;
        }
        const size_t i = x->taken++;
        mla_status st = f->err.status;
        if (st) err = f->err;
        pthread_mutex_unlock(&f->turn);
        if (!st) st = bring(f->l, x, i, me * SLOTS + turn++ % SLOTS, &err);
        pthread_mutex_lock(&f->turn);
        end_pieces(f, x, 1, st, &err);
    }
    pthread_mutex_unlock(&f->turn);
    return NULL;
}

static mla_status far_new(CuLoader *l, int device, mla_err *err)
{
    CuFar *f = (CuFar *)calloc(1, sizeof *f);
    if (!f) return mla_fail(err, MLA_ENOMEM, "weight staging");
    f->l = l, f->device = device;
    pthread_mutex_init(&f->turn, NULL);
    pthread_cond_init(&f->more, NULL);
    pthread_cond_init(&f->done, NULL);
    size_t n = 0;
    while (n < FILLERS && !pthread_create(&f->thread[n], NULL, reader, f)) n++;
    if (!n) {
        free(f);
        return mla_fail(err, MLA_ENOMEM, "weight staging: threads");
    }
    l->far = f;
    return MLA_OK;
}

mla_status far_add(CuLoader *l, int device, mla_weight *w, const mla_coded *c, Sent s, mla_err *err)
{
    FarWeight *x = (FarWeight *)calloc(1, sizeof *x);
    mla_status st = !x ? mla_fail(err, MLA_ENOMEM, "weight (%zu, %zu)", w->out, w->in) : l->far ? MLA_OK : far_new(l, device, err);
    if (st) {
        free(x);
        return st;
    }
    const size_t most = l->bytes / (c->near(c) ? 2 : 1) / s.row_bytes;
    x->w = w, x->coded = *c, x->s = s, x->at_once = !most ? 1 : most < s.rows ? most : s.rows;
    x->pieces = (s.rows + x->at_once - 1) / x->at_once;
    CuFar *f = l->far;
    pthread_mutex_lock(&f->turn);
    if (f->last) f->last->next = x;
    else f->first = x;
    f->last = x;
    pthread_cond_broadcast(&f->more);
    pthread_mutex_unlock(&f->turn);
    return MLA_OK;
}

mla_status far_wait(CuLoader *l, mla_err *err)
{
    CuFar *f = l->far;
    mla_status st = MLA_OK;
    if (!f) return st;
    pthread_mutex_lock(&f->turn);
    while (f->first) pthread_cond_wait(&f->done, &f->turn);
    if (f->err.status) *err = f->err, st = f->err.status;
    pthread_mutex_unlock(&f->turn);
    return st;
}

static FarWeight *queued(const CuFar *f, const mla_weight *w)
{
    FarWeight *x = f->first;
    while (x && x->w != w) x = x->next;
    return x;
}

void far_forget(CuLoader *l, const mla_weight *w)
{
    CuFar *f = l->far;
    pthread_mutex_lock(&f->turn);
    FarWeight *x = queued(f, w);
    const size_t left = x ? x->pieces - x->taken : 0; /* nobody needs to read them any more */
    if (left) x->taken = x->pieces, end_pieces(f, x, left, MLA_OK, NULL);
    while (queued(f, w)) pthread_cond_wait(&f->done, &f->turn);
    for (FarWeight **at = &f->failed; *at;) {
        x = *at;
        if (x->w == w) *at = x->next, free(x);
        else at = &x->next;
    }
    if (!f->failed) f->err = mla_err{};
    pthread_mutex_unlock(&f->turn);
}

void far_free(CuFar *f)
{
    if (!f) return;
    pthread_mutex_lock(&f->turn);
    f->stop = true; /* what is queued is still read */
    pthread_cond_broadcast(&f->more);
    pthread_mutex_unlock(&f->turn);
    for (size_t i = 0; i < FILLERS && f->thread[i]; i++) pthread_join(f->thread[i], NULL);
    while (f->failed) {
        FarWeight *x = f->failed;
        f->failed = x->next;
        free(x);
    }
    pthread_cond_destroy(&f->done);
    pthread_cond_destroy(&f->more);
    pthread_mutex_destroy(&f->turn);
    free(f);
}
