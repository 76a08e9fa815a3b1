/* Paths: the run in one call, comparing with it, prompts in chunks, another thread count. */
#include "verify/paths/paths.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "runtime/score.h"
#include "verify/paths/paths_parts.h"
#include "verify/report/report.h"

/* ---- rows ---- */
mla_status mla_path_row_compare(const mla_paths *p, mla_path_way *w, size_t k, size_t at, const float *logits, mla_err *err)
{
    const mla_path_row *r = &p->want[k][at];
    mla_score s;
    mla_status st = mla_score_row(&s, logits, p->V, r->top1, err);
    if (st != MLA_OK) return st;
    const mla_path_text *t = &p->o->text[k];
    double moved = fabs(s.target_logprob - r->logprob), tie = r->margin < s.margin ? r->margin : s.margin;
    bool first = at + 1 == t->n;
    w->positions++;
    if (first && moved > w->first_change) w->first_change = moved;
    if (moved > w->logprob_change) {
        w->logprob_change = moved;
        if (!w->parted) (void)snprintf(w->where, sizeof w->where, "%s in %.60s, position %zu", w->way, t->name, at);
    }
    if (s.top1 == r->top1) return MLA_OK;
    w->differ++;
    if (tie <= p->o->near_tie) {
        w->near_ties++;
        return MLA_OK;
    }
    if (!w->parted)
        (void)snprintf(w->where, sizeof w->where, "%s in %.40s, position %zu: expected %d, got %d, margin %.3g", w->way, t->name, at, (int)r->top1,
                       (int)s.top1, r->margin);
    w->parted = true;
    return MLA_OK;
}

typedef struct {
    mla_paths *p;
    mla_path_way *w; /* NULL: the rows are written down instead */
    size_t text, at;
} sink_ctx;

static mla_status sink(void *ctx, size_t job, size_t row0, size_t n, const float *logits, mla_err *err)
{
    sink_ctx *s = ctx;
    (void)job;
    for (size_t i = 0; i < n; i++) {
        const float *row = logits + i * s->p->V;
        size_t at = s->at + row0 + i;
        mla_score sc;
        mla_status st = s->w ? mla_path_row_compare(s->p, s->w, s->text, at, row, err) : mla_score_row(&sc, row, s->p->V, -1, err);
        if (st != MLA_OK) return st;
        if (!s->w) s->p->want[s->text][at] = (mla_path_row){sc.top1, sc.margin, sc.logprob};
    }
    return MLA_OK;
}

mla_status mla_path_feed(mla_paths *p, mla_path_way *w, mla_rt *rt, mla_seq *seq, size_t k, size_t at, size_t T, mla_err *err)
{
    sink_ctx s = {p, w, k, at};
    mla_job job = {.seq = seq, .ids = p->o->text[k].ids + at, .T = T};
    return mla_rt_run_sink(rt, &job, 1, NULL, sink, &s, err);
}

/* ---- totals ---- */
void mla_path_way_add(mla_paths *p, mla_path_way *total, const mla_path_way *w)
{
    mla_jv *o = mla_jv_add_obj(p->list);
    mla_jv_set_str(o, "path", w->path);
    mla_jv_set_str(o, "way", w->way);
    mla_jv_set_size(o, "positions", w->positions);
    mla_jv_set_size(o, "differ", w->differ);
    mla_jv_set_size(o, "near_ties", w->near_ties);
    mla_jv_set_f64(o, "logprob_change_max", w->logprob_change);
    mla_jv_set_f64(o, "first_token_logprob_change", w->first_change);
    if (w->parted) mla_jv_set_str(o, "where", w->where);
    bool tells = !total->parted && (w->parted || w->logprob_change > total->logprob_change);
    if (tells) memcpy(total->where, w->where, sizeof total->where);
    total->positions += w->positions;
    total->differ += w->differ;
    total->near_ties += w->near_ties;
    total->parted = total->parted || w->parted;
    if (w->logprob_change > total->logprob_change) total->logprob_change = w->logprob_change;
    if (w->first_change > total->first_change) total->first_change = w->first_change;
}

void mla_path_gate(mla_paths *p, const mla_path_way *t, size_t ways)
{
    const mla_paths_opts *o = p->o;
    bool moved = !(t->first_change <= o->max_logprob && t->logprob_change <= o->max_change);
    mla_verdict v = t->parted || moved ? MLA_FAIL : t->positions ? MLA_PASS : MLA_NO_EVIDENCE;
    mla_jv *g;
    if (!t->positions) g = mla_doc_gate(p->gates, t->path, v, "no text is long enough for this path");
    else if (t->parted)
        g = mla_doc_gate(p->gates, t->path, v, "%zu of %zu positions part beyond a near-tie; the first: %s", t->differ - t->near_ties, t->positions, t->where);
    else if (moved)
        g = mla_doc_gate(p->gates, t->path, v, "log-probabilities move by %.3g nats, allowed %g (first answered token: %.3g, allowed %g); most in %s",
                         t->logprob_change, o->max_change, t->first_change, o->max_logprob, t->where);
    else
        g = mla_doc_gate(p->gates, t->path, v, "%zu ways, %zu positions; %zu near-ties; log-probabilities move by at most %.3g nats, of the first answered token %.3g",
                         ways, t->positions, t->near_ties, t->logprob_change, t->first_change);
    mla_jv_set_f64(g, "value", t->logprob_change);
    mla_jv_set_f64(g, "threshold", o->max_change);
    if (v == MLA_FAIL || (v == MLA_NO_EVIDENCE && p->worst == MLA_PASS)) p->worst = v;
}

/* ---- chunks ---- */
typedef struct {
    size_t chunk, tail, step; /* chunks of `chunk` tokens, then the last `tail` tokens in chunks of `step` */
} cuts;

static mla_status cut(mla_paths *p, mla_path_way *w, mla_rt *rt, mla_seq *seq, size_t k, const cuts *c, mla_err *err)
{
    size_t n = p->o->text[k].n, body = n - c->tail;
    mla_seq_reset(seq);
    for (size_t at = 0; at < n;) {
        size_t left = at < body ? body - at : n - at, most = at < body ? c->chunk : c->step, T = left > most ? most : left;
        mla_status st = mla_path_feed(p, w, rt, seq, k, at, T, err);
        if (st != MLA_OK) return st;
        at += T;
    }
    return MLA_OK;
}

static mla_status longest_seq(mla_seq **seq, const mla_paths *p, mla_rt *rt, mla_err *err)
{
    size_t n = 0;
    for (size_t k = 0; k < p->o->n_text; k++)
        if (p->o->text[k].n > n) n = p->o->text[k].n;
    return mla_seq_new(seq, rt, n, err);
}

/* One way over all texts that are long enough for it. */
static mla_status one_cut(mla_paths *p, mla_seq *seq, const cuts *c, mla_path_way *total, size_t *ways, mla_err *err)
{
    mla_path_way w = {.path = "chunked"};
    if (!c->tail) (void)snprintf(w.way, sizeof w.way, "chunks of %zu", c->chunk);
    else if (c->tail == c->step) (void)snprintf(w.way, sizeof w.way, "last chunk of %zu", c->tail);
    else (void)snprintf(w.way, sizeof w.way, "last %zu in chunks of %zu", c->tail, c->step);
    for (size_t k = 0; k < p->o->n_text; k++) {
        if (p->o->text[k].n <= (c->tail ? c->tail : c->chunk)) continue;
        mla_status st = cut(p, &w, p->o->rt, seq, k, c, err);
        if (st != MLA_OK) return st;
    }
    if (!w.positions) return MLA_OK;
    mla_path_way_add(p, total, &w);
    ++*ways;
    return MLA_OK;
}

static mla_status chunked(mla_paths *p, mla_err *err)
{
    /* a page less one, a page and one more; last chunks that look like decoding with k = 0..4 drafts, and around a page; such chunks one
     * after the other over a page */
    const size_t chunk[] = {16, p->page - 1, p->page, p->page + 1}, last[] = {1, 2, 3, 4, 5, p->page - 1, p->page, p->page + 1};
    mla_path_way total = {.path = "chunked"};
    mla_seq *seq;
    size_t ways = 0;
    mla_status st = longest_seq(&seq, p, p->o->rt, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < 4 && st == MLA_OK; i++) st = one_cut(p, seq, &(cuts){.chunk = chunk[i]}, &total, &ways, err);
    for (size_t i = 0; i < 8 && st == MLA_OK; i++) st = one_cut(p, seq, &(cuts){.chunk = 2 * p->page, .tail = last[i], .step = last[i]}, &total, &ways, err);
    for (size_t i = 1; i <= 5 && st == MLA_OK; i++) st = one_cut(p, seq, &(cuts){.chunk = 2 * p->page, .tail = p->page, .step = i}, &total, &ways, err);
    mla_seq_free(seq);
    if (st == MLA_OK) mla_path_gate(p, &total, ways);
    return st;
}

/* The floor: the same model, another thread count, another cut. */
static mla_status threads(mla_paths *p, mla_err *err)
{
    mla_path_way w = {.path = "threads"}, total = w;
    mla_seq *seq;
    if (!p->o->other) {
        mla_doc_gate(p->gates, "threads", MLA_NO_EVIDENCE, "no second backend with another thread count");
        if (p->worst == MLA_PASS) p->worst = MLA_NO_EVIDENCE;
        return MLA_OK;
    }
    (void)snprintf(w.way, sizeof w.way, "other threads, chunks of 48");
    mla_status st = longest_seq(&seq, p, p->o->other, err);
    for (size_t k = 0; k < p->o->n_text && st == MLA_OK; k++) st = cut(p, &w, p->o->other, seq, k, &(cuts){.chunk = 48}, err);
    if (st == MLA_OK) {
        mla_seq_free(seq);
        mla_path_way_add(p, &total, &w);
        mla_path_gate(p, &total, 1);
    }
    return st;
}

/* ---- all ---- */
static mla_status one_shot(mla_paths *p, mla_err *err)
{
    mla_seq *seq;
    mla_status st = longest_seq(&seq, p, p->o->rt, err);
    if (st != MLA_OK) return st;
    for (size_t k = 0; k < p->o->n_text && st == MLA_OK; k++) {
        p->want[k] = mla_alloc(p->o->text[k].n, 1, sizeof **p->want);
        mla_seq_reset(seq);
        if (!p->want[k]) st = mla_fail(err, MLA_ENOMEM, "%zu rows", p->o->text[k].n);
        else st = mla_path_feed(p, NULL, p->o->rt, seq, k, 0, p->o->text[k].n, err);
    }
    mla_seq_free(seq);
    return st;
}

static const struct {
    const char *name;
    mla_status (*run)(mla_paths *p, mla_err *err);
} PATHS[] = {{"chunked", chunked}, {"prefix", mla_path_prefix}, {"batch", mla_path_batch}, {"threads", threads}, {"fp8", mla_path_fp8}, {"split", mla_path_split}};

mla_status mla_paths_check(mla_jv *doc, const mla_paths_opts *o, const char *const *name, size_t n, mla_verdict *verdict, mla_err *err)
{
    mla_paths p = {.o = o, .V = mla_rt_config(o->rt)->vocab, .page = o->page ? o->page : 64, .worst = MLA_PASS};
    mla_jv_set_str(doc, "schema", MLA_PATHS_SCHEMA);
    mla_jv_set_str(doc, "verdict", "");
    p.gates = mla_jv_set_arr(doc, "gates");
    p.list = mla_jv_set_arr(doc, "paths");
    p.want = mla_alloc(o->n_text ? o->n_text : 1, 1, sizeof *p.want);
    mla_status st = p.want ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu texts", o->n_text);
    if (st == MLA_OK && !o->n_text) st = mla_fail(err, MLA_EINVAL, "no text to take through the paths");
    mla_progress prog = mla_progress_begin(o->log, "paths", (double)n, "paths");
    if (st == MLA_OK) st = one_shot(&p, err);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        for (size_t k = 0; k < sizeof PATHS / sizeof *PATHS && st == MLA_OK; k++)
            if (!strcmp(PATHS[k].name, name[i])) st = PATHS[k].run(&p, err);
        if (st != MLA_OK) st = mla_wrap(err, "path %s", name[i]);
        mla_progress_add(&prog, 1);
    }
    if (st == MLA_OK) mla_progress_end(&prog);
    for (size_t k = 0; p.want && k < o->n_text; k++) mla_free(p.want[k]);
    mla_free(p.want);
    *verdict = p.worst;
    mla_jv_set_str(doc, "verdict", mla_verdict_name(p.worst));
    return st;
}

/* Up to `room` tokens of piece i of n into ids. */
static size_t take(int32_t *ids, const mla_path_source *s, size_t i, size_t n, size_t room, const char **name)
{
    size_t len = 0;
    if (s->ref && s->ref->n) {
        const mla_ref_case *c = &s->ref->c[i * s->ref->n / n];
        for (size_t k = 0; c->prompt && k < c->n_prompt && len < room; k++) ids[len++] = c->prompt[k];
        for (size_t k = 0; k < c->n && len < room; k++) ids[len++] = c->completion[k];
        *name = c->name;
        return len;
    }
    for (size_t k = i * (s->n_corpus / n); k < s->n_corpus && len < room; k++) ids[len++] = s->corpus[k];
    *name = "corpus";
    return len;
}

mla_status mla_paths_texts(mla_path_text *out, size_t *n, int32_t **buffer, const mla_path_source *s, mla_err *err)
{
    size_t most = s->ref && s->ref->n ? s->ref->n : s->n_corpus / 8, want = most < s->cases ? most : s->cases;
    *n = 0;
    *buffer = mla_alloc(want ? want : 1, s->tokens, sizeof **buffer);
    if (!*buffer) return mla_fail(err, MLA_ENOMEM, "%zu texts of %zu tokens", want, s->tokens);
    for (size_t i = 0; i < want; i++) {
        int32_t *ids = *buffer + *n * s->tokens;
        const char *name;
        size_t len = take(ids, s, i, want, s->tokens * (i + 1) / want, &name);
        if (len >= 8) out[(*n)++] = (mla_path_text){name, ids, len};
    }
    return MLA_OK;
}
