/* Counting positions for the parity report. Private to verify/parity/parity_*.c. */
#ifndef MLA_VERIFY_PARITY_PARTS_H
#define MLA_VERIFY_PARITY_PARTS_H
#include <stdbool.h>
#include <stddef.h>

#include "io/json.h"
#include "verify/parity/parity.h"

typedef struct {
    size_t n, agree;             /* judged positions */
    size_t conf_n, conf_agree;   /* confident ones among them */
    size_t near_ties;            /* disagreements that a near-tie explains */
    size_t kld_n, kld_top1;      /* positions with KLD; argmax equal to the base's */
    double kld_sum, kld_max;
    size_t nll_n;
    double ref_nll, model_nll;   /* sums of -log p of the text's own next token */
} mla_tally;

/* Margins at or below this may flip by arithmetic alone: near_tie or the A/A floor, whichever is larger. */
double mla_parity_tie(const mla_parity *p);
bool mla_parity_is_near_tie(const mla_parity *p, const mla_parity_pos *q);
void mla_tally_add(mla_tally *t, const mla_parity *p, const mla_parity_pos *q);
mla_tally mla_tally_case(const mla_parity *p, const mla_parity_case *c);
/* "positions", "agree", "agreement", "confident" {...}, and "kld_mean" where there is one. */
void mla_tally_put(mla_jv *o, const mla_tally *t);
/* "bootstrap_low" and "bootstrap_high" of agreement over n prompts' tallies, in o and in its "confident". */
mla_status mla_tally_put_bootstrap(mla_jv *o, const mla_tally *prompts, size_t n, const mla_bootstrap_opts *opts, mla_err *err);

/* doc.strata: by context length, by language where cases tell theirs, by kind of case. */
mla_status mla_parity_put_strata(mla_jv *doc, const mla_parity *p, mla_err *err);
/* doc.kld and doc.ppl. */
mla_status mla_parity_put_kld(mla_jv *doc, const mla_parity *p, mla_err *err);
mla_status mla_parity_put_ppl(mla_jv *doc, const mla_parity *p, mla_err *err);
#endif
