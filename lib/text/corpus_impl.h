/* What corpus.c and the token-file code share. Private to text/. */
#ifndef MLA_TEXT_CORPUS_IMPL_H
#define MLA_TEXT_CORPUS_IMPL_H
#include "text/corpus.h"

/* Appends an id after the check against vocab. */
MLA_CHECKED mla_status mla_corpus_push(mla_corpus *c, int64_t id, size_t vocab, mla_err *err);
/* Ends a document at the ids so far. */
MLA_CHECKED mla_status mla_corpus_end_doc(mla_corpus *c, mla_err *err);
/* Reads a .mlatok file's bytes onto the end of c. */
MLA_CHECKED mla_status mla_corpus_read_tok(mla_corpus *c, const unsigned char *data, size_t n, size_t vocab, mla_err *err);
#endif
