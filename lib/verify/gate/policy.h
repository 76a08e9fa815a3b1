/* Release policies: which rules a model has to meet, with their thresholds, as one strict JSON file (docs/gate.md).
 *
 * A section that stands in the file is judged, one that does not is not. Unknown sections and fields are refused by
 * name, so a misspelt threshold can never be one that is not applied. */
#ifndef MLA_VERIFY_POLICY_H
#define MLA_VERIFY_POLICY_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "io/json.h"

#define MLA_POLICY_SCHEMA "mla-policy/1"
#define MLA_POLICY_LIST 16 /* entries of a list of a policy at most */

typedef struct { /* a stratum of the parity report and what it must reach */
    char by[16];          /* "context", "language" or "kind" */
    char is[64];          /* value; "" means every one that occurs */
    double from;          /* context: first length of the stratum; NAN: every one */
    double min_agreement; /* lower Wilson bound at confident positions */
    size_t min_positions; /* fewer confident positions than this: told, not judged */
} mla_policy_stratum;

/* Numbers that were not given are NAN: the rule is not in the policy. Switches default to off. */
typedef struct {
    char name[64], sha256[65]; /* of the policy's text */
    bool receipts, scales, selfcheck, parity, paths, mtp, capacity, layers; /* sections that stand there */

    char kv_dtype[16], precision[16], against_kv_dtype[16]; /* run */

    bool values;          /* receipts: decode every weight */
    bool base;            /* receipts: --against is the base that the receipt names */
    bool base_unchanged;  /* receipts: every weight file of --against is in the model, byte for byte */
    char consumer[MLA_POLICY_LIST][16]; /* receipts: engines whose loading of KV scales is replayed (consumers.h) */
    size_t n_consumer;
    bool tokenizer;       /* receipts: the references were recorded with the model's own tokenizer */

    bool scales_required; /* scales: every cached layer has a stored scale */

    bool far;             /* selfcheck: pools beyond slot 2^31 / row */
    size_t slots, ranks;  /* selfcheck: a pool of so many; tensor-parallel size */

    double min_agreement, min_agreement_all, min_exact_decodes; /* parity */
    double max_kld, max_kld_p99, max_ppl_ratio;
    double near_tie, min_margin;
    size_t aa_positions, resamples, seed, chunk, rows, row_tokens, answer_tokens;
    size_t context[MLA_POLICY_LIST], n_context; /* greedy answers after prompts of these lengths, against --against */
    mla_policy_stratum stratum[MLA_POLICY_LIST];
    size_t n_stratum;

    char check[MLA_POLICY_LIST][16]; /* paths */
    size_t n_check, path_cases, path_tokens;
    double max_first_logprob, max_change, max_fp8_kld;

    size_t drafts;        /* mtp */
    double max_acceptance_loss;
    size_t mtp_cases, mtp_tokens;

    double max_layer_error;      /* layers: relative error of a mixer's output on the base's inputs */
    double max_constant_share;   /* layers: part of the error's energy that is the same for every token */
    double max_projection_error; /* layers: the same of queries, keys and values, which no rank changes */

    double max_kv_bytes, max_kv_ratio; /* capacity */
    double gpu_memory, min_sequences;
    size_t context_tokens;
    bool int32_slots;     /* refuse a pool that kernels with 32-bit offsets cannot address */
} mla_policy;

/* MLA_EFORMAT names section and field: unknown, missing, of another kind, out of range. */
MLA_CHECKED mla_status mla_policy_read(mla_policy *out, const char *path, mla_err *err);
MLA_CHECKED mla_status mla_policy_from_json(mla_policy *out, const mla_jv *root, mla_err *err);
#endif
