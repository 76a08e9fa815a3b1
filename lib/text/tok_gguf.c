/* GGUF vocabularies of model "gpt2" (byte-level BPE). The file names its pre-tokenizer; a table gives the rest, so that
 * ids equal those of the tokenizer.json the file was converted from. */
#include <stdio.h>
#include <string.h>

#include "io/msg.h"
#include "io/sha256.h"
#include "text/tok_impl.h"

#define KEY "tokenizer.ggml."

typedef struct {
    const char *name;    /* tokenizer.ggml.pre */
    const char *pattern;
    bool digits;         /* every numeric character alone, before the pattern */
    bool nfc, ignore_merges;
    bool add_bos;        /* when the file does not say */
} kind;

static const kind KINDS[] = {
    {"gpt-2", MLA_PAT_GPT2, false, false, false, false},
    {"gpt2", MLA_PAT_GPT2, false, false, false, false},
    {"smollm", MLA_PAT_GPT2, true, false, false, false},
    {"qwen2", MLA_PAT_QWEN2, false, true, false, false},
    {"qwen35", MLA_PAT_QWEN35, false, true, false, false},
    {"llama-bpe", MLA_PAT_LLAMA3, false, false, true, true},
};

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

static mla_status find_kind(const mla_gguf *g, const kind **out, mla_err *err)
{
    *out = NULL;
    const char *s;
    size_t n;
    mla_quoted q;
    if (!mla_gguf_str(g, KEY "model", &s, &n)) return mla_fail(err, MLA_EFORMAT, KEY "model: absent, or no string");
    if (n != 4 || memcmp(s, "gpt2", 4))
        return mla_fail(err, MLA_EUNSUPPORTED, KEY "model \"%s\" is not known (only gpt2: byte-level BPE)", mla_quote(&q, s, n));
    if (!mla_gguf_str(g, KEY "pre", &s, &n)) return mla_fail(err, MLA_EUNSUPPORTED, KEY "pre: absent: which splitting rule is not known");
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (strlen(KINDS[i].name) == n && !memcmp(KINDS[i].name, s, n)) {
            *out = &KINDS[i];
            return MLA_OK;
        }
    return mla_fail(err, MLA_EUNSUPPORTED, KEY "pre \"%s\" is not known", mla_quote(&q, s, n));
}

static mla_status string_array(const mla_gguf *g, const char *key, const mla_gguf_kv **out, mla_err *err)
{
    *out = mla_gguf_kv_find(g, key);
    if (!*out || (*out)->type != MLA_GV_ARRAY || (*out)->item != MLA_GV_STRING)
        return mla_fail(err, MLA_EFORMAT, "%s: %s", key, *out ? "is no array of strings" : "absent");
    return MLA_OK;
}

/* Element i of the i32 array of token types; normal when there is none. */
static int32_t type_at(const mla_gguf_kv *types, size_t i)
{
    int32_t v = TYPE_NORMAL;
    if (types) memcpy(&v, types->data + 4 * i, 4);
    return v;
}

static mla_status vocabulary(mla_tok *t, const mla_gguf *g, const mla_gguf_kv *types, mla_err *err)
{
    const mla_gguf_kv *tokens;
    const char *s;
    size_t n, pos = 0;
    mla_quoted q;
    mla_status st = string_array(g, KEY "tokens", &tokens, err);
    if (st) return st;
    if (types && (types->type != MLA_GV_ARRAY || types->item != MLA_GV_I32 || types->n != tokens->n))
        return mla_fail(err, MLA_EFORMAT, KEY "token_type: expected %zu values of type i32", tokens->n);
    for (size_t i = 0; !st && mla_gguf_str_next(tokens, &pos, &s, &n); i++) {
        int32_t type = type_at(types, i);
        if (type < TYPE_NORMAL || type > TYPE_BYTE)
            return mla_fail(err, MLA_EFORMAT, KEY "token_type: %ld at token %zu", (long)type, i);
        if (!mla_utf8_valid(s, n)) return mla_fail(err, MLA_EFORMAT, KEY "tokens: token %zu is no UTF-8: \"%s\"", i, mla_quote(&q, s, n));
        st = mla_tok_add_vocab(t, s, n, i, err);
    }
    return st;
}

static mla_status merges(mla_tok *t, const mla_gguf *g, mla_err *err)
{
    const mla_gguf_kv *list;
    const char *s;
    size_t n, pos = 0;
    mla_status st = string_array(g, KEY "merges", &list, err);
    if (!st) st = mla_tok_end_vocab(t, list->n, err);
    for (size_t i = 0; !st && mla_gguf_str_next(list, &pos, &s, &n); i++) st = mla_tok_add_merge_line(t, s, n, i, err);
    return st;
}

/* Control and user-defined tokens are found in the raw text; control tokens are the special ones. */
static mla_status added_tokens(mla_tok *t, const mla_gguf_kv *types, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; types && i < t->n && !st; i++) {
        int32_t type = type_at(types, i);
        if (type != TYPE_CONTROL && type != TYPE_USER) continue;
        const char *own = mla_map_key(t->vocab, i, NULL); /* insertion order is id order */
        char text[MLA_ADDED_MAX + 1];
        if (t->entry[i].n > MLA_ADDED_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "token %zu: %zu bytes, at most %d", i, t->entry[i].n, MLA_ADDED_MAX);
        memcpy(text, own, t->entry[i].n);
        mla_added_token a = {.content = text, .n = t->entry[i].n, .id = (int32_t)i, .special = type == TYPE_CONTROL};
        st = mla_tok_add_added(t, &a, err);
    }
    return st;
}

/* The id under a key, when there is one; it must be in the vocabulary. */
static mla_status special_id(const mla_tok *t, const mla_gguf *g, const char *key, int32_t *out, mla_err *err)
{
    uint64_t id;
    *out = -1;
    if (!mla_gguf_kv_find(g, key)) return MLA_OK;
    if (!mla_gguf_u64(g, key, &id) || id >= t->n) return mla_fail(err, MLA_EFORMAT, "%s: no id of the vocabulary (%zu tokens)", key, t->n);
    *out = (int32_t)id;
    return MLA_OK;
}

static mla_status ends(mla_tok *t, const mla_gguf *g, const kind *k, mla_err *err)
{
    int32_t bos;
    bool add_bos = k->add_bos, add_eos = false;
    mla_status st = special_id(t, g, KEY "bos_token_id", &bos, err);
    if (!st) st = special_id(t, g, KEY "eos_token_id", &t->eos, err);
    if (st) return st;
    if (mla_gguf_kv_find(g, KEY "add_bos_token") && !mla_gguf_bool(g, KEY "add_bos_token", &add_bos))
        return mla_fail(err, MLA_EFORMAT, KEY "add_bos_token: no boolean");
    if (mla_gguf_kv_find(g, KEY "add_eos_token") && !mla_gguf_bool(g, KEY "add_eos_token", &add_eos))
        return mla_fail(err, MLA_EFORMAT, KEY "add_eos_token: no boolean");
    if ((add_bos && bos < 0) || (add_eos && t->eos < 0))
        return mla_fail(err, MLA_EFORMAT, KEY "add_%s_token: the token's id is absent", add_bos && bos < 0 ? "bos" : "eos");
    if (add_bos) st = mla_ids_push(&t->prefix, bos, err);
    if (!st && add_eos) st = mla_ids_push(&t->suffix, t->eos, err);
    return st;
}

/* Over every tokenizer.ggml entry in file order: key, NUL, u32 type, u32 item type, value bytes. */
static mla_status digest(mla_tok *t, const mla_gguf *g, mla_err *err)
{
    mla_sha256 *h = NULL;
    mla_status st = mla_sha256_new(&h, err);
    if (st) return st;
    for (size_t i = 0; i < mla_gguf_kv_count(g); i++) {
        const mla_gguf_kv *kv = mla_gguf_kv_at(g, i);
        if (!mla_starts_with(kv->key, KEY)) continue;
        unsigned char types[8] = {(unsigned char)kv->type, 0, 0, 0, (unsigned char)(kv->type == MLA_GV_ARRAY ? kv->item : 0), 0, 0, 0};
        mla_sha256_update(h, kv->key, strlen(kv->key) + 1);
        mla_sha256_update(h, types, sizeof types);
        mla_sha256_update(h, kv->data, kv->nbytes);
    }
    mla_sha256_get(h, t->sha256);
    mla_sha256_free(h);
    return MLA_OK;
}

mla_status mla_tok_open_gguf(mla_tok **out, const mla_gguf *g, mla_err *err)
{
    const kind *k = NULL;
    mla_tok *t = NULL;
    const mla_gguf_kv *types = mla_gguf_kv_find(g, KEY "token_type");
    mla_status st = find_kind(g, &k, err);
    if (!st) st = mla_tok_new(&t, err);
    if (st || !k) return st;
    t->nfc = k->nfc;
    t->ignore_merges = k->ignore_merges;
    if (k->digits) st = mla_split_add_digits(t->split, true, err);
    if (!st) st = mla_split_add_regex(t->split, k->pattern, strlen(k->pattern), err);
    if (!st) st = vocabulary(t, g, types, err);
    if (!st) st = merges(t, g, err);
    if (!st) st = added_tokens(t, types, err);
    if (!st) st = ends(t, g, k, err);
    if (!st) st = digest(t, g, err);
    if (st) {
        mla_tok_free(t);
        return st;
    }
    *out = t;
    return MLA_OK;
}
