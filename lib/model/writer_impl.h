/* What the files of the writer share. Private to the model layer. */
#ifndef MLA_MODEL_WRITER_IMPL_H
#define MLA_MODEL_WRITER_IMPL_H
#include "base/str.h"
#include "model/writer.h"

/* A JSON string literal of s[0..n), valid UTF-8, in quotes. For documents too long for a tree. */
void mla_jtext_str(mla_str *out, const char *s, size_t n);
/* Writes text into out/name; frees nothing. */
mla_status mla_writer_text(const char *out, const char *name, const mla_str *text, mla_err *err);
mla_status mla_writer_json(const char *out, const char *name, const mla_jv *v, mla_err *err);

mla_status mla_writer_gguf_weights(const mla_model *base, const char *out, const mla_writer_opts *opts, mla_err *err);  /* writer_gguf.c */
mla_status mla_writer_gguf_config(mla_json **doc, const mla_model *base, const mla_writer_opts *opts, mla_err *err);    /* writer_config.c */
mla_status mla_writer_gguf_tokenizer(const mla_model *base, const char *out, size_t *files, mla_err *err);              /* writer_tok.c */
/* writer_quant.c: the base's hf_quant_config.json as a quantization_config, where config.json had none; and the factors
 * of retrofit r named as plain modules in the way of the base's method. */
mla_status mla_writer_adopt_quant(mla_json *doc, const mla_model *base, mla_err *err);
mla_status mla_writer_extend_quant(mla_json *doc, const mla_model *base, const mla_retrofit_config *r, mla_err *err);
#endif
