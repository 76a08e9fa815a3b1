/* Filling an mla_tok: vocabulary, merges, added tokens, with the checks that both file kinds share. */
#include <string.h>

#include "base/alloc.h"
#include "io/msg.h"
#include "text/bytes.h"
#include "text/tok_impl.h"
#include "text/utf8.h"

mla_status mla_tok_new(mla_tok **out, mla_err *err)
{
    mla_tok *t = mla_alloc(1, 1, sizeof *t);
    if (!t) return mla_fail(err, MLA_ENOMEM, "tokenizer");
    t->unk = t->eos = -1;
    mla_status st = mla_map_new(&t->vocab, err);
    if (!st) st = mla_split_new(&t->split, err);
    if (st) {
        mla_tok_free(t);
        return st;
    }
    *out = t;
    return MLA_OK;
}

void mla_tok_free(mla_tok *t)
{
    if (!t) return;
    mla_map_free(t->vocab);
    mla_free(t->entry);
    mla_added_free(&t->added);
    mla_bpe_free(&t->bpe);
    mla_split_free(t->split);
    mla_ids_free(&t->prefix);
    mla_ids_free(&t->suffix);
    mla_free(t);
}

/* Puts a text at an id; the text must live as long as t. */
static mla_status set_entry(mla_tok *t, size_t id, const char *s, size_t n, bool special, mla_err *err)
{
    mla_quoted q;
    if (id >= MLA_TOK_MAX_IDS)
        return mla_fail(err, MLA_EUNSUPPORTED, "token \"%s\": id %zu, at most %zu", mla_quote(&q, s, n), id, MLA_TOK_MAX_IDS - 1);
    if (id >= t->cap) {
        size_t cap = t->cap ? t->cap : 1024;
        while (cap <= id) cap *= 2;
        mla_tok_entry *e = mla_realloc(t->entry, cap, sizeof *e);
        if (!e) return mla_fail(err, MLA_ENOMEM, "table of %zu tokens", cap);
        memset(e + t->cap, 0, (cap - t->cap) * sizeof *e);
        t->entry = e;
        t->cap = cap;
    }
    if (t->entry[id].s)
        return mla_fail(err, MLA_EFORMAT, "token \"%s\": its id %zu belongs to another token", mla_quote(&q, s, n), id);
    t->entry[id] = (mla_tok_entry){s, n, special};
    if (id >= t->n) t->n = id + 1;
    return MLA_OK;
}

mla_status mla_tok_add_vocab(mla_tok *t, const char *s, size_t n, size_t id, mla_err *err)
{
    bool existed;
    mla_quoted q;
    mla_status st = mla_map_add(t->vocab, s, n, id, &existed, err);
    if (st) return st;
    if (existed) return mla_fail(err, MLA_EFORMAT, "token \"%s\": in the vocabulary twice", mla_quote(&q, s, n));
    if (n > t->longest) t->longest = n;
    const char *own = mla_map_key(t->vocab, mla_map_count(t->vocab) - 1, NULL);
    return set_entry(t, id, own, n, false, err);
}

static int32_t vocab_id(const mla_tok *t, const char *s, size_t n)
{
    size_t id;
    return mla_map_get(t->vocab, s, n, &id) ? (int32_t)id : -1;
}

mla_status mla_tok_end_vocab(mla_tok *t, size_t merges, mla_err *err)
{
    if (merges >= UINT32_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "%zu merges", merges);
    for (unsigned b = 0; b < 256; b++) {
        char c[4];
        t->byte_id[b] = vocab_id(t, c, mla_utf8_put(c, mla_byte_char((unsigned char)b)));
    }
    return mla_bpe_init(&t->bpe, merges, err);
}

mla_status mla_tok_add_merge(mla_tok *t, const char *a, size_t an, const char *b, size_t bn, size_t rank, mla_err *err)
{
    mla_quoted qa, qb;
    mla_status st = MLA_OK;
    int32_t left = vocab_id(t, a, an), right = vocab_id(t, b, bn), merged = -1;
    if (left >= 0 && right >= 0 && an + bn <= t->longest) {
        char *both = mla_alloc_raw(an + bn, 1, 1);
        if (!both) return mla_fail(err, MLA_ENOMEM, "merge %zu", rank);
        memcpy(both, a, an);
        memcpy(both + an, b, bn);
        merged = vocab_id(t, both, an + bn);
        mla_free(both);
    }
    if (merged < 0)
        st = mla_fail(err, MLA_EFORMAT, "merge %zu, \"%s\" + \"%s\": %s is no token", rank, mla_quote(&qa, a, an),
                      mla_quote(&qb, b, bn), left < 0 ? "the left half" : right < 0 ? "the right half" : "their concatenation");
    else mla_bpe_add(&t->bpe, left, right, (uint32_t)rank, merged);
    return st;
}

mla_status mla_tok_add_merge_line(mla_tok *t, const char *line, size_t n, size_t rank, mla_err *err)
{
    mla_quoted q;
    const char *space = n ? memchr(line, ' ', n) : NULL;
    size_t an = space ? (size_t)(space - line) : 0;
    if (!space || memchr(space + 1, ' ', n - an - 1))
        return mla_fail(err, MLA_EFORMAT, "merge %zu, \"%s\": expected two tokens with one space between", rank, mla_quote(&q, line, n));
    return mla_tok_add_merge(t, line, an, space + 1, n - an - 1, rank, err);
}

mla_status mla_tok_add_added(mla_tok *t, const mla_added_token *a, mla_err *err)
{
    mla_quoted q;
    int32_t own = vocab_id(t, a->content, a->n);
    if (own >= 0 && own != a->id)
        return mla_fail(err, MLA_EFORMAT, "added token \"%s\": id %d, the vocabulary has it at %d",
                        mla_quote(&q, a->content, a->n), (int)a->id, (int)own);
    mla_status st = mla_added_push(&t->added, a, t->nfc, err);
    if (st) return st;
    const mla_added_token *kept = &t->added.tok[t->added.n - 1];
    if (own < 0) return set_entry(t, (size_t)a->id, kept->form, kept->form_n, a->special, err);
    t->entry[own] = (mla_tok_entry){kept->form, kept->form_n, a->special};
    return MLA_OK;
}
