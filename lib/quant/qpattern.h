/* Name patterns of quantization configs: exact names, runs of name parts, substrings, globs and Python regular expressions.
 * Inside the quant layer, and for its tests. */
#ifndef MLA_QUANT_QPATTERN_H
#define MLA_QUANT_QPATTERN_H
#include <regex.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

typedef enum {
    MLA_QP_EXACT,  /* the whole name */
    MLA_QP_PART,   /* a run of whole dot-separated parts: "mlp.gate" names "layers.0.mlp.gate", not "layers.0.mlp.gate_proj" */
    MLA_QP_SUBSTR, /* anywhere in the name */
    MLA_QP_GLOB,   /* shell pattern over the whole name; * crosses dots */
    MLA_QP_RE      /* Python re.match: anchored at the start, open at the end */
} mla_qpattern_kind;

typedef struct {
    mla_qpattern_kind kind;
    char *text; /* as written, without any "re:" */
    regex_t *re; /* with MLA_QP_RE; on the heap, because POSIX lets no regex_t be moved */
} mla_qpattern;

/* EUNSUPPORTED, naming pattern and construct, for a regular expression outside the subset that means the same in POSIX
 * extended syntax: literals, . ^ $ | ( ) (?: ) * + ? {m,n} and their lazy forms, [...] with ranges, \d \w \s \D \W \S and
 * escaped punctuation. Refused: look-around, back-references, named groups, flags, \b, non-ASCII, more than 400 bytes,
 * repetition counts whose product exceeds 1000. */
MLA_CHECKED mla_status mla_qpattern_make(mla_qpattern *out, mla_qpattern_kind kind, const char *text, mla_err *err);
void mla_qpattern_drop(mla_qpattern *p);
bool mla_qpattern_matches(const mla_qpattern *p, const char *name);

/* The POSIX form of a Python pattern: "^(...)". Empty or broken patterns are EFORMAT. */
MLA_CHECKED mla_status mla_qregex_translate(mla_str *out, const char *python, mla_err *err);
#endif
