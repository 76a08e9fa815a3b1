/* Parity: the passes. Fills one mla_parity_pos per predicted position; judging is parity_report.c's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "verify/parity/forward.h"
#include "verify/parity/parity_run.h"

mla_parity_opts mla_parity_defaults(void)
{
    return (mla_parity_opts){
        .aa_positions = 256,
        .min_agreement = 0.995,
        .max_kld = NAN,
        .min_margin = 1,
        .near_tie = 0.1,
        .free_decode = true,
        .bootstrap = {.resamples = 2000, .seed = 1, .level = 0.95},
    };
}

typedef struct {
    mla_parity *p;
    const mla_parity_input *in;
    mla_seq *model_seq, *base_seq;
    mla_progress prog;
    size_t V;
    /* of the case in progress */
    mla_parity_case *pc;
    const mla_ref_case *rc; /* NULL: a row of the corpus */
    const int32_t *ids;     /* (n_ids) all tokens of the case */
    const mla_embedded *image; /* the prompt of the case as embeddings; NULL: ids */
    size_t n_ids, from;     /* rows from.. are predictions; row `at` is position at - from */
} state;

/* What the text says next after token `at`, or -1 at its end. */
static int32_t next_token(const state *s, size_t at) { return at + 1 < s->n_ids ? s->ids[at + 1] : -1; }

static mla_parity_pos *position(state *s, size_t at)
{
    mla_parity_pos *q = &s->p->pos[s->pc->first + (at - s->from)];
    q->case_index = (uint32_t)(s->pc - s->p->c);
    q->step = (uint32_t)(at - s->from);
    q->context = at + 1;
    return q;
}

static mla_status score_model(state *s, mla_parity_pos *q, size_t at, const float *logits, mla_err *err)
{
    mla_score sc;
    int32_t target = next_token(s, at);
    mla_status st = mla_score_row(&sc, logits, s->V, target, err);
    if (st != MLA_OK) return st;
    q->got = sc.top1;
    q->model_margin = sc.margin;
    q->model_logprob = sc.target_logprob;
    q->has_nll = target >= 0;
    return MLA_OK;
}

static void expect_recorded(const state *s, mla_parity_pos *q)
{
    const mla_ref_case *c = s->rc;
    q->expected = c->top1[q->step];
    q->judged = c->judged[q->step];
    q->confident = c->confident[q->step];
    q->margin = c->margin ? c->margin[q->step] : (double)NAN;
    q->ref_logprob = c->target_logprob ? c->target_logprob[q->step] : 0;
    if (!c->target_logprob) q->has_nll = false;
}

static mla_status on_row(void *ctx, size_t at, const float *logits, mla_err *err)
{
    state *s = ctx;
    mla_parity_pos *q = position(s, at);
    mla_status st = score_model(s, q, at, logits, err);
    if (st == MLA_OK) expect_recorded(s, q);
    return st;
}

static mla_status on_pair(void *ctx, size_t at, const float *base, const float *model, mla_err *err)
{
    state *s = ctx;
    mla_parity_pos *q = position(s, at);
    mla_score b;
    mla_status st = score_model(s, q, at, model, err);
    if (st == MLA_OK) st = mla_score_row(&b, base, s->V, next_token(s, at), err);
    if (st == MLA_OK) st = mla_kld_row(&q->kld, base, model, s->V, err);
    if (st != MLA_OK) return st;
    q->has_kld = true;
    q->base_top1 = b.top1;
    if (s->rc) {
        expect_recorded(s, q);
        q->has_nll = next_token(s, at) >= 0;
    } else {
        q->expected = b.top1;
        q->judged = !s->p->with_reference; /* recorded ids, where there are some, are the only oracle of agreement */
        q->confident = q->judged && b.margin >= s->p->opts.min_margin;
        q->margin = b.margin;
    }
    q->ref_logprob = b.target_logprob; /* the base itself, not the rounded record */
    return MLA_OK;
}

static mla_status forced(state *s, bool pair, mla_err *err)
{
    mla_forced f = {.ids = s->ids, .image = s->image, .n = s->from + s->pc->n, .from = s->from, .chunk = s->p->opts.chunk, .prog = &s->prog};
    mla_status st;
    if (pair)
        st = mla_forward_pair(&(mla_pair){s->in->base, s->in->model, s->base_seq, s->model_seq}, &f, on_pair, s, err);
    else
        st = mla_forward_forced(s->in->model, s->model_seq, &f, on_row, s, err);
    return st;
}

/* ---- the same model with other chunks: what disagreement means nothing ---- */
typedef struct {
    const state *s;
    size_t agree, ties;
    double floor;
} aa_ctx;

static mla_status on_aa(void *ctx, size_t at, const float *logits, mla_err *err)
{
    aa_ctx *a = ctx;
    const mla_parity_pos *q = &a->s->p->pos[a->s->pc->first + (at - a->s->from)];
    mla_score sc;
    mla_status st = mla_score_row(&sc, logits, a->s->V, -1, err);
    if (st != MLA_OK) return st;
    bool same = sc.top1 == q->got;
    double moved = same ? fabs(sc.margin - q->model_margin) : sc.margin + q->model_margin;
    if (moved > a->floor) a->floor = moved;
    a->agree += same;
    a->ties += !same && sc.margin <= a->s->p->opts.near_tie && q->model_margin <= a->s->p->opts.near_tie;
    return MLA_OK;
}

static mla_status again(state *s, mla_err *err)
{
    mla_parity *p = s->p;
    if (p->aa_positions >= p->opts.aa_positions) return MLA_OK;
    size_t n = p->opts.aa_positions - p->aa_positions;
    if (n > s->pc->n) n = s->pc->n;
    aa_ctx a = {.s = s};
    mla_forced f = {.ids = s->ids, .image = s->image, .n = s->from + n, .from = s->from, .chunk = p->aa_chunk, .prog = NULL};
    mla_status st = mla_forward_forced(s->in->model, s->model_seq, &f, on_aa, &a, err);
    if (st != MLA_OK) return mla_wrap(err, "second pass with chunks of %zu", p->aa_chunk);
    p->aa_positions += n;
    p->aa_agree += a.agree;
    p->aa_ties += a.ties;
    if (a.floor > p->aa_floor) p->aa_floor = a.floor;
    return MLA_OK;
}

/* ---- free decode ---- */
static mla_status on_step(void *ctx, size_t step, const mla_score *sc, int32_t *next, mla_err *err)
{
    state *s = ctx;
    mla_parity_case *pc = s->pc;
    const mla_ref_case *rc = s->rc;
    (void)err;
    if (sc->top1 == rc->completion[step]) {
        pc->decoded = step + 1;
        *next = rc->completion[step];
        return MLA_OK;
    }
    const mla_parity_pos *q = &s->p->pos[pc->first + step];
    pc->decode_diverged = true;
    pc->decode_expected = rc->completion[step];
    pc->decode_got = sc->top1;
    pc->decode_margin = rc->margin ? rc->margin[step] : (double)NAN;
    /* same context, same weights: only near-ties may fall apart between prefill and decode */
    double tie = s->p->opts.near_tie > s->p->aa_floor ? s->p->opts.near_tie : s->p->aa_floor;
    pc->decode_path_differs = q->got == rc->completion[step] && q->model_margin > tie;
    *next = -1;
    return MLA_OK;
}

static mla_status decode(state *s, mla_err *err)
{
    const mla_ref_case *rc = s->rc;
    if (!s->p->opts.free_decode || rc->decode_steps == 0) return MLA_OK;
    s->pc->decode_steps = rc->decode_steps;
    mla_greedy g = {.prompt = rc->prompt, .image = s->image, .n_prompt = rc->n_prompt, .chunk = s->p->opts.chunk, .steps = rc->decode_steps, .prog = &s->prog};
    mla_status st = mla_forward_greedy(s->in->model, s->model_seq, &g, on_step, s, err);
    return st == MLA_OK ? st : mla_wrap(err, "free decode");
}

/* ---- cases ---- */
static mla_status run_case(state *s, mla_err *err)
{
    bool pair = s->in->base && (!s->rc || !s->in->corpus);
    mla_status st = forced(s, pair, err);
    if (st == MLA_OK) st = again(s, err);
    if (st == MLA_OK && s->rc) st = decode(s, err);
    return st == MLA_OK ? st : mla_wrap(err, "%s", s->pc->name);
}

static mla_status reference_cases(state *s, size_t *ci, size_t *pi, mla_err *err)
{
    const mla_reference *r = s->in->ref;
    int32_t *ids = r ? mla_alloc(mla_reference_longest(r), 1, sizeof *ids) : NULL;
    mla_status st = MLA_OK;
    if (r && !ids) return mla_fail(err, MLA_ENOMEM, "%zu ids", mla_reference_longest(r));
    for (size_t k = 0; r && k < r->n && st == MLA_OK; k++) {
        const mla_ref_case *c = &r->c[k];
        mla_parity_case *pc = &s->p->c[(*ci)++];
        pc->name = mla_strdup(c->name);
        pc->language = c->language ? mla_strdup(c->language) : NULL;
        pc->kind = !c->prompt ? "image" : c->probe ? "probe" : c->forced ? "forced" : "greedy";
        pc->first = *pi;
        pc->n = c->n;
        pc->must_match = c->decode_must_match;
        *pi += c->n;
        if (!pc->name || (c->language && !pc->language)) {
            st = mla_fail(err, MLA_ENOMEM, "case name");
            break;
        }
        if (c->prompt) memcpy(ids, c->prompt, c->n_prompt * sizeof *ids);
        memcpy(ids + c->n_prompt, c->completion, c->n * sizeof *ids);
        s->pc = pc;
        s->rc = c;
        s->image = c->prompt ? NULL : &c->image;
        s->ids = ids;
        s->n_ids = c->n_prompt + c->n;
        s->from = c->n_prompt - 1;
        st = run_case(s, err);
    }
    mla_free(ids);
    return st;
}

static mla_status corpus_rows(state *s, size_t *ci, size_t *pi, mla_err *err)
{
    const mla_parity_input *in = s->in;
    mla_status st = MLA_OK;
    for (size_t at = 0, k = 0; in->corpus && at < in->n_corpus && st == MLA_OK; at += in->row_tokens, k++) {
        mla_parity_case *pc = &s->p->c[(*ci)++];
        char name[32];
        (void)snprintf(name, sizeof name, "row-%03zu", k);
        pc->name = mla_strdup(name);
        pc->kind = "row";
        pc->first = *pi;
        pc->n = in->n_corpus - at < in->row_tokens ? in->n_corpus - at : in->row_tokens;
        *pi += pc->n;
        if (!pc->name) return mla_fail(err, MLA_ENOMEM, "case name");
        s->pc = pc;
        s->rc = NULL;
        s->image = NULL;
        s->ids = in->corpus + at;
        s->n_ids = pc->n;
        s->from = 0;
        st = run_case(s, err);
    }
    return st;
}

static mla_status check_input(const mla_parity_input *in, mla_err *err)
{
    size_t V = mla_rt_config(in->model)->vocab;
    if (!in->ref && !(in->base && in->corpus)) return mla_fail(err, MLA_EINVAL, "nothing to compare with: a reference, or a base and text");
    if (in->corpus && !in->base) return mla_fail(err, MLA_EINVAL, "a corpus is compared with a base model; none is given");
    if (in->corpus && (in->row_tokens < 2 || in->n_corpus < 2))
        return mla_fail(err, MLA_EINVAL, "corpus of %zu tokens in rows of %zu: at least 2 each", in->n_corpus, in->row_tokens);
    for (size_t i = 0; in->corpus && i < in->n_corpus; i++)
        if (in->corpus[i] < 0 || (size_t)in->corpus[i] >= V)
            return mla_fail(err, MLA_EFORMAT, "corpus token %zu: expected an id below %zu, found %d", i, V, (int)in->corpus[i]);
    return in->ref ? mla_reference_check_vocab(in->ref, V, err) : MLA_OK;
}

static mla_status make_room(mla_parity *p, const mla_parity_input *in, size_t *longest, double *work, mla_err *err)
{
    size_t rows = in->corpus ? (in->n_corpus + in->row_tokens - 1) / in->row_tokens : 0;
    p->ncases = rows + (in->ref ? in->ref->n : 0);
    p->n = in->corpus ? in->n_corpus : 0;
    *longest = in->corpus ? (in->row_tokens < in->n_corpus ? in->row_tokens : in->n_corpus) : 0;
    *work = (double)p->n;
    for (size_t k = 0; in->ref && k < in->ref->n; k++) {
        const mla_ref_case *c = &in->ref->c[k];
        p->n += c->n;
        *work += (double)(c->n_prompt + c->n - 1);
        if (p->opts.free_decode && c->decode_steps) *work += (double)(c->n_prompt + c->decode_steps - 1);
    }
    if (in->ref && mla_reference_longest(in->ref) > *longest) *longest = mla_reference_longest(in->ref);
    p->pos = mla_alloc(p->n, 1, sizeof *p->pos);
    p->c = mla_alloc(p->ncases, 1, sizeof *p->c);
    return p->pos && p->c ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu positions", p->n);
}

mla_status mla_parity_run(mla_parity *out, const mla_parity_input *in, const mla_parity_opts *o, mla_err *err)
{
    mla_parity p = {.opts = *o, .with_base = in->base != NULL, .with_reference = in->ref != NULL};
    state s = {.p = &p, .in = in, .V = mla_rt_config(in->model)->vocab};
    size_t longest = 0, ci = 0, pi = 0;
    double work = 0;
    *out = (mla_parity){0};
    if (p.opts.chunk == 0) p.opts.chunk = mla_forward_chunk(s.V);
    p.aa_chunk = p.opts.chunk == 63 ? 65 : 63; /* a page less one, a page and one */
    mla_status st = check_input(in, err);
    if (st == MLA_OK) st = make_room(&p, in, &longest, &work, err);
    if (st == MLA_OK) st = mla_seq_new(&s.model_seq, in->model, longest, err);
    if (st == MLA_OK && in->base) st = mla_seq_new(&s.base_seq, in->base, longest, err);
    s.prog = mla_progress_begin(o->log, "parity", work, "tokens");
    if (st == MLA_OK) st = reference_cases(&s, &ci, &pi, err);
    if (st == MLA_OK) st = corpus_rows(&s, &ci, &pi, err);
    if (st == MLA_OK) mla_progress_end(&s.prog);
    mla_seq_free(s.model_seq);
    mla_seq_free(s.base_seq);
    if (st == MLA_OK)
        *out = p;
    else
        mla_parity_free(&p);
    return st;
}

void mla_parity_free(mla_parity *p)
{
    for (size_t i = 0; p->c && i < p->ncases; i++) {
        mla_free(p->c[i].name);
        mla_free(p->c[i].language);
    }
    mla_free(p->c);
    mla_free(p->pos);
    *p = (mla_parity){0};
}
