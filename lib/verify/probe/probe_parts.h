/* Private to the probe: what an answer says, dialect by dialect. */
#ifndef MLA_VERIFY_PROBE_PARTS_H
#define MLA_VERIFY_PROBE_PARTS_H
#include "io/json.h"
#include "verify/probe/probe.h"

typedef struct { /* one predicted position as a server tells it */
    int32_t top1;        /* -1: told as a text that is no id */
    bool top1_is_target; /* the text's own next token is its argmax */
    double top1_logprob;
    double margin;       /* first minus second; NaN when the second was not told */
    double target_logprob; /* of the text's own next token; NaN when not told */
} mla_probe_pos;

/* The n positions behind the first `from` ids of ids (from + n): position i predicts ids[from + i]. MLA_EFORMAT: not an
 * answer of this kind, too few positions, another token than was sent, numbers that are no log-probabilities. */
MLA_CHECKED mla_status mla_probe_read_vllm(mla_probe_pos *out, const mla_jv *answer, const int32_t *ids, size_t from, size_t n, mla_err *err);
MLA_CHECKED mla_status mla_probe_read_echo(mla_probe_pos *out, const mla_jv *answer, const int32_t *ids, size_t from, size_t n, const mla_tok *tok,
                                           mla_err *err);
/* The one generated position; target: the text's own next token. */
MLA_CHECKED mla_status mla_probe_read_step(mla_probe_pos *out, const mla_jv *answer, int32_t target, const mla_tok *tok, mla_err *err);
/* The ids of a free answer, at most cap; -1 for a token told as a text that is not the one expected. out (cap) holds the
 * expected ids on entry. */
MLA_CHECKED mla_status mla_probe_read_ids(int32_t *out, size_t cap, size_t *n, const mla_jv *answer, const mla_tok *tok, mla_err *err);
/* choices[0]; NULL when there is none. */
const mla_jv *mla_probe_choice(const mla_jv *answer);
/* The server's own words on an error, quoted and cut, for a message. */
const char *mla_probe_complaint(const mla_jv *answer, char *buf, size_t cap);
#endif
