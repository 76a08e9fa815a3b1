/* Recorded operations: the stream is captured into a CUDA graph while they are queued, so a replay is one launch and costs
 * the host nothing per operation. The scratch blocks a tape names live as long as any tape.
 * Operations that follow each other are joined while they are recorded: linear layers become phases of one launch
 * (linear_few.cu); convolution, delta step and gated norm one kernel (gdn_step.cu); what stands around attention another one before it and
 * after it (tape_attn.cu). They wait for more of them, and the backend has
 * a table meanwhile whose other operations queue first what waits. */
#include <stdlib.h>

#include "cuda/be.cuh"
#include "cuda/fit.cuh"
#include "cuda/gdn.cuh"
#include "cuda/linear_few.cuh"

struct Span {
    uintptr_t at, end;
};
struct CudaMix {
    mla_conv_args conv;
    mla_gdn_args gdn;
    int held; /* 0: nothing, 1: conv, 2: gdn, too */
    /* What launches have written since layers were queued, those included, if nothing but mixers was queued after them (`after`). A launch of
     * layers is complete but for what it writes itself when the kernel after it comes. */
    bool after;
    int spans;
    Span span[4 * FEW_ALL];
};
static void wrote(CudaMix *m, const void *p, size_t floats)
{
    if (m->spans == 4 * FEW_ALL) m->after = false;
    else m->span[m->spans++] = Span{(uintptr_t)p, (uintptr_t)p + floats * 4};
}
static bool untouched(const CudaMix *m, const void *p, size_t floats)
{
    for (int i = 0; i < m->spans; i++)
        if ((uintptr_t)p < m->span[i].end && m->span[i].at < (uintptr_t)p + floats * 4) return false;
    return true;
}

static mla_err *last(mla_err *err) { return err; } /* the last argument of an operation */
template <class First, class... Rest> static mla_err *last(First, Rest... rest) { return last(rest...); }
/* Member OP of the table, after what waits. */
template <auto OP> struct After;
template <class... A, mla_status (*mla_backend_ops::*OP)(mla_backend *, A...)> struct After<OP> {
    static mla_status run(mla_backend *be, A... a)
    {
        const mla_status st = cu_flush(cu_of(be), last(a...));
        return st ? st : (cu_of(be)->ops->*OP)(be, a...);
    }
};
/* The same of a local fit's table. */
template <auto OP> struct AfterFit;
template <class... A, mla_status (*mla_fit_ops::*OP)(mla_backend *, A...)> struct AfterFit<OP> {
    static mla_status run(mla_backend *be, A... a)
    {
        const mla_status st = cu_flush(cu_of(be), last(a...));
        return st ? st : (cu_fit.*OP)(be, a...);
    }
};

/* The gated norm at the end, if any. */
static mla_status run_mix(mla_cuda *c, const mla_gated_norm_args *n, mla_err *err)
{
    const mla_conv_args *v = &c->mix->conv;
    const mla_gdn_args *a = &c->mix->gdn;
    const GdnStep g = {cf32p(a->qkv), cf32p(a->a), cf32p(a->b), cf32p(a->A_log), cf32p(a->dt_bias), f32p(a->o), f32p(a->state), 1, a->T, a->nk, a->nv};
    GdnMix m = {cf32p(v->x), cf32p(v->w), f32p(v->state), NULL, NULL, NULL, 0, c->turns, false};
    const size_t C = (2 * a->nk + a->nv) * GDN_D, V = a->nv * GDN_D, kept = (GDN_TAPS - 1) * C, state = V * GDN_D;
    m.early = c->mix->after && untouched(c->mix, v->state, kept) && untouched(c->mix, a->state, state) && untouched(c->mix, v->w, C * GDN_TAPS) &&
              (!n || untouched(c->mix, n->gain, GDN_D));
    wrote(c->mix, v->state, kept), wrote(c->mix, a->state, state), wrote(c->mix, a->qkv, a->T * C), wrote(c->mix, a->o, a->T * V);
    if (n) wrote(c->mix, n->y, a->T * V);
    if (n) m.z = cf32p(n->z), m.gain = cf32p(n->gain), m.y = f32p(n->y), m.eps = n->eps;
    return gdn_mix(&g, &m, c->stream, err);
}
mla_status cu_mix_flush(mla_cuda *c, mla_err *err)
{
    const int held = c->mix ? c->mix->held : 0;
    if (c->mix) c->mix->after = false;
    if (!held) return MLA_OK;
    c->mix->held = 0;
    return held == 1 ? c->ops->conv(&c->base, &c->mix->conv, err) : run_mix(c, NULL, err);
}
static mla_status wait_conv(mla_backend *be, const mla_conv_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    CudaMix *m = c->mix;
    const FewP *few = c->few;
    bool after = m->after && !m->held;
    if (few->phases) {
        m->spans = 0, after = true;
        for (int f = 0; f < few->phases; f++)
            for (int j = few->phase[f].job0; j < few->phase[f].job0 + few->phase[f].jobs; j++) {
                const FewJob &job = few->job[j];
                const size_t n = (size_t)(few->phase[f].T - 1) * job.ldy + job.out;
                wrote(m, job.y, n);
                if (job.half) wrote(m, job.half, (n + 1) / 2);
            }
    }
    const mla_status st = cu_flush(c, err);
    m->after = after;
    if (!st) m->conv = *a, m->held = 1;
    return st;
}
static bool apart(const mla_mem *a, size_t n, const mla_mem *b, size_t m) { return (const char *)a + n * 4 <= (const char *)b || (const char *)b + m * 4 <= (const char *)a; }
/* Blocks that are done write while others still read: what is written must not be what is read. */
static mla_status wait_gdn(mla_backend *be, const mla_gdn_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    const mla_conv_args *v = &c->mix->conv;
    const size_t C = (2 * a->nk + a->nv) * GDN_D, n = a->T * C, o = a->T * a->nv * GDN_D, gates = a->T * a->nv;
    const bool joins = c->mix->held == 1 && v->y == a->qkv && v->T == a->T && v->C == C && v->K == GDN_TAPS && a->dk == GDN_D && a->dv == GDN_D && a->T && a->T <= GDN_MIX_TOKENS &&
                       a->nk && a->nk <= GDN_HEADS && a->nv % a->nk == 0 && !(((uintptr_t)a->qkv | (uintptr_t)a->o | (uintptr_t)a->state | (uintptr_t)v->w) % 16) &&
                       apart(v->y, n, v->x, n) && apart(v->y, n, a->a, gates) && apart(v->y, n, a->b, gates) && apart(a->o, o, v->x, n) && apart(a->o, o, v->y, n) &&
                       apart(a->o, o, a->a, gates) && apart(a->o, o, a->b, gates);
    if (!joins) return After<&mla_backend_ops::gdn>::run(be, a, err);
    c->mix->gdn = *a, c->mix->held = 2;
    return MLA_OK;
}
static mla_status join_norm(mla_backend *be, const mla_gated_norm_args *n, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    const mla_conv_args *v = &c->mix->conv;
    const mla_gdn_args *a = &c->mix->gdn;
    const size_t in = v->T * v->C, o = a->T * a->nv * GDN_D, gates = a->T * a->nv;
    const bool joins = c->mix->held == 2 && n->x == a->o && n->d == GDN_D && n->rows == a->T * a->nv && (n->y == a->o || apart(n->y, o, a->o, o)) && (n->y == n->z || apart(n->y, o, n->z, o)) &&
                       apart(n->y, o, v->x, in) && apart(n->y, o, v->y, in) && apart(n->y, o, a->a, gates) && apart(n->y, o, a->b, gates) && apart(a->o, o, n->z, o) && apart(v->y, in, n->z, o);
    if (!joins) return After<&mla_backend_ops::gated_norm>::run(be, n, err);
    c->mix->held = 0;
    return run_mix(c, n, err);
}
static const mla_fit_ops FIT = {AfterFit<&mla_fit_ops::product>::run, AfterFit<&mla_fit_ops::spread>::run,       AfterFit<&mla_fit_ops::scale>::run,
                                AfterFit<&mla_fit_ops::softmax>::run, AfterFit<&mla_fit_ops::softmax_back>::run, AfterFit<&mla_fit_ops::dots>::run,
                                AfterFit<&mla_fit_ops::adam>::run,    AfterFit<&mla_fit_ops::commute>::run};
static void set_table(mla_cuda *c)
{
    typedef mla_backend_ops O;
    O *t = &c->between;
    *t = *(c->ops = c->base.ops);
    t->copy = After<&O::copy>::run, t->zero = After<&O::zero>::run;
    t->rmsnorm = After<&O::rmsnorm>::run, t->gated_norm = join_norm, t->rope = cu_hold_rope;
    t->add = After<&O::add>::run, t->add_rows = After<&O::add_rows>::run, t->copy_rows = cu_hold_copy_rows;
    t->silu_mul = After<&O::silu_mul>::run, t->sigmoid_mul = cu_hold_sigmoid_mul;
    t->kv_write = cu_hold_kv_write, t->kv_read = After<&O::kv_read>::run, t->divisor = After<&O::divisor>::run;
    t->attention = cu_hold_attention, t->linears = cu_hold_linears, t->conv = wait_conv, t->gdn = wait_gdn;
    t->gram = After<&O::gram>::run, t->moments = After<&O::moments>::run, t->gated_change = After<&O::gated_change>::run, t->fit = &FIT;
    c->base.ops = t;
}

struct mla_tape {
    cudaGraphExec_t exec;
};

mla_status cu_record(mla_backend *be, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    mla_status st = cu_not_recording(c, "record", err);
    if (!st) st = cu_arrived(c, err);
    if (!st && !c->few && !(c->few = (FewP *)calloc(1, sizeof *c->few))) st = mla_fail(err, MLA_ENOMEM, "record");
    if (!st && !c->mix && !(c->mix = (CudaMix *)calloc(1, sizeof *c->mix))) st = mla_fail(err, MLA_ENOMEM, "record");
    if (!st && !c->heads && !(c->heads = cu_heads_new())) st = mla_fail(err, MLA_ENOMEM, "record");
    /* relaxed: scratch may grow meanwhile, other threads may use other streams */
    if (!st) st = cu_ok(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed), "record", err);
    if (!st) c->recording = true, c->tapes++, c->mix->after = false, set_table(c);
    return st;
}

mla_status cu_record_end(mla_backend *be, mla_tape **out, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    cudaGraph_t graph = NULL;
    mla_tape *t = NULL;
    if (!c->recording) return mla_fail(err, MLA_EINVAL, "record_end without record");
    mla_status st = cu_flush(c, err);
    c->recording = false, c->base.ops = c->ops;
    const mla_status ended = cu_ok(cudaStreamEndCapture(c->stream, &graph), "record", st ? NULL : err);
    if (!st) st = ended;
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
