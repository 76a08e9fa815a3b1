/* What stands around attention in a recorded step, in one launch: small linear layers in bf16 of a few tokens (absorbed queries, values of the
 * heads), the row operations before them, the gate after them. The bits of linear_few.cu and rows.cu. Hopper only. */
#ifndef MLA_CUDA_HEADS_CUH
#define MLA_CUDA_HEADS_CUH
#include "base/err.h"
#include "cuda/row_ops.cuh"

enum { HEADS_JOBS = 32, HEADS_IN = 512, HEADS_OPS = 6, HEADS_BLOCK = 128, HEADS_TILE = 8 /* rows */, HEADS_SET = 4 /* tokens */ };

/* y (T, out) = x (T, in) W^T, independent of all others. in a multiple of 32, at most HEADS_IN; x and W on 16 bytes, ldx a multiple of 4. */
struct HeadsJob {
    const __nv_bfloat16 *w;
    const float *x, *bias;
    float *y;
    __nv_bfloat16 *half; /* y once more, rounded, rows ldy apart; NULL: not */
    long long ldx, ldy;
    int in, out, T;
    int task0; /* filled by heads_run: the first of its tasks: a tile of rows and a set of tokens each */
};
enum HeadsKind { HEADS_ROPE, HEADS_KV_WRITE, HEADS_COPY };
/* Row operations with the same blocks are done one after the other, then by one block. items: pairs to rotate, rows to write. */
struct HeadsOp {
    HeadsKind kind;
    unsigned items;
    int block0, blocks;
    union {
        RowRope rope;
        RowKvWrite kv;
        RowCopy copy;
    };
};
struct HeadsP {
    HeadsJob job[HEADS_JOBS];
    HeadsOp op[HEADS_OPS];
    int jobs, ops, op_blocks;
    int tasks;         /* filled by heads_run */
    const float *gated, *gate; /* layers' results stand in rows of gd from `gated` on and are gated by as many rows of `gate`, ldg apart; NULL: not */
    long long ldg;
    int gd;
};
mla_status heads_run(HeadsP *p, cudaStream_t stream, mla_err *err);
#endif
