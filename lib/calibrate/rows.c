/* Rows of a corpus through the model, each a sequence from position 0. A small model keeps few cores busy with one row, so
 * rows run side by side where that takes little memory: every row on one thread, with ranges of its own that are added in the
 * order of the rows. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "calibrate/parts.h"

#define LANES_BYTES ((double)((size_t)2 << 30)) /* activations of all rows at once */

typedef struct { /* a thread's own runtime and buffers */
    mla_rt *rt;
    cal_pass p;
} lane;

typedef struct { /* a row's own ranges */
    mla_cal c;
    mla_status st;
    mla_err err;
} slot;

typedef struct {
    const cal_rows *x;
    lane *lane;      /* (lanes); NULL: one row after the other, in one run */
    slot *slot;      /* (slots) */
    size_t lanes, slots, row0;
    cal_pass p;      /* without lanes */
} passing;

static mla_status run_rows(cal_pass *p, const cal_rows *x, size_t row0, size_t rows, mla_err *err)
{
    mla_rt *rt = p->rt;
    size_t w = p->c->o.row_tokens, D = mla_rt_config(rt)->hidden;
    bool mtp = cal_layer(p->c, MLA_MTP(0)) != NULL;
    mla_job *job = mla_alloc(rows, sizeof *job, 1);
    float *hidden = mtp ? mla_alloc_raw(rows * w, D, sizeof *hidden) : NULL;
    mla_status st = job && (!mtp || hidden) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "a pass of %zu rows", rows);
    p->row0 = row0;
    for (size_t i = 0; i < rows && st == MLA_OK; i++) {
        size_t at = (row0 + i) * w, T = x->n - at < w ? x->n - at : w;
        job[i] = (mla_job){.ids = x->ids + at, .T = T, .logits_from = T, .hidden = mtp ? hidden + i * w * D : NULL};
        st = mla_seq_new(&job[i].seq, rt, T, err);
    }
    if (st == MLA_OK) st = mla_rt_run(rt, job, rows, x->tap, p, err);
    for (size_t i = 0; i < rows && st == MLA_OK && mtp; i++) {
        if (job[i].T < 2) continue;
        p->row0 = row0 + i; /* a tap of the head has no job of its own: seq is 0 */
        mla_mtp_job m = {.seq = job[i].seq, .hidden = job[i].hidden, .next_ids = job[i].ids + 1, .T = job[i].T - 1};
        st = mla_rt_mtp_run(rt, &m, x->tap, p, err);
    }
    for (size_t i = 0; job && i < rows; i++) mla_seq_free(job[i].seq);
    mla_free(job);
    mla_free(hidden);
    return st;
}

static void run_slots(void *ctx, size_t begin, size_t end, size_t worker)
{
    passing *q = ctx;
    lane *l = &q->lane[worker];
    for (size_t i = begin; i < end; i++) {
        slot *s = &q->slot[i];
        l->p.c = &s->c;
        s->st = run_rows(&l->p, q->x, q->row0 + i, 1, &s->err);
    }
}

static mla_cal_part *part_of(const mla_cal *c, size_t i) { return i % 2 ? &c->layer[i / 2].v : &c->layer[i / 2].k; }

static void clear(const mla_cal *c)
{
    for (size_t i = 0; i < 2 * c->n; i++) {
        mla_cal_part *p = part_of(c, i);
        p->amax = p->sum2 = 0;
        p->n = 0;
        memset(p->error, 0, sizeof p->error);
        if (p->hist) memset(p->hist, 0, CAL_BINS * sizeof *p->hist);
    }
}

static void add(mla_cal *c, const mla_cal *row)
{
    for (size_t i = 0; i < 2 * c->n; i++) {
        mla_cal_part *p = part_of(c, i);
        const mla_cal_part *r = part_of(row, i);
        p->amax = fmax(p->amax, r->amax);
        p->sum2 += r->sum2;
        p->n += r->n;
        for (size_t j = 0; j < CAL_TRIES; j++) p->error[j] += r->error[j];
        for (size_t j = 0; p->hist && j < CAL_BINS; j++) p->hist[j] += r->hist[j];
    }
}

/* A pass of k rows: as many at a time as there are slots. */
static mla_status run_pass(passing *q, size_t row, size_t k, mla_err *err)
{
    if (!q->lane) return run_rows(&q->p, q->x, row, k, err);
    for (size_t i = 0; i < k; i += q->slots) {
        size_t m = k - i < q->slots ? k - i : q->slots;
        q->row0 = row + i;
        for (size_t s = 0; s < m; s++) clear(&q->slot[s].c);
        mla_par_for(q->x->c->o.pool, m, 1, run_slots, q);
        for (size_t s = 0; s < m; s++) {
            if (q->slot[s].st != MLA_OK) {
                *err = q->slot[s].err;
                return q->slot[s].st;
            }
            add(q->x->c, &q->slot[s].c);
        }
    }
    return MLA_OK;
}

/* What a row's activations and caches take, roughly: the buffers that a layer uses, each as wide as its widest use. */
static double row_bytes(const mla_cal *c, const mla_config *g)
{
    double lin = (double)g->lin_k_heads * (double)g->lin_k_dim * 2 + (double)g->lin_v_heads * (double)g->lin_v_dim * 3;
    double attn = 6 * (double)g->heads * (double)g->head_dim + 4 * (double)g->kv_heads * (double)g->head_dim;
    return (double)c->o.row_tokens * 4 * (6 * (double)g->hidden + 2 * (double)g->intermediate + attn + lin);
}

static mla_status open_slot(slot *s, const mla_cal *c, mla_err *err)
{
    s->c = *c;
    s->c.layer = mla_alloc(c->n, sizeof *s->c.layer, 1);
    if (!s->c.layer) return mla_fail(err, MLA_ENOMEM, "ranges of %zu layers", c->n);
    memcpy(s->c.layer, c->layer, c->n * sizeof *c->layer);
    for (size_t i = 0; i < 2 * c->n; i++) part_of(&s->c, i)->hist = NULL;
    for (size_t i = 0; i < 2 * c->n; i++) {
        if (!part_of(c, i)->hist) continue;
        uint64_t *h = mla_alloc(CAL_BINS, sizeof *h, 1);
        if (!h) return mla_fail(err, MLA_ENOMEM, "histograms of %zu layers", c->n);
        part_of(&s->c, i)->hist = h;
    }
    return MLA_OK;
}

static void close_pass(cal_pass *p)
{
    mla_free(p->host);
    if (!p->be) return;
    p->be->ops->free(p->be, p->o2);
    p->be->ops->free(p->be, p->inv);
    p->be->ops->free(p->be, p->sums);
}

static void close_passing(passing *q)
{
    for (size_t i = 0; q->lane && i < q->lanes; i++) {
        close_pass(&q->lane[i].p);
        mla_rt_close(q->lane[i].rt);
    }
    for (size_t i = 0; q->slot && i < q->slots; i++) mla_cal_free(&q->slot[i].c);
    mla_free(q->lane);
    mla_free(q->slot);
    close_pass(&q->p);
}

/* A lane a thread, or none where they do not pay: either all threads get a row, or a layer is better off with all threads. */
static mla_status open_lanes(passing *q, size_t rows, mla_err *err)
{
    const cal_rows *x = q->x;
    size_t n = mla_pool_threads(x->c->o.pool);
    mla_rt *first;
    if (n < 2 || rows < 2 || (double)n * row_bytes(x->c, mla_rt_config(x->rt)) > LANES_BYTES) return MLA_OK;
    mla_status st = mla_rt_single(&first, x->rt, err);
    if (st != MLA_OK || !first) return st;
    q->lanes = n;
    q->slots = rows < n ? rows : n;
    q->lane = mla_alloc(q->lanes, sizeof *q->lane, 1);
    q->slot = mla_alloc(q->slots, sizeof *q->slot, 1);
    if (!q->lane || !q->slot) {
        mla_rt_close(first);
        return mla_fail(err, MLA_ENOMEM, "%zu rows at once", n);
    }
    for (size_t i = 0; i < q->lanes && st == MLA_OK; i++) {
        lane *l = &q->lane[i];
        if (i) st = mla_rt_single(&l->rt, x->rt, err);
        else l->rt = first;
        l->p.rt = l->rt;
    }
    for (size_t i = 0; i < q->slots && st == MLA_OK; i++) st = open_slot(&q->slot[i], x->c, err);
    return st;
}

mla_status cal_run_rows(const cal_rows *x, size_t from, size_t rows, mla_err *err)
{
    passing q = {.x = x, .p = {.c = x->c, .rt = x->rt}};
    size_t w = x->c->o.row_tokens, batch = x->c->o.run_tokens / w ? x->c->o.run_tokens / w : 1, total = rows * w < x->n ? rows * w : x->n;
    mla_status st = from < rows ? open_lanes(&q, rows - from, err) : MLA_OK;
    if (q.lane && batch % q.slots) batch += q.slots - batch % q.slots; /* no pass ends with idle threads */
    mla_progress pr = mla_progress_begin(x->c->o.log, x->what, (double)total, "tokens");
    mla_progress_add(&pr, (double)(from * w < total ? from * w : total));
    for (size_t r = from; r < rows && st == MLA_OK; r += batch) {
        size_t k = rows - r < batch ? rows - r : batch, end = (r + k) * w < x->n ? (r + k) * w : x->n;
        st = run_pass(&q, r, k, err);
        if (st == MLA_OK && x->done) st = x->done(x->c, r + k, err);
        mla_progress_add(&pr, (double)(end - r * w));
    }
    mla_progress_end(&pr);
    close_passing(&q);
    return st;
}
