/* tokenizer.json: an accepted one encodes any text to ids of its vocabulary, and decodes them. */
#include "text/tokenizer.h"

#include <string.h>

#include "fuzz.h"

static void try_text(const mla_tok *t, const char *text, size_t n)
{
    mla_err err;
    mla_ids ids = {0};
    mla_str back = MLA_STR_MAX(64 * FUZZ_MAX);
    mla_status st = mla_tok_encode(t, &ids, text, n, true, &err);
    if (st != MLA_OK) fuzz_refused(st, &err);
    for (size_t i = 0; i < ids.n; i++)
        if (ids.id[i] < 0 || (size_t)ids.id[i] >= mla_tok_vocab_size(t)) fuzz_broken("an id outside the vocabulary");
    if (st == MLA_OK && (st = mla_tok_decode(t, &back, ids.id, ids.n, false, &err)) != MLA_OK) fuzz_refused(st, &err);
    mla_ids_free(&ids);
    mla_str_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char TEXT[] = "Hello  wor\xc3\xa9ld 123\n\n  it's <s> \xe4\xb8\xad\xe6\x96\x87 e\xcc\x81 \xff\xf0\x9f\x98\x80";
    mla_err err;
    mla_tok *t;
    mla_status st = mla_tok_open_json(&t, fuzz_file(data, n), &err);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        return 0;
    }
    try_text(t, TEXT, sizeof TEXT - 1);
    try_text(t, (const char *)data, n < 256 ? n : 256);
    mla_tok_free(t);
    return 0;
}
