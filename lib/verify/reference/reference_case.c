/* Reference files: memory, checks against a model, and writing. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/reference/reference.h"

void mla_ref_case_free(mla_ref_case *c)
{
    mla_free(c->name);
    mla_free(c->language);
    mla_free(c->prompt);
    mla_embedded_free(&c->image);
    mla_free(c->completion);
    mla_free(c->top1);
    mla_free(c->top1_logprob);
    mla_free(c->margin);
    mla_free(c->target_logprob);
    mla_free(c->confident);
    mla_free(c->judged);
    *c = (mla_ref_case){0};
}

void mla_reference_free(mla_reference *r)
{
    for (size_t i = 0; i < r->n; i++) mla_ref_case_free(&r->c[i]);
    mla_free(r->c);
    mla_free(r->model);
    mla_free(r->engine);
    mla_free(r->dtype);
    mla_free(r->weights_sha256);
    mla_free(r->tokenizer_sha256);
    *r = (mla_reference){0};
}

mla_status mla_ref_case_new(mla_ref_case *out, const char *name, const int32_t *prompt, size_t n_prompt, size_t n, mla_err *err)
{
    mla_ref_case c = {.n_prompt = n_prompt, .n = n};
    c.name = mla_strdup(name);
    if (prompt) c.prompt = mla_alloc(n_prompt, 1, sizeof *c.prompt);
    c.completion = mla_alloc(n, 1, sizeof *c.completion);
    c.top1 = mla_alloc(n, 1, sizeof *c.top1);
    c.top1_logprob = mla_alloc(n, 1, sizeof *c.top1_logprob);
    c.margin = mla_alloc(n, 1, sizeof *c.margin);
    c.target_logprob = mla_alloc(n, 1, sizeof *c.target_logprob);
    c.confident = mla_alloc(n, 1, sizeof *c.confident);
    c.judged = mla_alloc(n, 1, sizeof *c.judged);
    if (!c.name || (prompt && !c.prompt) || !c.completion || !c.top1 || !c.top1_logprob || !c.margin || !c.target_logprob || !c.confident || !c.judged) {
        mla_ref_case_free(&c);
        *out = c;
        return mla_fail(err, MLA_ENOMEM, "case \"%s\" of %zu positions", name, n);
    }
    if (c.prompt && n_prompt) memcpy(c.prompt, prompt, n_prompt * sizeof *prompt);
    *out = c;
    return MLA_OK;
}

mla_status mla_reference_check_vocab(const mla_reference *r, size_t vocab, mla_err *err)
{
    for (size_t k = 0; k < r->n; k++) {
        const mla_ref_case *c = &r->c[k];
        const int32_t *list[] = {c->prompt, c->completion, c->top1};
        const char *key[] = {"prompt_ids", "completion_ids", "top1"};
        size_t len[] = {c->n_prompt, c->n, c->n};
        for (size_t l = 0; l < 3; l++)
            for (size_t i = 0; list[l] && i < len[l]; i++)
                if ((size_t)list[l][i] >= vocab)
                    return mla_fail(err, MLA_EFORMAT, "case \"%s\": %s[%zu]: expected an id below %zu (the model's vocabulary), found %d",
                                    c->name, key[l], i, vocab, (int)list[l][i]);
    }
    return MLA_OK;
}

static bool has_name(const mla_reference *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++)
        if (!strcmp(r->c[i].name, name)) return true;
    return false;
}

mla_status mla_reference_append(mla_reference *to, mla_reference *from, const char *prefix, mla_err *err)
{
    if (!from->n) return MLA_OK;
    mla_ref_case *c = mla_realloc(to->c, to->n + from->n, sizeof *c);
    if (!c) return mla_fail(err, MLA_ENOMEM, "%zu cases", to->n + from->n);
    to->c = c;
    for (size_t i = 0; i < from->n; i++) {
        mla_str name = MLA_STR_MAX(1 << 16);
        mla_str_printf(&name, "%s%s%s", prefix ? prefix : "", prefix ? "/" : "", from->c[i].name);
        char *text = mla_str_ok(&name) ? mla_strdup(mla_str_c(&name)) : NULL;
        mla_str_free(&name);
        if (!text) return mla_fail(err, MLA_ENOMEM, "case name");
        mla_free(from->c[i].name);
        from->c[i].name = text;
        if (has_name(to, text)) return mla_fail(err, MLA_EFORMAT, "case \"%s\" stands in two references", text);
    }
    memcpy(c + to->n, from->c, from->n * sizeof *c);
    to->n += from->n;
    from->n = 0;
    return MLA_OK;
}

size_t mla_reference_positions(const mla_reference *r)
{
    size_t n = 0;
    for (size_t k = 0; k < r->n; k++)
        for (size_t i = 0; i < r->c[k].n; i++) n += r->c[k].judged[i];
    return n;
}

size_t mla_reference_longest(const mla_reference *r)
{
    size_t n = 0;
    for (size_t k = 0; k < r->n; k++)
        if (r->c[k].n_prompt + r->c[k].n > n) n = r->c[k].n_prompt + r->c[k].n;
    return n;
}

/* Five decimals: a hundred times finer than any comparison made with the file, and the same bytes everywhere. */
static double decimals5(double x)
{
    double y = round(x * 1e5) / 1e5;
    return y == 0 ? 0 : y; /* no negative zero */
}

static bool put_ids(mla_jv *obj, const char *key, const int32_t *id, size_t n)
{
    mla_jv *a = mla_jv_set_arr(obj, key);
    for (size_t i = 0; a && i < n; i++)
        if (!mla_jv_add_size(a, (size_t)id[i])) return false;
    return a != NULL;
}

static bool put_nats(mla_jv *obj, const char *key, const double *x, size_t n)
{
    mla_jv *a = mla_jv_set_arr(obj, key);
    for (size_t i = 0; a && i < n; i++)
        if (!mla_jv_add_f64(a, decimals5(x[i]))) return false;
    return a != NULL;
}

static bool put_optional(mla_jv *obj, const char *key, const char *s)
{
    return !s || mla_jv_set_str(obj, key, s);
}

static bool put_prompt(mla_jv *o, const mla_ref_case *c)
{
    if (c->prompt) return put_ids(o, "prompt_ids", c->prompt, c->n_prompt);
    mla_jv *e = mla_jv_set_obj(o, "embeddings");
    return mla_jv_set_str(e, "file", c->image.file) && mla_jv_set_str(e, "sha256", c->image.sha256) && mla_jv_set_str(e, "name", c->image.name);
}

static bool put_case(mla_jv *o, const mla_ref_case *c)
{
    return o && mla_jv_set_str(o, "name", c->name) && mla_jv_set_str(o, "kind", c->forced ? "forced" : "greedy") &&
           put_optional(o, "language", c->language) && put_prompt(o, c) &&
           put_ids(o, "completion_ids", c->completion, c->n) && put_ids(o, "top1", c->top1, c->n) &&
           put_nats(o, "top1_logprob", c->top1_logprob, c->n) && put_nats(o, "margin", c->margin, c->n) &&
           put_nats(o, "target_logprob", c->target_logprob, c->n);
}

mla_status mla_reference_write(const mla_reference *r, const char *path, mla_err *err)
{
    mla_json *d = NULL;
    if (r->probe) return mla_fail(err, MLA_EINVAL, "%s: a probe file is not written", path);
    mla_status st = mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_jv *o = mla_json_root(d);
    bool ok = mla_jv_set_str(o, "format", MLA_REFERENCE_FORMAT) && put_optional(o, "model", r->model) &&
              put_optional(o, "engine", r->engine) && put_optional(o, "weights_sha256", r->weights_sha256) &&
              put_optional(o, "tokenizer_sha256", r->tokenizer_sha256) && put_optional(o, "dtype", r->dtype) &&
              mla_jv_set_f64(o, "min_margin_nats", r->min_margin);
    mla_jv *cases = ok ? mla_jv_set_arr(o, "cases") : NULL;
    ok = cases != NULL;
    for (size_t i = 0; ok && i < r->n; i++) ok = put_case(mla_jv_add_obj(cases), &r->c[i]);
    st = ok ? mla_json_write(path, o, err) : mla_fail(err, MLA_ENOMEM, "%s: %zu cases", path, r->n);
    mla_json_free(d);
    return st;
}
