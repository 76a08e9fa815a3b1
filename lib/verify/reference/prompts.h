/* What `mla-verify record` asks a model: prompts to answer greedily, and given continuations to score.
 *
 *   .jsonl  one object a line: {"prompt" or "text": text | "prompt_ids": [...], "completion": text |
 *           "completion_ids": [...], "name": text, "language": text}; with a completion the case is forced
 *   .json   an mla-reference/1 or probe file: its prompts and forced continuations again
 *   other   one text, one prompt */
#ifndef MLA_VERIFY_PROMPTS_H
#define MLA_VERIFY_PROMPTS_H
#include <stddef.h>

#include "base/err.h"
#include "text/tokenizer.h"
#include "verify/reference/embeddings.h"

typedef struct {
    char *name, *language; /* language may be NULL */
    mla_ids prompt;        /* at least one id, or none with an image */
    mla_embedded image;    /* the prompt as embeddings; zeroed: none */
    mla_ids completion;    /* empty: to be answered greedily */
} mla_prompt;

typedef struct {
    mla_prompt *p;
    size_t n;
} mla_prompts;

/* Appends the file's cases. tok may be NULL when the file holds ids. split > 0 turns a "text" or text
 * file without a completion that is longer than `split` tokens into a forced case: its first `split` tokens are the prompt. Ids must be < vocab. */
typedef struct {
    const mla_tok *tok;
    const char *no_tokenizer; /* why tok is NULL, for the refusal of text; borrowed, NULL: not known */
    size_t vocab, split;
    size_t forced_max; /* tokens of a forced continuation kept; 0: all */
} mla_prompts_opts;
MLA_CHECKED mla_status mla_prompts_add(mla_prompts *out, const char *path, const mla_prompts_opts *o, mla_err *err);
/* Every prompt of a file of embeddings, to be answered greedily. */
MLA_CHECKED mla_status mla_prompts_add_embeddings(mla_prompts *out, const char *path, mla_err *err);
void mla_prompts_free(mla_prompts *p); /* zeroed struct is fine */
#endif
