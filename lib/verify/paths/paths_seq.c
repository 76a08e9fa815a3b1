/* Paths through sequences: prefix caches, batches, an FP8 cache beside the wide one. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/parity/forward.h"
#include "verify/paths/paths_parts.h"
#include "verify/report/report.h"

/* A second turn that finds `hit` tokens of its prompt cached: the sequence that left them goes on with another text
 * first, as another user's turn would; then the rest of the prompt runs in one chunk. */
static mla_status second_turn(mla_paths *p, mla_path_way *w, size_t k, size_t hit, mla_err *err)
{
    const mla_path_text *t = &p->o->text[k], *other = &p->o->text[(k + 1) % p->o->n_text];
    mla_rt *rt = p->o->rt;
    mla_seq *first = NULL, *second = NULL;
    size_t more = other->n < 2 * p->page ? other->n : 2 * p->page;
    mla_status st = mla_seq_new(&first, rt, t->n + more, err);
    if (st == MLA_OK) st = mla_path_feed(p, w, rt, first, k, 0, hit, err);
    if (st == MLA_OK) st = mla_seq_fork(&second, first, t->n + more, err);
    mla_job job = {.seq = first, .ids = other->ids, .T = more, .logits_from = more};
    if (st == MLA_OK) st = mla_rt_run(rt, &job, 1, NULL, NULL, err);
    if (st == MLA_OK) st = mla_path_feed(p, w, rt, second, k, hit, t->n - hit, err);
    mla_seq_free(second);
    mla_seq_free(first);
    return st;
}

mla_status mla_path_prefix(mla_paths *p, mla_err *err)
{
    mla_path_way total = {.path = "prefix"};
    size_t ways = 0;
    mla_status st = MLA_OK;
    for (size_t i = 0; i < 6 && st == MLA_OK; i++) {
        const size_t at[] = {16, 48, p->page, p->page + 16, 2 * p->page, 0};
        mla_path_way w = {.path = "prefix"};
        if (at[i]) (void)snprintf(w.way, sizeof w.way, "hit of %zu tokens", at[i]);
        else (void)snprintf(w.way, sizeof w.way, "hit of all whole 16 tokens");
        for (size_t k = 0; k < p->o->n_text && st == MLA_OK; k++) {
            size_t n = p->o->text[k].n, hit = at[i] ? at[i] : (n - 1) / 16 * 16;
            if (hit && hit < n) st = second_turn(p, &w, k, hit, err);
        }
        if (st != MLA_OK || !w.positions) continue;
        mla_path_way_add(p, &total, &w);
        ways++;
    }
    if (st == MLA_OK) mla_path_gate(p, &total, ways);
    return st;
}

/* ---- batches ---- */
typedef struct {
    mla_paths *p;
    mla_path_way *w;
    const size_t *at; /* (n_text) first token of every job */
} batch_ctx;

static mla_status batch_sink(void *ctx, size_t job, size_t row0, size_t n, const float *logits, mla_err *err)
{
    batch_ctx *b = ctx;
    for (size_t i = 0; i < n; i++) {
        mla_status st = mla_path_row_compare(b->p, b->w, job, b->at[job] + row0 + i, logits + i * b->p->V, err);
        if (st != MLA_OK) return st;
    }
    return MLA_OK;
}

/* All texts side by side, lengths mixed; then every one's last 1 to 5 tokens, so that decoding and short chunks meet. */
mla_status mla_path_batch(mla_paths *p, mla_err *err)
{
    size_t n = p->o->n_text;
    mla_path_way w = {.path = "batch"}, total = w;
    mla_job *job = mla_alloc(n, 1, sizeof *job);
    size_t *at = mla_alloc(n, 1, sizeof *at);
    mla_status st = job && at ? MLA_OK : mla_fail(err, MLA_ENOMEM, "batch of %zu", n);
    (void)snprintf(w.way, sizeof w.way, "batch of %zu texts", n);
    for (size_t k = 0; k < n && st == MLA_OK; k++) {
        st = mla_seq_new(&job[k].seq, p->o->rt, p->o->text[k].n, err);
        job[k].ids = p->o->text[k].ids;
        job[k].T = p->o->text[k].n - 1 - k % 5;
    }
    batch_ctx b = {p, &w, at};
    if (st == MLA_OK) st = mla_rt_run_sink(p->o->rt, job, n, NULL, batch_sink, &b, err);
    for (size_t k = 0; k < n && st == MLA_OK; k++) {
        at[k] = job[k].T;
        job[k].ids += job[k].T;
        job[k].T = p->o->text[k].n - at[k];
    }
    if (st == MLA_OK) st = mla_rt_run_sink(p->o->rt, job, n, NULL, batch_sink, &b, err);
    for (size_t k = 0; job && k < n; k++) mla_seq_free(job[k].seq);
    mla_free(job);
    mla_free(at);
    if (st != MLA_OK) return st;
    mla_path_way_add(p, &total, &w);
    mla_path_gate(p, &total, 1);
    return MLA_OK;
}

/* ---- FP8 ---- */
typedef struct {
    size_t V, n, top1, sure, sure_top1;
    double sum, max;
} fp8_ctx;

static mla_status on_pair(void *ctx, size_t at, const float *wide, const float *fp8, mla_err *err)
{
    fp8_ctx *c = ctx;
    mla_score a, b;
    double kld;
    (void)at;
    mla_status st = mla_score_row(&a, wide, c->V, -1, err);
    if (st == MLA_OK) st = mla_score_row(&b, fp8, c->V, -1, err);
    if (st == MLA_OK) st = mla_kld_row(&kld, wide, fp8, c->V, err);
    if (st != MLA_OK) return st;
    c->n++;
    c->top1 += a.top1 == b.top1;
    c->sure += a.margin >= 1;
    c->sure_top1 += a.margin >= 1 && a.top1 == b.top1;
    c->sum += kld;
    if (kld > c->max) c->max = kld;
    return MLA_OK;
}

static mla_status fp8_against(mla_paths *p, mla_rt *wide, mla_rt *fp8, fp8_ctx *c, mla_err *err)
{
    size_t longest = 0;
    mla_seq *a = NULL, *b = NULL;
    for (size_t k = 0; k < p->o->n_text; k++)
        if (p->o->text[k].n > longest) longest = p->o->text[k].n;
    mla_status st = mla_seq_new(&a, wide, longest, err);
    if (st == MLA_OK) st = mla_seq_new(&b, fp8, longest, err);
    for (size_t k = 0; k < p->o->n_text && st == MLA_OK; k++) {
        mla_forced f = {.ids = p->o->text[k].ids, .n = p->o->text[k].n, .chunk = mla_forward_chunk(p->V)};
        st = mla_forward_pair(&(mla_pair){wide, fp8, a, b}, &f, on_pair, c, err);
    }
    mla_seq_free(a);
    mla_seq_free(b);
    return st;
}

mla_status mla_path_fp8(mla_paths *p, mla_err *err)
{
    fp8_ctx c = {.V = p->V};
    mla_rt *wide = NULL, *fp8 = NULL;
    mla_err why = {0};
    mla_status st = mla_rt_share(&wide, p->o->rt, MLA_BF16, err);
    if (st == MLA_OK) st = mla_rt_share(&fp8, p->o->rt, MLA_F8_E4M3, err);
    if (st == MLA_OK) st = fp8_against(p, wide, fp8, &c, &why);
    mla_rt_close(fp8);
    mla_rt_close(wide);
    if (st == MLA_EINVAL) { /* no scales: said, not judged */
        mla_doc_gate(p->gates, "fp8", MLA_NO_EVIDENCE, "%s", why.msg);
        if (p->worst == MLA_PASS) p->worst = MLA_NO_EVIDENCE;
        return MLA_OK;
    }
    if (st != MLA_OK) {
        if (why.msg[0]) *err = why;
        return st;
    }
    double mean = c.sum / (double)c.n;
    bool ok = mean <= p->o->max_fp8_kld;
    mla_jv *g = mla_doc_gate(p->gates, "fp8", ok ? MLA_PASS : MLA_FAIL,
                             "FP8 against bf16 cache: mean KL divergence %.3g nats (largest %.3g), allowed %g; argmax equal at %zu of %zu, at %zu of %zu confident positions",
                             mean, c.max, p->o->max_fp8_kld, c.top1, c.n, c.sure_top1, c.sure);
    mla_jv_set_f64(g, "value", mean);
    mla_jv_set_f64(g, "threshold", p->o->max_fp8_kld);
    if (!ok) p->worst = MLA_FAIL;
    return MLA_OK;
}
