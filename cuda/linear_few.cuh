/* Linear layers of up to 8 tokens in bf16, several in one launch: what a decode step spends its time on. Hopper only. */
#ifndef MLA_CUDA_LINEAR_FEW_CUH
#define MLA_CUDA_LINEAR_FEW_CUH
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "base/err.h"

enum { FEW_JOBS = 8, FEW_TOKENS = 8 };

/* y (T, out) = x (T, in) W^T; rows of x and y ldx and ldy apart. in a multiple of 32, x and W on 16 bytes. */
struct FewJob {
    const __nv_bfloat16 *w, *w2; /* (out, in); w2: y = silu(W x) * (W2 x) */
    const float *x, *bias;
    float *y;
    long long ldx, ldy;
    int in, out;
    bool accumulate;
    int row0, row1, xs; /* filled by few_run: its rows among all jobs' rows; where its x lies in shared memory, bytes */
};
struct FewP {
    FewJob job[FEW_JOBS];
    int n, T, pairs;       /* pairs: gated, every second row is of w2 */
    int rows, stages;      /* filled by few_run: of all jobs; of the ring */
    const float *gain;     /* every x is normed first (rmsnorm of backend.h); NULL: not */
    double eps;
};
/* Whether the shapes fit; then few_run fills the rest of p and queues it. sms: blocks. */
bool few_fits(const FewP *p);
mla_status few_run(FewP *p, int sms, cudaStream_t stream, mla_err *err);
#endif
