/* Drafting with the MTP head, checked against plain greedy decoding. */
#include "verify/paths/drafts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "runtime/score.h"

typedef struct { /* one answer in progress */
    mla_rt *rt;
    const mla_drafts_opts *o;
    size_t V, D, k;
    mla_seq *seq;        /* trunk up to the last kept token; its head knows one token less */
    size_t max_tokens;
    float *logits;       /* (MLA_DRAFTS_MAX + 1, V) */
    float *hidden;       /* (rows, D) of the last run */
    float *last, *feed;  /* (D) hidden state before the next token; (MLA_DRAFTS_MAX + 1, D) */
    int32_t *plain;      /* (tokens) without drafts */
    double *margin;      /* (tokens) */
    size_t n_plain;
    int32_t next;        /* the trunk's own next token */
} draft;

static bool ends_text(const mla_config *c, int32_t id)
{
    for (size_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return true;
    return false;
}

static mla_status best(int32_t *id, double *margin, const float *row, size_t V, mla_err *err)
{
    mla_score s;
    mla_status st = mla_score_row(&s, row, V, -1, err);
    if (st != MLA_OK) return st;
    *id = s.top1;
    if (margin) *margin = s.margin;
    return MLA_OK;
}

/* The prompt through the trunk, its tokens but the first through the head. */
static mla_status prefill(draft *d, const mla_path_text *t, bool head, mla_err *err)
{
    float *h = mla_alloc(t->n, d->D, sizeof *h);
    if (!h) return mla_fail(err, MLA_ENOMEM, "hidden states of %zu tokens", t->n);
    mla_seq_free(d->seq);
    d->seq = NULL;
    mla_status st = mla_seq_new(&d->seq, d->rt, d->max_tokens, err);
    mla_job job = {.seq = d->seq, .ids = t->ids, .T = t->n, .logits_from = t->n - 1, .logits = d->logits, .hidden = h};
    if (st == MLA_OK) st = mla_rt_run(d->rt, &job, 1, NULL, NULL, err);
    if (st == MLA_OK && head && t->n > 1) st = mla_rt_mtp(d->rt, d->seq, h, t->ids + 1, t->n - 1, NULL, NULL, err);
    if (st == MLA_OK) memcpy(d->last, h + (t->n - 1) * d->D, d->D * sizeof *h);
    mla_free(h);
    return st == MLA_OK ? best(&d->next, NULL, d->logits, d->V, err) : st;
}

static mla_status plain(draft *d, const mla_path_text *t, mla_err *err)
{
    mla_status st = prefill(d, t, false, err);
    for (d->n_plain = 0; st == MLA_OK && d->n_plain < d->o->tokens;) {
        int32_t id;
        st = best(&id, &d->margin[d->n_plain], d->logits, d->V, err);
        if (st != MLA_OK) break;
        d->plain[d->n_plain++] = id;
        if (ends_text(mla_rt_config(d->rt), id)) break;
        mla_job job = {.seq = d->seq, .ids = &id, .T = 1, .logits = d->logits};
        st = mla_rt_run(d->rt, &job, 1, NULL, NULL, err);
    }
    return st;
}

/* k tokens from the head on a copy of the sequence: what it wrote for them is thrown away. */
static mla_status propose(draft *d, int32_t *ids, mla_err *err)
{
    mla_seq *f;
    mla_status st = mla_seq_fork(&f, d->seq, d->max_tokens, err);
    if (st != MLA_OK) return st;
    memcpy(d->feed, d->last, d->D * sizeof *d->feed);
    ids[0] = d->next;
    for (size_t i = 0; i < d->k && st == MLA_OK; i++) {
        float *out = d->feed + (i + 1) % 2 * d->D;
        st = mla_rt_mtp(d->rt, f, d->feed + i % 2 * d->D, &ids[i], 1, d->logits, out, err);
        if (st == MLA_OK) st = best(&ids[i + 1], NULL, d->logits, d->V, err);
    }
    mla_seq_free(f);
    return st;
}

/* ids = [next, drafts]: runs all, keeps the longest run of right ones; *kept drafts of them. */
static mla_status verify(draft *d, const int32_t *ids, size_t *kept, mla_err *err)
{
    mla_seq *v;
    mla_status st = mla_seq_fork(&v, d->seq, d->max_tokens, err);
    mla_job job = {.seq = v, .ids = ids, .T = d->k + 1, .logits = d->logits, .hidden = d->hidden};
    if (st != MLA_OK) return st;
    st = mla_rt_run(d->rt, &job, 1, NULL, NULL, err);
    int32_t id = 0;
    for (*kept = 0; st == MLA_OK && *kept <= d->k; (*kept)++) {
        st = best(&id, NULL, d->logits + *kept * d->V, d->V, err);
        if (st != MLA_OK || *kept == d->k || id != ids[*kept + 1]) break;
    }
    if (st != MLA_OK) {
        mla_seq_free(v);
        return st;
    }
    d->next = id;
    size_t rows = *kept + 1;
    if (rows == d->k + 1) {
        mla_seq_free(d->seq);
        d->seq = v;
    } else { /* back to before the drafts, and on with the kept ones */
        mla_seq_free(v);
        mla_job again = {.seq = d->seq, .ids = ids, .T = rows, .logits_from = rows, .hidden = d->hidden};
        st = mla_rt_run(d->rt, &again, 1, NULL, NULL, err);
        if (st != MLA_OK) return st;
    }
    memcpy(d->feed, d->last, d->D * sizeof *d->feed);
    memcpy(d->feed + d->D, d->hidden, *kept * d->D * sizeof *d->feed);
    memcpy(d->last, d->hidden + *kept * d->D, d->D * sizeof *d->last);
    return mla_rt_mtp(d->rt, d->seq, d->feed, ids, rows, NULL, NULL, err);
}

/* Compares tokens at[0..n) with the plain answer; false: the answer parted or ended. */
static bool follow(const draft *d, mla_drafts *r, const mla_path_text *t, size_t *at, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++, (*at)++) {
        if (*at == d->n_plain) break;
        r->tokens++;
        if (ids[i] == d->plain[*at]) continue;
        if (d->margin[*at] <= d->o->near_tie) {
            r->near_ties++;
        } else if (!r->parted) {
            r->parted = true;
            (void)snprintf(r->where, sizeof r->where, "%.60s, token %zu: expected %d, got %d with %zu drafts, margin %.3g", t->name, *at, (int)d->plain[*at],
                           (int)ids[i], d->k, d->margin[*at]);
        }
        return false;
    }
    if (*at < d->n_plain) return true;
    r->exact++;
    return false;
}

static mla_status answer(draft *d, mla_drafts *r, const mla_path_text *t, mla_err *err)
{
    int32_t ids[MLA_DRAFTS_MAX + 1];
    size_t at = 0, kept;
    mla_status st = prefill(d, t, true, err);
    r->answers++;
    while (st == MLA_OK) {
        st = propose(d, ids, err);
        if (st == MLA_OK) st = verify(d, ids, &kept, err);
        if (st != MLA_OK) break;
        r->rounds++;
        for (size_t i = 0; i < kept; i++) r->accepted[i]++;
        if (!follow(d, r, t, &at, ids, kept + 1)) break;
    }
    return st;
}

mla_status mla_drafts_run(mla_drafts *out, mla_rt *rt, const mla_drafts_opts *o, mla_err *err)
{
    const mla_config *c = mla_rt_config(rt);
    draft d = {.rt = rt, .o = o, .V = c->vocab, .D = c->hidden};
    size_t rows = MLA_DRAFTS_MAX + 1, longest = 0;
    for (size_t i = 0; i < o->n_prompt; i++) longest = o->prompt[i].n > longest ? o->prompt[i].n : longest;
    d.max_tokens = longest + o->tokens + 2 * rows;
    d.logits = mla_alloc(rows, d.V, sizeof *d.logits);
    d.hidden = mla_alloc(rows, d.D, sizeof *d.hidden);
    d.feed = mla_alloc(rows, d.D, sizeof *d.feed);
    d.last = mla_alloc(d.D, 1, sizeof *d.last);
    d.plain = mla_alloc(o->tokens, 1, sizeof *d.plain);
    d.margin = mla_alloc(o->tokens, 1, sizeof *d.margin);
    mla_status st = d.logits && d.hidden && d.feed && d.last && d.plain && d.margin ? MLA_OK : mla_fail(err, MLA_ENOMEM, "drafts over %zu ids", d.V);
    mla_progress prog = mla_progress_begin(o->log, "drafts", (double)o->n_prompt, "prompts");
    for (size_t k = 1; k <= o->most; k++) out[k - 1] = (mla_drafts){.k = k};
    for (size_t i = 0; i < o->n_prompt && st == MLA_OK; i++) {
        st = plain(&d, &o->prompt[i], err);
        for (d.k = 1; d.k <= o->most && st == MLA_OK; d.k++) st = answer(&d, &out[d.k - 1], &o->prompt[i], err);
        if (st != MLA_OK) st = mla_wrap(err, "%s", o->prompt[i].name);
        mla_progress_add(&prog, 1);
    }
    if (st == MLA_OK) mla_progress_end(&prog);
    mla_seq_free(d.seq);
    mla_free(d.logits);
    mla_free(d.hidden);
    mla_free(d.feed);
    mla_free(d.last);
    mla_free(d.plain);
    mla_free(d.margin);
    return st;
}
