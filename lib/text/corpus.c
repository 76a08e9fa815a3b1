/* Corpora from text, jsonl and id lists. */
#include "text/corpus.h"

#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/file.h"
#include "io/json.h"
#include "io/sha256.h"
#include "text/corpus_impl.h"

#define IDS_JSON_MAX ((size_t)256 << 20)

mla_status mla_corpus_push(mla_corpus *c, int64_t id, size_t vocab, mla_err *err)
{
    if (id < 0 || id > INT32_MAX || (uint64_t)id >= vocab)
        return mla_fail(err, MLA_EFORMAT, "token id %lld, expected 0 to %zu", (long long)id, vocab ? vocab - 1 : 0);
    return mla_ids_push(&c->ids, (int32_t)id, err);
}

mla_status mla_corpus_end_doc(mla_corpus *c, mla_err *err)
{
    if ((c->docs & (c->docs - 1)) == 0) { /* full: capacities are powers of two (and 0) */
        size_t *p = mla_realloc(c->doc_end, c->docs ? 2 * c->docs : 1, sizeof *p);
        if (!p) return mla_fail(err, MLA_ENOMEM, "%zu documents", c->docs + 1);
        c->doc_end = p;
    }
    c->doc_end[c->docs++] = c->ids.n;
    return MLA_OK;
}

static mla_status add_text(mla_corpus *c, const mla_tok *tok, size_t vocab, const char *s, size_t n, mla_err *err)
{
    size_t first = c->ids.n;
    mla_status st = mla_tok_encode(tok, &c->ids, s, n, false, err);
    for (size_t i = first; i < c->ids.n && !st; i++)
        if ((size_t)c->ids.id[i] >= vocab)
            st = mla_fail(err, MLA_EFORMAT, "token id %ld of the tokenizer, expected 0 to %zu", (long)c->ids.id[i], vocab ? vocab - 1 : 0);
    if (!st) st = mla_corpus_end_doc(c, err);
    c->bytes += n;
    return st;
}

static mla_status add_line(mla_corpus *c, const mla_tok *tok, size_t vocab, const char *s, size_t n, mla_err *err)
{
    mla_json *doc = NULL;
    mla_status st = mla_json_parse(&doc, s, n, "JSON", err);
    if (st) return st;
    const mla_jv *text = mla_jv_get(mla_json_root(doc), "text");
    if (mla_jv_str(text)) st = add_text(c, tok, vocab, mla_jv_str(text), strlen(mla_jv_str(text)), err);
    else st = mla_fail(err, MLA_EFORMAT, "expected an object with a string \"text\", found %s",
                       mla_jv_is_obj(mla_json_root(doc)) ? mla_jv_kind(text) : mla_jv_kind(mla_json_root(doc)));
    mla_json_free(doc);
    return st;
}

static mla_status add_jsonl(mla_corpus *c, const mla_tok *tok, size_t vocab, const char *s, size_t n, mla_err *err)
{
    size_t line = 1;
    for (size_t i = 0; i < n; line++) {
        const char *nl = memchr(s + i, '\n', n - i);
        size_t end = nl ? (size_t)(nl - s) : n;
        mla_status st = add_line(c, tok, vocab, s + i, end - i, err);
        if (st) return mla_wrap(err, "line %zu", line);
        i = end + 1;
    }
    return MLA_OK;
}

static mla_status add_ids_json(mla_corpus *c, size_t vocab, const char *s, size_t n, mla_err *err)
{
    mla_json *doc = NULL;
    if (n > IDS_JSON_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "%zu bytes of JSON, at most %zu; use .mlatok", n, IDS_JSON_MAX);
    mla_status st = mla_json_parse(&doc, s, n, "token ids", err);
    if (st) return st;
    const mla_jv *list = mla_json_root(doc);
    if (mla_jv_is_obj(list)) list = mla_jv_get(list, "ids");
    if (!mla_jv_is_arr(list)) st = mla_fail(err, MLA_EFORMAT, "expected an array of ids or {\"ids\": [...]}, found %s", mla_jv_kind(list));
    size_t i = 0;
    for (const mla_jv *k = mla_jv_is_arr(list) ? mla_jv_first(list) : NULL; k && !st; k = mla_jv_next(k), i++) {
        int64_t id;
        if (!mla_jv_i64(k, &id)) st = mla_fail(err, MLA_EFORMAT, "element %zu: expected a whole number, found %s", i, mla_jv_kind(k));
        else if (mla_corpus_push(c, id, vocab, err)) st = mla_wrap(err, "element %zu", i);
    }
    if (!st) st = mla_corpus_end_doc(c, err);
    mla_json_free(doc);
    return st;
}

mla_status mla_corpus_add(mla_corpus *c, const char *path, const mla_tok *tok, size_t vocab, mla_err *err)
{
    mla_mapped f = {0};
    mla_err local;
    if (!err) err = &local; /* mla_wrap needs the status */
    const mla_corpus before = *c;
    bool ids = mla_ends_with(path, ".json") || mla_ends_with(path, ".mlatok");
    if (!ids && !tok && c->no_tokenizer) return mla_fail(err, MLA_EUNSUPPORTED, "%s: text needs a tokenizer: %s", path, c->no_tokenizer);
    if (!ids && !tok) return mla_fail(err, MLA_EINVAL, "%s: text needs a tokenizer, and there is none", path);
    mla_status st = mla_file_map(&f, path, err);
    if (st) return st;
    const char *s = f.size ? (const char *)f.data : "";
    if (mla_ends_with(path, ".jsonl")) st = add_jsonl(c, tok, vocab, s, f.size, err);
    else if (mla_ends_with(path, ".json")) st = add_ids_json(c, vocab, s, f.size, err);
    else if (mla_ends_with(path, ".mlatok")) st = mla_corpus_read_tok(c, (const unsigned char *)s, f.size, vocab, err);
    else st = add_text(c, tok, vocab, s, f.size, err);
    if (!ids) mla_tok_sha256(tok, c->tokenizer_sha256);
    if (!st) st = mla_file_unchanged(&f, err);
    else (void)mla_wrap(err, "%s", path);
    if (st) { /* as before, but for the capacity of the arrays */
        c->ids.n = before.ids.n;
        c->docs = before.docs;
        c->bytes = before.bytes;
        memcpy(c->tokenizer_sha256, before.tokenizer_sha256, 32);
    }
    mla_file_unmap(&f);
    return st;
}

void mla_corpus_finish(mla_corpus *c) { mla_sha256_bytes(c->ids.n ? (const void *)c->ids.id : "", 4 * c->ids.n, c->sha256); }

void mla_corpus_free(mla_corpus *c)
{
    mla_ids_free(&c->ids);
    mla_free(c->doc_end);
    *c = (mla_corpus){0};
}
