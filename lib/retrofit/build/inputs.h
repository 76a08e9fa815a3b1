/* Everything a build reads, opened and digested: the base, its tokenizer, the calibration and held-out tokens. */
#ifndef MLA_RETROFIT_INPUTS_H
#define MLA_RETROFIT_INPUTS_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "io/receipt.h"
#include "model/model.h"
#include "retrofit/build/recipe.h"
#include "text/corpus.h"

typedef struct {
    const char *base;              /* folder or .gguf */
    const char *const *corpus;     /* n_corpus files */
    size_t n_corpus;
    const char *held_out;          /* file, or NULL: every 8th row of the corpus is held out */
    bool force;                    /* accept fewer tokens than 10 n */
    mla_pool *pool;
    mla_log *log;
} mla_input_opts;

typedef struct {
    mla_model *model;
    mla_tok *tok;                  /* NULL when the corpora are token ids and the base has no tokenizer */
    mla_manifest base_files;
    unsigned char base_digest[32];
    int32_t *fit, *held;           /* calibration and held-out ids, whole rows (a rest at the end of fit) */
    size_t n_fit, n_held;
    unsigned char fit_digest[32], held_digest[32];
    const char *held_from;         /* "file" or "every 8th row" */
} mla_inputs;

/* Opens the base: model and manifest. The recipe is resolved against the model here. */
MLA_CHECKED mla_status mla_inputs_open_base(mla_inputs *in, mla_recipe *recipe, const mla_input_opts *o, mla_err *err);
/* Adds the tokenizer and the corpora; refuses fewer than 10 tokens per feature without force. */
MLA_CHECKED mla_status mla_inputs_read_text(mla_inputs *in, const mla_recipe *recipe, const mla_input_opts *o, mla_err *err);
void mla_inputs_close(mla_inputs *in); /* zeroed struct is fine */
#endif
