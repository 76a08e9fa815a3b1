/* What the subcommands of mla-calibrate share. */
#include "base/alloc.h"
#include "calibrate.h"

mla_status calibrate_text(mla_corpus *out, const mla_model *m, const cli_list *files, const char *fallback, mla_err *err)
{
    mla_tok *tok = NULL;
    char *file = NULL;
    mla_err why;
    mla_status st = mla_model_tokenizer_if_any(m, &tok, &why, err); /* ids need none; text is then refused by name */
    if (st == MLA_OK && !files->n) st = cli_data_file(&file, fallback, err);
    const char *one[1] = {file};
    out->no_tokenizer = why.msg;
    const char *const *v = files->n ? files->v : one;
    for (size_t i = 0; st == MLA_OK && i < (files->n ? files->n : 1); i++) st = mla_corpus_add(out, v[i], tok, mla_model_config(m)->vocab, err);
    if (st == MLA_OK) mla_corpus_finish(out);
    out->no_tokenizer = NULL;
    mla_tok_free(tok);
    mla_free(file);
    return st;
}
