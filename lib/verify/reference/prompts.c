/* Reading prompt files. */
#include "verify/reference/prompts.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/json.h"
#include "verify/reference/reference.h"

#define FILE_MAX ((size_t)256 << 20)

void mla_prompts_free(mla_prompts *l)
{
    for (size_t i = 0; i < l->n; i++) {
        mla_free(l->p[i].name);
        mla_free(l->p[i].language);
        mla_ids_free(&l->p[i].prompt);
        mla_ids_free(&l->p[i].completion);
        mla_embedded_free(&l->p[i].image);
    }
    mla_free(l->p);
    *l = (mla_prompts){0};
}

/* A new last entry, zeroed. */
static mla_status grow(mla_prompts *l, mla_prompt **out, mla_err *err)
{
    mla_prompt *p = mla_realloc(l->p, l->n + 1, sizeof *p);
    if (!p) return mla_fail(err, MLA_ENOMEM, "%zu prompts", l->n + 1);
    l->p = p;
    *out = &l->p[l->n++];
    **out = (mla_prompt){0};
    return MLA_OK;
}

static mla_status encode(mla_ids *out, const char *text, size_t n, bool whole, const mla_prompts_opts *o, mla_err *err)
{
    if (!o->tok && o->no_tokenizer) return mla_fail(err, MLA_EUNSUPPORTED, "text needs a tokenizer (or give prompt_ids): %s", o->no_tokenizer);
    if (!o->tok) return mla_fail(err, MLA_EFORMAT, "text needs a tokenizer, and the model has none; give prompt_ids");
    return mla_tok_encode(o->tok, out, text, n, whole, err);
}

static mla_status ids_of(mla_ids *out, const mla_jv *a, const char *key, mla_err *err)
{
    size_t i = 0;
    if (!mla_jv_is_arr(a)) return mla_fail(err, MLA_EFORMAT, "%s: expected an array of ids, found %s", key, mla_jv_kind(a));
    for (const mla_jv *v = mla_jv_first(a); v; v = mla_jv_next(v), i++) {
        size_t id;
        if (!mla_jv_size(v, &id) || id > INT32_MAX) return mla_fail(err, MLA_EFORMAT, "%s[%zu]: expected a token id", key, i);
        mla_status st = mla_ids_push(out, (int32_t)id, err);
        if (st != MLA_OK) return st;
    }
    return MLA_OK;
}

static mla_status check(mla_prompt *p, const mla_prompts_opts *o, mla_err *err)
{
    const mla_ids *l[] = {&p->prompt, &p->completion};
    if (p->prompt.n == 0 && !p->image.n) return mla_fail(err, MLA_EFORMAT, "expected a prompt of at least one token, found none");
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < l[k]->n; i++)
            if (l[k]->id[i] < 0 || (size_t)l[k]->id[i] >= o->vocab)
                return mla_fail(err, MLA_EFORMAT, "token %zu: expected an id below %zu, found %d", i, o->vocab, (int)l[k]->id[i]);
    if (o->forced_max && p->completion.n > o->forced_max) p->completion.n = o->forced_max;
    return MLA_OK;
}

/* Moves what lies beyond the first `split` tokens of the prompt into the completion. */
static mla_status split_text(mla_prompt *p, const mla_prompts_opts *o, mla_err *err)
{
    if (!o->split || p->completion.n || p->prompt.n <= o->split) return MLA_OK;
    for (size_t i = o->split; i < p->prompt.n; i++) {
        mla_status st = mla_ids_push(&p->completion, p->prompt.id[i], err);
        if (st != MLA_OK) return st;
    }
    p->prompt.n = o->split;
    return MLA_OK;
}

static mla_status copy_key(char **out, const mla_jv *obj, const char *key, mla_err *err)
{
    const mla_jv *v = mla_jv_get(obj, key);
    if (!v) return MLA_OK;
    if (!mla_jv_str(v)) return mla_fail(err, MLA_EFORMAT, "%s: expected a string, found %s", key, mla_jv_kind(v));
    *out = mla_strdup(mla_jv_str(v));
    return *out ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%s", key);
}

/* text key or ids key; neither: absent. */
static mla_status text_or_ids(mla_ids *out, const mla_jv *obj, const char *text_key, const char *ids_key, bool whole,
                              const mla_prompts_opts *o, mla_err *err)
{
    const mla_jv *t = mla_jv_get(obj, text_key), *a = mla_jv_get(obj, ids_key);
    if (t && a) return mla_fail(err, MLA_EFORMAT, "%s and %s: expected one of them", text_key, ids_key);
    if (a) return ids_of(out, a, ids_key, err);
    if (!t) return MLA_OK;
    if (!mla_jv_str(t)) return mla_fail(err, MLA_EFORMAT, "%s: expected a string, found %s", text_key, mla_jv_kind(t));
    return encode(out, mla_jv_str(t), strlen(mla_jv_str(t)), whole, o, err);
}

static mla_status from_line(mla_prompt *p, const mla_jv *v, const mla_prompts_opts *o, mla_err *err)
{
    if (!mla_jv_is_obj(v)) return mla_fail(err, MLA_EFORMAT, "expected an object, found %s", mla_jv_kind(v));
    mla_status st = copy_key(&p->name, v, "name", err);
    if (st == MLA_OK) st = copy_key(&p->language, v, "language", err);
    if (st == MLA_OK) st = text_or_ids(&p->prompt, v, mla_jv_get(v, "text") ? "text" : "prompt", "prompt_ids", true, o, err);
    if (st == MLA_OK) st = text_or_ids(&p->completion, v, "completion", "completion_ids", false, o, err);
    if (st == MLA_OK && mla_jv_get(v, "text")) st = split_text(p, o, err);
    return st == MLA_OK ? check(p, o, err) : st;
}

static mla_status name_it(mla_prompt *p, size_t index, mla_err *err)
{
    char buf[48];
    if (p->name) return MLA_OK;
    (void)snprintf(buf, sizeof buf, "%s-%03zu", p->completion.n ? "forced" : "greedy", index);
    p->name = mla_strdup(buf);
    return p->name ? MLA_OK : mla_fail(err, MLA_ENOMEM, "case name");
}

static mla_status add_jsonl(mla_prompts *out, const char *text, size_t n, const mla_prompts_opts *o, mla_err *err)
{
    size_t line = 0;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - text) - at : n - at;
        line++;
        mla_json *d = NULL;
        mla_prompt *p = NULL;
        bool blank = strspn(text + at, " \t\r") >= len;
        mla_status st = blank ? MLA_OK : mla_json_parse(&d, text + at, len, "prompt", err);
        if (st == MLA_OK && !blank) st = grow(out, &p, err);
        if (st == MLA_OK && !blank) st = from_line(p, mla_json_root(d), o, err);
        if (st == MLA_OK && !blank) st = name_it(p, out->n - 1, err);
        mla_json_free(d);
        if (st != MLA_OK) return mla_wrap(err, "line %zu", line);
        at += len + 1;
    }
    return MLA_OK;
}

static mla_status add_reference(mla_prompts *out, const char *path, const mla_prompts_opts *o, mla_err *err)
{
    mla_reference r = {0};
    mla_status st = mla_reference_read(&r, path, err);
    for (size_t k = 0; k < r.n && st == MLA_OK; k++) {
        const mla_ref_case *c = &r.c[k];
        mla_prompt *p;
        st = grow(out, &p, err);
        if (st != MLA_OK) break;
        p->name = mla_strdup(c->name);
        p->language = c->language ? mla_strdup(c->language) : NULL;
        if (!p->name || (c->language && !p->language)) st = mla_fail(err, MLA_ENOMEM, "case name");
        if (st == MLA_OK && !c->prompt) st = mla_embedded_copy(&p->image, &c->image, err);
        for (size_t i = 0; c->prompt && i < c->n_prompt && st == MLA_OK; i++) st = mla_ids_push(&p->prompt, c->prompt[i], err);
        for (size_t i = 0; c->forced && i < c->n && st == MLA_OK; i++) st = mla_ids_push(&p->completion, c->completion[i], err);
        if (st == MLA_OK) st = check(p, o, err);
        if (st != MLA_OK) st = mla_wrap(err, "%s: case \"%s\"", path, c->name);
    }
    mla_reference_free(&r);
    return st;
}

mla_status mla_prompts_add(mla_prompts *out, const char *path, const mla_prompts_opts *o, mla_err *err)
{
    char *text = NULL;
    size_t n = 0;
    if (mla_ends_with(path, ".json")) return add_reference(out, path, o, err);
    mla_status st = mla_file_read(&text, &n, path, FILE_MAX, err);
    if (st != MLA_OK) return st;
    if (mla_ends_with(path, ".jsonl")) {
        st = add_jsonl(out, text, n, o, err);
    } else {
        mla_prompt *p = NULL;
        st = grow(out, &p, err);
        if (st == MLA_OK) st = encode(&p->prompt, text, n, true, o, err);
        if (st == MLA_OK) st = split_text(p, o, err);
        if (st == MLA_OK) st = check(p, o, err);
        if (st == MLA_OK) st = name_it(p, out->n - 1, err);
    }
    mla_free(text);
    return st == MLA_OK ? st : mla_wrap(err, "%s", path);
}

mla_status mla_prompts_add_embeddings(mla_prompts *out, const char *path, mla_err *err)
{
    mla_embedded *e;
    size_t n;
    mla_status st = mla_embedded_read(&e, &n, path, NULL, NULL, err);
    for (size_t i = 0; i < n; i++) {
        mla_prompt *p;
        if (st == MLA_OK) st = grow(out, &p, err);
        if (st == MLA_OK && !(p->name = mla_strdup(e[i].name))) st = mla_fail(err, MLA_ENOMEM, "case name");
        if (st == MLA_OK) p->image = e[i];
        else mla_embedded_free(&e[i]);
    }
    mla_free(e);
    return st;
}
