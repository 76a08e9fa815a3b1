/* Added tokens: texts that are cut out before anything else is done to the text. */
#ifndef MLA_TEXT_ADDED_H
#define MLA_TEXT_ADDED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define MLA_ADDED_MAX 4096 /* bytes of one token's text, so that a search stays linear in the text */

typedef struct {
    char *content; /* as given; owned, NUL-terminated */
    size_t n;
    char *form;    /* what is searched for, and what decoding gives: content, or its NFC; owned with content */
    size_t form_n;
    int32_t id;
    bool single_word; /* only between non-word characters */
    bool lstrip, rstrip; /* takes the white space before / after it along */
    bool normalized;  /* searched in normalised text, after the others */
    bool special;
} mla_added_token;

/* A byte trie whose values are indices of tokens. */
typedef struct {
    struct mla_trie_node *node; /* node[0] is the root */
    size_t n, cap;
} mla_trie;

typedef struct {
    mla_added_token *tok;
    size_t n, cap;
    mla_trie raw, normalized;
} mla_added;

void mla_added_free(mla_added *a);

/* Copies *t with its text t->content[0..n). nfc: the tokenizer normalises, so `normalized` texts are searched in NFC.
 * Refused: empty, longer than MLA_ADDED_MAX, or equal to an earlier one. */
MLA_CHECKED mla_status mla_added_push(mla_added *a, const mla_added_token *t, bool nfc, mla_err *err);

/* Called for each stretch in order: tok != NULL with its text (stripped space included), or text between tokens. */
typedef mla_status (*mla_added_fn)(void *ctx, const mla_added_token *tok, const char *s, size_t n, mla_err *err);

/* Leftmost-longest search through valid UTF-8; `normalized` picks which tokens. Empty stretches are left out. */
MLA_CHECKED mla_status mla_added_split(const mla_added *a, bool normalized, const char *s, size_t n, mla_added_fn fn,
                                       void *ctx, mla_err *err);
#endif
