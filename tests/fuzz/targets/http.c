/* Answers of a server, parsed by every dialect that mla-verify probe speaks: a position is refused, or its numbers are
 * log-probabilities and its ids are ids. Each once without a tokenizer and once with one, which reads tokens told as text. */
#include <math.h>

#include "fuzz.h"
#include "verify/probe/probe_parts.h"

#define POSITIONS 3

static const mla_tok *tokenizer(void) /* "h" 0, "e" 1, "he" 2, " " 3, "<s>" 4; opened once, in use to the end */
{
    static const char TEXT[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true,\"single_word\":false,\"lstrip\":false,"
        "\"rstrip\":false,\"normalized\":false}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":false,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
        "\"vocab\":{\"h\":0,\"e\":1,\"he\":2,\"\\u0120\":3},\"merges\":[\"h e\"]}}";
    static mla_tok *t;
    mla_err err;
    if (!t && mla_tok_open_json(&t, fuzz_file((const uint8_t *)TEXT, sizeof TEXT - 1), &err) != MLA_OK) fuzz_broken(err.msg);
    return t;
}

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

static void read_all(const mla_jv *a, const int32_t *ids, const mla_tok *tok)
{
    mla_probe_pos p[POSITIONS] = {0};
    int32_t answer[POSITIONS] = {ids[2], ids[3], ids[4]};
    size_t got = 0;
    mla_err err;
    check(mla_probe_read_vllm(p, a, ids, 2, POSITIONS, &err), p, POSITIONS, &err);
    check(mla_probe_read_echo(p, a, ids, 2, POSITIONS, tok, &err), p, POSITIONS, &err);
    check(mla_probe_read_step(p, a, ids[2], tok, &err), p, 1, &err);
    mla_status st = mla_probe_read_ids(answer, POSITIONS, &got, a, tok, &err);
    if (st != MLA_OK) fuzz_refused(st, &err);
    else if (got > POSITIONS) fuzz_broken("more ids than there is room for");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const int32_t IDS[2 + POSITIONS] = {4, 2, 3, 0, 1};
    char words[200];
    const mla_tok *tok = tokenizer();
    mla_json *d = fuzz_json(data, n);
    if (!d) return 0;
    read_all(mla_json_root(d), IDS, NULL);
    read_all(mla_json_root(d), IDS, tok);
    (void)mla_probe_complaint(mla_json_root(d), words, sizeof words);
    mla_json_free(d);
    return 0;
}
