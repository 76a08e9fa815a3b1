/* One step of the gated delta rule for many sequences at once: the state is read and written once for T new tokens.
 * Heads of 128 x 128, state fp32; the same function as the backend's gdn (backend.h, mla_gdn_args), with a batch. */
#ifndef MLA_CUDA_GDN_CUH
#define MLA_CUDA_GDN_CUH
#include <cuda_runtime.h>

#include "base/err.h"

enum { GDN_D = 128 };

struct GdnStep {
    const float *qkv;             /* (B, T, (2 nk + nv) 128), after the convolution */
    const float *a, *b;           /* (B, T, nv) */
    const float *A_log, *dt_bias; /* (nv) */
    float *o;                     /* (B, T, nv, 128) */
    float *state;                 /* (B, nv, 128, 128), read and replaced */
    size_t B, T, nk, nv;
};
mla_status gdn_step(const GdnStep *p, cudaStream_t stream, mla_err *err);

/* What stands around the step in a layer, in the same launch, for B = 1 and up to GDN_MIX_TOKENS tokens: the convolution of four
 * taps before it and the gated norm of its outputs after it. The bits of the three operations of backend.h. */
enum { GDN_MIX_TOKENS = 8, GDN_TAPS = 4, GDN_HEADS = 256 }; /* GDN_HEADS: key heads at most */
struct GdnMix {
    const float *x, *w; /* (T, C), (C, GDN_TAPS); the step's qkv is written, too */
    float *conv_state;  /* (GDN_TAPS - 1, C), read and replaced */
    const float *z, *gain; /* (T, nv, 128), (128); z NULL: no norm */
    float *y;              /* (T, nv, 128) */
    double eps;
    unsigned *turns; /* (GDN_HEADS) device memory, zero before the first launch and after each */
    bool early;      /* the kernel before this one writes neither the states nor w nor gain, and those before it are complete */
};
mla_status gdn_mix(const GdnStep *p, const GdnMix *m, cudaStream_t stream, mla_err *err);
#endif
