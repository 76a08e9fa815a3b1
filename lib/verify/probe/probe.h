/* Probe: the forced and free decode of a reference against a running OpenAI-style server (/v1/completions), judged by the
 * same rules as the built-in runtime (parity.h). Prompts are token ids, so no template and no tokenizer stand between.
 *
 * Three dialects, found by asking:
 *   vllm   one request a case: prompt_logprobs of prompt + completion, tokens as ids
 *   echo   one request a case: echo with logprobs (the classic interface)
 *   step   one request a position: servers that give no log-probabilities of a prompt (llama.cpp's) */
#ifndef MLA_VERIFY_PROBE_H
#define MLA_VERIFY_PROBE_H
#include "base/err.h"
#include "text/tokenizer.h"
#include "verify/probe/http.h"
#include "verify/parity/parity.h"
#include "verify/reference/reference.h"

typedef enum { MLA_PROBE_AUTO, MLA_PROBE_VLLM, MLA_PROBE_ECHO, MLA_PROBE_STEP } mla_probe_dialect;
const char *mla_probe_dialect_name(mla_probe_dialect d); /* "auto", "vllm", "echo", "step" */
bool mla_probe_dialect_parse(const char *s, mla_probe_dialect *out);

typedef struct { /* all borrowed */
    mla_http *http;
    const char *model;         /* the name it is served under */
    const mla_reference *ref;
    const mla_tok *tok;        /* turns token texts into ids where the server gives no ids; NULL: such positions are compared by
                                * text with the completion's own token, and not judged where the oracle's differs from it */
    mla_probe_dialect dialect;
} mla_probe_input;

/* Asks everything and fills *out for mla_parity_report. *used: the dialect that was spoken. MLA_EIO, MLA_EFORMAT: no answer,
 * or one that cannot be judged (status and case named): never agreement. */
MLA_CHECKED mla_status mla_probe_run(mla_parity *out, mla_probe_dialect *used, const mla_probe_input *in, const mla_parity_opts *o, mla_err *err);

/* The first model that the server lists. Caller frees with mla_free. */
MLA_CHECKED mla_status mla_probe_first_model(char **out, mla_http *h, mla_err *err);
#endif
