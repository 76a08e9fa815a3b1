/* The only door to a device. Everything above computes through these operations and never touches device memory.
 *
 * Two precisions of linear layers exist behind one call:
 *   MLA_PREC_F32  reference: weights f32; every output element is one fixed sequence of fp32 fused multiply-adds
 *                 (k ascending within panels of 256, panels added in order), so results depend neither on the thread
 *                 count, nor on how many tokens are in the call, nor on the ISA variant (all bit-identical).
 *   MLA_PREC_BF16 fast: weights bf16, activations rounded to bf16 on entry, fp32 accumulation.
 * Activations are f32, row-major, rows `ld` elements apart. Everything else is computed in fp32 with fp64 where a
 * comment says so. Attention walks the keys in page order from position 0 for each query on its own: a query's result
 * does not depend on how the prompt was cut into chunks.
 * On the CPU all other f32 ops, attention, delta net and fp64 moments included, also give the same bits in every ISA
 * variant, for any thread count, and (attention, recurrent delta net, convolution) for any cut into calls; only bf16
 * linear layers differ between variants with and without bf16 products (of packed weights, from 16 rows on).
 *
 * Letters: T tokens, D hidden, H query heads, G KV heads, d head dim, r latent rank, S cached tokens, V vocabulary.
 * An operation returns a status; on a device with streams it may only be queued (mla_be_sync waits).
 * This header is valid C++ (a .cu includes it). */
#ifndef MLA_BACKEND_BACKEND_H
#define MLA_BACKEND_BACKEND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tensor/coded.h"
#include "tensor/dtype.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct mla_backend mla_backend;
typedef struct mla_mem mla_mem;       /* device bytes: an address never dereferenced above this door */
typedef struct mla_weight mla_weight; /* a linear layer's weights in the device's own layout */

/* The address `elems` f32 elements / `bytes` bytes further. */
static inline mla_mem *mla_at(mla_mem *p, size_t elems) { return (mla_mem *)((char *)p + elems * 4); }
static inline mla_mem *mla_at_bytes(mla_mem *p, size_t bytes) { return (mla_mem *)((char *)p + bytes); }

typedef enum { MLA_PREC_F32, MLA_PREC_BF16 } mla_precision;

/* Delivers rows [row0, row0 + n) of a matrix as f32 (n x in, dense). */
typedef mla_status (*mla_rows_fn)(void *ctx, size_t row0, size_t n, float *dst, mla_err *err);

/* How a weight stands in the device.
 *   coded == NULL, !undecoded: decoded, in f32 or bf16 as the precision says.
 *   coded: packed codes and scales (or bare 16-bit numbers), decoded block by block inside the product. With MLA_PREC_F32 the result has the bits of
 *     the decoded weight's in stored order of columns (coded->perm moves the inputs), but for EXL3, which transforms
 *     activations instead of weights: within gamma of the terms. With MLA_PREC_BF16 up to 15 rows meet codes that are
 *     whole numbers (groups of a multiple of 16) as integers of 16 bits, each within 0.51 / 32639 of the largest of its block of 32;
 *     sums are exact within a group's 32 inputs, and the result has the same bits in every ISA variant, whatever the number of rows
 *     below 16. EXL3 leaves out its last rounding to f16 (2^-11 of a
 *     value). Otherwise activations are rounded to bf16; weights are exact, or rounded to bf16 from 16 rows on where the CPU has
 *     bf16 products.
 *   undecoded: nothing is kept; every product asks `rows` again, 32 rows at a time, from several threads: ctx must stay
 *     as long as the weight. Same bits as decoded f32.
 * A backend may decode in any case (`rows` is always there); EXL3 cannot be embedded from when packed. */
typedef struct {
    size_t out, in;          /* W is (out, in) */
    mla_precision precision;
    mla_rows_fn rows;
    void *ctx;               /* used only during weight_new, unless undecoded */
    const mla_coded *coded;  /* used only during weight_new, but its file and name; a row that cannot be filled, or is not finite, is EFORMAT */
    bool undecoded;
} mla_weight_desc;

typedef struct { /* y (T,out) = x (T,in) W^T [+ bias (out)]; accumulate: added to y instead */
    mla_mem *y;
    size_t ldy;
    mla_mem *x;
    size_t ldx, T;
    mla_mem *bias;           /* NULL: none */
    bool accumulate;
} mla_linear_args;

typedef struct { /* one of several independent layers */
    const mla_weight *w;
    mla_linear_args a;
} mla_linear_job;

typedef struct { /* y_i = x_i * (mean(x^2) + eps)^-1/2 * gain, per row of d; gain is the full factor (1 + w already) */
    mla_mem *y;
    size_t ldy;
    mla_mem *x;
    size_t ldx, rows, d;
    mla_mem *gain;           /* (d) */
    double eps;
} mla_norm_args;

/* Where a step finds what changes from one to the next: device memory, written by upload, so that the step can be recorded
 * once and replayed. An operation that is given one ignores its pos0 and the pages of its views. */
typedef struct {
    mla_mem *len;            /* i32: tokens cached when the call is done; its own T are the last of them */
    mla_mem *pages;          /* i32: block table of at least len tokens; views need page_tokens */
    size_t pool;             /* page ids are below it */
} mla_cursor;

typedef struct { /* rotates in place the first `rot` dims of each head: pairs (i, i + rot/2), x' = x cos - y sin, ... */
    mla_mem *x;
    size_t ldx, T, heads, head_stride, rot;
    mla_mem *cos, *sin;      /* (T, rot/2); with a cursor: rows of tokens 0.. on, of which the last T below len are taken */
    const mla_cursor *at;    /* NULL: none */
} mla_rope_args;

/* Cached rows: row of token s is at slot page[s / page_tokens] * page_tokens + s % page_tokens, row_elems values of
 * dtype; a row may hold parts of several types, and row_elems and col then count elements of this view's (its parts stand
 * where that is whole). Slot arithmetic is 64-bit. value = stored * scale. pages is host memory; NULL = contiguous (slot = s). */
typedef struct {
    mla_mem *data;
    const int32_t *pages;
    size_t page_tokens, row_elems, col; /* col: first element of this part within the row */
    size_t head_stride;                 /* elements between heads; 0: one head shared by all */
    mla_dtype dtype;                    /* F32, BF16, F8_E4M3 */
    float scale;                        /* 1 unless F8_E4M3 */
} mla_kv_view;

typedef struct { /* stores x (T, width) / scale, rounded to dtype (e4m3 saturates), at tokens pos0 .. pos0+T-1 */
    mla_kv_view to;
    mla_mem *x;
    size_t ldx, T, width, pos0;
    const mla_cursor *at;    /* NULL: none */
} mla_kv_write_args;

typedef struct { /* y (n, width) = stored values of tokens s0 .. s0+n-1, as f32 */
    mla_kv_view from;
    mla_mem *y;
    size_t ldy, s0, n, width;
} mla_kv_read_args;

/* Divisors of layout P: (mean(x_h^2) + eps)^1/2 / center_h of every head, stored as rows of a cache at tokens
 * pos0 .. pos0+T-1. `to` holds F32, F16 or U8; U8 is the log2 code of tensor/log2code.h (relative error at most 0.8 %). */
typedef struct {
    mla_kv_view to;
    mla_mem *x;              /* (T, heads, d), row stride ldx, heads dense */
    size_t ldx, T, heads, d, pos0;
    mla_mem *center;         /* (heads), > 0 */
    double eps;
} mla_divisor_args;

/* Causal attention, softmax in fp32, for GQA, expanded MLA and absorbed MLA/GLA alike.
 * logit(t,h,s) = scale * ( q[t,h] . k[s, h*kh/H] + q2[t,h] . k2[s, h*kh2/H] ),  s <= pos0 + t
 * o[t,h] = sum_s softmax(logit)_s v[s, h*vh/H]
 * With divisors (layout P) the first product becomes ( q . k + qb[t,h] ) / div[s, h*divh/H].
 * GQA: k, v with kh = vh = G, no second part. Absorbed MLA: k = v = latent (kh = vh = groups), k2 = rotary keys. */
typedef struct {
    mla_mem *o;              /* (T, H, dv), row stride ldo */
    size_t ldo;
    mla_mem *q;              /* (T, H, dk) with head stride qh_stride */
    size_t ldq, qh_stride;
    mla_mem *q2;             /* (T, H, dk2) or NULL */
    size_t ldq2, q2h_stride;
    mla_kv_view k, k2, v;
    size_t kh, k2h, vh;      /* heads of each part; divide H */
    mla_kv_view div;         /* divisors as mla_divisor_args stores them */
    size_t divh;             /* heads of div, divide H; 0: no divisors */
    mla_mem *qb;             /* (T, H) at q's strides; NULL: 0 */
    size_t T, H, dk, dk2, dv, pos0;
    float scale;
    /* Products of queries and keys, of probabilities and values in bf16 (operands rounded to nearest), sums and softmax
     * in fp32: for MLA_PREC_BF16 runs. A wish: devices without such products compute in fp32. */
    bool bf16;
    /* Observation, all may be NULL (host-visible accumulators are downloaded by the caller):
     * p2 (S): p2[s] += sum_{t,h} p_ths^2, the token weights of a latent; adds no other work. */
    mla_mem *p2;             /* f64 (pos0 + T) */
    /* probs: the final probabilities themselves, f32 (H, T, pos0 + T) dense; keys after the query get 0. Meant for
     * small T: weighted moments of queries, keys and values are built from it. */
    mla_mem *probs;
    const mla_cursor *at;    /* NULL: none; not with divisors or observation */
} mla_attn_args;

typedef struct { /* depthwise causal conv + SiLU: y[t,c] = silu(sum_j w[c,j] x[t-K+1+j, c]); state = last K-1 inputs */
    mla_mem *y, *x;          /* (T, C) dense; y != x */
    mla_mem *w;              /* (C, K) */
    mla_mem *state;          /* (K-1, C), oldest first; read and replaced */
    size_t T, C, K;
} mla_conv_args;

/* Gated delta rule (formats page, "Gated DeltaNet" 3-6): inputs after the convolution, per token [q nk*dk | k nk*dk |
 * v nv*dv]; q and k are l2-normalised here, q scaled by dk^-1/2; g = -exp(A_log) softplus(a + dt_bias), beta =
 * sigmoid(b). chunk == 0: recurrent form; otherwise the chunked (WY) form with that chunk length. */
typedef struct {
    mla_mem *o;              /* (T, nv, dv) */
    mla_mem *qkv;            /* (T, 2 nk dk + nv dv) */
    mla_mem *a, *b;          /* (T, nv) */
    mla_mem *A_log, *dt_bias;/* (nv) */
    mla_mem *state;          /* (nv, dk, dv), read and replaced */
    size_t T, nk, nv, dk, dv, chunk;
} mla_gdn_args;

typedef struct { /* y = rmsnorm(x) * gain * silu(z), per row of d; y == x is fine */
    mla_mem *y, *x, *z;      /* (rows, d) dense */
    mla_mem *gain;
    size_t rows, d;
    double eps;
} mla_gated_norm_args;

typedef struct { /* the next T rows of a call are the next tokens of a sequence with these states */
    size_t T;
    mla_mem *conv, *state;   /* as mla_conv_args and mla_gdn_args have them */
} mla_delta_seq;

/* A gated delta-net mixer: layers in[0..3] of one x: qkv (T, C), C = 2 nk dk + nv dv; z (T, nv dv); b and a (T, nv). Sequence by
 * sequence the convolution of qkv and the gated delta rule; per value head the gated norm with z; the layer `out`, whose x is in[0]'s
 * y with rows of nv dv. in's y are dense; what they, mixed and o hold afterwards is undefined.
 * bf16: a prompt's products in bf16 (operands rounded to nearest) with sums and state in fp32, in chunks of the device's own choice,
 * and what passes from step to step rounded to bf16: for MLA_PREC_BF16 runs. A wish: otherwise the bits are those of the steps. */
typedef struct {
    const mla_linear_job *in, *out; /* 4; 1 */
    mla_mem *mixed, *o;      /* (T, C), (T, nv dv) */
    mla_mem *conv_w;         /* (C, K) */
    mla_mem *A_log, *dt_bias;/* (nv) */
    mla_mem *gain;           /* (dv) */
    double eps;
    const mla_delta_seq *seq;
    size_t n, T;             /* sequences, their rows together */
    size_t nk, nv, dk, dv, K, chunk;
    bool bf16;
} mla_delta_args;

typedef struct { /* g = silu(gate x) * (up x) */
    const mla_weight *gate, *up; /* (out, in) both */
    size_t out;
    mla_mem *g, *u;          /* (T, out) dense; u is scratch */
    mla_mem *x;
    size_t ldx, T;
} mla_gated_args;

typedef struct { /* acc (n,n) += sum_t w_t y y^T, sum (n) += sum_t w_t y, with y = x_t - shift; all sums fp64 unless split */
    mla_mem *acc;            /* f64 (n, n), full symmetric matrix; NULL: only sum */
    mla_mem *sum;            /* f64 (n); may be NULL */
    mla_mem *x;              /* f32 (T, n), row stride ldx */
    size_t ldx, T, n;
    mla_mem *w;              /* f64 (T) or NULL = 1 */
    mla_mem *shift;          /* f64 (n) or NULL = 0 */
    /* acc may stand on y and w y as sums of two bf16 numbers each: products exact, fp32 sums inside panels of at most 8192
     * tokens, fp64 across; relative error about 1e-6 of the norm. For MLA_PREC_BF16 runs. A wish: devices that are as fast in
     * fp64 stay there. sum is fp64 in any case. */
    bool split;
} mla_gram_args;

/* Attention-weighted moments of one layer on one row of T tokens from position 0: retrofit/stats/stats.h says what the sums
 * mean, retrofit/stats/moments.c is the reference. Products in fp32, sums over tokens in fp64, the same bits every run. */
typedef struct {
    size_t T, H, G, d, dk, rot; /* dk: the last dims of a key, those that M is of; dk == d && rot: they turn */
    mla_mem *q, *q_rot;      /* (T, H, d) before and after rotation */
    mla_mem *k_rot, *v;      /* (T, G, d) */
    mla_mem *o;              /* (T, H, d) before the gate */
    mla_mem *gate;           /* pre-sigmoid, (T, H, d) at these strides; NULL: ungated */
    size_t gate_ld, gate_h;
    mla_mem *inv2;           /* (T, G) factors of the tokens; NULL: 1 */
    mla_mem *gain;           /* (dk) factors of the queries; NULL: 1 */
    mla_mem *R;              /* (H, d, d) */
    mla_mem *cos, *sin;      /* (T, rot/2) of positions 0.., where keys turn */
    float attn_scale, rope_gain;
    bool gate_only;          /* GG alone */
    /* f64, added to */
    mla_mem *M, *kappa;      /* (G, dk, dk), (H, H) */
    mla_mem *GG;             /* gate_blocks x (gate_dim, gate_dim) */
    size_t gate_blocks, gate_dim;
    mla_mem *Q, *turn;       /* (H, dk, dk), (H, rot/2, 3); NULL: not wanted */
    mla_mem *wsum;           /* (1) */
    mla_mem *w;              /* f64 (T): the tokens' weights, set */
} mla_moments_args;

/* How far an attention output moved: sum (1) += sum over t, h, j of ( s (b - a) )^2 with s = sigmoid(gate), f64 throughout, one
 * fixed order. On the CPU one running sum over t, h, j. */
typedef struct {
    const mla_mem *a, *b;    /* (T, H, d) dense */
    const mla_mem *gate;     /* pre-sigmoid, (T, H, d) at these strides; NULL: s = 1 */
    size_t gate_ld, gate_h;
    size_t T, H, d;
    mla_mem *sum;            /* f64 (1) */
    mla_mem *inv;            /* f64 (T, H, d), only where keeps_gate: 1 + e^-gate, for more calls with the same gate; NULL: computed anew */
    bool inv_set;            /* an earlier call has left it there; otherwise this one does */
} mla_change_args;

typedef struct {
    double amax, sum2;       /* over finite values */
    uint64_t n, nonfinite;
} mla_range;

typedef struct mla_tape mla_tape; /* recorded operations */
struct mla_fit_ops;               /* fit.h */

/* The table a backend fills. */
typedef struct {
    const char *name;        /* "cpu" */
    void (*destroy)(mla_backend *);
    const char *(*describe)(mla_backend *); /* "cpu avx512bf16, 2 threads, OpenBLAS ..." */
    mla_status (*alloc)(mla_backend *, mla_mem **out, size_t bytes, mla_err *);
    void (*free)(mla_backend *, mla_mem *);
    mla_status (*upload)(mla_backend *, mla_mem *dst, const void *src, size_t bytes, mla_err *);
    mla_status (*download)(mla_backend *, void *dst, const mla_mem *src, size_t bytes, mla_err *); /* waits */
    mla_status (*copy)(mla_backend *, mla_mem *dst, const mla_mem *src, size_t bytes, mla_err *);
    mla_status (*zero)(mla_backend *, mla_mem *dst, size_t bytes, mla_err *);
    mla_status (*sync)(mla_backend *, mla_err *);
    /* A device that queues may still be reading coded.file afterwards; whatever is wrong there is then told by sync, or by the first operation
     * with any weight, until the weight is freed. */
    mla_status (*weight_new)(mla_backend *, mla_weight **out, const mla_weight_desc *, mla_err *);
    void (*weight_free)(mla_backend *, mla_weight *);
    size_t (*weight_bytes)(const mla_weight *);
    mla_status (*linear)(mla_backend *, const mla_weight *, const mla_linear_args *, mla_err *);
    /* y (T,in) = rows ids[t] of the weight, as f32; ids host memory, checked < out by the caller */
    mla_status (*embed)(mla_backend *, const mla_weight *, mla_mem *y, const int32_t *ids, size_t T, mla_err *);
    mla_status (*rmsnorm)(mla_backend *, const mla_norm_args *, mla_err *);
    mla_status (*gated_norm)(mla_backend *, const mla_gated_norm_args *, mla_err *);
    mla_status (*rope)(mla_backend *, const mla_rope_args *, mla_err *);
    mla_status (*add)(mla_backend *, mla_mem *y, const mla_mem *x, size_t n, mla_err *);               /* y += x */
    /* rows of d: y[i] += s * v (broadcast vector v (d)); s = +1 or -1 */
    mla_status (*add_rows)(mla_backend *, mla_mem *y, size_t ldy, size_t rows, size_t d, const mla_mem *v, float s, mla_err *);
    mla_status (*silu_mul)(mla_backend *, mla_mem *y, const mla_mem *a, const mla_mem *b, size_t n, mla_err *); /* silu(a) b */
    /* x (rows, d) dense *= sigmoid(gate), gate rows ldg apart */
    mla_status (*sigmoid_mul)(mla_backend *, mla_mem *x, const mla_mem *gate, size_t rows, size_t d, size_t ldg, mla_err *);
    /* y (rows, d; ldy) = x (rows, d; ldx): strided copy */
    mla_status (*copy_rows)(mla_backend *, mla_mem *y, size_t ldy, const mla_mem *x, size_t ldx, size_t rows, size_t d, mla_err *);
    mla_status (*kv_write)(mla_backend *, const mla_kv_write_args *, mla_err *);
    mla_status (*kv_read)(mla_backend *, const mla_kv_read_args *, mla_err *);
    mla_status (*attention)(mla_backend *, const mla_attn_args *, mla_err *);
    mla_status (*divisor)(mla_backend *, const mla_divisor_args *, mla_err *);
    mla_status (*conv)(mla_backend *, const mla_conv_args *, mla_err *);
    mla_status (*gdn)(mla_backend *, const mla_gdn_args *, mla_err *);
    mla_status (*gram)(mla_backend *, const mla_gram_args *, mla_err *);
    /* over x (rows, d; ld): result on the host; waits */
    mla_status (*range)(mla_backend *, const mla_mem *x, size_t rows, size_t d, size_t ld, mla_range *out, mla_err *);
    /* Symmetric eigenproblem, fp64, on host arrays: a (n,n) in; on return row i of a = eigenvector i, w ascending.
     * Residual-checked: ||A v - w v|| and orthogonality, or MLA_EINTERNAL. Threads may call it at once while nothing else is
     * computed; a device that fails leaves a as it was. */
    mla_status (*eigh)(mla_backend *, double *a, double *w, size_t n, mla_err *);
    /* Another backend of this device with one thread, which computes with this one's weights and memory; each is used by one
     * thread at a time, all of them at once. Closed before this one. NULL: the device has none. */
    mla_status (*single)(mla_backend *, mla_backend **out, mla_err *);
    bool mixed_rows; /* attention takes parts of different dtypes, rows that hold them side by side (tensor/kv_row.h) */
    bool queues; /* operations are only queued, and weight_new waits for none of them: a layer can load while others are computed */
    /* The two below give what the single operations give, bit for bit. norm, when not NULL, is done first: it stands for
     * the x of every layer, which must be norm's y; what that buffer holds afterwards is undefined. */
    mla_status (*linears)(mla_backend *, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, mla_err *);
    mla_status (*gated)(mla_backend *, const mla_norm_args *norm, const mla_gated_args *, mla_err *);
    /* Recording, NULL where the device has none. Between record and record_end operations are noted, not run, and replay
     * queues them all at once. What they name must outlive the tape; what changes comes through a cursor. Operations that
     * need the host (memory, upload, download, embed, range, eigh, sync, pages in host memory) are refused meanwhile.
     * After a refusal record_end gives the error again; out NULL: what was recorded is dropped. */
    mla_status (*record)(mla_backend *, mla_err *);
    mla_status (*record_end)(mla_backend *, mla_tape **out, mla_err *);
    mla_status (*replay)(mla_backend *, const mla_tape *, mla_err *);
    void (*tape_free)(mla_backend *, mla_tape *); /* NULL is fine */
    mla_status (*moments)(mla_backend *, const mla_moments_args *, mla_err *); /* NULL: the host is to compute them */
    /* gated, then the layer `down` whose x is its g; what g and u hold afterwards is undefined. The same bits as one by one, but that a
     * device may round gate x and up x to bf16 when many rows meet bf16 weights: two more roundings of 2^-9. */
    mla_status (*mlp)(mla_backend *, const mla_norm_args *norm, const mla_gated_args *, const mla_linear_job *down, mla_err *);
    mla_status (*gated_change)(mla_backend *, const mla_change_args *, mla_err *);
    const struct mla_fit_ops *fit; /* what local refinements are made of; NULL: the host is to compute them */
    mla_status (*delta)(mla_backend *, const mla_norm_args *norm, const mla_delta_args *, mla_err *);
    bool keeps_gate; /* gated_change gains from inv, and uses it */
} mla_backend_ops;

/* linears, gated, mlp and delta by the table's own single operations, for backends that have no better way. */
MLA_CHECKED mla_status mla_linears_singly(mla_backend *be, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, mla_err *err);
MLA_CHECKED mla_status mla_gated_singly(mla_backend *be, const mla_norm_args *norm, const mla_gated_args *a, mla_err *err);
MLA_CHECKED mla_status mla_mlp_singly(mla_backend *be, const mla_norm_args *norm, const mla_gated_args *a, const mla_linear_job *down, mla_err *err);
MLA_CHECKED mla_status mla_delta_singly(mla_backend *be, const mla_norm_args *norm, const mla_delta_args *a, mla_err *err);

struct mla_backend {
    const mla_backend_ops *ops; /* first member of every backend's own struct */
};

typedef enum { MLA_ISA_AUTO, MLA_ISA_REF, MLA_ISA_AVX2, MLA_ISA_AVX512, MLA_ISA_AVX512BF16 } mla_isa;

typedef struct {
    const char *device;      /* "cpu" (NULL means it) or "cuda:0" */
    size_t threads;          /* 0 = online CPUs */
    mla_isa isa;             /* cpu: AUTO = best the CPU has; REF = portable C, the oracle */
} mla_backend_opts;

/* Opens the device; a named ISA or device that this machine or build lacks is refused, never replaced silently. */
MLA_CHECKED mla_status mla_backend_open(mla_backend **out, const mla_backend_opts *opts, mla_err *err);
void mla_backend_close(mla_backend *be); /* NULL is fine */
/* Defined by a build that links cuda/; absent otherwise (mla_backend_open asks). Call mla_backend_open instead. */
__attribute__((weak)) mla_status mla_cuda_open(mla_backend **out, const mla_backend_opts *opts, mla_err *err);
/* Best ISA of this CPU, as printed by --version: "avx512bf16". */
const char *mla_isa_name(void);
bool mla_isa_parse(const char *name, mla_isa *out);

#ifdef __cplusplus
}
#endif
#endif
