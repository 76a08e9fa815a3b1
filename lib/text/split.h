/* Pre-tokenization: a chain of splitting steps; each cuts every piece of the step before. */
#ifndef MLA_TEXT_SPLIT_H
#define MLA_TEXT_SPLIT_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* The patterns of the known kinds (facts of the models' tokenizer.json files). */
#define MLA_PAT_CASE "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define MLA_PAT_TAIL "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define MLA_PAT_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define MLA_PAT_QWEN2 MLA_PAT_CASE "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" MLA_PAT_TAIL
#define MLA_PAT_QWEN35                                                                                             \
    MLA_PAT_CASE "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" MLA_PAT_TAIL
#define MLA_PAT_LLAMA3 MLA_PAT_CASE "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" MLA_PAT_TAIL

#define MLA_SPLIT_STEPS 8

typedef struct mla_split mla_split; /* immutable once built; shared by threads */
MLA_CHECKED mla_status mla_split_new(mla_split **out, mla_err *err);
void mla_split_free(mla_split *s); /* NULL is fine */
/* A step that makes every match of the pattern, and every gap between matches, a piece of its own. The pattern comes
 * from a file: mla_pattern_check and PCRE2's own limits guard it. */
MLA_CHECKED mla_status mla_split_add_regex(mla_split *s, const char *pattern, size_t n, mla_err *err);
/* A step that cuts out numeric characters: each alone, or whole runs. */
MLA_CHECKED mla_status mla_split_add_digits(mla_split *s, bool individual, mla_err *err);

/* Scratch of one encoding thread. */
typedef struct mla_split_work mla_split_work;
MLA_CHECKED mla_status mla_split_work_new(mla_split_work **out, mla_err *err);
void mla_split_work_free(mla_split_work *w); /* NULL is fine */

/* Calls fn for every final piece of text[0..n) (valid UTF-8), in order; pieces are never empty. */
typedef mla_status (*mla_piece_fn)(void *ctx, const char *piece, size_t n, mla_err *err);
MLA_CHECKED mla_status mla_split_run(const mla_split *s, mla_split_work *w, const char *text, size_t n, mla_piece_fn fn,
                                     void *ctx, mla_err *err);
#endif
