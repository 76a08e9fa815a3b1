/* Linear layers of up to 8 tokens in bf16: what a decode step spends its time on. Several layers in one launch, and several
 * phases of them one after the other, between which all blocks meet. Hopper only. */
#ifndef MLA_CUDA_LINEAR_FEW_CUH
#define MLA_CUDA_LINEAR_FEW_CUH
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "base/err.h"

enum { FEW_JOBS = 8, FEW_TOKENS = 8, FEW_PHASES = 8, FEW_ALL = 32 }; /* layers of a call; tokens; phases and layers of a launch */

/* y (T, out) = x (T, in) W^T; rows of x and y ldx and ldy apart. in a multiple of 32, x and W on 16 bytes. */
struct FewJob {
    const __nv_bfloat16 *w, *w2; /* (out, in); w2: y = silu(W x) * (W2 x) */
    const float *x, *bias;
    float *y;
    long long ldx, ldy;
    int in, out;
    bool accumulate;
    __nv_bfloat16 *half;      /* y once more, rounded, rows ldy apart; NULL: not */
    const __nv_bfloat16 *xh;  /* x rounded, rows ldx apart, instead of x; NULL: none */
    int tile0, tiles, xs; /* filled by few_phase: its tiles among those of its phase; where its x lies in shared memory, bytes */
};
/* Independent layers. What they read, the phase before may have written. */
struct FewPhase {
    int job0, jobs, T, pairs; /* pairs: gated, every second row is of w2 */
    int tiles;                /* filled by few_phase: of all its jobs */
    const float *gain;        /* every x is normed first (rmsnorm of backend.h); NULL: not */
    double eps;
    bool linked;              /* filled by few_phase and few_run: the one x is all that the one layer before wrote, and comes by FewSync.link */
};
/* What blocks share, in device memory: zero before the first launch; launches one after the other, some of which overlap. */
enum { FEW_TURNS = 8, LINK_IN = 6144 };
struct FewSync {
    unsigned long long met[FEW_PHASES];    /* how often a block came to the end of each phase, ever */
    unsigned long long link[2][LINK_IN];   /* results of even and odd phases: an fp32 number, below a tag of launch and phase */
    unsigned drawn[FEW_TURNS][FEW_PHASES]; /* tiles given out in every phase; launches take turns; zero again after each */
};
/* Draws a tile after the blocks' first ones, from 0 on, of `tiles` in all: by one thread, once for every tile there is. */
static __device__ __forceinline__ int few_draw(unsigned *drawn, int tiles)
{
    const int n = (int)atomicAdd(drawn, 1u);
    if (n == tiles - 1) *drawn = 0; /* the last one */
    return n;
}
struct FewP {
    FewJob job[FEW_ALL];
    FewPhase phase[FEW_PHASES];
    int phases, stages, x; /* stages of the ring (few_run); bytes of x in shared memory (few_phase) */
    FewSync *sync;
    unsigned *drawn; /* (FEW_PHASES) of this launch (few_run) */
};
/* Appends a phase of n layers, whose fields but for the filled ones are set; false, and p as it was: it does not fit. */
bool few_phase(FewP *p, const FewPhase *phase, const FewJob *jobs);
/* Queues p on `sms` blocks; turn: counts the launches that share `sync`. */
mla_status few_run(FewP *p, int sms, FewSync *sync, unsigned turn, cudaStream_t stream, mla_err *err);
#endif
