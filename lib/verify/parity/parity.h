/* Parity: does a model still answer like the original?
 *
 * Two oracles, together or alone: recorded token ids (a reference file), and a base model run beside it. Every case is
 * forced through the model in chunks and its argmax compared position by position; greedy cases are also decoded
 * freely, one token at a time, until they part. With a base, KL divergence and perplexity are measured, too: over the
 * rows of a corpus when there is one, else over the reference's own positions.
 *
 * Agreement is counted at all positions and at confident ones (margin of the oracle >= min_margin nats); only the
 * confident ones are gated, by the lower end of Wilson's interval. docs/reports.md explains every figure.
 *
 * Judging does not know where answers come from: whoever fills positions and cases (verify/parity/parity_run.h with the built-in
 * runtime) gets the same report. */
#ifndef MLA_VERIFY_PARITY_H
#define MLA_VERIFY_PARITY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "io/json.h"
#include "verify/parity/stats.h"

#define MLA_PARITY_SCHEMA "mla-parity/1"

typedef struct {
    size_t chunk;          /* prefill chunk; 0: as large as 128 MiB of logits allow, 16..512 */
    size_t aa_positions;   /* forced positions repeated with another chunk (the A/A floor); 0: none */
    double min_agreement;  /* gate on the Wilson lower bound of confident positions, e.g. 0.995; 0: not gated */
    double max_kld;        /* gate on the mean KLD when a base is given; NaN: none */
    double min_margin;     /* nats, of base rows; a reference file carries its own */
    double near_tie;       /* nats: disagreements at or below are told apart (0.1) */
    bool free_decode;
    mla_bootstrap_opts bootstrap;
    mla_log *log;
} mla_parity_opts;
mla_parity_opts mla_parity_defaults(void);

typedef struct { /* one predicted position */
    uint32_t case_index;
    uint32_t step;        /* index into completion (reference) or token index in the row */
    size_t context;       /* tokens before the predicted one */
    int32_t expected, got;
    bool judged;          /* counts for agreement */
    bool confident;
    bool has_kld, has_nll;
    double margin, model_margin;      /* of the oracle (NaN: not recorded) and of the model, nats */
    double ref_logprob, model_logprob; /* of the text's own next token */
    double kld;
    int32_t base_top1;                 /* with has_kld */
} mla_parity_pos;

typedef struct {
    char *name, *language;
    const char *kind;        /* "greedy", "forced", "image", "probe", "row" */
    size_t first, n;         /* its positions in mla_parity.pos */
    size_t decode_steps;     /* 0: not decoded freely */
    size_t decoded;          /* steps that agreed before the first divergence */
    bool decode_diverged;
    int32_t decode_expected, decode_got; /* at the divergence */
    double decode_margin;                /* of the oracle there; NaN: not recorded */
    bool decode_path_differs;            /* the forced pass agreed there, beyond a near-tie: decode is not prefill */
    size_t must_match;                   /* probe file */
} mla_parity_case;

typedef struct {
    mla_parity_opts opts;    /* as used: chunk resolved */
    mla_parity_pos *pos;
    size_t n;
    mla_parity_case *c;
    size_t ncases;
    bool with_base, with_reference;
    size_t aa_positions, aa_agree;     /* the same model, other chunks */
    size_t aa_ties;                    /* of those that do not agree: near-ties in both passes (opts.near_tie) */
    size_t aa_chunk;                   /* of the second pass; 0: a server asked again */
    double aa_floor;                   /* largest change of a margin between the two passes, nats */
} mla_parity;

void mla_parity_free(mla_parity *p); /* zeroed struct is fine */

/* Adds the verdict, every figure and per_case to doc, which the caller began with schema, tool, model and settings.
 * *verdict is what doc.verdict says. */
MLA_CHECKED mla_status mla_parity_report(mla_jv *doc, const mla_parity *p, mla_verdict *verdict, mla_err *err);

/* Mean KLD by position, and confident disagreements, as a chart. */
MLA_CHECKED mla_status mla_parity_svg(mla_str *out, const mla_jv *doc, mla_err *err);
/* The document as lines for people. */
void mla_parity_text(mla_str *out, const mla_jv *doc);
#endif
