/* The gated delta rule over whole prompts, in chunks of 64 tokens on Hopper's tensor cores: bf16 operands, fp32 sums and state.
 * Heads of 128 x 128; the same function as the backend's gdn (backend.h, mla_gdn_args), with a batch.
 *
 * With log decays summed inside a chunk, g_t, and the state S before it (K, Q, V: the chunk's rows):
 *     A_ts = beta_t e^(g_t - g_s) k_t . k_s  (s < t)     T = (I + A)^-1 diag(beta)     P_ts = e^(g_t - g_s) q_t . k_s  (s <= t)
 *     D = T (V - e^g K S)          O = e^g Q S + P D          S <- e^g_end S + K' (e^(g_end - g) D)
 * Every exponent is of a difference that is not positive. gdn_intra makes T and P for all chunks at once, gdn_scan walks the
 * chunks of a sequence, a block per value head and 64 (or 128) columns of the state. Rounded to bf16: normalised q and k, T, P,
 * the state as an operand, V - e^g K S, D (twice): an output passes at most 8 such roundings of 2^-9. A value that is not finite
 * spoils its sequence from its chunk on, not from its token on. */
#ifndef MLA_CUDA_GDN_CHUNK_CUH
#define MLA_CUDA_GDN_CHUNK_CUH
#include <cuda_runtime.h>
#include <stdint.h>

#include "base/err.h"
#include "cuda/gdn.cuh"

enum { GDN_C = 64, GDN_TILE = GDN_C * 128 }; /* tokens of a chunk; bytes of 64 rows of 128 bytes, swizzled as wgmma reads them */
enum { GDN_QK = 4 * GDN_TILE };              /* per chunk and key head: q and k in halves of 64 elements */
enum { GDN_TP = 2 * GDN_TILE + 2 * GDN_C * 4 }; /* per chunk and value head: T, P, then e^g and e^(g_end - g), fp32 */

struct GdnChunk {
    const float *qkv;             /* (T, (2 nk + nv) 128), after the convolution: the sequences' tokens one after another */
    const float *a, *b;           /* (T, nv) */
    const float *A_log, *dt_bias; /* (nv) */
    float *o;                     /* (T, nv, 128) */
    float *state;                 /* (B, nv, 128, 128), read and replaced */
    const int32_t *starts;        /* device (B + 1): first token of each sequence, then T; NULL: B sequences of T / B */
    size_t B, T, nk, nv;
};
/* True on a GPU that has the kernels. */
bool gdn_chunk_here(void);
size_t gdn_chunk_scratch(const GdnChunk *p);
mla_status gdn_chunk(const GdnChunk *p, void *scratch, cudaStream_t stream, mla_err *err);

/* ---- between the two kernels */
struct GdnSeqs {
    const int32_t *starts;
    int B, each;
    __device__ __forceinline__ int start(int s) const { return starts ? starts[s] : s * each; }
    /* Chunks are numbered with gaps, so that no sum over sequences is needed: sequence s has those from start / 64 + s on. */
    __device__ __forceinline__ int slot(int s) const { return start(s) / GDN_C + s; }
};
struct GdnWork {
    GdnChunk a;
    GdnSeqs seqs;
    char *qk, *tp; /* (slot, nk) of GDN_QK bytes; (slot, nv) of GDN_TP bytes */
    int slots;
};
mla_status gdn_intra(const GdnWork *w, cudaStream_t stream, mla_err *err);
mla_status gdn_scan(const GdnWork *w, cudaStream_t stream, mla_err *err);
#endif
