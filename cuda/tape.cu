/* Recorded operations: the stream is captured into a CUDA graph while they are queued, so a replay is one launch and costs
 * the host nothing per operation. The scratch blocks a tape names live as long as any tape. */
#include <stdlib.h>

#include "cuda/be.cuh"

struct mla_tape {
    cudaGraphExec_t exec;
};

mla_status cu_record(mla_backend *be, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    mla_status st = cu_not_recording(c, "record", err);
    /* relaxed: scratch may grow meanwhile, other threads may use other streams */
    if (!st) st = cu_ok(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed), "record", err);
    if (!st) c->recording = true, c->tapes++;
    return st;
}

mla_status cu_record_end(mla_backend *be, mla_tape **out, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    cudaGraph_t graph = NULL;
    mla_tape *t = NULL;
    if (!c->recording) return mla_fail(err, MLA_EINVAL, "record_end without record");
    c->recording = false;
    mla_status st = cu_ok(cudaStreamEndCapture(c->stream, &graph), "record", err);
    if (!st && out && !(t = (mla_tape *)calloc(1, sizeof *t))) st = mla_fail(err, MLA_ENOMEM, "tape");
    if (!st && out) st = cu_ok(cudaGraphInstantiate(&t->exec, graph, 0), "record", err);
    if (!st && out) st = cu_ok(cudaGraphUpload(t->exec, c->stream), "record", err);
    if (graph) cudaGraphDestroy(graph);
    if (st || !out) {
        cudaGetLastError();
        if (t && t->exec) cudaGraphExecDestroy(t->exec);
        free(t);
        if (!--c->tapes) cu_drop_kept(c);
        return st;
    }
    *out = t;
    return MLA_OK;
}

mla_status cu_replay(mla_backend *be, const mla_tape *t, mla_err *err)
{
    const mla_status st = cu_not_recording(cu_of(be), "replay", err);
    return st ? st : cu_ok(cudaGraphLaunch(t->exec, cu_of(be)->stream), "replay", err);
}

void cu_tape_free(mla_backend *be, mla_tape *t)
{
    mla_cuda *c = cu_of(be);
    if (!t) return;
    cudaStreamSynchronize(c->stream); /* a replay may still run */
    cudaGraphExecDestroy(t->exec);
    free(t);
    if (!--c->tapes) cu_drop_kept(c);
}
