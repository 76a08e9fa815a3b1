/* A model's tokenizer: tokenizer.json beside the weights, or the vocabulary inside the GGUF file. */
#include "base/alloc.h"
#include "io/file.h"
#include "model/model_impl.h"

mla_status mla_model_tokenizer(const mla_model *m, mla_tok **out, mla_err *err)
{
    *out = NULL;
    if (m->gguf) {
        if (!mla_gguf_kv_find(m->gguf, "tokenizer.ggml.tokens")) return mla_fail(err, MLA_EUNSUPPORTED, "%s: no vocabulary in the file", m->path);
        return mla_tok_open_gguf(out, m->gguf, err);
    }
    char *path = mla_path_join(m->path, "tokenizer.json");
    if (!path) return mla_fail(err, MLA_ENOMEM, "path");
    mla_status st = mla_path_exists(path) ? mla_tok_open_json(out, path, err) : mla_fail(err, MLA_EUNSUPPORTED, "%s: no tokenizer.json", m->path);
    mla_free(path);
    return st;
}

mla_status mla_model_tokenizer_if_any(const mla_model *m, mla_tok **out, mla_err *why, mla_err *err)
{
    mla_err own = {0};
    mla_status st = mla_model_tokenizer(m, out, &own);
    if (why) *why = own;
    if (st == MLA_OK) return st;
    *out = NULL;
    if (st == MLA_EUNSUPPORTED) return MLA_OK;
    *err = own;
    return st;
}
