/* mla-reference/1 and probe.json: strict reading. */
#include "verify/reference/reference.h"

#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "io/file.h"

static mla_status array_of(const mla_jv *obj, const char *key, const mla_jv **out, size_t *n, mla_err *err)
{
    *out = mla_jv_get(obj, key);
    if (!mla_jv_is_arr(*out)) return mla_fail(err, MLA_EFORMAT, "%s: expected an array, found %s", key, mla_jv_kind(*out));
    *n = mla_jv_len(*out);
    return MLA_OK;
}

static mla_status check_len(const char *key, size_t found, size_t want, mla_err *err)
{
    if (found != want)
        return mla_fail(err, MLA_EFORMAT, "%s: expected %zu values (as completion_ids), found %zu", key, want, found);
    return MLA_OK;
}

/* Reads obj[key] as token ids; want == 0: any length >= 1. */
static mla_status read_ids(const mla_jv *obj, const char *key, size_t want, int32_t **out, size_t *n, mla_err *err)
{
    const mla_jv *a;
    size_t len;
    if (array_of(obj, key, &a, &len, err) != MLA_OK) return err->status;
    if (want && check_len(key, len, want, err) != MLA_OK) return err->status;
    if (len == 0) return mla_fail(err, MLA_EFORMAT, "%s: expected at least one id, found none", key);
    *out = mla_alloc(len, 1, sizeof **out);
    if (!*out) return mla_fail(err, MLA_ENOMEM, "%s: %zu ids", key, len);
    if (n) *n = len;
    size_t i = 0;
    for (mla_jv *v = mla_jv_first(a); v; v = mla_jv_next(v), i++) {
        size_t id;
        if (!mla_jv_size(v, &id) || id > INT32_MAX)
            return mla_fail(err, MLA_EFORMAT, "%s[%zu]: expected a token id, found %s", key, i,
                            mla_jv_is_num(v) ? "a number that is none" : mla_jv_kind(v));
        (*out)[i] = (int32_t)id;
    }
    return MLA_OK;
}

/* Reads obj[key] as n finite numbers with sign * value >= 0. */
static mla_status read_nats(const mla_jv *obj, const char *key, size_t n, double sign, double **out, mla_err *err)
{
    const mla_jv *a;
    size_t len;
    if (array_of(obj, key, &a, &len, err) != MLA_OK || check_len(key, len, n, err) != MLA_OK) return err->status;
    *out = mla_alloc(n, 1, sizeof **out);
    if (!*out) return mla_fail(err, MLA_ENOMEM, "%s: %zu values", key, n);
    size_t i = 0;
    for (mla_jv *v = mla_jv_first(a); v; v = mla_jv_next(v), i++) {
        double x;
        if (!mla_jv_f64(v, &x)) return mla_fail(err, MLA_EFORMAT, "%s[%zu]: expected a number, found %s", key, i, mla_jv_kind(v));
        if (!(sign * x >= 0)) return mla_fail(err, MLA_EFORMAT, "%s[%zu]: expected a value %s 0, found %g", key, i, sign < 0 ? "<=" : ">=", x);
        (*out)[i] = x;
    }
    return MLA_OK;
}

static mla_status copy_str(const mla_jv *obj, const char *key, bool required, char **out, mla_err *err)
{
    const mla_jv *v = mla_jv_get(obj, key);
    if ((!v || mla_jv_is_null(v)) && !required) return MLA_OK;
    const char *s = mla_jv_str(v);
    if (!s) return mla_fail(err, MLA_EFORMAT, "%s: expected a string, found %s", key, mla_jv_kind(v));
    *out = mla_strdup(s);
    return *out ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%s", key);
}

static mla_status flags_new(mla_ref_case *c, mla_err *err)
{
    c->confident = mla_alloc(c->n, 1, sizeof *c->confident);
    c->judged = mla_alloc(c->n, 1, sizeof *c->judged);
    return c->confident && c->judged ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu positions", c->n);
}

static mla_status find_language(mla_ref_case *c, const mla_jv *v, mla_err *err)
{
    if (copy_str(v, "language", false, &c->language, err) != MLA_OK) return err->status;
    const char *at = strrchr(c->name, '@');
    if (c->language || !at || !at[1]) return MLA_OK;
    c->language = mla_strdup(at + 1);
    return c->language ? MLA_OK : mla_fail(err, MLA_ENOMEM, "language");
}

static mla_status read_recorded(mla_ref_case *c, const mla_jv *v, double min_margin, mla_err *err)
{
    const char *kind = mla_jv_str(mla_jv_get(v, "kind"));
    if (!kind || (strcmp(kind, "greedy") && strcmp(kind, "forced")))
        return mla_fail(err, MLA_EFORMAT, "kind: expected \"greedy\" or \"forced\", found %s", kind ? kind : mla_jv_kind(mla_jv_get(v, "kind")));
    c->forced = !strcmp(kind, "forced");
    if (read_ids(v, "top1", c->n, &c->top1, NULL, err) != MLA_OK) return err->status;
    if (read_nats(v, "top1_logprob", c->n, -1, &c->top1_logprob, err) != MLA_OK) return err->status;
    if (read_nats(v, "margin", c->n, 1, &c->margin, err) != MLA_OK) return err->status;
    if (read_nats(v, "target_logprob", c->n, -1, &c->target_logprob, err) != MLA_OK) return err->status;
    for (size_t i = 0; i < c->n; i++) {
        if (!c->forced && c->completion[i] != c->top1[i])
            return mla_fail(err, MLA_EFORMAT, "completion_ids[%zu]: a greedy case answers its top1 %d, found %d", i, (int)c->top1[i],
                            (int)c->completion[i]);
        c->confident[i] = c->margin[i] >= min_margin;
        c->judged[i] = true;
    }
    c->decode_steps = c->forced ? 0 : c->n;
    return MLA_OK;
}

static mla_status optional_size(const mla_jv *obj, const char *key, size_t max, size_t *out, mla_err *err)
{
    const mla_jv *v = mla_jv_get(obj, key);
    if (!v) return MLA_OK;
    if (!mla_jv_size(v, out) || *out > max)
        return mla_fail(err, MLA_EFORMAT, "%s: expected a count of at most %zu (completion_ids), found %s", key, max,
                        mla_jv_is_num(v) ? "another number" : mla_jv_kind(v));
    return MLA_OK;
}

static mla_status read_probe(mla_ref_case *c, const mla_jv *v, mla_err *err)
{
    const mla_jv *a;
    size_t len;
    c->top1 = mla_alloc(c->n, 1, sizeof *c->top1);
    if (!c->top1) return mla_fail(err, MLA_ENOMEM, "%zu ids", c->n);
    memcpy(c->top1, c->completion, c->n * sizeof *c->top1);
    if (array_of(v, "confident_steps", &a, &len, err) != MLA_OK) return err->status;
    size_t i = 0;
    for (mla_jv *e = mla_jv_first(a); e; e = mla_jv_next(e), i++) {
        size_t at;
        if (!mla_jv_size(e, &at) || at >= c->n)
            return mla_fail(err, MLA_EFORMAT, "confident_steps[%zu]: expected an index below %zu", i, c->n);
        if (c->confident[at]) return mla_fail(err, MLA_EFORMAT, "confident_steps[%zu]: %zu is listed twice", i, at);
        c->confident[at] = c->judged[at] = true;
    }
    c->forced = c->probe = true;
    if (optional_size(v, "decode_steps", c->n, &c->decode_steps, err) != MLA_OK) return err->status;
    return optional_size(v, "decode_must_match", c->n, &c->decode_must_match, err);
}

/* The prompt as embeddings of a file beside the reference. */
static mla_status read_image(mla_ref_case *c, const mla_jv *v, const char *dir, mla_err *err)
{
    const char *file = mla_jv_str(mla_jv_get(v, "file")), *sha = mla_jv_str(mla_jv_get(v, "sha256")), *name = mla_jv_str(mla_jv_get(v, "name"));
    mla_embedded *e = NULL;
    size_t n = 0;
    if (!file || !sha || !name) return mla_fail(err, MLA_EFORMAT, "embeddings: expected an object of file, sha256 and name");
    if (!dir) return mla_fail(err, MLA_EFORMAT, "embeddings: expected a reference that is read from a folder");
    if (!mla_path_is_safe_relative(file) || strchr(file, '/')) return mla_fail(err, MLA_EFORMAT, "embeddings.file: expected the name of a file beside the reference");
    char *path = mla_path_join(dir, file);
    mla_status st = path ? mla_embedded_read(&e, &n, path, name, sha, err) : mla_fail(err, MLA_ENOMEM, "path of the embeddings");
    if (st == MLA_OK) {
        c->image = e[0];
        c->n_prompt = e[0].n;
    }
    mla_free(e);
    mla_free(path);
    return st;
}

static mla_status read_prompt(mla_ref_case *c, const mla_jv *v, const char *dir, mla_err *err)
{
    const mla_jv *image = mla_jv_get(v, "embeddings");
    if (!image) return read_ids(v, "prompt_ids", 0, &c->prompt, &c->n_prompt, err);
    if (mla_jv_get(v, "prompt_ids")) return mla_fail(err, MLA_EFORMAT, "prompt_ids and embeddings: expected one of them");
    return read_image(c, image, dir, err);
}

static mla_status read_case(mla_ref_case *c, const mla_jv *v, const mla_reference *r, const char *dir, mla_err *err)
{
    if (!mla_jv_is_obj(v)) return mla_fail(err, MLA_EFORMAT, "expected an object, found %s", mla_jv_kind(v));
    if (copy_str(v, "name", true, &c->name, err) != MLA_OK || find_language(c, v, err) != MLA_OK) return err->status;
    if (read_prompt(c, v, dir, err) != MLA_OK) return err->status;
    if (read_ids(v, "completion_ids", 0, &c->completion, &c->n, err) != MLA_OK) return err->status;
    if (flags_new(c, err) != MLA_OK) return err->status;
    return r->probe ? read_probe(c, v, err) : read_recorded(c, v, r->min_margin, err);
}

static mla_status read_header(mla_reference *r, const mla_jv *root, mla_err *err)
{
    const mla_jv *fv = mla_jv_get(root, "format");
    const char *format = mla_jv_str(fv);
    r->probe = !fv && mla_jv_get(root, "source") && mla_jv_get(root, "min_margin_nats");
    if (!r->probe && (!format || strcmp(format, MLA_REFERENCE_FORMAT)))
        return mla_fail(err, MLA_EFORMAT, "format: expected \"" MLA_REFERENCE_FORMAT "\", found %s%.60s%s", format ? "\"" : "",
                        format ? format : mla_jv_kind(fv), format ? "\"" : "");
    if (!mla_jv_f64(mla_jv_get(root, "min_margin_nats"), &r->min_margin) || !(r->min_margin >= 0))
        return mla_fail(err, MLA_EFORMAT, "min_margin_nats: expected a number >= 0, found %s",
                        mla_jv_kind(mla_jv_get(root, "min_margin_nats")));
    if (copy_str(root, r->probe ? "source" : "model", false, &r->model, err) != MLA_OK) return err->status;
    if (copy_str(root, "engine", false, &r->engine, err) != MLA_OK) return err->status;
    if (copy_str(root, "dtype", false, &r->dtype, err) != MLA_OK) return err->status;
    if (copy_str(root, "weights_sha256", false, &r->weights_sha256, err) != MLA_OK) return err->status;
    return copy_str(root, "tokenizer_sha256", false, &r->tokenizer_sha256, err);
}

static mla_status from_json(mla_reference *out, const mla_jv *root, const char *dir, mla_err *err)
{
    mla_reference r = {0};
    mla_map *names = NULL;
    const mla_jv *cases;
    size_t n;
    *out = r;
    if (!mla_jv_is_obj(root)) return mla_fail(err, MLA_EFORMAT, "expected an object, found %s", mla_jv_kind(root));
    mla_status st = read_header(&r, root, err);
    if (st == MLA_OK) st = array_of(root, "cases", &cases, &n, err);
    if (st == MLA_OK && n == 0) st = mla_fail(err, MLA_EFORMAT, "cases: expected at least one, found none");
    if (st == MLA_OK) st = mla_map_new(&names, err);
    if (st != MLA_OK) goto done;
    r.c = mla_alloc(n, 1, sizeof *r.c);
    if (!r.c) {
        st = mla_fail(err, MLA_ENOMEM, "%zu cases", n);
        goto done;
    }
    for (mla_jv *v = mla_jv_first(cases); v && st == MLA_OK; v = mla_jv_next(v)) {
        mla_ref_case *c = &r.c[r.n++];
        bool existed = false;
        st = read_case(c, v, &r, dir, err);
        if (st == MLA_OK) st = mla_map_add(names, c->name, strlen(c->name), r.n, &existed, err);
        if (st == MLA_OK && existed) st = mla_fail(err, MLA_EFORMAT, "name is used by an earlier case");
        if (st != MLA_OK) st = c->name ? mla_wrap(err, "cases[%zu] \"%.100s\"", r.n - 1, c->name) : mla_wrap(err, "cases[%zu]", r.n - 1);
    }
done:
    mla_map_free(names);
    if (st == MLA_OK)
        *out = r;
    else
        mla_reference_free(&r);
    return st;
}

mla_status mla_reference_from_json(mla_reference *out, const mla_jv *root, mla_err *err) { return from_json(out, root, NULL, err); }

mla_status mla_reference_read(mla_reference *out, const char *path, mla_err *err)
{
    mla_json *d = NULL;
    const char *slash = strrchr(path, '/');
    char *dir = slash ? mla_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : mla_strdup(".");
    *out = (mla_reference){0};
    mla_status st = dir ? mla_json_read(&d, path, MLA_REFERENCE_MAX, err) : mla_fail(err, MLA_ENOMEM, "%s", path);
    if (st == MLA_OK) {
        st = from_json(out, mla_json_root(d), dir, err);
        if (st != MLA_OK) st = mla_wrap(err, "%s", path);
    }
    mla_json_free(d);
    mla_free(dir);
    return st;
}
