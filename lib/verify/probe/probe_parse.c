/* Answers of completion servers. Nothing in them is trusted: lists are measured, ids and numbers checked. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "io/msg.h"
#include "verify/probe/probe_parts.h"

const mla_jv *mla_probe_choice(const mla_jv *answer)
{
    const mla_jv *c = mla_jv_first(mla_jv_get(answer, "choices"));
    return mla_jv_is_obj(c) ? c : NULL;
}

const char *mla_probe_complaint(const mla_jv *answer, char *buf, size_t cap)
{
    const mla_jv *e = mla_jv_get(answer, "error");
    const char *s = mla_jv_str(mla_jv_get(e, "message"));
    if (!s) s = mla_jv_str(mla_jv_get(answer, "message"));
    if (!s) s = mla_jv_str(mla_jv_get(answer, "detail"));
    mla_quoted q;
    (void)snprintf(buf, cap, "%.200s", s ? mla_quote(&q, s, strlen(s)) : "no message");
    return buf;
}

/* "token_id:17", "17"; -1 for anything else. */
static int32_t id_of(const char *s)
{
    size_t v;
    if (!s) return -1;
    if (mla_starts_with(s, "token_id:")) s += 9;
    return mla_parse_size(s, &v) && v <= INT32_MAX ? (int32_t)v : -1;
}

static bool logprob(const mla_jv *v, double *out) { return mla_jv_f64(v, out) && *out <= 1e-3; }

typedef struct { /* candidates of one position, in any order */
    double first, second;
    int32_t id;          /* of the first */
    const char *text;    /* of the first */
    size_t n;
} best;

/* The argmax is the largest; of equal ones the lowest id, as references have it. */
static void offer(best *b, double lp, int32_t id, const char *text)
{
    if (b->n == 0 || lp > b->first || (lp == b->first && id >= 0 && b->id >= 0 && id < b->id)) {
        if (b->n) b->second = b->first;
        else b->second = (double)NAN;
        b->first = lp;
        b->id = id;
        b->text = text;
    } else if (!(b->second >= lp)) b->second = lp;
    b->n++;
}

mla_status mla_probe_read_vllm(mla_probe_pos *out, const mla_jv *answer, const int32_t *ids, size_t from, size_t n, mla_err *err)
{
    const mla_jv *list = mla_jv_get(mla_probe_choice(answer), "prompt_logprobs");
    if (!mla_jv_is_arr(list)) return mla_fail(err, MLA_EFORMAT, "the answer has no prompt_logprobs");
    if (mla_jv_len(list) != from + n) return mla_fail(err, MLA_EFORMAT, "prompt_logprobs: expected %zu positions, found %zu", from + n, mla_jv_len(list));
    size_t at = 0;
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v), at++) {
        if (at < from) continue;
        mla_probe_pos *p = &out[at - from];
        best b = {.id = -1};
        *p = (mla_probe_pos){.target_logprob = (double)NAN};
        for (const mla_jv *t = mla_jv_first(v); t; t = mla_jv_next(t)) {
            double lp;
            int32_t id = id_of(mla_jv_key(t));
            if (id < 0 || !logprob(mla_jv_get(t, "logprob"), &lp)) return mla_fail(err, MLA_EFORMAT, "prompt_logprobs[%zu]: expected ids with a logprob", at);
            offer(&b, lp, id, NULL);
            if (id == ids[at]) p->target_logprob = lp;
        }
        if (isnan(p->target_logprob)) return mla_fail(err, MLA_EFORMAT, "prompt_logprobs[%zu]: token %d was sent, it is not among those told", at, (int)ids[at]);
        p->top1 = b.id;
        p->top1_logprob = b.first;
        p->margin = b.second >= -1e300 ? b.first - b.second : (double)NAN;
        p->top1_is_target = b.id == ids[at];
    }
    return MLA_OK;
}

/* A token told as text: its id when the tokenizer knows one that reads so. */
static int32_t id_of_text(const mla_tok *tok, const char *text, int32_t hint)
{
    int32_t id = text && mla_starts_with(text, "token_id:") ? id_of(text) : -1;
    if (id >= 0 || !text || !tok || hint < 0) return id;
    mla_str s = MLA_STR_MAX(4096);
    mla_err ignored;
    if (mla_tok_decode(tok, &s, &hint, 1, false, &ignored) == MLA_OK && strcmp(mla_str_c(&s), text) == 0) id = hint;
    mla_str_free(&s);
    return id;
}

/* {"text": logprob, ...} */
static mla_status offer_object(best *b, const mla_jv *o, mla_err *err)
{
    for (const mla_jv *t = mla_jv_first(o); t; t = mla_jv_next(t)) {
        double lp;
        if (!logprob(t, &lp)) return mla_fail(err, MLA_EFORMAT, "top_logprobs: expected log-probabilities");
        offer(b, lp, id_of_text(NULL, mla_jv_key(t), -1), mla_jv_key(t));
    }
    return MLA_OK;
}


mla_status mla_probe_read_echo(mla_probe_pos *out, const mla_jv *answer, const int32_t *ids, size_t from, size_t n, const mla_tok *tok, mla_err *err)
{
    const mla_jv *l = mla_jv_get(mla_probe_choice(answer), "logprobs");
    const mla_jv *tokens = mla_jv_get(l, "tokens"), *own = mla_jv_get(l, "token_logprobs"), *top = mla_jv_get(l, "top_logprobs");
    if (!mla_jv_is_arr(tokens) || !mla_jv_is_arr(own) || !mla_jv_is_arr(top)) return mla_fail(err, MLA_EFORMAT, "the answer has no logprobs of the echoed prompt");
    if (mla_jv_len(tokens) < from + n || mla_jv_len(own) != mla_jv_len(tokens) || mla_jv_len(top) != mla_jv_len(tokens))
        return mla_fail(err, MLA_EFORMAT, "logprobs: expected %zu positions or more, found %zu tokens, %zu and %zu log-probabilities", from + n, mla_jv_len(tokens),
                        mla_jv_len(own), mla_jv_len(top));
    const mla_jv *t = mla_jv_first(tokens), *o = mla_jv_first(own), *c = mla_jv_first(top);
    for (size_t at = 0; at < from + n; at++, t = mla_jv_next(t), o = mla_jv_next(o), c = mla_jv_next(c)) {
        const char *text = mla_jv_str(t);
        int32_t id = id_of_text(tok, text, ids[at]);
        if (!text || (id != ids[at] && (id >= 0 || tok))) {
            mla_quoted q;
            return mla_fail(err, MLA_EFORMAT, "logprobs.tokens[%zu]: token %d was sent, %s came back", at, (int)ids[at], text ? mla_quote(&q, text, strlen(text)) : "no text");
        }
        if (at < from) continue;
        mla_probe_pos *p = &out[at - from];
        best b = {.id = -1};
        if (!logprob(o, &p->target_logprob)) return mla_fail(err, MLA_EFORMAT, "logprobs.token_logprobs[%zu]: expected a log-probability", at);
        mla_status st = offer_object(&b, c, err);
        if (st != MLA_OK) return st;
        if (!b.n) return mla_fail(err, MLA_EFORMAT, "logprobs.top_logprobs[%zu]: expected candidates", at);
        if (p->target_logprob > b.first) offer(&b, p->target_logprob, ids[at], text);
        p->top1_is_target = b.id >= 0 ? b.id == ids[at] : !strcmp(b.text, text);
        p->top1 = p->top1_is_target ? ids[at] : b.id;
        p->top1_logprob = b.first;
        p->margin = b.second >= -1e300 ? b.first - b.second : (double)NAN;
    }
    return MLA_OK;
}

/* One generated token in either shape: {"id","logprob","top_logprobs":[{...}]}, or lists of texts. */
mla_status mla_probe_read_step(mla_probe_pos *out, const mla_jv *answer, int32_t target, const mla_tok *tok, mla_err *err)
{
    const mla_jv *l = mla_jv_get(mla_probe_choice(answer), "logprobs"), *first = mla_jv_first(mla_jv_get(l, "content"));
    best b = {.id = -1};
    *out = (mla_probe_pos){.target_logprob = (double)NAN};
    if (first) {
        for (const mla_jv *t = mla_jv_first(mla_jv_get(first, "top_logprobs")); t; t = mla_jv_next(t)) {
            double lp;
            size_t id;
            if (!logprob(mla_jv_get(t, "logprob"), &lp) || !mla_jv_size(mla_jv_get(t, "id"), &id) || id > INT32_MAX)
                return mla_fail(err, MLA_EFORMAT, "logprobs.content[0].top_logprobs: expected ids with a logprob");
            offer(&b, lp, (int32_t)id, NULL);
            if ((int32_t)id == target) out->target_logprob = lp;
        }
    } else {
        const mla_jv *top = mla_jv_first(mla_jv_get(l, "top_logprobs"));
        mla_status st = offer_object(&b, top, err);
        if (st != MLA_OK) return st;
        for (const mla_jv *t = mla_jv_first(top); t; t = mla_jv_next(t)) {
            double lp;
            if (id_of_text(tok, mla_jv_key(t), target) == target && mla_jv_f64(t, &lp)) out->target_logprob = lp;
        }
        if (b.id < 0 && b.n) b.id = id_of_text(tok, b.text, target);
    }
    if (!b.n) return mla_fail(err, MLA_EFORMAT, "the answer has no log-probabilities of the generated token");
    out->top1 = b.id;
    out->top1_is_target = b.id == target;
    out->top1_logprob = b.first;
    out->margin = b.second >= -1e300 ? b.first - b.second : (double)NAN;
    return MLA_OK;
}

mla_status mla_probe_read_ids(int32_t *out, size_t cap, size_t *n, const mla_jv *answer, const mla_tok *tok, mla_err *err)
{
    const mla_jv *l = mla_jv_get(mla_probe_choice(answer), "logprobs"), *content = mla_jv_get(l, "content"), *tokens = mla_jv_get(l, "tokens");
    if (!mla_jv_is_arr(content) && !mla_jv_is_arr(tokens)) return mla_fail(err, MLA_EFORMAT, "the answer has no list of generated tokens");
    *n = 0;
    for (const mla_jv *t = mla_jv_first(content); t && *n < cap; t = mla_jv_next(t)) {
        size_t id;
        if (!mla_jv_size(mla_jv_get(t, "id"), &id) || id > INT32_MAX) return mla_fail(err, MLA_EFORMAT, "logprobs.content[%zu].id: expected a token id", *n);
        out[(*n)++] = (int32_t)id;
    }
    /* out holds what is expected on entry: the tokenizer says whether a text reads like it */
    for (const mla_jv *t = mla_jv_is_arr(content) ? NULL : mla_jv_first(tokens); t && *n < cap; t = mla_jv_next(t)) {
        out[*n] = id_of_text(tok, mla_jv_str(t), out[*n]);
        (*n)++;
    }
    return MLA_OK;
}
