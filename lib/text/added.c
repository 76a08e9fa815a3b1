/* The search for added tokens, with the flags' rules of the tokenizers library. */
#include "text/added.h"

#include <string.h>

#include "base/alloc.h"
#include "io/msg.h"
#include "text/unicode.h"
#include "text/utf8.h"

typedef struct mla_trie_node {
    uint32_t child, sibling; /* 0: none */
    int32_t value;           /* -1: none ends here */
    unsigned char byte;
} node;

static mla_status new_node(mla_trie *t, unsigned char byte, uint32_t *out, mla_err *err)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        node *p = cap < UINT32_MAX ? mla_realloc(t->node, cap, sizeof *p) : NULL;
        if (!p) return mla_fail(err, MLA_ENOMEM, "added tokens: %zu trie nodes", cap);
        t->node = p;
        t->cap = cap;
    }
    t->node[t->n] = (node){0, 0, -1, byte};
    *out = (uint32_t)t->n++;
    return MLA_OK;
}

static uint32_t child_of(const mla_trie *t, uint32_t at, unsigned char byte)
{
    uint32_t c = t->node[at].child;
    while (c && t->node[c].byte != byte) c = t->node[c].sibling;
    return c;
}

/* *existing: the value that s has already, or -1. */
static mla_status trie_add(mla_trie *t, const char *s, size_t n, int32_t value, int32_t *existing, mla_err *err)
{
    uint32_t at = 0;
    mla_status st = t->n ? MLA_OK : new_node(t, 0, &at, err);
    for (size_t i = 0; i < n && !st; i++) {
        unsigned char b = (unsigned char)s[i];
        uint32_t c = child_of(t, at, b);
        if (!c) {
            st = new_node(t, b, &c, err);
            if (st) break;
            t->node[c].sibling = t->node[at].child;
            t->node[at].child = c;
        }
        at = c;
    }
    if (st) return st;
    *existing = t->node[at].value;
    if (*existing < 0) t->node[at].value = value;
    return MLA_OK;
}

/* Length of the longest text that begins s[0..n), 0 for none. */
static size_t trie_longest(const mla_trie *t, const char *s, size_t n, int32_t *value)
{
    size_t best = 0;
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        at = child_of(t, at, (unsigned char)s[i]);
        if (!at) break;
        if (t->node[at].value >= 0) {
            best = i + 1;
            *value = t->node[at].value;
        }
    }
    return best;
}

void mla_added_free(mla_added *a)
{
    for (size_t i = 0; i < a->n; i++) {
        if (a->tok[i].form != a->tok[i].content) mla_free(a->tok[i].form);
        mla_free(a->tok[i].content);
    }
    mla_free(a->tok);
    mla_free(a->raw.node);
    mla_free(a->normalized.node);
    *a = (mla_added){0};
}

/* Sets the token's form to the NFC of its content. */
static mla_status compose(mla_added_token *own, mla_err *err)
{
    mla_str s = MLA_STR_MAX(8 * MLA_ADDED_MAX);
    mla_status st = mla_uc_nfc(&s, own->content, own->n, err);
    if (!st) {
        own->form = mla_strndup(mla_str_c(&s), s.len);
        own->form_n = s.len;
        if (!own->form) {
            own->form = own->content;
            st = mla_fail(err, MLA_ENOMEM, "added token of %zu bytes", own->n);
        }
    }
    mla_str_free(&s);
    return st;
}

mla_status mla_added_push(mla_added *a, const mla_added_token *t, bool nfc, mla_err *err)
{
    mla_quoted q;
    const char *name = mla_quote(&q, t->content, t->n);
    if (t->n == 0) return mla_fail(err, MLA_EFORMAT, "added token %d: its text is empty", (int)t->id);
    if (t->n > MLA_ADDED_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "added token \"%s\": %zu bytes, at most %d", name, t->n, MLA_ADDED_MAX);
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 32;
        mla_added_token *p = mla_realloc(a->tok, cap, sizeof *p);
        if (!p) return mla_fail(err, MLA_ENOMEM, "%zu added tokens", cap);
        a->tok = p;
        a->cap = cap;
    }
    mla_added_token *own = &a->tok[a->n];
    *own = *t;
    own->form = own->content = mla_strndup(t->content, t->n);
    own->form_n = t->n;
    if (!own->content) return mla_fail(err, MLA_ENOMEM, "added token \"%s\"", name);
    a->n++;
    mla_status st = t->normalized && nfc ? compose(own, err) : MLA_OK;
    int32_t existing = -1;
    if (!st) st = trie_add(t->normalized ? &a->normalized : &a->raw, own->form, own->form_n, (int32_t)(a->n - 1), &existing, err);
    if (!st && existing >= 0) st = mla_fail(err, MLA_EFORMAT, "added token \"%s\": given twice", name);
    return st;
}

static bool word_before(const char *s, size_t i)
{
    uint32_t cp;
    size_t b = mla_utf8_back(s, i);
    (void)mla_utf8_step(s + b, i - b, &cp);
    return mla_uc_word(cp);
}

static bool word_at(const char *s, size_t n)
{
    uint32_t cp;
    (void)mla_utf8_step(s, n, &cp);
    return mla_uc_word(cp);
}

/* The start of the white space that ends at s[i). */
static size_t space_before(const char *s, size_t i)
{
    while (i > 0) {
        uint32_t cp;
        size_t b = mla_utf8_back(s, i);
        (void)mla_utf8_step(s + b, i - b, &cp);
        if (!mla_uc_space(cp)) break;
        i = b;
    }
    return i;
}

/* The end of the white space that begins at s[i). */
static size_t space_after(const char *s, size_t i, size_t n)
{
    while (i < n) {
        uint32_t cp;
        size_t len = mla_utf8_step(s + i, n - i, &cp);
        if (!mla_uc_space(cp)) break;
        i += len;
    }
    return i;
}

mla_status mla_added_split(const mla_added *a, bool normalized, const char *s, size_t n, mla_added_fn fn, void *ctx,
                           mla_err *err)
{
    const mla_trie *t = normalized ? &a->normalized : &a->raw;
    size_t done = 0; /* s[0..done) was handed out */
    mla_status st = MLA_OK;
    for (size_t i = 0; t->n && i < n && !st;) {
        int32_t value = -1;
        size_t len = trie_longest(t, s + i, n - i, &value);
        if (!len) {
            i++;
            continue;
        }
        const mla_added_token *k = &a->tok[value];
        size_t begin = i, end = i + len;
        i = end; /* the search goes on behind the bare text, wherever stripping ends */
        if (k->single_word && ((begin > 0 && word_before(s, begin)) || (end < n && word_at(s + end, n - end)))) continue;
        if (k->lstrip) {
            begin = space_before(s, begin);
            if (begin < done) begin = done;
        }
        if (k->rstrip) end = space_after(s, end, n);
        if (begin > done) st = fn(ctx, NULL, s + done, begin - done, err);
        if (!st) st = fn(ctx, k, s + begin, end - begin, err);
        done = end;
    }
    if (!st && done < n) st = fn(ctx, NULL, s + done, n - done, err);
    return st;
}
