/* Recording references. */
#include "verify/reference/record.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/parity/forward.h"

typedef struct {
    const mla_config *cfg;
    mla_ref_case *c;
    const int32_t *ids; /* forced: prompt and completion */
    size_t from;
    double min_margin;
    size_t n; /* greedy: answered so far */
} state;

static bool ends_text(const mla_config *cfg, int32_t id)
{
    for (size_t i = 0; i < cfg->n_eos; i++)
        if (cfg->eos[i] == id) return true;
    return false;
}

static void note(state *s, size_t i, int32_t target, const mla_score *sc)
{
    mla_ref_case *c = s->c;
    c->completion[i] = target;
    c->top1[i] = sc->top1;
    /* exact arithmetic gives at most 0; rounding may leave +1e-17 */
    c->top1_logprob[i] = sc->logprob < 0 ? sc->logprob : 0;
    c->target_logprob[i] = sc->target_logprob < 0 ? sc->target_logprob : 0;
    c->margin[i] = sc->margin;
    c->confident[i] = sc->margin >= s->min_margin;
    c->judged[i] = true;
}

static mla_status on_step(void *ctx, size_t step, const mla_score *sc, int32_t *next, mla_err *err)
{
    state *s = ctx;
    mla_score own = *sc;
    (void)err;
    own.target_logprob = sc->logprob;
    note(s, step, sc->top1, &own);
    s->n = step + 1;
    *next = ends_text(s->cfg, sc->top1) ? -1 : sc->top1;
    return MLA_OK;
}

static mla_status on_row(void *ctx, size_t at, const float *logits, mla_err *err)
{
    state *s = ctx;
    mla_score sc;
    mla_status st = mla_score_row(&sc, logits, s->cfg->vocab, s->ids[at + 1], err);
    if (st == MLA_OK) note(s, at - s->from, s->ids[at + 1], &sc);
    return st;
}

static mla_status one(mla_ref_case *c, mla_rt *rt, mla_seq *seq, const mla_prompt *p, const mla_record_opts *o, mla_progress *prog, mla_err *err)
{
    const mla_config *cfg = mla_rt_config(rt);
    const mla_embedded *image = p->image.n ? &p->image : NULL;
    size_t n_prompt = image ? image->n : p->prompt.n;
    state s = {.cfg = cfg, .c = c, .min_margin = o->min_margin, .from = n_prompt - 1};
    size_t chunk = o->chunk ? o->chunk : mla_forward_chunk(cfg->vocab), n = p->completion.n ? p->completion.n : o->max_tokens;
    mla_status st = mla_ref_case_new(c, p->name, image ? NULL : p->prompt.id, n_prompt, n, err);
    if (st == MLA_OK && image) st = mla_embedded_copy(&c->image, image, err);
    if (st != MLA_OK) return st;
    if (p->language && !(c->language = mla_strdup(p->language))) return mla_fail(err, MLA_ENOMEM, "language");
    c->forced = p->completion.n > 0;
    if (!c->forced) {
        mla_greedy g = {.prompt = p->prompt.id, .image = image, .n_prompt = n_prompt, .chunk = chunk, .steps = n, .prog = prog};
        st = mla_forward_greedy(rt, seq, &g, on_step, &s, err);
        c->n = s.n;
        c->decode_steps = s.n;
        return st;
    }
    int32_t *ids = mla_alloc(n_prompt + n, 1, sizeof *ids);
    if (!ids) return mla_fail(err, MLA_ENOMEM, "%zu ids", n_prompt + n);
    if (!image) memcpy(ids, p->prompt.id, n_prompt * sizeof *ids);
    memcpy(ids + n_prompt, p->completion.id, n * sizeof *ids);
    s.ids = ids;
    mla_forced f = {.ids = ids, .image = image, .n = n_prompt + n - 1, .from = s.from, .chunk = chunk, .prog = prog};
    st = mla_forward_forced(rt, seq, &f, on_row, &s, err);
    mla_free(ids);
    return st;
}

mla_status mla_record(mla_reference *out, mla_rt *rt, const mla_prompts *p, const mla_record_opts *o, mla_err *err)
{
    mla_reference r = {.min_margin = o->min_margin, .c = mla_alloc(p->n, 1, sizeof *r.c)};
    mla_seq *seq = NULL;
    size_t longest = 0;
    double work = 0;
    *out = (mla_reference){0};
    if (!r.c) return mla_fail(err, MLA_ENOMEM, "%zu cases", p->n);
    mla_status st = MLA_OK;
    if (p->n == 0) st = mla_fail(err, MLA_EFORMAT, "no prompts");
    if (o->max_tokens == 0) st = mla_fail(err, MLA_EINVAL, "answers of 0 tokens");
    for (size_t i = 0; i < p->n; i++) {
        size_t n = p->p[i].prompt.n + p->p[i].image.n + (p->p[i].completion.n ? p->p[i].completion.n : o->max_tokens);
        if (n > longest) longest = n;
        work += (double)n;
    }
    if (st == MLA_OK) st = mla_seq_new(&seq, rt, longest, err);
    mla_progress prog = mla_progress_begin(o->log, "record", work, "tokens");
    for (; r.n < p->n && st == MLA_OK; r.n++) {
        st = one(&r.c[r.n], rt, seq, &p->p[r.n], o, &prog, err);
        if (st != MLA_OK) st = mla_wrap(err, "%s", p->p[r.n].name);
    }
    if (st == MLA_OK) mla_progress_end(&prog);
    mla_seq_free(seq);
    if (st == MLA_OK)
        *out = r;
    else
        mla_reference_free(&r);
    return st;
}

static mla_status long_prompts(mla_prompts *out, mla_jv *left_out, const mla_contexts *c, mla_err *err)
{
    out->p = mla_alloc(c->n, 1, sizeof *out->p);
    if (!out->p) return mla_fail(err, MLA_ENOMEM, "%zu prompts", c->n);
    for (size_t i = 0; i < c->n; i++) {
        size_t n = c->length[i];
        char name[48];
        if ((c->most && n > c->most) || n <= c->answer_tokens) {
            mla_jv_add_size(left_out, n);
            continue;
        }
        mla_prompt *p = &out->p[out->n++];
        (void)snprintf(name, sizeof name, "context-%zu", n);
        p->name = mla_strdup(name);
        if (!p->name) return mla_fail(err, MLA_ENOMEM, "prompt name");
        for (size_t k = 0; k < n - c->answer_tokens; k++) {
            mla_status st = mla_ids_push(&p->prompt, c->text->id[k % c->text->n], err);
            if (st != MLA_OK) return st;
        }
    }
    return MLA_OK;
}

mla_status mla_record_contexts(mla_reference *ref, size_t *added, mla_jv *left_out, mla_rt *rt, const mla_contexts *c, const mla_record_opts *o, mla_err *err)
{
    mla_prompts prompts = {0};
    mla_reference r = {0};
    mla_record_opts answers = *o;
    answers.max_tokens = c->answer_tokens;
    mla_status st = long_prompts(&prompts, left_out, c, err);
    *added = prompts.n;
    if (st == MLA_OK && prompts.n) st = mla_record(&r, rt, &prompts, &answers, err);
    if (st == MLA_OK && prompts.n) st = mla_reference_append(ref, &r, NULL, err);
    mla_reference_free(&r);
    mla_prompts_free(&prompts);
    return st;
}
