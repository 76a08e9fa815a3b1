/* Encoding and decoding: added tokens, NFC, pre-tokens, byte alphabet, merges; and back. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "text/bytes.h"
#include "text/tok_impl.h"
#include "text/unicode.h"
#include "text/utf8.h"

#define TEXT_MAX ((size_t)1 << 40) /* bound of scratch text, far above any input */

void mla_ids_free(mla_ids *ids)
{
    mla_free(ids->id);
    *ids = (mla_ids){0};
}

static mla_status ids_reserve(mla_ids *ids, size_t extra, mla_err *err)
{
    if (ids->cap - ids->n >= extra) return MLA_OK;
    size_t cap = ids->cap > SIZE_MAX / 2 ? SIZE_MAX : 2 * ids->cap;
    if (cap < 64) cap = 64;
    while (cap - ids->n < extra && cap < SIZE_MAX / 2) cap *= 2;
    int32_t *p = mla_realloc(ids->id, cap, sizeof *p);
    if (!p) return mla_fail(err, MLA_ENOMEM, "%zu token ids", cap);
    ids->id = p;
    ids->cap = cap;
    return MLA_OK;
}

mla_status mla_ids_push(mla_ids *ids, int32_t id, mla_err *err)
{
    mla_status st = ids_reserve(ids, 1, err);
    if (!st) ids->id[ids->n++] = id;
    return st;
}

static mla_status ids_append(mla_ids *ids, const mla_ids *more, mla_err *err)
{
    mla_status st = ids_reserve(ids, more->n, err);
    if (st || !more->n) return st;
    memcpy(ids->id + ids->n, more->id, more->n * sizeof *more->id);
    ids->n += more->n;
    return MLA_OK;
}

typedef struct {
    const mla_tok *t;
    mla_ids *out;
    mla_split_work *split;
    mla_bpe_work bpe;
    mla_str normal; /* NFC of the stretch at hand */
    mla_str spelt;  /* a word in the byte alphabet */
} encoder;

/* The whole word as one token of the vocabulary, or -1. */
static int32_t whole_word(encoder *e, const char *s, size_t n)
{
    size_t id;
    if (n > e->t->longest) return -1;
    mla_str_clear(&e->spelt);
    for (size_t i = 0; i < n; i++) {
        char c[4];
        mla_str_putn(&e->spelt, c, mla_utf8_put(c, mla_byte_char((unsigned char)s[i])));
    }
    return mla_map_get(e->t->vocab, mla_str_c(&e->spelt), e->spelt.len, &id) ? (int32_t)id : -1;
}

/* Appends the symbols of a word's bytes. A byte without token becomes unk, runs of them one unk when fused. */
static void symbols(encoder *e, const char *s, size_t n)
{
    const mla_tok *t = e->t;
    bool after_unk = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(unsigned char)s[i]];
        bool unk = id < 0;
        if (unk) id = t->unk;
        if (id >= 0 && !(unk && after_unk && t->fuse_unk)) e->out->id[e->out->n++] = id;
        after_unk = unk;
    }
}

static mla_status word(void *ctx, const char *s, size_t n, mla_err *err)
{
    encoder *e = ctx;
    mla_status st = ids_reserve(e->out, n, err);
    if (st) return st;
    if (e->t->ignore_merges) {
        int32_t id = whole_word(e, s, n);
        if (id >= 0) {
            e->out->id[e->out->n++] = id;
            return MLA_OK;
        }
    }
    size_t first = e->out->n;
    symbols(e, s, n);
    size_t count = e->out->n - first;
    st = mla_bpe_merge(&e->t->bpe, &e->bpe, e->out->id + first, &count, err);
    e->out->n = first + count;
    return st;
}

static mla_status normalized_stretch(void *ctx, const mla_added_token *tok, const char *s, size_t n, mla_err *err)
{
    encoder *e = ctx;
    if (tok) return mla_ids_push(e->out, tok->id, err);
    return mla_split_run(e->t->split, e->split, s, n, word, e, err);
}

static mla_status raw_stretch(void *ctx, const mla_added_token *tok, const char *s, size_t n, mla_err *err)
{
    encoder *e = ctx;
    if (tok) return mla_ids_push(e->out, tok->id, err);
    if (e->t->nfc && mla_uc_may_compose(s, n)) {
        mla_str_clear(&e->normal);
        mla_status st = mla_uc_nfc(&e->normal, s, n, err);
        if (st) return st;
        s = mla_str_c(&e->normal);
        n = e->normal.len;
    }
    return mla_added_split(&e->t->added, true, s, n, normalized_stretch, e, err);
}

mla_status mla_tok_encode(const mla_tok *t, mla_ids *out, const char *text, size_t n, bool special, mla_err *err)
{
    encoder e = {.t = t, .out = out, .normal = MLA_STR_MAX(TEXT_MAX), .spelt = MLA_STR_MAX(TEXT_MAX)};
    mla_str valid = MLA_STR_MAX(TEXT_MAX);
    size_t before = out->n;
    mla_status st = mla_split_work_new(&e.split, err);
    if (st) goto done;
    if (n && !mla_utf8_valid(text, n)) {
        mla_utf8_lossy(&valid, text, n);
        text = mla_str_c(&valid);
        n = valid.len;
    }
    if (special) st = ids_append(out, &t->prefix, err);
    if (!st && n) st = mla_added_split(&t->added, false, text, n, raw_stretch, &e, err);
    if (!st && special) st = ids_append(out, &t->suffix, err);
    if (!st && !(mla_str_ok(&valid) && mla_str_ok(&e.spelt))) st = mla_fail(err, MLA_ENOMEM, "encoding %zu bytes", n);
done:
    if (st) out->n = before;
    mla_split_work_free(e.split);
    mla_bpe_work_free(&e.bpe);
    mla_str_free(&e.normal);
    mla_str_free(&e.spelt);
    mla_str_free(&valid);
    return st;
}

/* A token's bytes: from the byte alphabet, or as written when a character is not of it (as the library decides). */
static void token_bytes(mla_str *out, const mla_tok_entry *k)
{
    size_t before = out->len;
    for (size_t i = 0; i < k->n;) {
        uint32_t cp;
        i += mla_utf8_step(k->s + i, k->n - i, &cp);
        int b = cp == MLA_UTF8_BAD ? -1 : mla_char_byte(cp);
        if (b < 0) {
            out->len = before;
            mla_str_putn(out, k->s, k->n);
            return;
        }
        char c = (char)b;
        mla_str_putn(out, &c, 1);
    }
}

mla_status mla_tok_decode(const mla_tok *t, mla_str *out, const int32_t *ids, size_t n, bool skip_special, mla_err *err)
{
    mla_str bytes = MLA_STR_MAX(TEXT_MAX);
    mla_status st = MLA_OK;
    for (size_t i = 0; i < n; i++) {
        size_t id = ids[i] < 0 ? SIZE_MAX : (size_t)ids[i];
        if (id >= t->n || !t->entry[id].s) {
            st = mla_fail(err, MLA_EINVAL, "token id %ld (at index %zu) is not in the vocabulary", (long)ids[i], i);
            goto done;
        }
        if (!(skip_special && t->entry[id].special)) token_bytes(&bytes, &t->entry[id]);
    }
    mla_utf8_lossy(out, mla_str_c(&bytes), bytes.len);
    if (!mla_str_ok(&bytes) || !mla_str_ok(out)) st = mla_fail(err, MLA_ENOMEM, "the text of %zu tokens", n);
done:
    mla_str_free(&bytes);
    return st;
}

size_t mla_tok_vocab_size(const mla_tok *t) { return t->n; }
int32_t mla_tok_eos(const mla_tok *t) { return t->eos; }
void mla_tok_sha256(const mla_tok *t, unsigned char digest[32]) { memcpy(digest, t->sha256, 32); }

bool mla_tok_id(const mla_tok *t, const char *token, int32_t *id)
{
    size_t n = strlen(token), found;
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.tok[i].n == n && !memcmp(t->added.tok[i].content, token, n)) {
            *id = t->added.tok[i].id;
            return true;
        }
    if (!mla_map_get(t->vocab, token, n, &found)) return false;
    *id = (int32_t)found;
    return true;
}
