/* mla-calibrate corpus: describes, tokenizes and digests a corpus. */
#include <string.h>

#include "base/alloc.h"
#include "calibrate.h"
#include "io/sha256.h"
#include "model/model.h"
#include "text/corpus.h"

/* Tokens of the longest document. */
static size_t longest(const mla_corpus *t)
{
    size_t most = 0, at = 0;
    for (size_t i = 0; i < t->docs; at = t->doc_end[i++]) most = t->doc_end[i] - at > most ? t->doc_end[i] - at : most;
    return most;
}

static void text(const void *what, mla_str *out)
{
    const mla_corpus *t = what;
    char hex[65], tok[65];
    mla_hex(t->sha256, 32, hex);
    mla_hex(t->tokenizer_sha256, 32, tok);
    mla_str_printf(out, "documents   %zu, the longest of %zu tokens\ntokens      %zu from %zu bytes\nsha256      %s (ids)\ntokenizer   %s\n", t->docs, longest(t),
                   t->ids.n, t->bytes, hex, tok);
}

static void json(const void *what, mla_jv *o)
{
    const mla_corpus *t = what;
    char hex[65], tok[65];
    mla_hex(t->sha256, 32, hex);
    mla_hex(t->tokenizer_sha256, 32, tok);
    mla_jv_set_str(o, "schema", "mla-corpus/1");
    mla_jv_set_size(o, "documents", t->docs);
    mla_jv_set_size(o, "tokens", t->ids.n);
    mla_jv_set_size(o, "longest", longest(t));
    mla_jv_set_size(o, "bytes", t->bytes);
    mla_jv_set_str(o, "ids_sha256", hex);
    mla_jv_set_str(o, "tokenizer_sha256", tok);
}

mla_status cmd_calibrate_corpus(cli *c, int argc, char **argv, mla_err *err)
{
    const char *out = NULL;
    const cli_option opt[] = {{"out", 'o', CLI_STR, &out, "FILE.mlatok", "write the token ids (docs/format-tokens.md)", NULL, NULL}};
    const cli_spec spec = {.args = "MODEL CORPUS...",
                           .about = "Tokenizes text, jsonl or token files with the tokenizer of MODEL and prints documents, tokens and the digest that "
                                    "receipts and statistics record.",
                           .opt = opt, .nopt = 1, .min_args = 2, .max_args = 1024, .common = CLI_JSON};
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    mla_model *m = NULL;
    mla_tok *tok = NULL;
    mla_corpus t = {0};
    mla_status st = mla_model_open(&m, c->arg[0], err);
    if (st == MLA_OK) st = mla_model_tokenizer(m, &tok, err);
    for (size_t i = 1; st == MLA_OK && i < c->nargs; i++) st = mla_corpus_add(&t, c->arg[i], tok, mla_model_config(m)->vocab, err);
    if (st == MLA_OK) {
        mla_corpus_finish(&t);
        if (out) st = mla_corpus_write(&t, out, err);
    }
    if (st == MLA_OK) st = cli_answer(c, text, json, &t, err);
    mla_corpus_free(&t);
    mla_tok_free(tok);
    mla_model_close(m);
    return st;
}
