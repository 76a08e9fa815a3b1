/* The CUDA backend's own state and the functions its op table is made of (backend/backend.h says what each promises).
 *
 * One stream, ops queued in order. Ops share one growable scratch block on the device, valid until the next op: stream
 * order keeps a later op from touching it early. Host arrays of a call (page tables, token ids) are copied before the
 * call returns.
 * Kernels queued by cu_early may come while the one before still runs: they begin with grid_wait (cuda/ptx.cuh) before
 * they touch what others write, and read activations past L1. Private to cuda/. */
#ifndef MLA_CUDA_BE_CUH
#define MLA_CUDA_BE_CUH
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>
#include <pthread.h>

#include "backend/backend.h"
#include "cuda/check.cuh"

/* f32: W transposed, (in, out): a warp's outputs lie side by side. bf16: W (out, in8), rows padded with zeros to 8.
 * Packed: codes (codes.cuh) or trellis tiles (trellis.cu), of which tiles are decoded to one of the two. */
struct Codes;
struct Trellis;
struct mla_weight {
    size_t out, in, in8, bytes;
    mla_precision precision;
    void *data;
    Codes *codes;
    Trellis *trellis;
    void *side; /* device memory beside data: a table, a permutation, or scales of a trellis; NULL: none */
};

struct CuLoader; /* weights.cu */
enum { CU_MAILS = 16, CU_MAIL = 256 << 10 };

struct CudaKept;
struct FewP;
struct FewSync;
struct CudaMix;
struct CudaHeads;
struct mla_cuda {
    mla_backend base;
    int device, sms, major, shared; /* major: of the compute capability; shared: bytes a block may have of it */
    size_t threads; /* of the host, 0: as many as it has */
    CuLoader *loader;
    bool coming;    /* weights are still read from files, or could not be */
    char *mail; /* CU_MAILS pinned slots of CU_MAIL bytes: small uploads wait for nothing */
    cudaEvent_t mailed[CU_MAILS];
    size_t mails;
    cudaStream_t stream;
    cublasLtHandle_t lt;
    cublasHandle_t blas;
    cusolverDnHandle_t solver;
    void *lt_space; /* cublasLt workspace of LT_SPACE bytes */
    struct {
        char *p;
        size_t bytes;
    } scratch[2]; /* of an operation; of decoded tiles, beside it */
    pthread_mutex_t eigh_turn; /* several threads may solve; nothing else is queued meanwhile */
    bool recording;
    size_t tapes;   /* that exist, the one being recorded included */
    const mla_backend_ops *ops; /* while recording: the table before and after; base.ops is `between` meanwhile (tape.cu) */
    mla_backend_ops between;
    FewP *few;               /* while recording: linear layers that wait for more to join them (linear.cu) */
    CudaMix *mix;            /* while recording: a convolution that waits (tape.cu) */
    CudaHeads *heads;        /* while recording: what waits around attention (tape_attn.cu) */
    FewSync *few_sync;       /* of linear_few.cuh, and its launches */
    unsigned few_turn;
    unsigned *turns;         /* of gdn.cuh, GdnMix */
    CudaKept *kept; /* scratch blocks that were outgrown while tapes exist: they may name them */
    char text[400];
};
enum { LT_SPACE = 32 << 20 };

static inline mla_cuda *cu_of(mla_backend *be) { return (mla_cuda *)be; }
static inline float *f32p(mla_mem *p) { return (float *)p; }
static inline const float *cf32p(const mla_mem *p) { return (const float *)p; }
static inline double *f64p(mla_mem *p) { return (double *)p; }
static inline unsigned grid_of(size_t n, size_t per) { return (unsigned)((n + per - 1) / per); }
template <class... P, class... A>
static inline mla_status cu_launch(mla_cuda *c, const char *what, mla_err *err, void (*kernel)(P...), dim3 grid, dim3 block, A... args)
{
    return cu_early(what, err, kernel, grid, block, 0, c->stream, args...);
}
static inline mla_status launched(const char *what, mla_err *err) { return cu_ok(cudaGetLastError(), what, err); }

mla_status cublas_ok(cublasStatus_t s, const char *what, mla_err *err);
/* bytes of device scratch; growing waits for the stream, but while tapes exist. */
mla_status cu_scratch(mla_cuda *c, size_t bytes, const char *what, char **out, mla_err *err);
/* The same beside it, for decoded tiles of packed weights. */
mla_status cu_tile(mla_cuda *c, size_t bytes, const char *what, char **out, mla_err *err);
/* Device copy of n 32-bit host values inside scratch memory at `at`. */
mla_status cu_put_i32(mla_cuda *c, char *at, const int32_t *host, size_t n, const char *what, mla_err *err);
/* After a copy or a fill: an empty kernel, launched the ordinary way. A kernel that comes early waits for the kernel before it,
 * and only for that. */
mla_status cu_settle(mla_cuda *c, const char *what, mla_err *err);
/* EINVAL while recording: the operation needs the host. */
mla_status cu_not_recording(const mla_cuda *c, const char *what, mla_err *err);
/* Frees the outgrown scratch blocks. */
void cu_drop_kept(mla_cuda *c);
static inline size_t pad256(size_t n) { return (n + 255) & ~(size_t)255; }

struct AttnP;
struct AttnView;
/* A view as kernels take it (rows.cu); host block tables are copied to `pages`. */
mla_status cu_view(mla_cuda *c, AttnView *out, const mla_kv_view *v, const mla_cursor *at, size_t tokens, char *pages, const char *what, mla_err *err);
/* Attention with bf16 products (attn_bf16.cu). */
bool attn_bf16_fits(const mla_attn_args *a);
size_t attn_bf16_bytes(const mla_attn_args *a);
mla_status attn_bf16(mla_cuda *c, const mla_attn_args *a, const AttnP *p, char *scratch, mla_err *err);
/* The same of a few tokens over cached latents (attn_decode.cu). */
bool attn_decode_fits(const mla_attn_args *a);
mla_status attn_decode(mla_cuda *c, const mla_attn_args *a, mla_err *err);

/* Packed weights (codes_layout.cu, codes.cu). codes_new sets codes and bytes; codes_row fills a piece of codes->row_bytes, a row or a tile, with codes_room of
 * scratch, from any thread. codes_decode: rows [row0, row0 + n) as a decoded weight of n outputs. */
mla_status codes_new(mla_weight *w, const mla_coded *c, mla_err *err);
size_t codes_room(const mla_coded *c);
mla_status codes_row(const mla_weight *w, const mla_coded *c, size_t row, uint8_t *to, uint8_t *room, mla_err *err);
mla_status codes_decode(mla_cuda *c, const mla_weight *w, void *to, size_t row0, size_t n, mla_err *err);
mla_status codes_find_odd(const mla_weight *w, int *bad, cudaStream_t stream, mla_err *err);
mla_status codes_embed(mla_cuda *c, const mla_weight *w, float *y, const int32_t *ids, size_t T, mla_err *err);
bool codes_few_fits(const mla_weight *w, size_t T);
/* The same on the tensor cores (codes_mma.cu). */
bool codes_mma_fits(const mla_weight *w, size_t T);
mla_status codes_mma_run(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err);
mla_status codes_few_run(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err);
/* While recording: queues what waits for more to join it, if anything: linear layers (linear.cu); a delta step and the
 * convolution before it (tape.cu); row operations and small layers (tape_attn.cu); all. Every other operation comes after them. */
mla_status cu_few_flush(mla_cuda *c, mla_err *err);
mla_status cu_mix_flush(mla_cuda *c, mla_err *err);
mla_status cu_heads_flush(mla_cuda *c, mla_err *err);
static inline mla_status cu_flush(mla_cuda *c, mla_err *err)
{
    mla_status st = cu_few_flush(c, err); /* one of the three at most waits */
    if (!st) st = cu_mix_flush(c, err);
    return st ? st : cu_heads_flush(c, err);
}
/* The recording table's members around attention (tape_attn.cu). */
CudaHeads *cu_heads_new(void);
mla_status cu_hold_rope(mla_backend *, const mla_rope_args *, mla_err *);
mla_status cu_hold_kv_write(mla_backend *, const mla_kv_write_args *, mla_err *);
mla_status cu_hold_copy_rows(mla_backend *, mla_mem *, size_t, const mla_mem *, size_t, size_t, size_t, mla_err *);
mla_status cu_hold_linears(mla_backend *, const mla_norm_args *, const mla_linear_job *, size_t, mla_err *);
mla_status cu_hold_sigmoid_mul(mla_backend *, mla_mem *, const mla_mem *, size_t, size_t, size_t, mla_err *);
mla_status cu_hold_attention(mla_backend *, const mla_attn_args *, mla_err *);
/* Bytes that the queries of an attention take rounded to bf16, dense, q before q2, if what waits makes all of them; 0: not. Queues what
 * waits, which leaves them at `room`, too. */
size_t cu_heads_room(const mla_cuda *c, const mla_attn_args *a);
mla_status cu_heads_round(mla_cuda *c, const mla_attn_args *a, char *room, mla_err *err);
/* A decoded weight times T tokens (linear.cu), and a trellis' product (trellis.cu), made of such ones. */
mla_status linear_decoded(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err);
/* bf16 layers of many tokens (linear_many.cu): whether they share their tokens and the norm before them can be taken in. The
 * results of the first `halves` layers are bf16 (ldy in elements, a multiple of 8; neither bias nor sum). */
bool many_fits(const mla_norm_args *norm, const mla_linear_job *jobs, size_t n);
mla_status many_run(mla_cuda *c, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, size_t halves, mla_err *err);
/* One layer whose tokens are x (T, in8) in bf16, with many_room of scratch. */
size_t many_room(const mla_linear_job *job);
mla_status many_layer(mla_cuda *c, const mla_linear_job *job, const void *x, char *room, mla_err *err);
bool many_mlp_fits(const mla_norm_args *norm, const mla_gated_args *a, const mla_linear_job *down);
mla_status many_mlp(mla_cuda *c, const mla_norm_args *norm, const mla_gated_args *a, const mla_linear_job *down, mla_err *err);
/* Outputs of a tile: their weights take at most TILE_BYTES. */
size_t tile_outputs(const mla_weight *w);
/* A layer of codes, tile by tile of its outputs: each is decoded to scratch and handed to product(part, its arguments). */
template <class F> static inline mla_status each_tile(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err, F product, size_t y_bytes = 4)
{
    char *tile;
    const size_t fit = tile_outputs(w), most = fit < w->out ? fit : w->out;
    mla_status st = cu_tile(c, most * (w->precision == MLA_PREC_F32 ? w->in * 4 : w->in8 * 2), "packed weight", &tile, err);
    for (size_t o = 0; !st && o < w->out; o += most) {
        const mla_weight part = {most < w->out - o ? most : w->out - o, w->in, w->in8, 0, w->precision, tile, NULL, NULL, NULL};
        mla_linear_args b = *a;
        b.y = mla_at_bytes(a->y, o * y_bytes);
        if (a->bias) b.bias = mla_at(a->bias, o);
        st = codes_decode(c, w, tile, o, part.out, err);
        if (!st) st = product(&part, &b);
    }
    return st;
}
mla_status trellis_new(mla_weight *w, const mla_coded *c, mla_err *err);
mla_status trellis_sides(mla_weight *w, const mla_coded *c, cudaStream_t stream, mla_err *err);
mla_status trellis_linear(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, mla_err *err);

mla_status cu_upload(mla_backend *, mla_mem *, const void *, size_t, mla_err *);
void cu_loader_free(CuLoader *l); /* NULL is fine */
/* Before weights are used: waits for those that are still read from files. */
mla_status cu_await(mla_cuda *c, mla_err *err);
static inline mla_status cu_arrived(mla_cuda *c, mla_err *err) { return c->coming ? cu_await(c, err) : MLA_OK; }
mla_status cu_weight_new(mla_backend *, mla_weight **, const mla_weight_desc *, mla_err *);
void cu_weight_free(mla_backend *, mla_weight *);
size_t cu_weight_bytes(const mla_weight *);
mla_status cu_linear(mla_backend *, const mla_weight *, const mla_linear_args *, mla_err *);
mla_status cu_linears(mla_backend *, const mla_norm_args *, const mla_linear_job *, size_t, mla_err *);
mla_status cu_gated(mla_backend *, const mla_norm_args *, const mla_gated_args *, mla_err *);
mla_status cu_mlp(mla_backend *, const mla_norm_args *, const mla_gated_args *, const mla_linear_job *, mla_err *);
mla_status cu_record(mla_backend *, mla_err *);
mla_status cu_record_end(mla_backend *, mla_tape **, mla_err *);
mla_status cu_replay(mla_backend *, const mla_tape *, mla_err *);
void cu_tape_free(mla_backend *, mla_tape *);
mla_status cu_embed(mla_backend *, const mla_weight *, mla_mem *, const int32_t *, size_t, mla_err *);
mla_status cu_rmsnorm(mla_backend *, const mla_norm_args *, mla_err *);
mla_status cu_gated_norm(mla_backend *, const mla_gated_norm_args *, mla_err *);
mla_status cu_rope(mla_backend *, const mla_rope_args *, mla_err *);
mla_status cu_add(mla_backend *, mla_mem *, const mla_mem *, size_t, mla_err *);
mla_status cu_add_rows(mla_backend *, mla_mem *, size_t, size_t, size_t, const mla_mem *, float, mla_err *);
mla_status cu_silu_mul(mla_backend *, mla_mem *, const mla_mem *, const mla_mem *, size_t, mla_err *);
mla_status cu_sigmoid_mul(mla_backend *, mla_mem *, const mla_mem *, size_t, size_t, size_t, mla_err *);
mla_status cu_copy_rows(mla_backend *, mla_mem *, size_t, const mla_mem *, size_t, size_t, size_t, mla_err *);
mla_status cu_kv_write(mla_backend *, const mla_kv_write_args *, mla_err *);
mla_status cu_kv_read(mla_backend *, const mla_kv_read_args *, mla_err *);
mla_status cu_divisor(mla_backend *, const mla_divisor_args *, mla_err *);
mla_status cu_attention(mla_backend *, const mla_attn_args *, mla_err *);
mla_status cu_conv(mla_backend *, const mla_conv_args *, mla_err *);
mla_status cu_gdn(mla_backend *, const mla_gdn_args *, mla_err *);
mla_status cu_delta(mla_backend *, const mla_norm_args *, const mla_delta_args *, mla_err *);
mla_status cu_gram(mla_backend *, const mla_gram_args *, mla_err *);
mla_status cu_moments(mla_backend *, const mla_moments_args *, mla_err *);
mla_status cu_gated_change(mla_backend *, const mla_change_args *, mla_err *);
mla_status cu_range(mla_backend *, const mla_mem *, size_t, size_t, size_t, mla_range *, mla_err *);
mla_status cu_eigh(mla_backend *, double *, double *, size_t, mla_err *);
#endif
