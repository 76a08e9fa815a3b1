/* Answers of a server, parsed by every dialect that mla-verify probe speaks: a position is refused, or its numbers are
 * log-probabilities and its ids are ids. */
#include <math.h>

#include "fuzz.h"
#include "verify/probe_parts.h"

#define POSITIONS 3

static void check(mla_status st, const mla_probe_pos *p, size_t n, const mla_err *err)
{
    if (st != MLA_OK) {
        fuzz_refused(st, err);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (p[i].top1 < -1 || !isfinite(p[i].top1_logprob) || p[i].margin < 0 || isinf(p[i].target_logprob))
            fuzz_broken("an accepted position that is none");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const int32_t IDS[2 + POSITIONS] = {1, 2, 3, 4, 5};
    mla_probe_pos p[POSITIONS] = {0};
    int32_t answer[POSITIONS] = {3, 4, 5};
    size_t got = 0;
    mla_err err;
    char words[200];
    mla_json *d = fuzz_json(data, n);
    if (!d) return 0;
    const mla_jv *a = mla_json_root(d);
    check(mla_probe_read_vllm(p, a, IDS, 2, POSITIONS, &err), p, POSITIONS, &err);
    check(mla_probe_read_echo(p, a, IDS, 2, POSITIONS, NULL, &err), p, POSITIONS, &err);
    check(mla_probe_read_step(p, a, 3, NULL, &err), p, 1, &err);
    mla_status st = mla_probe_read_ids(answer, POSITIONS, &got, a, NULL, &err);
    if (st != MLA_OK) fuzz_refused(st, &err);
    else if (got > POSITIONS) fuzz_broken("more ids than there is room for");
    (void)mla_probe_complaint(a, words, sizeof words);
    mla_json_free(d);
    return 0;
}
