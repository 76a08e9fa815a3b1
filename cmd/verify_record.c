/* mla-verify record: writes down what a model answers, for later comparison. */
#include <string.h>

#include "base/alloc.h"
#include "base/version.h"
#include "verify.h"
#include "verify/reference/record.h"
#include "verify_common.h"

typedef struct {
    const char *out;
    cli_list prompts, embeddings;
    size_t max_tokens, chunk, split, forced_max;
    double min_margin;
    verify_run run;
} args;

static mla_status label(mla_reference *r, const cli *c, const args *a, const mla_identity *id, mla_err *err)
{
    mla_str engine = MLA_STR_MAX(256);
    mla_str_printf(&engine, "%s %s, %s", MLA_TOOL, MLA_VERSION, a->run.precision);
    r->model = cli_base_name(c->arg[0]);
    r->engine = mla_strdup(mla_str_c(&engine));
    r->dtype = mla_strdup(!strcmp(a->run.precision, "fast") ? "bfloat16" : "float32");
    r->weights_sha256 = mla_strdup(id->weights_sha256);
    bool ok = mla_str_ok(&engine) && r->model && r->engine && r->dtype && r->weights_sha256;
    if (ok && id->tokenizer_sha256[0]) ok = (r->tokenizer_sha256 = mla_strdup(id->tokenizer_sha256)) != NULL;
    mla_str_free(&engine);
    return ok ? MLA_OK : mla_fail(err, MLA_ENOMEM, "reference header");
}

static mla_status read_prompts(mla_prompts *p, const args *a, const mla_model *m, mla_err *err)
{
    mla_tok *tok = NULL;
    mla_err why;
    mla_status st = mla_model_tokenizer_if_any(m, &tok, &why, err);
    if (st != MLA_OK) return st;
    mla_prompts_opts o = {.tok = tok, .no_tokenizer = tok ? NULL : why.msg, .vocab = mla_model_config(m)->vocab, .split = a->split, .forced_max = a->forced_max};
    for (size_t i = 0; i < a->prompts.n && st == MLA_OK; i++) st = mla_prompts_add(p, a->prompts.v[i], &o, err);
    mla_tok_free(tok);
    for (size_t i = 0; i < a->embeddings.n && st == MLA_OK; i++) st = mla_prompts_add_embeddings(p, a->embeddings.v[i], err);
    return st;
}

/* A reference finds its embeddings beside it. */
static mla_status same_folder(const char *file, const char *out, mla_err *err)
{
    const char *a = strrchr(file, '/'), *b = strrchr(out, '/');
    size_t n = a ? (size_t)(a - file) : 0, m = b ? (size_t)(b - out) : 0;
    if (n == m && !strncmp(file, out, n)) return MLA_OK;
    return mla_fail(err, MLA_EINVAL, "--embeddings: expected a file in the folder of --out, where a reader looks for it, found %s", file);
}

static mla_status record(cli *c, const args *a, mla_err *err)
{
    mla_backend *be = NULL;
    mla_pool *pool = NULL;
    verify_model m = {0};
    mla_prompts p = {0};
    mla_reference r = {0};
    mla_identity id;
    mla_status st = cli_backend_open(c, &be, err);
    if (st == MLA_OK) st = mla_pool_new(&pool, c->threads, err);
    if (st == MLA_OK) st = verify_open(&m, c, c->arg[0], &a->run, be, err);
    if (st == MLA_OK) st = read_prompts(&p, a, m.model, err);
    if (st == MLA_OK) st = mla_identity_of(&id, m.model, pool, NULL, err);
    mla_record_opts o = {.max_tokens = a->max_tokens, .chunk = a->chunk, .min_margin = a->min_margin, .log = &c->log};
    if (st == MLA_OK) st = verify_not_usage(mla_record(&r, m.rt, &p, &o, err), err);
    if (st == MLA_OK) st = label(&r, c, a, &id, err);
    if (st == MLA_OK) st = mla_reference_write(&r, a->out, err);
    if (st == MLA_OK) mla_info(&c->log, "%s: %zu cases, %zu positions", a->out, r.n, mla_reference_positions(&r));
    mla_reference_free(&r);
    mla_prompts_free(&p);
    verify_close(&m);
    mla_backend_close(be);
    mla_pool_free(pool);
    return st;
}

mla_status cmd_verify_record(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {.max_tokens = 96, .forced_max = 320, .min_margin = 1, .run = verify_run_defaults()};
    cli_option opts[8 + VERIFY_RUN_OPTIONS] = {
        {"out", 'o', CLI_STR, &a.out, "FILE", "the reference file to write", NULL, NULL},
        {"prompts", 'p', CLI_LIST, &a.prompts, "FILE",
         "jsonl (prompt, text or prompt_ids; completion or completion_ids to force one), a reference file to record again, or a text", NULL, NULL},
        {"embeddings", 'e', CLI_LIST, &a.embeddings, "FILE",
         "prompts as embeddings with positions in three dimensions (images): safetensors, NAME.inputs_embeds and NAME.position_ids", NULL, NULL},
        {"max-tokens", 0, CLI_SIZE, &a.max_tokens, "N", "length of an answer at most", "96", NULL},
        {"split", 0, CLI_SIZE, &a.split, "N", "texts longer than N tokens are forced after their first N", "not split", NULL},
        {"forced-tokens", 0, CLI_SIZE, &a.forced_max, "N", "tokens of a forced continuation at most; 0: all", "320", NULL},
        {"min-margin", 0, CLI_DOUBLE, &a.min_margin, "X", "nats from which on a position is confident", "1", NULL},
        {"chunk", 0, CLI_SIZE, &a.chunk, "N", "tokens per prefill step", "as 128 MiB of logits allow, 16 to 512", NULL},
    };
    verify_run_options(&a.run, opts + 8);
    const cli_spec spec = {
        .args = "MODEL (--prompts FILE | --embeddings FILE)... --out FILE",
        .about = "Answers every prompt greedily (or scores the continuation that is given) with the built-in runtime and writes an "
                 "mla-reference/1 file: token ids, the argmax of every position, its log-probability and margin.",
        .opt = opts,
        .nopt = sizeof opts / sizeof *opts,
        .min_args = 1,
        .max_args = 1,
        .common = CLI_DEVICE,
    };
    mla_status st;
    if (!cli_parse(c, &spec, argc, argv, err))
        st = err->status;
    else if (!a.out || !(a.prompts.n + a.embeddings.n))
        st = mla_fail(err, MLA_EINVAL, "missing %s; usage: %s %s %s", a.out ? "--prompts" : "--out", c->program, c->command, spec.args);
    else if (!(a.min_margin >= 0))
        st = mla_fail(err, MLA_EINVAL, "--min-margin: expected a value of at least 0, found %g", a.min_margin);
    else if (!a.max_tokens)
        st = mla_fail(err, MLA_EINVAL, "--max-tokens: expected at least 1, found 0");
    else
        st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < a.embeddings.n; i++) st = same_folder(a.embeddings.v[i], a.out, err);
    if (st == MLA_OK && c->nargs) st = record(c, &a, err);
    cli_list_free(&a.embeddings);
    cli_list_free(&a.prompts);
    return st;
}
