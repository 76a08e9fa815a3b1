/* Corpora: documents as text, jsonl ({"text": ...} a line) or token ids, encoded in file order and concatenated.
 * docs/format-tokens.md describes the token file. */
#ifndef MLA_TEXT_CORPUS_H
#define MLA_TEXT_CORPUS_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "text/tokenizer.h"

typedef struct { /* zero-initialise */
    mla_ids ids;              /* all documents, concatenated */
    size_t *doc_end;          /* exclusive end of document i; mla_free */
    size_t docs;
    unsigned char sha256[32]; /* over the ids as little-endian i32, in order */
    size_t bytes;             /* of text read */
    unsigned char tokenizer_sha256[32]; /* of the last tokenizer used, or recorded in a token file; zeros: none */
    const char *no_tokenizer; /* set by whoever adds files without a tokenizer: why there is none, for the refusal of text; borrowed */
} mla_corpus;

/* Adds a file: .jsonl, .json (array of ids or {"ids": [...]}), .mlatok (ours), anything else is one text document.
 * tok may be NULL when the file holds ids; text is then MLA_EUNSUPPORTED with no_tokenizer's reason, MLA_EINVAL without one. Ids must be < vocab. Invalid lines are refused with their number.
 * Documents are encoded with special-token texts as the tokens they name and nothing added at their ends
 * (mla_tok_encode with special == false). On failure c is as it was. */
MLA_CHECKED mla_status mla_corpus_add(mla_corpus *c, const char *path, const mla_tok *tok, size_t vocab, mla_err *err);
void mla_corpus_finish(mla_corpus *c); /* computes sha256 */
void mla_corpus_free(mla_corpus *c);
/* .mlatok; the digest in it is computed from the ids. Deterministic bytes. */
MLA_CHECKED mla_status mla_corpus_write(const mla_corpus *c, const char *path, mla_err *err);
#endif
