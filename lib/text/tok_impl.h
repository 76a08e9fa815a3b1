/* Inside of an mla_tok, and how the two readers (tokenizer.json, GGUF) fill one. Private to text/. */
#ifndef MLA_TEXT_TOK_IMPL_H
#define MLA_TEXT_TOK_IMPL_H
#include "base/map.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tokenizer.h"

#define MLA_TOK_MAX_IDS ((size_t)1 << 22) /* ids are below: a table of all ids stays small whatever a file says */

typedef struct {
    const char *s; /* borrowed from the vocabulary or the added tokens; NULL: no such id */
    size_t n;
    bool special;
} mla_tok_entry;

struct mla_tok {
    mla_map *vocab;         /* the model's own tokens, as written (byte alphabet) -> id */
    size_t longest;         /* bytes of the longest of them */
    mla_tok_entry *entry;   /* by id */
    size_t n, cap;          /* n: largest id + 1 */
    mla_added added;
    int32_t byte_id[256];   /* id of each single-byte token, or -1 */
    int32_t unk;            /* stands for bytes without a token; -1: they vanish */
    bool fuse_unk;
    mla_bpe bpe;
    bool ignore_merges;     /* a whole word that is a token needs no merges */
    bool nfc;
    mla_split *split;
    mla_ids prefix, suffix; /* what `special` adds around the text */
    int32_t eos;
    unsigned char sha256[32];
};

/* An empty tokenizer: no vocabulary, no steps, unk and eos -1. */
MLA_CHECKED mla_status mla_tok_new(mla_tok **out, mla_err *err);
/* A token of the model. Refused: an id at or above MLA_TOK_MAX_IDS, a text or an id seen before. */
MLA_CHECKED mla_status mla_tok_add_vocab(mla_tok *t, const char *s, size_t n, size_t id, mla_err *err);
/* After the last token: looks up the single bytes and makes room for merges. */
MLA_CHECKED mla_status mla_tok_end_vocab(mla_tok *t, size_t merges, mla_err *err);
/* A merge in rank order: both halves and their concatenation must be tokens. */
MLA_CHECKED mla_status mla_tok_add_merge(mla_tok *t, const char *a, size_t an, const char *b, size_t bn, size_t rank, mla_err *err);
/* The same from its "a b" spelling. */
MLA_CHECKED mla_status mla_tok_add_merge_line(mla_tok *t, const char *line, size_t n, size_t rank, mla_err *err);
/* An added token, its text either a token of the model (then of the same id) or new (then of a free id). */
MLA_CHECKED mla_status mla_tok_add_added(mla_tok *t, const mla_added_token *a, mla_err *err);
#endif
