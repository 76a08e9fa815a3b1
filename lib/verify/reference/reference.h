/* Recorded answers: the mla-reference/1 file (docs/format-reference.md), and the older probe.json of factor-file
 * releases. Token ids suffice: a model folder without a tokenizer can be judged.
 *
 * Position i of a case's lists predicts completion[i] after prompt + completion[:i]. */
#ifndef MLA_VERIFY_REFERENCE_H
#define MLA_VERIFY_REFERENCE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/json.h"
#include "verify/reference/embeddings.h"

#define MLA_REFERENCE_FORMAT "mla-reference/1"
#define MLA_REFERENCE_MAX ((size_t)256 << 20) /* bytes of a reference file at most */

typedef struct {
    char *name;
    char *language;          /* optional key "language", or the part after '@' in the name; NULL: not told */
    bool forced;             /* text given from outside; false: the recorded model's own greedy answer */
    int32_t *prompt;         /* (n_prompt), n_prompt >= 1; NULL when the prompt is embeddings */
    mla_embedded image;      /* n == n_prompt then, else zeroed */
    size_t n_prompt;
    int32_t *completion;     /* (n), n >= 1 */
    int32_t *top1;           /* (n) the recorded model's argmax */
    size_t n;
    double *top1_logprob, *margin, *target_logprob; /* (n) nats; NULL in a probe file: not recorded */
    bool *confident;         /* (n) margin >= min_margin; in a probe file its confident_steps */
    bool *judged;            /* (n) positions whose argmax is compared: all, in a probe file its confident_steps */
    size_t decode_steps;     /* tokens to decode freely from the prompt; 0: the case is only forced */
    bool probe;              /* of a probe file */
    size_t decode_must_match;/* probe file: first divergence must not come before this step */
} mla_ref_case;

typedef struct {
    char *model, *engine, *dtype;            /* as recorded; NULL when absent */
    char *weights_sha256, *tokenizer_sha256; /* hex or NULL */
    double min_margin;                       /* nats */
    bool probe;                              /* read from a probe.json */
    mla_ref_case *c;
    size_t n;
} mla_reference;

/* A case with "embeddings" reads them from a file beside the reference, whose digest it records; from_json, which knows no
 * folder, refuses it.
 * Refuses, naming case and key: another format, missing keys, wrong kinds, lists of unequal length, ids outside
 * 0..2^31-1, logprobs above 0 or not finite, negative margins, case names that repeat, a greedy case whose completion
 * is not its top1. Unknown keys are allowed. */
MLA_CHECKED mla_status mla_reference_read(mla_reference *out, const char *path, mla_err *err);
MLA_CHECKED mla_status mla_reference_from_json(mla_reference *out, const mla_jv *root, mla_err *err);
void mla_reference_free(mla_reference *r); /* zeroed struct is fine */

/* Every id of every case must be below vocab; MLA_EFORMAT names the case. */
MLA_CHECKED mla_status mla_reference_check_vocab(const mla_reference *r, size_t vocab, mla_err *err);
size_t mla_reference_positions(const mla_reference *r); /* judged positions */
size_t mla_reference_longest(const mla_reference *r);   /* tokens of the longest case, prompt and completion */

/* Moves the cases of `from` behind those of `to` (zeroed, or filled by this function alone), so that they are judged as one sample; names get
 * "prefix/" in front when prefix is not NULL. `from` is left empty. A name that occurs twice is MLA_EFORMAT. */
MLA_CHECKED mla_status mla_reference_append(mla_reference *to, mla_reference *from, const char *prefix, mla_err *err);

/* Room for a case of n positions: all lists allocated and zeroed, name copied. For recorders. prompt NULL: the caller fills
 * image. */
MLA_CHECKED mla_status mla_ref_case_new(mla_ref_case *out, const char *name, const int32_t *prompt, size_t n_prompt, size_t n,
                                        mla_err *err);
void mla_ref_case_free(mla_ref_case *c);
/* Writes mla-reference/1; numbers with 5 decimals. Same reference, same bytes. */
MLA_CHECKED mla_status mla_reference_write(const mla_reference *r, const char *path, mla_err *err);
#endif
