/* Byte-level BPE tokenizers: tokenizer.json (Qwen2/3/3.5, SmolLM2, Llama-3 kinds) and GGUF vocabularies.
 * Ids match the Hugging Face `tokenizers` library; a construct that is not known is refused by name. */
#ifndef MLA_TEXT_TOKENIZER_H
#define MLA_TEXT_TOKENIZER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "io/gguf.h"

typedef struct mla_tok mla_tok; /* immutable after open; safe to share between threads */

MLA_CHECKED mla_status mla_tok_open_json(mla_tok **out, const char *path, mla_err *err); /* tokenizer.json */
MLA_CHECKED mla_status mla_tok_open_gguf(mla_tok **out, const mla_gguf *g, mla_err *err);
void mla_tok_free(mla_tok *t); /* NULL is fine */

typedef struct {
    int32_t *id; /* mla_free */
    size_t n, cap;
} mla_ids;
void mla_ids_free(mla_ids *ids);
MLA_CHECKED mla_status mla_ids_push(mla_ids *ids, int32_t id, mla_err *err);

/* Appends the ids of text[0..n). special: texts of special tokens become those tokens, and the post-processor's
 * BOS/EOS are added (false: neither added, as `add_special_tokens=False`; added tokens are matched in both cases,
 * as the library does). Invalid UTF-8 is replaced by U+FFFD first, one per maximal invalid sequence, as Python's
 * errors="replace" does. */
MLA_CHECKED mla_status mla_tok_encode(const mla_tok *t, mla_ids *out, const char *text, size_t n, bool special, mla_err *err);
/* Appends text; invalid UTF-8 becomes U+FFFD. skip_special leaves special tokens out. Unknown ids are refused. */
MLA_CHECKED mla_status mla_tok_decode(const mla_tok *t, mla_str *out, const int32_t *ids, size_t n, bool skip_special, mla_err *err);

size_t mla_tok_vocab_size(const mla_tok *t);                       /* largest id + 1 */
bool mla_tok_id(const mla_tok *t, const char *token, int32_t *id); /* exact vocabulary or added-token text */
int32_t mla_tok_eos(const mla_tok *t);                             /* -1 when not known */
void mla_tok_sha256(const mla_tok *t, unsigned char digest[32]);   /* of the source: file bytes, or GGUF vocabulary */
#endif
