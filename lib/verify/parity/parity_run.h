/* Parity: answers of the built-in runtime. Fills the positions and cases that verify/parity/parity.h judges. */
#ifndef MLA_VERIFY_PARITY_RUN_H
#define MLA_VERIFY_PARITY_RUN_H
#include "runtime/runtime.h"
#include "verify/parity/parity.h"
#include "verify/reference/reference.h"

typedef struct { /* all borrowed */
    mla_rt *model, *base;        /* base NULL: no KLD */
    const mla_reference *ref;    /* NULL: the base is the oracle of the rows */
    const int32_t *corpus;       /* (n_corpus) ids cut into rows, each its own sequence from position 0; NULL: none */
    size_t n_corpus, row_tokens;
} mla_parity_input;

/* Runs everything. Refuses ids outside the vocabulary, vocabularies that differ, an input without any oracle. */
MLA_CHECKED mla_status mla_parity_run(mla_parity *out, const mla_parity_input *in, const mla_parity_opts *o, mla_err *err);
#endif
