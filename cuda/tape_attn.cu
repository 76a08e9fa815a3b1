/* What a recording joins around attention (heads.cu): row operations wait for the small layers behind them, small layers for the
 * attention that takes their results rounded, or for the gate behind them. */
#include <stdlib.h>

#include "cuda/be.cuh"
#include "cuda/heads.cuh"
#include "cuda/touch.cuh"

struct Held {
    HeadsKind kind;
    mla_cursor at;
    union {
        mla_rope_args rope;
        mla_kv_write_args kv;
        struct {
            mla_mem *y, *x;
            size_t ldy, ldx, rows, d;
        } copy;
    };
    Use use;
};
struct CudaHeads {
    int ops, jobs;
    bool joined; /* the jobs may stand beside the operations */
    Held op[HEADS_OPS];
    mla_linear_job job[HEADS_JOBS];
};
CudaHeads *cu_heads_new(void) { return (CudaHeads *)calloc(1, sizeof(CudaHeads)); }

/* The operations as parts of a launch: those that must come one after the other share a block. false: too much for one. */
static bool arrange(mla_cuda *c, const CudaHeads *h, HeadsP *p)
{
    enum { CHAIN = 64, BLOCKS = 64, MOST = 1 << 20 }; /* of one block: rounds of all its threads; of a launch; items of an operation */
    int chain[HEADS_OPS], rounds[HEADS_OPS];
    p->ops = h->ops, p->op_blocks = 0;
    for (int i = 0; i < h->ops; i++) {
        chain[i] = i;
        for (int k = 0; k < i; k++)
            if (chain[k] != chain[i] && conflict(h->op[k].use, h->op[i].use))
                for (int n = 0, from = chain[k]; n < i; n++)
                    if (chain[n] == from) chain[n] = i;
    }
    for (int i = 0; i < h->ops; i++) {
        const Held &a = h->op[i];
        HeadsOp &o = p->op[i];
        AttnView v = {};
        size_t items, wide;
        o = {};
        o.kind = a.kind;
        if (a.kind == HEADS_ROPE) o.rope = row_rope(&a.rope), items = a.rope.T * a.rope.heads * (a.rope.rot / 2), wide = items;
        else if (a.kind == HEADS_COPY) o.copy = RowCopy{f32p(a.copy.y), cf32p(a.copy.x), a.copy.ldy, a.copy.ldx, a.copy.d}, items = a.copy.rows, wide = items * a.copy.d;
        else {
            if (cu_view(c, &v, &a.kv.to, a.kv.at, 0, NULL, "kv_write", NULL)) return false;
            o.kv = row_kv_write(&a.kv, v), items = a.kv.T, wide = items * a.kv.width;
        }
        if (wide > MOST) return false;
        o.items = (unsigned)items;
        rounds[i] = (int)(a.kind == HEADS_ROPE ? (items + HEADS_BLOCK - 1) / HEADS_BLOCK : items * ((wide / items + HEADS_BLOCK - 1) / HEADS_BLOCK));
    }
    for (int i = 0; i < h->ops; i++) { /* first of its chain */
        int n = 0, all = 0;
        if (p->op[i].blocks) continue;
        for (int k = i; k < h->ops; k++)
            if (chain[k] == chain[i]) all += rounds[k], n++;
        if (n > 1 && all > CHAIN) return false;
        const int most = p->op[i].kind == HEADS_ROPE ? rounds[i] : (int)p->op[i].items, blocks = n > 1 ? 1 : most < BLOCKS ? most : (int)BLOCKS;
        for (int k = i; k < h->ops; k++)
            if (chain[k] == chain[i]) p->op[k].block0 = p->op_blocks, p->op[k].blocks = blocks;
        p->op_blocks += blocks;
    }
    return true;
}
static mla_status one_by_one(mla_cuda *c, CudaHeads *h, mla_err *err)
{
    mla_status st = MLA_OK;
    for (int i = 0; !st && i < h->ops; i++) {
        const Held &a = h->op[i];
        st = a.kind == HEADS_ROPE   ? c->ops->rope(&c->base, &a.rope, err)
             : a.kind == HEADS_COPY ? c->ops->copy_rows(&c->base, a.copy.y, a.copy.ldy, a.copy.x, a.copy.ldx, a.copy.rows, a.copy.d, err)
                                    : c->ops->kv_write(&c->base, &a.kv, err);
    }
    h->ops = 0;
    return st;
}
static void set_jobs(const CudaHeads *h, HeadsP *p)
{
    p->jobs = h->jobs;
    for (int j = 0; j < h->jobs; j++) {
        const mla_linear_args *a = &h->job[j].a;
        const mla_weight *w = h->job[j].w;
        p->job[j] = HeadsJob{(const __nv_bfloat16 *)w->data, cf32p(a->x), a->bias ? cf32p(a->bias) : NULL, f32p(a->y), NULL, (long long)a->ldx, (long long)a->ldy, (int)w->in, (int)w->out, (int)a->T, 0};
    }
}
/* Queues all that waits as p, whose jobs and operations are set. */
static mla_status run(mla_cuda *c, HeadsP *p, mla_err *err)
{
    c->heads->ops = c->heads->jobs = 0;
    return heads_run(p, c->stream, err);
}
mla_status cu_heads_flush(mla_cuda *c, mla_err *err)
{
    CudaHeads *h = c->heads;
    HeadsP p = {};
    if (!h || (!h->ops && !h->jobs)) return MLA_OK;
    if (!h->jobs && (h->ops < 2 || !arrange(c, h, &p))) return one_by_one(c, h, err);
    if (h->jobs && h->ops) arrange(c, h, &p); /* it did when they joined */
    set_jobs(h, &p);
    return run(c, &p, err);
}
/* Room for another operation behind those that wait; whatever else waits is queued, layers behind operations, too. Without `fits`, and on
 * an error, *to is NULL: it cannot wait, and nothing does any more. */
static mla_status op_room(mla_cuda *c, bool fits, Held **to, mla_err *err)
{
    CudaHeads *h = c->heads;
    const mla_status st = !fits || h->jobs || h->ops == HEADS_OPS || !h->ops ? cu_flush(c, err) : MLA_OK;
    *to = !st && fits ? &h->op[h->ops++] : NULL;
    return st;
}

mla_status cu_hold_rope(mla_backend *be, const mla_rope_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    Held *o;
    const mla_status st = op_room(c, a->rot && a->rot % 2 == 0 && a->T && a->heads && a->head_stride && c->major == 9, &o, err);
    if (!o) return st ? st : c->ops->rope(be, a, err);
    o->kind = HEADS_ROPE, o->rope = *a, o->use = use_of(a);
    if (a->at) o->at = *a->at, o->rope.at = &o->at;
    return MLA_OK;
}
mla_status cu_hold_kv_write(mla_backend *be, const mla_kv_write_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    AttnView v;
    Held *o;
    const mla_status st = op_room(c, a->at && a->T && a->width && c->major == 9 && !cu_view(c, &v, &a->to, a->at, 0, NULL, "kv_write", NULL), &o, err);
    if (!o) return st ? st : c->ops->kv_write(be, a, err);
    o->kind = HEADS_KV_WRITE, o->kv = *a, o->use = use_of(a), o->at = *a->at, o->kv.at = &o->at;
    return MLA_OK;
}
mla_status cu_hold_copy_rows(mla_backend *be, mla_mem *y, size_t ldy, const mla_mem *x, size_t ldx, size_t rows, size_t d, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    Held *o;
    const mla_status st = op_room(c, rows && d && c->major == 9, &o, err);
    if (!o) return st ? st : c->ops->copy_rows(be, y, ldy, x, ldx, rows, d, err);
    o->kind = HEADS_COPY, o->copy = {y, (mla_mem *)x, ldy, ldx, rows, d}, o->use = Use{touch(y, rows, ldy * 4, d * 4), {touch(x, rows, ldx * 4, d * 4)}};
    return MLA_OK;
}

/* Several layers that a warp's registers hold; one alone, or a wide one, is linear_few's. */
static bool small(const mla_cuda *c, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n)
{
    enum { TASKS = 8192 };
    size_t tasks = 0;
    if (norm || n < 2 || n > HEADS_JOBS || c->major != 9) return false;
    for (size_t i = 0; i < n; i++) {
        const mla_linear_args *a = &jobs[i].a;
        const mla_weight *w = jobs[i].w;
        if (w->precision != MLA_PREC_BF16 || w->codes || w->trellis || w->in > HEADS_IN || w->in % 32 || !a->T || a->T > 8 || a->accumulate || (uintptr_t)a->x % 16 || a->ldx % 4) return false;
        tasks += (w->out + HEADS_TILE - 1) / HEADS_TILE * ((a->T + HEADS_SET - 1) / HEADS_SET);
    }
    return tasks <= TASKS;
}
mla_status cu_hold_linears(mla_backend *be, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    CudaHeads *h = c->heads;
    const bool fits = small(c, norm, jobs, n);
    HeadsP p;
    bool joins = fits && h->ops && !h->jobs && arrange(c, h, &p);
    for (size_t j = 0; joins && j < n; j++)
        for (int i = 0; i < h->ops; i++) joins = joins && !conflict(h->op[i].use, use_of(&jobs[j]));
    mla_status st = joins ? MLA_OK : fits ? cu_flush(c, err) : cu_heads_flush(c, err);
    if (st) return st;
    if (!fits) return c->ops->linears(be, norm, jobs, n, err);
    for (size_t j = 0; j < n; j++) h->job[j] = jobs[j];
    h->jobs = (int)n;
    return MLA_OK;
}

/* Whether the layers that wait, all of them, write exactly the rows x + r ld, r < rows, of d values. */
static bool writes_rows(const CudaHeads *h, const mla_mem *x, size_t rows, size_t ld, size_t d)
{
    enum { MOST = 1024 };
    unsigned char seen[MOST] = {};
    size_t n = 0;
    if (rows > MOST) return false;
    for (int j = 0; j < h->jobs; j++)
        for (size_t t = 0; t < h->job[j].a.T; t++, n++) {
            const uintptr_t y = (uintptr_t)mla_at(h->job[j].a.y, t * h->job[j].a.ldy), from = y - (uintptr_t)x, r = from / (ld * 4);
            if (h->job[j].w->out != d || y < (uintptr_t)x || from % (ld * 4) || r >= rows || seen[r]) return false;
            seen[r] = 1;
        }
    return n == rows;
}
mla_status cu_hold_sigmoid_mul(mla_backend *be, mla_mem *x, const mla_mem *gate, size_t rows, size_t d, size_t ldg, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    CudaHeads *h = c->heads;
    Use u = {};
    u.read[0] = rows && d ? touch(gate, rows, ldg * 4, d * 4) : Touch{};
    bool joins = h->jobs && rows && d && writes_rows(h, x, rows, d, d);
    for (int j = 0; joins && j < h->jobs; j++) joins = !conflict(use_of(&h->job[j]), u);
    for (int i = 0; joins && i < h->ops; i++) joins = !conflict(h->op[i].use, u);
    if (!joins) {
        const mla_status st = cu_flush(c, err);
        return st ? st : c->ops->sigmoid_mul(be, x, gate, rows, d, ldg, err);
    }
    HeadsP p = {};
    if (h->ops) arrange(c, h, &p);
    set_jobs(h, &p);
    p.gated = f32p(x), p.gate = cf32p(gate), p.ldg = (long long)ldg, p.gd = (int)d;
    return run(c, &p, err);
}

/* The rotation that waits and makes the attention's q2; -1: none. */
static int rotates(const CudaHeads *h, const mla_attn_args *a)
{
    for (int i = h->ops - 1; i >= 0; i--) {
        const mla_rope_args *r = &h->op[i].rope;
        if (h->op[i].kind != HEADS_ROPE || r->x != a->q2 || r->T != a->T || r->heads != a->H || r->rot != a->dk2 || r->head_stride != a->q2h_stride || (a->T > 1 && r->ldx != a->ldq2)) continue;
        for (int k = i + 1; k < h->ops; k++)
            if (conflict(h->op[i].use, h->op[k].use)) return -1;
        return i;
    }
    return -1;
}
size_t cu_heads_room(const mla_cuda *c, const mla_attn_args *a)
{
    const CudaHeads *h = c->heads;
    if (!c->recording || !h->jobs || !h->ops || !attn_decode_fits(a) || a->k.dtype != MLA_BF16 || !a->q2 || a->ldq != a->H * a->qh_stride || a->qh_stride != a->dk ||
        !writes_rows(h, a->q, a->T * a->H, a->dk, a->dk) || rotates(h, a) < 0)
        return 0;
    return pad256(a->T * a->H * a->dk * 2) + pad256(a->T * a->H * a->dk2 * 2);
}
mla_status cu_heads_round(mla_cuda *c, const mla_attn_args *a, char *room, mla_err *err)
{
    CudaHeads *h = c->heads;
    HeadsP p = {};
    arrange(c, h, &p);
    set_jobs(h, &p);
    for (int j = 0; j < p.jobs; j++) p.job[j].half = (__nv_bfloat16 *)room + (p.job[j].y - cf32p(a->q));
    p.op[rotates(h, a)].rope.rounded = (__nv_bfloat16 *)(room + pad256(a->T * a->H * a->dk * 2));
    return run(c, &p, err);
}
mla_status cu_hold_attention(mla_backend *be, const mla_attn_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    const mla_status st = cu_heads_room(c, a) ? MLA_OK : cu_flush(c, err);
    return st ? st : c->ops->attention(be, a, err);
}
