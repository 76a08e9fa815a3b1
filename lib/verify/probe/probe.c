/* Asking a server: requests, the dialect it speaks, forced and free decode of every case. */
#include "verify/probe/probe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/parity/parity_parts.h"
#include "verify/probe/probe_parts.h"

#define ANSWER_MAX ((size_t)256 << 20)
static const char *const NAME[] = {"auto", "vllm", "echo", "step"};

const char *mla_probe_dialect_name(mla_probe_dialect d) { return NAME[d]; }
bool mla_probe_dialect_parse(const char *s, mla_probe_dialect *out)
{
    for (size_t i = 0; i < sizeof NAME / sizeof *NAME; i++) {
        if (strcmp(s, NAME[i]) != 0) continue;
        *out = (mla_probe_dialect)i;
        return true;
    }
    return false;
}

typedef struct {
    const mla_probe_input *in;
    mla_parity *p;
    mla_probe_dialect dialect;
    mla_str body, answer;
    mla_progress prog;
    mla_probe_pos *pos; /* of the case in progress */
    int32_t *ids;
} state;

/* One completion request. doc is the parsed answer of status 200; freed by the caller. */
static mla_status ask(state *s, const int32_t *ids, size_t n, size_t max_tokens, mla_probe_dialect d, mla_json **doc, mla_err *err)
{
    mla_json *req;
    long status;
    char said[256];
    *doc = NULL;
    mla_status st = mla_json_new_object(&req, err);
    if (st != MLA_OK) return st;
    mla_jv *o = mla_json_root(req), *prompt;
    bool ok = mla_jv_set_str(o, "model", s->in->model) && (prompt = mla_jv_set_arr(o, "prompt"));
    for (size_t i = 0; ok && i < n; i++) ok = mla_jv_add_size(prompt, (size_t)ids[i]) != NULL;
    ok = ok && mla_jv_set_size(o, "max_tokens", max_tokens) && mla_jv_set_f64(o, "temperature", 0) && mla_jv_set_size(o, "logprobs", 2) &&
         mla_jv_set_bool(o, "stream", false);
    if (d == MLA_PROBE_VLLM) ok = ok && mla_jv_set_size(o, "prompt_logprobs", 2) && mla_jv_set_bool(o, "return_tokens_as_token_ids", true);
    if (d == MLA_PROBE_ECHO) ok = ok && mla_jv_set_bool(o, "echo", true) && mla_jv_set_bool(o, "return_tokens_as_token_ids", true);
    if (d == MLA_PROBE_STEP) ok = ok && mla_jv_set_bool(o, "cache_prompt", true) && mla_jv_set_bool(o, "return_tokens_as_token_ids", true);
    mla_str_clear(&s->body);
    st = ok ? mla_json_print(&s->body, o, false, err) : mla_fail(err, MLA_ENOMEM, "request");
    mla_json_free(req);
    if (st == MLA_OK) st = mla_http_post(s->in->http, "/v1/completions", s->body.s, s->body.len, &s->answer, &status, err);
    if (st != MLA_OK) return st;
    mla_json *got = NULL;
    mla_err bad = {0};
    st = mla_json_parse(&got, mla_str_c(&s->answer), s->answer.len, "the server's answer", &bad);
    if (status != 200) {
        (void)mla_probe_complaint(got ? mla_json_root(got) : NULL, said, sizeof said);
        mla_json_free(got);
        return mla_fail(err, status == 400 || status == 404 || status == 422 || status == 501 ? MLA_EUNSUPPORTED : MLA_EIO, "the server answered %ld: %s", status, said);
    }
    if (st != MLA_OK) return mla_fail(err, MLA_EFORMAT, "%s", bad.msg);
    *doc = got;
    return MLA_OK;
}

/* All positions of a case, in the dialect's own number of requests. */
static mla_status forced(state *s, const mla_ref_case *c, size_t n, mla_probe_dialect d, mla_err *err)
{
    mla_json *doc;
    mla_status st;
    if (d != MLA_PROBE_STEP) {
        st = ask(s, s->ids, c->n_prompt + n, 1, d, &doc, err);
        if (st != MLA_OK) return st;
        if (d == MLA_PROBE_VLLM) st = mla_probe_read_vllm(s->pos, mla_json_root(doc), s->ids, c->n_prompt, n, err);
        else st = mla_probe_read_echo(s->pos, mla_json_root(doc), s->ids, c->n_prompt, n, s->in->tok, err);
        mla_json_free(doc);
        return st;
    }
    for (size_t i = 0; i < n; i++) {
        st = ask(s, s->ids, c->n_prompt + i, 1, d, &doc, err);
        if (st == MLA_OK) st = mla_probe_read_step(&s->pos[i], mla_json_root(doc), c->completion[i], s->in->tok, err);
        mla_json_free(doc);
        if (st != MLA_OK) return mla_wrap(err, "position %zu", i);
        if (i) mla_progress_add(&s->prog, 1);
    }
    return MLA_OK;
}

static void load_ids(state *s, const mla_ref_case *c)
{
    memcpy(s->ids, c->prompt, c->n_prompt * sizeof *s->ids);
    memcpy(s->ids + c->n_prompt, c->completion, c->n * sizeof *s->ids);
}

/* The first case decides; what a server refuses or leaves out is not its dialect. */
static mla_status find_dialect(state *s, mla_err *err)
{
    const mla_ref_case *c = &s->in->ref->c[0];
    size_t n = c->n < 4 ? c->n : 4;
    mla_err why = {0};
    load_ids(s, c);
    for (mla_probe_dialect d = MLA_PROBE_VLLM; d <= MLA_PROBE_STEP; d++) {
        mla_status st = forced(s, c, n, d, &why);
        if (st == MLA_OK) {
            s->dialect = d;
            return MLA_OK;
        }
        if (st != MLA_EUNSUPPORTED && st != MLA_EFORMAT) break; /* no answer at all, or memory: not a matter of dialect */
    }
    *err = why;
    return mla_wrap(err, "%s", c->name);
}

static void put(state *s, const mla_parity_case *pc, const mla_ref_case *c)
{
    for (size_t i = 0; i < c->n; i++) {
        mla_parity_pos *q = &s->p->pos[pc->first + i];
        const mla_probe_pos *a = &s->pos[i];
        q->case_index = (uint32_t)(pc - s->p->c);
        q->step = (uint32_t)i;
        q->context = c->n_prompt + i;
        q->expected = c->top1[i];
        q->got = a->top1_is_target ? c->completion[i] : a->top1;
        /* an argmax told as a text that is no id can still be told from the completion's own token */
        q->judged = c->judged[i] && (a->top1 >= 0 || a->top1_is_target || c->top1[i] == c->completion[i]);
        q->confident = q->judged && c->confident[i];
        q->margin = c->margin ? c->margin[i] : (double)NAN;
        q->model_margin = a->margin;
        q->has_nll = c->target_logprob && !isnan(a->target_logprob);
        q->ref_logprob = q->has_nll ? c->target_logprob[i] : 0;
        q->model_logprob = q->has_nll ? a->target_logprob : 0;
    }
}

/* The same request again: how far a server moves by itself. */
static mla_status again(state *s, const mla_parity_case *pc, const mla_ref_case *c, mla_err *err)
{
    mla_parity *p = s->p;
    if (p->aa_positions >= p->opts.aa_positions) return MLA_OK;
    size_t n = p->opts.aa_positions - p->aa_positions;
    if (n > c->n) n = c->n;
    mla_status st = forced(s, c, n, s->dialect, err);
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        const mla_parity_pos *q = &p->pos[pc->first + i];
        int32_t got = s->pos[i].top1_is_target ? c->completion[i] : s->pos[i].top1;
        double moved = got == q->got ? fabs(s->pos[i].margin - q->model_margin) : s->pos[i].margin + q->model_margin;
        if (moved > p->aa_floor) p->aa_floor = moved;
        p->aa_agree += got == q->got;
        p->aa_ties += got != q->got && s->pos[i].margin <= p->opts.near_tie && q->model_margin <= p->opts.near_tie;
    }
    p->aa_positions += n;
    return st;
}

static mla_status decode(state *s, mla_parity_case *pc, const mla_ref_case *c, mla_err *err)
{
    if (!s->p->opts.free_decode || c->decode_steps == 0) return MLA_OK;
    size_t steps = c->decode_steps < c->n ? c->decode_steps : c->n, n = 0;
    int32_t *got = mla_alloc(steps, 1, sizeof *got);
    mla_json *doc = NULL;
    if (!got) return mla_fail(err, MLA_ENOMEM, "%zu ids", steps);
    memcpy(got, c->completion, steps * sizeof *got);
    mla_status st = ask(s, c->prompt, c->n_prompt, steps, s->dialect == MLA_PROBE_ECHO ? MLA_PROBE_STEP : s->dialect, &doc, err);
    if (st == MLA_OK) st = mla_probe_read_ids(got, steps, &n, mla_json_root(doc), s->in->tok, err);
    mla_json_free(doc);
    if (st == MLA_OK && n && got[0] < 0 && !s->in->tok) { /* texts alone, and nothing to read them by: not judged */
        mla_free(got);
        return MLA_OK;
    }
    pc->decode_steps = steps;
    while (st == MLA_OK && pc->decoded < n && got[pc->decoded] == c->completion[pc->decoded]) pc->decoded++;
    /* servers leave the end-of-text token out of their answer: one missing at the very end is no divergence */
    bool ended = n + 1 == steps && pc->decoded == n;
    if (st == MLA_OK && ended) pc->decoded = steps;
    if (st == MLA_OK && pc->decoded < steps) {
        size_t i = pc->decoded;
        const mla_parity_pos *q = &s->p->pos[pc->first + i];
        pc->decode_diverged = true;
        pc->decode_expected = c->completion[i];
        pc->decode_got = i < n ? got[i] : -1;
        pc->decode_margin = c->margin ? c->margin[i] : (double)NAN;
        pc->decode_path_differs = q->got == c->completion[i] && q->model_margin > mla_parity_tie(s->p);
    }
    mla_free(got);
    return st == MLA_OK ? st : mla_wrap(err, "free decode");
}

static mla_status run_case(state *s, size_t k, size_t *first, mla_err *err)
{
    const mla_ref_case *c = &s->in->ref->c[k];
    mla_parity_case *pc = &s->p->c[k];
    pc->name = mla_strdup(c->name);
    pc->language = c->language ? mla_strdup(c->language) : NULL;
    pc->kind = c->probe ? "probe" : c->forced ? "forced" : "greedy";
    pc->first = *first;
    pc->n = c->n;
    pc->must_match = c->decode_must_match;
    *first += c->n;
    if (!pc->name || (c->language && !pc->language)) return mla_fail(err, MLA_ENOMEM, "case name");
    load_ids(s, c);
    mla_status st = forced(s, c, c->n, s->dialect, err);
    mla_progress_add(&s->prog, s->dialect == MLA_PROBE_STEP ? 1 : (double)c->n);
    if (st == MLA_OK) put(s, pc, c);
    if (st == MLA_OK) st = again(s, pc, c, err);
    if (st == MLA_OK) st = decode(s, pc, c, err);
    return st == MLA_OK ? st : mla_wrap(err, "%s", c->name);
}

mla_status mla_probe_run(mla_parity *out, mla_probe_dialect *used, const mla_probe_input *in, const mla_parity_opts *o, mla_err *err)
{
    const mla_reference *r = in->ref;
    mla_parity p = {.opts = *o, .with_reference = true, .ncases = r->n};
    state s = {.in = in, .p = &p, .dialect = in->dialect, .body = MLA_STR_MAX(ANSWER_MAX), .answer = MLA_STR_MAX(ANSWER_MAX + 1)};
    size_t longest = mla_reference_longest(r), first = 0;
    *out = (mla_parity){0};
    for (size_t k = 0; k < r->n; k++) p.n += r->c[k].n;
    p.pos = mla_alloc(p.n, 1, sizeof *p.pos);
    p.c = mla_alloc(p.ncases, 1, sizeof *p.c);
    s.ids = mla_alloc(longest, 1, sizeof *s.ids);
    s.pos = mla_alloc(longest, 1, sizeof *s.pos);
    mla_status st = p.pos && p.c && s.ids && s.pos ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu positions", p.n);
    if (st == MLA_OK && s.dialect == MLA_PROBE_AUTO) st = find_dialect(&s, err);
    s.prog = mla_progress_begin(o->log, "probe", (double)p.n, "positions");
    for (size_t k = 0; st == MLA_OK && k < r->n; k++) st = run_case(&s, k, &first, err);
    if (st == MLA_OK) mla_progress_end(&s.prog);
    *used = s.dialect;
    mla_free(s.ids);
    mla_free(s.pos);
    mla_str_free(&s.body);
    mla_str_free(&s.answer);
    if (st == MLA_OK) *out = p;
    else mla_parity_free(&p);
    return st;
}

mla_status mla_probe_first_model(char **out, mla_http *h, mla_err *err)
{
    mla_str answer = MLA_STR_MAX(ANSWER_MAX + 1);
    mla_json *d = NULL;
    long status = 0;
    *out = NULL;
    mla_status st = mla_http_get(h, "/v1/models", &answer, &status, err);
    if (st == MLA_OK && status != 200) st = mla_fail(err, MLA_EIO, "/v1/models: the server answered %ld", status);
    if (st == MLA_OK) st = mla_json_parse(&d, mla_str_c(&answer), answer.len, "/v1/models", err);
    if (st == MLA_OK) {
        const char *id = mla_jv_str(mla_jv_get(mla_jv_first(mla_jv_get(mla_json_root(d), "data")), "id"));
        *out = id ? mla_strdup(id) : NULL;
        if (!*out) st = id ? mla_fail(err, MLA_ENOMEM, "model name") : mla_fail(err, MLA_EFORMAT, "/v1/models: no model is listed");
    }
    mla_json_free(d);
    mla_str_free(&answer);
    return st;
}
