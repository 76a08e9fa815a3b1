/* tokenizer.json: which constructs are understood, and everything else refused by name. */
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/json.h"
#include "io/msg.h"
#include "io/sha256.h"
#include "text/tok_impl.h"

#define FILE_MAX ((size_t)256 << 20)

/* The "type" of a component; "" when there is none. */
static const char *type_of(const mla_jv *v)
{
    const char *s = mla_jv_str(mla_jv_get(v, "type"));
    return s ? s : "";
}

static mla_status unknown(mla_err *err, const char *what, const mla_jv *v)
{
    mla_quoted q;
    const char *type = type_of(v);
    if (!*type) return mla_fail(err, MLA_EUNSUPPORTED, "%s: expected an object with a type, found %s", what, mla_jv_kind(v));
    return mla_fail(err, MLA_EUNSUPPORTED, "%s \"%s\" is not known", what, mla_quote(&q, type, strlen(type)));
}

static bool absent(const mla_jv *v) { return !v || mla_jv_is_null(v); }

/* A flag that may be absent; anything but a boolean is refused. */
static mla_status flag(const mla_jv *obj, const char *key, bool otherwise, bool *out, mla_err *err)
{
    const mla_jv *v = mla_jv_get(obj, key);
    *out = otherwise;
    if (!absent(v) && !mla_jv_bool(v, out)) return mla_fail(err, MLA_EFORMAT, "%s: expected a boolean, found %s", key, mla_jv_kind(v));
    return MLA_OK;
}

/* A flag that must have one value here: the other one is not supported. */
static mla_status fixed(const mla_jv *obj, const char *key, bool otherwise, bool wanted, mla_err *err)
{
    bool v;
    mla_status st = flag(obj, key, otherwise, &v, err);
    if (!st && v != wanted) st = mla_fail(err, MLA_EUNSUPPORTED, "%s: %s is not known", key, v ? "true" : "false");
    return st;
}

static mla_status normalizer(mla_tok *t, const mla_jv *v, bool inner, mla_err *err)
{
    if (absent(v)) return MLA_OK;
    if (!strcmp(type_of(v), "NFC")) {
        t->nfc = true;
        return MLA_OK;
    }
    const mla_jv *list = mla_jv_get(v, "normalizers");
    if (inner || strcmp(type_of(v), "Sequence") || !mla_jv_is_arr(list)) return unknown(err, "normalizer", v);
    mla_status st = MLA_OK;
    for (const mla_jv *k = mla_jv_first(list); k && !st; k = mla_jv_next(k)) st = normalizer(t, k, true, err);
    return st;
}

static mla_status split_step(mla_tok *t, const mla_jv *v, mla_err *err)
{
    mla_quoted q;
    const char *behavior = mla_jv_str(mla_jv_get(v, "behavior"));
    const char *pattern = mla_jv_str(mla_jv_get(mla_jv_get(v, "pattern"), "Regex"));
    if (!pattern) return mla_fail(err, MLA_EUNSUPPORTED, "pre_tokenizer Split: its pattern is no Regex");
    if (!behavior || strcmp(behavior, "Isolated"))
        return mla_fail(err, MLA_EUNSUPPORTED, "pre_tokenizer Split: behavior \"%s\" is not known",
                        behavior ? mla_quote(&q, behavior, strlen(behavior)) : "");
    mla_status st = fixed(v, "invert", false, false, err);
    return st ? st : mla_split_add_regex(t->split, pattern, strlen(pattern), err);
}

static mla_status byte_level_step(mla_tok *t, const mla_jv *v, mla_err *err)
{
    bool use_regex;
    mla_status st = fixed(v, "add_prefix_space", true, false, err);
    if (!st) st = flag(v, "use_regex", true, &use_regex, err);
    if (!st && use_regex) st = mla_split_add_regex(t->split, MLA_PAT_GPT2, strlen(MLA_PAT_GPT2), err);
    return st;
}

/* *done: the closing ByteLevel was met. */
static mla_status pre_step(mla_tok *t, const mla_jv *v, bool *done, mla_err *err)
{
    const char *type = type_of(v);
    if (*done) return mla_fail(err, MLA_EUNSUPPORTED, "pre_tokenizer: a step behind ByteLevel is not known");
    if (!strcmp(type, "Split")) return split_step(t, v, err);
    if (!strcmp(type, "Digits")) {
        bool individual;
        mla_status st = flag(v, "individual_digits", false, &individual, err);
        return st ? st : mla_split_add_digits(t->split, individual, err);
    }
    if (strcmp(type, "ByteLevel")) return unknown(err, "pre_tokenizer", v);
    *done = true;
    return byte_level_step(t, v, err);
}

static mla_status pre_tokenizer(mla_tok *t, const mla_jv *v, mla_err *err)
{
    bool done = false;
    mla_status st = MLA_OK;
    const mla_jv *list = mla_jv_get(v, "pretokenizers");
    if (!strcmp(type_of(v), "Sequence") && mla_jv_is_arr(list))
        for (const mla_jv *k = mla_jv_first(list); k && !st; k = mla_jv_next(k)) st = pre_step(t, k, &done, err);
    else if (!absent(v)) st = pre_step(t, v, &done, err);
    if (!st && !done) st = mla_fail(err, MLA_EUNSUPPORTED, "pre_tokenizer: no ByteLevel at its end; other alphabets are not known");
    return st;
}

/* The ids that a template's special token stands for. */
static mla_status template_token(mla_tok *t, const mla_jv *specials, const char *name, mla_ids *to, mla_err *err)
{
    mla_quoted q;
    const mla_jv *ids = name ? mla_jv_get(mla_jv_get(specials, name), "ids") : NULL;
    if (!mla_jv_is_arr(ids)) return mla_fail(err, MLA_EFORMAT, "TemplateProcessing: a special token without ids");
    for (const mla_jv *k = mla_jv_first(ids); k; k = mla_jv_next(k)) {
        size_t id;
        if (!mla_jv_size(k, &id) || id >= t->n || !t->entry[id].s)
            return mla_fail(err, MLA_EFORMAT, "TemplateProcessing: an id of \"%s\" is not in the vocabulary", mla_quote(&q, name, strlen(name)));
        mla_status st = mla_ids_push(to, (int32_t)id, err);
        if (st) return st;
    }
    return MLA_OK;
}

/* "single": special tokens around one sequence A. */
static mla_status template(mla_tok *t, const mla_jv *v, mla_err *err)
{
    const mla_jv *single = mla_jv_get(v, "single"), *specials = mla_jv_get(v, "special_tokens");
    bool seen = false;
    if (t->prefix.n || t->suffix.n) return mla_fail(err, MLA_EUNSUPPORTED, "post_processor: two templates");
    for (const mla_jv *k = mla_jv_first(single); k; k = mla_jv_next(k)) {
        const mla_jv *seq = mla_jv_get(k, "Sequence"), *tok = mla_jv_get(k, "SpecialToken");
        const char *id = mla_jv_str(mla_jv_get(seq ? seq : tok, "id"));
        if (seq && id && !strcmp(id, "A") && !seen) {
            seen = true;
            continue;
        }
        if (!tok) return mla_fail(err, MLA_EUNSUPPORTED, "TemplateProcessing: \"single\" is not special tokens around one sequence A");
        mla_status st = template_token(t, specials, id, seen ? &t->suffix : &t->prefix, err);
        if (st) return st;
    }
    if (!mla_jv_is_arr(single) || !seen) return mla_fail(err, MLA_EUNSUPPORTED, "TemplateProcessing: \"single\" lacks sequence A");
    if (t->suffix.n) t->eos = t->suffix.id[t->suffix.n - 1];
    return MLA_OK;
}

static mla_status post_processor(mla_tok *t, const mla_jv *v, bool inner, mla_err *err)
{
    if (absent(v)) return MLA_OK;
    const char *type = type_of(v);
    if (!strcmp(type, "ByteLevel")) return MLA_OK; /* moves offsets, which we do not report */
    if (!strcmp(type, "TemplateProcessing")) return template(t, v, err);
    const mla_jv *list = mla_jv_get(v, "processors");
    if (inner || strcmp(type, "Sequence") || !mla_jv_is_arr(list)) return unknown(err, "post_processor", v);
    mla_status st = MLA_OK;
    for (const mla_jv *k = mla_jv_first(list); k && !st; k = mla_jv_next(k)) st = post_processor(t, k, true, err);
    return st;
}

static mla_status merges(mla_tok *t, const mla_jv *list, mla_err *err)
{
    size_t rank = 0;
    mla_status st = MLA_OK;
    for (const mla_jv *k = mla_jv_first(list); k && !st; k = mla_jv_next(k)) {
        const char *line = mla_jv_str(k);
        if (line && mla_starts_with(line, "#version")) continue; /* a header line of old merge files takes no rank */
        if (line) st = mla_tok_add_merge_line(t, line, strlen(line), rank, err);
        else {
            const mla_jv *first = mla_jv_is_arr(k) ? mla_jv_first(k) : NULL;
            const char *a = mla_jv_str(first), *b = mla_jv_str(mla_jv_next(first));
            if (!a || !b || mla_jv_next(mla_jv_next(first)))
                return mla_fail(err, MLA_EFORMAT, "merge %zu: expected \"a b\" or [\"a\", \"b\"], found %s", rank, mla_jv_kind(k));
            st = mla_tok_add_merge(t, a, strlen(a), b, strlen(b), rank, err);
        }
        rank++;
    }
    return st;
}

static mla_status vocabulary(mla_tok *t, const mla_jv *vocab, mla_err *err)
{
    mla_quoted q;
    mla_status st = MLA_OK;
    for (const mla_jv *k = mla_jv_first(vocab); k && !st; k = mla_jv_next(k)) {
        size_t id;
        const char *s = mla_jv_key(k);
        if (!mla_jv_size(k, &id))
            return mla_fail(err, MLA_EFORMAT, "token \"%s\": its id is no number of at least 0", mla_quote(&q, s, strlen(s)));
        st = mla_tok_add_vocab(t, s, strlen(s), id, err);
    }
    return st;
}

static mla_status model(mla_tok *t, const mla_jv *m, mla_err *err)
{
    static const char *const AFFIX[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    mla_quoted q;
    const mla_jv *vocab = mla_jv_get(m, "vocab"), *list = mla_jv_get(m, "merges"), *unk = mla_jv_get(m, "unk_token");
    /* files older than the "type" key are recognised by their merges, as the library does */
    if (strcmp(type_of(m), "BPE") && (mla_jv_get(m, "type") || !list)) return unknown(err, "model", m);
    if (!mla_jv_is_obj(vocab) || !mla_jv_is_arr(list))
        return mla_fail(err, MLA_EFORMAT, "model: expected a vocab object and a merges array, found %s and %s", mla_jv_kind(vocab), mla_jv_kind(list));
    for (size_t i = 0; i < 2; i++) {
        const mla_jv *v = mla_jv_get(m, AFFIX[i]);
        if (!absent(v) && (!mla_jv_str(v) || *mla_jv_str(v))) return mla_fail(err, MLA_EUNSUPPORTED, "model: %s is not known", AFFIX[i]);
    }
    double dropout = 0;
    const mla_jv *drop = mla_jv_get(m, "dropout");
    if (!absent(drop) && (!mla_jv_f64(drop, &dropout) || dropout != 0))
        return mla_fail(err, MLA_EUNSUPPORTED, "model: dropout is not known");
    mla_status st = fixed(m, "byte_fallback", false, false, err);
    if (!st) st = flag(m, "ignore_merges", false, &t->ignore_merges, err);
    if (!st) st = flag(m, "fuse_unk", false, &t->fuse_unk, err);
    if (!st) st = vocabulary(t, vocab, err);
    if (!st) st = mla_tok_end_vocab(t, mla_jv_len(list), err);
    if (!st) st = merges(t, list, err);
    if (st || absent(unk)) return st;
    const char *s = mla_jv_str(unk);
    size_t id;
    if (!s || !mla_map_get(t->vocab, s, strlen(s), &id))
        return mla_fail(err, MLA_EFORMAT, "model: unk_token \"%s\" is not in the vocabulary", s ? mla_quote(&q, s, strlen(s)) : "");
    t->unk = (int32_t)id;
    return MLA_OK;
}

/* The library numbers new tokens itself, one after the other behind the vocabulary; a file that says otherwise would
 * give two answers. */
static mla_status added_tokens(mla_tok *t, const mla_jv *list, mla_err *err)
{
    mla_quoted q;
    mla_status st = MLA_OK;
    size_t next = mla_map_count(t->vocab);
    if (!absent(list) && !mla_jv_is_arr(list)) return mla_fail(err, MLA_EFORMAT, "added_tokens: expected an array, found %s", mla_jv_kind(list));
    for (const mla_jv *k = mla_jv_first(list); k && !st; k = mla_jv_next(k)) {
        mla_added_token a = {0};
        size_t id, own;
        const char *s = mla_jv_str(mla_jv_get(k, "content"));
        if (!s || !mla_jv_size(mla_jv_get(k, "id"), &id) || id >= MLA_TOK_MAX_IDS)
            return mla_fail(err, MLA_EFORMAT, "added_tokens: expected objects with content and id (below %zu)", MLA_TOK_MAX_IDS);
        if (!mla_map_get(t->vocab, s, strlen(s), &own)) {
            if (id != next)
                return mla_fail(err, MLA_EFORMAT, "added token \"%s\": id %zu, expected the next free one, %zu",
                                mla_quote(&q, s, strlen(s)), id, next);
        }
        if (id >= next) next = id + 1;
        a.id = (int32_t)id;
        a.n = strlen(s);
        st = flag(k, "single_word", false, &a.single_word, err);
        if (!st) st = flag(k, "lstrip", false, &a.lstrip, err);
        if (!st) st = flag(k, "rstrip", false, &a.rstrip, err);
        if (!st) st = flag(k, "special", false, &a.special, err);
        if (!st) st = flag(k, "normalized", !a.special, &a.normalized, err);
        if (st) break;
        a.content = mla_strdup(s);
        if (!a.content) return mla_fail(err, MLA_ENOMEM, "added token");
        st = mla_tok_add_added(t, &a, err);
        mla_free(a.content);
    }
    return st;
}

static mla_status fill(mla_tok *t, const mla_jv *root, mla_err *err)
{
    if (!mla_jv_is_obj(root)) return mla_fail(err, MLA_EFORMAT, "expected an object, found %s", mla_jv_kind(root));
    if (!absent(mla_jv_get(root, "truncation"))) return mla_fail(err, MLA_EUNSUPPORTED, "truncation is not known");
    if (!absent(mla_jv_get(root, "padding"))) return mla_fail(err, MLA_EUNSUPPORTED, "padding is not known");
    const mla_jv *decoder = mla_jv_get(root, "decoder");
    mla_status st = normalizer(t, mla_jv_get(root, "normalizer"), false, err);
    if (!st) st = pre_tokenizer(t, mla_jv_get(root, "pre_tokenizer"), err);
    if (!st && strcmp(type_of(decoder), "ByteLevel")) st = unknown(err, "decoder", decoder);
    if (!st) st = model(t, mla_jv_get(root, "model"), err);
    if (!st) st = added_tokens(t, mla_jv_get(root, "added_tokens"), err);
    if (!st) st = post_processor(t, mla_jv_get(root, "post_processor"), false, err);
    return st;
}

mla_status mla_tok_open_json(mla_tok **out, const char *path, mla_err *err)
{
    mla_mapped file = {0};
    mla_json *doc = NULL;
    mla_tok *t = NULL;
    mla_err local;
    if (!err) err = &local; /* mla_wrap needs the status */
    mla_status st = mla_file_map(&file, path, err);
    if (st) return st;
    if (file.size > FILE_MAX) {
        st = mla_fail(err, MLA_EUNSUPPORTED, "%s: %zu bytes, a tokenizer has at most %zu", path, file.size, FILE_MAX);
        goto done;
    }
    st = mla_json_parse(&doc, (const char *)file.data, file.size, path, err);
    if (st) goto done;
    st = mla_tok_new(&t, err);
    if (!st) st = fill(t, mla_json_root(doc), err);
    if (st) {
        st = mla_wrap(err, "%s", path);
        goto done;
    }
    mla_sha256_bytes(file.data, file.size, t->sha256);
    *out = t;
    t = NULL;
done:
    mla_tok_free(t);
    mla_json_free(doc);
    mla_file_unmap(&file);
    return st;
}
