/* mla-verify probe: does a running server answer like the recorded ids? */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/sha256.h"
#include "model/model.h"
#include "verify.h"
#include "verify/probe/probe.h"
#include "verify_common.h"

typedef struct {
    const char *model, *reference, *dialect, *key_file, *key_env, *ca_file, *tokenizer, *on_fail;
    double wait, timeout;
    bool no_decode;
    verify_files files;
    mla_parity_opts p;
} args;

typedef struct {
    mla_reference ref;
    mla_http *http;
    mla_model *tok_model;
    mla_tok *tok;
    char *key, *name; /* secret; served model */
    mla_parity result;
    mla_json *doc;
} work;

static void work_free(work *w)
{
    mla_parity_free(&w->result);
    mla_json_free(w->doc);
    mla_reference_free(&w->ref);
    mla_http_close(w->http);
    mla_tok_free(w->tok);
    mla_model_close(w->tok_model);
    if (w->key) explicit_bzero(w->key, strlen(w->key));
    mla_free(w->key);
    mla_free(w->name);
}

/* The secret from a file's first line or a variable; its text appears in no message. */
static mla_status read_key(work *w, const args *a, mla_err *err)
{
    size_t n;
    if (a->key_file && a->key_env) return mla_fail(err, MLA_EINVAL, "give one of --key-file and --key-env");
    if (a->key_env) {
        const char *v = getenv(a->key_env);
        if (!v || !*v) return mla_fail(err, MLA_EINVAL, "--key-env: the variable %s is not set", a->key_env);
        w->key = mla_strdup(v);
    } else if (a->key_file) {
        mla_status st = mla_file_read(&w->key, &n, a->key_file, 1 << 16, err);
        if (st != MLA_OK) return st;
        w->key[strcspn(w->key, "\r\n")] = 0;
        if (!*w->key) return mla_fail(err, MLA_EINVAL, "--key-file: the first line is empty");
    } else return MLA_OK;
    return w->key ? MLA_OK : mla_fail(err, MLA_ENOMEM, "key");
}

static mla_status begin(work *w, cli *c, const args *a, mla_err *err)
{
    if (!a->reference) return mla_fail(err, MLA_EINVAL, "nothing to compare with: give --reference FILE");
    if (!(a->p.min_agreement >= 0 && a->p.min_agreement < 1))
        return mla_fail(err, MLA_EINVAL, "--min-agreement: expected a value from 0 (not gated) to below 1, found %g", a->p.min_agreement);
    if (!(a->timeout > 0 && a->wait >= 0)) return mla_fail(err, MLA_EINVAL, "--timeout and --wait: expected seconds, found %g and %g", a->timeout, a->wait);
    mla_status st = mla_reference_read(&w->ref, a->reference, err);
    if (st == MLA_OK) st = read_key(w, a, err);
    if (st == MLA_OK && a->tokenizer) st = mla_model_open(&w->tok_model, a->tokenizer, err);
    if (st == MLA_OK && a->tokenizer) st = mla_model_tokenizer(w->tok_model, &w->tok, err);
    const mla_http_opts h = {.url = c->arg[0], .bearer = w->key, .ca_file = a->ca_file, .timeout_s = a->timeout, .wait_s = a->wait, .log = &c->log};
    if (st == MLA_OK) st = mla_http_open(&w->http, &h, err);
    if (st == MLA_OK && a->model) st = (w->name = mla_strdup(a->model)) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "model name");
    else if (st == MLA_OK) st = mla_probe_first_model(&w->name, w->http, err);
    return st;
}

static mla_status describe(work *w, const cli *c, const args *a, mla_probe_dialect d, mla_err *err)
{
    char hex[65];
    mla_file_digest f = {.path = a->reference};
    mla_status st = mla_json_new_object(&w->doc, err);
    if (st == MLA_OK) st = mla_sha256_files(&f, 1, NULL, NULL, err);
    if (st != MLA_OK) return st;
    mla_jv *doc = mla_json_root(w->doc), *o;
    mla_jv_set_str(doc, "schema", MLA_PARITY_SCHEMA);
    mla_jv_set_str(doc, "verdict", "");
    verify_put_tool(doc, c);
    o = mla_jv_set_obj(doc, "model");
    mla_jv_set_str(o, "name", w->name);
    mla_jv_set_str(o, "source", "server"); /* its address stays out of the report */
    o = mla_jv_set_obj(doc, "settings");
    mla_jv_set_str(o, "dialect", mla_probe_dialect_name(d));
    mla_jv_set_f64(o, "min_agreement", a->p.min_agreement);
    mla_jv_set_f64(o, "near_tie_nats", a->p.near_tie);
    char *name = cli_base_name(a->reference);
    o = mla_jv_set_obj(doc, "reference");
    mla_hex(f.digest, 32, hex);
    mla_jv_set_str(o, "name", name);
    mla_jv_set_str(o, "sha256", hex);
    if (w->ref.model) mla_jv_set_str(o, "model", w->ref.model);
    mla_jv_set_f64(o, "min_margin_nats", w->ref.min_margin);
    mla_free(name);
    return MLA_OK;
}

static void run_on_fail(cli *c, const args *a)
{
    int r = system(a->on_fail);
    if (r == -1) mla_warn(&c->log, "--on-fail: the command could not be started");
    else if (!WIFEXITED(r) || WEXITSTATUS(r)) mla_warn(&c->log, "--on-fail: the command ended with %d", WIFEXITED(r) ? WEXITSTATUS(r) : 128 + WTERMSIG(r));
    else mla_info(&c->log, "--on-fail: the command was run");
}

static mla_status probe(work *w, cli *c, args *a, mla_err *err)
{
    mla_probe_dialect d = MLA_PROBE_AUTO;
    mla_verdict v;
    if (a->dialect) (void)mla_probe_dialect_parse(a->dialect, &d); /* the choice was checked */
    const mla_probe_input in = {.http = w->http, .model = w->name, .ref = &w->ref, .tok = w->tok, .dialect = d};
    mla_status st = mla_probe_run(&w->result, &d, &in, &a->p, err);
    if (st == MLA_OK) st = describe(w, c, a, d, err);
    if (st != MLA_OK) return st;
    mla_jv *doc = mla_json_root(w->doc);
    st = mla_parity_report(doc, &w->result, &v, err);
    if (st == MLA_OK) st = verify_write(&a->files, doc, mla_parity_svg, err);
    if (st == MLA_OK && c->json) st = cli_print_json(doc, err);
    else if (st == MLA_OK) {
        mla_str text = MLA_STR_MAX((size_t)1 << 24);
        mla_parity_text(&text, doc);
        st = cli_print(&text, err);
        mla_str_free(&text);
    }
    if (st == MLA_OK && v == MLA_FAIL && a->on_fail) run_on_fail(c, a);
    if (st != MLA_OK || v == MLA_PASS) return st;
    return mla_fail(err, v == MLA_FAIL ? MLA_EDIFFER : MLA_EUNSUPPORTED, "%s: %s", mla_verdict_name(v), verify_first_reason(doc, v, NULL));
}

mla_status cmd_verify_probe(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {.timeout = 300, .p = mla_parity_defaults()};
    static const char *const S = "the server", *const GATE = "the gate", *const FILES = "report files";
    a.p.aa_positions = 64;
    const cli_option opts[] = {
        {"reference", 'r', CLI_STR, &a.reference, "FILE", "recorded ids: mla-reference/1 or probe.json", NULL, NULL},
        {"model", 'm', CLI_STR, &a.model, "NAME", "the name the model is served under", "the first that the server lists", S},
        {"dialect", 0, CLI_CHOICE, &a.dialect, "auto|vllm|echo|step", "how log-probabilities are asked for: prompt_logprobs, echo, or position by position", "auto", S},
        {"tokenizer", 0, CLI_STR, &a.tokenizer, "MODEL", "a model whose tokenizer reads the token texts of a server that tells no ids", NULL, S},
        {"key-file", 0, CLI_STR, &a.key_file, "FILE", "send the file's first line as bearer token", NULL, S},
        {"key-env", 0, CLI_STR, &a.key_env, "NAME", "send this environment variable as bearer token", NULL, S},
        {"ca-file", 0, CLI_STR, &a.ca_file, "PEM", "certificates to trust instead of the system's; TLS is always verified", NULL, S},
        {"wait", 0, CLI_DOUBLE, &a.wait, "S", "wait this long for a server that is still booting (refused connections, 503)", "0", S},
        {"timeout", 0, CLI_DOUBLE, &a.timeout, "S", "seconds one request may take", "300", S},
        {"on-fail", 0, CLI_STR, &a.on_fail, "CMD", "shell command to run when the answers differ (exit 1), for example to stop the server", NULL, S},
        {"min-agreement", 0, CLI_DOUBLE, &a.p.min_agreement, "X", "required lower end of the 95 % Wilson interval of top-1 agreement at confident positions; 0: not gated", "0.995", GATE},
        {"near-tie", 0, CLI_DOUBLE, &a.p.near_tie, "X", "margin in nats up to which a disagreement is a near-tie", "0.1", GATE},
        {"aa-positions", 0, CLI_SIZE, &a.p.aa_positions, "N", "positions asked twice, to find the floor; 0: none", "64", GATE},
        {"no-decode", 0, CLI_FLAG, &a.no_decode, NULL, "leave out free decoding", NULL, GATE},
        {"junit", 0, CLI_STR, &a.files.junit, "FILE", "write JUnit XML", NULL, FILES},
        {"markdown", 0, CLI_STR, &a.files.markdown, "FILE", "write Markdown (for a job summary)", NULL, FILES},
    };
    const cli_spec spec = {
        .args = "URL --reference FILE",
        .about = "Sends the recorded prompts as token ids to an OpenAI-style server (/v1/completions) and compares its argmax at every position and its "
                 "free decode with the record, by the rules of parity. The server's dialect is found by asking: vLLM's prompt_logprobs, the classic echo, "
                 "or one request per position where a server gives no log-probabilities of a prompt (llama.cpp's). This is the one command that uses the network.",
        .opt = opts, .nopt = sizeof opts / sizeof *opts, .min_args = 1, .max_args = 1, .common = CLI_JSON};
    work w = {0};
    mla_status st;
    if (cli_parse(c, &spec, argc, argv, err)) {
        a.p.free_decode = !a.no_decode;
        a.p.log = &c->log;
        st = begin(&w, c, &a, err);
        if (st == MLA_OK) st = probe(&w, c, &a, err);
    } else {
        st = err->status;
    }
    work_free(&w);
    return st;
}
