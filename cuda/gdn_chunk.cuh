/* The gated delta rule over whole prompts, in chunks of 64 tokens on Hopper's tensor cores: bf16 operands, fp32 sums and state.
 * Heads of 128 x 128; the same function as the backend's gdn (backend.h, mla_gdn_args), for several sequences.
 *
 * With log decays summed inside a chunk, g_t, and the state S before it (K, Q, V: the chunk's rows, q and k l2-normalised):
 *     A_ts = beta_t e^(g_t - g_s) k_t . k_s  (s < t)     T = (I + A)^-1 diag(beta)     P_ts = e^(g_t - g_s) q_t . k_s  (s <= t)
 *     D = T (V - e^g K S)          O = e^g Q S + P D          S <- e^g_end S + K' (e^(g_end - g) D)
 * Every exponent is of a difference that is not positive. gdn_intra makes T and P for all chunks at once, gdn_scan walks the
 * chunks of a sequence, a block per value head and 64 (or 128) columns of the state. The operands q and k are the rows as they
 * come; their norms are factors of the sums. Rounded to bf16: T, P, the state as an operand, V - e^g K S, D (twice), O: an output
 * passes at most 8 such roundings of 2^-9. A value that is not finite spoils its sequence from its chunk on, not from its token on.
 *
 * Per token cross device memory, with 16 key and 48 value heads: q and k twice (8.2 KB each time), v (12.3), T and P out and in
 * (13.1 each time), o (12.3). */
#ifndef MLA_CUDA_GDN_CHUNK_CUH
#define MLA_CUDA_GDN_CHUNK_CUH
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "base/err.h"
#include "cuda/gdn.cuh"

enum { GDN_C = 64, GDN_TILE = GDN_C * 128 };    /* tokens of a chunk; bytes of 64 rows of 128 bytes, swizzled as wgmma reads them */
enum { GDN_GATES = 4 * GDN_C * 4 };             /* what a row's sums are times, fp32: |k|^-1 e^g, |q|^-1 e^g, |k|^-1 e^(g_end - g), e^g */
enum { GDN_TP = 2 * GDN_TILE + GDN_GATES };     /* per chunk and value head: T, P, gates */
enum { GDN_SEQS = 64 };                         /* most sequences of a call */

struct GdnSeqs {
    int n;
    int start[GDN_SEQS + 1];  /* first token of each sequence among all of the call, then their number */
    int chunk[GDN_SEQS + 1];  /* first chunk of each, then their number */
    float *state[GDN_SEQS];   /* (nv, 128, 128) of each, read and replaced */
    /* The sequence that chunk c belongs to. */
    __device__ __forceinline__ int of(int c) const
    {
        int s = 0;
        for (int hi = n - 1; s < hi;) {
            const int mid = (s + hi + 1) / 2;
            if (chunk[mid] <= c) s = mid;
            else hi = mid - 1;
        }
        return s;
    }
};
/* Adds a sequence of `tokens` > 0; false: there are GDN_SEQS, or too many tokens. */
bool gdn_seqs_add(GdnSeqs *s, size_t tokens, float *state);

struct GdnChunk {
    const __nv_bfloat16 *qkv;     /* (chunks, 64, (2 nk + nv) 128), after the convolution; rows behind a sequence's last token are zero */
    const float *a, *b;           /* (tokens, nv) */
    const float *A_log, *dt_bias; /* (nv) */
    __nv_bfloat16 *o;             /* (chunks, 64, nv, 128); rows behind a sequence's last token are undefined */
    size_t nk, nv;
    GdnSeqs seqs;
    char *tp;                     /* scratch of gdn_chunk_scratch bytes: (chunks, nv) of GDN_TP */
};
/* True on a GPU that has the kernels. */
bool gdn_chunk_here(void);
static inline size_t gdn_chunk_scratch(const GdnChunk *p) { return (size_t)p->seqs.chunk[p->seqs.n] * p->nv * GDN_TP; }
/* qkv, o, states and scratch start on 16 bytes. */
mla_status gdn_chunk(const GdnChunk *p, cudaStream_t stream, mla_err *err);

/* The two halves of it. */
mla_status gdn_intra(const GdnChunk *p, cudaStream_t stream, mla_err *err);
mla_status gdn_scan(const GdnChunk *p, cudaStream_t stream, mla_err *err);
#endif
