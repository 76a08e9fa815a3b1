/* mla-verify parity: does the model still answer like the recorded ids, or like a base run beside it? */
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/sha256.h"
#include "text/corpus.h"
#include "verify.h"
#include "verify/parity/parity_run.h"
#include "verify/reference/record.h"
#include "verify_common.h"
#include "verify_paths.h"

typedef struct {
    const char *reference, *against, *against_kv;
    cli_list corpus, paths, contexts;
    size_t rows, row_tokens, path_tokens, answer_tokens;
    bool no_decode;
    verify_run run;
    verify_files files;
    mla_parity_opts p;
} args;

typedef struct { /* everything opened; freed together */
    mla_backend *be;
    mla_pool *pool;
    verify_model model, base;
    mla_identity model_id, base_id;
    mla_reference ref;
    mla_corpus corpus;
    char *default_corpus;
    mla_parity result;
    mla_json *doc;
} work;

static void work_free(work *w)
{
    mla_parity_free(&w->result);
    mla_json_free(w->doc);
    verify_close(&w->model);
    verify_close(&w->base);
    mla_backend_close(w->be);
    mla_pool_free(w->pool);
    mla_reference_free(&w->ref);
    mla_corpus_free(&w->corpus);
    mla_free(w->default_corpus);
}

static mla_status check(const args *a, mla_err *err)
{
    if (!a->reference && !a->against) return mla_fail(err, MLA_EINVAL, "nothing to compare with: give --reference FILE, --against BASE, or both");
    if (a->corpus.n && !a->against) return mla_fail(err, MLA_EINVAL, "--corpus needs --against BASE: text alone says nothing about right answers");
    if (!(a->p.min_agreement >= 0 && a->p.min_agreement < 1))
        return mla_fail(err, MLA_EINVAL, "--min-agreement: expected a value from 0 (not gated) to below 1, found %g", a->p.min_agreement);
    for (size_t i = 0; i < a->paths.n; i++)
        if (!verify_path_known(a->paths.v[i])) return mla_fail(err, MLA_EINVAL, "--paths: expected one of " VERIFY_PATHS_HELP ", all; found \"%s\"", a->paths.v[i]);
    if (a->contexts.n && !a->against) return mla_fail(err, MLA_EINVAL, "--context needs --against BASE: the base's answers are what is compared");
    if (!a->answer_tokens) return mla_fail(err, MLA_EINVAL, "--answer-tokens: expected at least 1, found 0");
    if (a->path_tokens < 16) return mla_fail(err, MLA_EINVAL, "--path-tokens: expected at least 16, found %zu", a->path_tokens);
    if (a->row_tokens < 2) return mla_fail(err, MLA_EINVAL, "--row-tokens: expected at least 2, found %zu", a->row_tokens);
    if (a->p.bootstrap.resamples < 100) return mla_fail(err, MLA_EINVAL, "--resamples: expected at least 100, found %zu", a->p.bootstrap.resamples);
    return MLA_OK;
}

/* --corpus, or the bundled evaluation text when a base is all there is. Tokenized by the model. */
static mla_status load_corpus(work *w, const args *a, mla_err *err)
{
    cli_list files = a->corpus;
    const char *one;
    if (!a->against || (a->reference && !a->corpus.n && !a->contexts.n)) return MLA_OK;
    if (!files.n) {
        if (cli_data_file(&w->default_corpus, "calib/evaluation.jsonl", err) != MLA_OK) return err->status;
        one = w->default_corpus;
        files = (cli_list){&one, 1};
    }
    mla_tok *tok = NULL;
    mla_err why;
    mla_status st = mla_model_tokenizer_if_any(w->model.model, &tok, &why, err);
    if (st != MLA_OK) return st;
    w->corpus.no_tokenizer = why.msg;
    for (size_t i = 0; i < files.n && st == MLA_OK; i++)
        st = mla_corpus_add(&w->corpus, files.v[i], tok, mla_rt_config(w->model.rt)->vocab, err);
    w->corpus.no_tokenizer = NULL;
    mla_tok_free(tok);
    if (st == MLA_OK && w->corpus.ids.n < 2) st = mla_fail(err, MLA_EFORMAT, "corpus: expected at least 2 tokens, found %zu", w->corpus.ids.n);
    size_t most = a->rows * a->row_tokens;
    if (st == MLA_OK && a->rows && w->corpus.ids.n > most) w->corpus.ids.n = most;
    if (st == MLA_OK) mla_corpus_finish(&w->corpus);
    return st;
}

static mla_status open_all(work *w, cli *c, const args *a, mla_err *err)
{
    mla_status st = a->reference ? mla_reference_read(&w->ref, a->reference, err) : MLA_OK;
    if (st == MLA_OK) st = cli_backend_open(c, &w->be, err);
    if (st == MLA_OK) st = mla_pool_new(&w->pool, c->threads, err);
    if (st == MLA_OK) st = verify_open(&w->model, c, c->arg[0], &a->run, w->be, err);
    if (st == MLA_OK && a->against) {
        verify_run run = a->run;
        run.kv_dtype = a->against_kv;
        st = verify_open(&w->base, c, a->against, &run, w->be, err);
    }
    if (st == MLA_OK) st = load_corpus(w, a, err);
    if (st == MLA_OK) st = mla_identity_of(&w->model_id, w->model.model, w->pool, NULL, err);
    if (st == MLA_OK && a->against) st = mla_identity_of(&w->base_id, w->base.model, w->pool, NULL, err);
    if (st != MLA_OK) return st;
    const char *told = w->ref.tokenizer_sha256, *own = w->model_id.tokenizer_sha256;
    if (told && own[0] && strcmp(told, own))
        mla_warn(&c->log, "the reference was recorded with another tokenizer (%.12s..., the model has %.12s...); token ids are compared as they are",
                 told, own);
    return MLA_OK;
}

static mla_status put_reference(mla_jv *doc, const args *a, const work *w, mla_err *err)
{
    char hex[65];
    if (a->reference) {
        mla_file_digest f = {.path = a->reference};
        if (mla_sha256_files(&f, 1, NULL, NULL, err) != MLA_OK) return err->status;
        char *name = cli_base_name(a->reference);
        mla_jv *o = mla_jv_set_obj(doc, "reference");
        mla_hex(f.digest, 32, hex);
        mla_jv_set_str(o, "name", name);
        mla_jv_set_str(o, "sha256", hex);
        if (w->ref.model) mla_jv_set_str(o, "model", w->ref.model);
        if (w->ref.engine) mla_jv_set_str(o, "engine", w->ref.engine);
        mla_jv_set_f64(o, "min_margin_nats", w->ref.min_margin);
        mla_free(name);
    }
    if (w->corpus.ids.n) {
        mla_jv *o = mla_jv_set_obj(doc, "corpus");
        mla_hex(w->corpus.sha256, 32, hex);
        mla_jv_set_str(o, "ids_sha256", hex);
        mla_jv_set_size(o, "tokens", w->corpus.ids.n);
        mla_jv_set_size(o, "row_tokens", a->row_tokens);
    }
    return MLA_OK;
}

static mla_status begin_doc(work *w, const cli *c, const args *a, mla_err *err)
{
    mla_status st = mla_json_new_object(&w->doc, err);
    if (st != MLA_OK) return st;
    mla_jv *doc = mla_json_root(w->doc);
    mla_jv_set_str(doc, "schema", MLA_PARITY_SCHEMA);
    mla_jv_set_str(doc, "verdict", "");
    verify_put_tool(doc, c);
    mla_identity_put(doc, "model", &w->model_id, w->model.model);
    mla_jv_set_size(mla_jv_get(doc, "model"), "kv_bytes_per_token", mla_rt_kv_bytes_per_token(w->model.rt));
    if (a->against) {
        mla_identity_put(doc, "base", &w->base_id, w->base.model);
        mla_jv_set_size(mla_jv_get(doc, "base"), "kv_bytes_per_token", mla_rt_kv_bytes_per_token(w->base.rt));
    }
    mla_jv *s = mla_jv_set_obj(doc, "settings");
    mla_jv_set_str(s, "kv_dtype", a->run.kv_dtype);
    if (a->against) mla_jv_set_str(s, "base_kv_dtype", a->against_kv);
    mla_jv_set_str(s, "precision", a->run.precision);
    mla_jv_set_size(s, "chunk", w->result.opts.chunk);
    mla_jv_set_f64(s, "min_agreement", a->p.min_agreement);
    mla_jv_set_f64(s, "near_tie_nats", a->p.near_tie);
    return put_reference(doc, a, w, err);
}

/* --context: the base's answers after long prompts become cases beside the reference's. */
static mla_status add_contexts(work *w, cli *c, const args *a, mla_err *err)
{
    size_t added, most = mla_rt_config(w->model.rt)->max_pos, *length = mla_alloc(a->contexts.n, 1, sizeof *length);
    if (!length) return mla_fail(err, MLA_ENOMEM, "lengths of contexts");
    mla_status st = MLA_OK;
    for (size_t i = 0; i < a->contexts.n && st == MLA_OK; i++)
        if (!mla_parse_size(a->contexts.v[i], &length[i]) || length[i] <= a->answer_tokens || (most && length[i] > most))
            st = mla_fail(err, MLA_EINVAL, "--context: expected more than the answer's %zu tokens and at most the model's %zu, found \"%s\"", a->answer_tokens, most,
                          a->contexts.v[i]);
    mla_contexts in = {length, a->contexts.n, a->answer_tokens, most, &w->corpus.ids};
    mla_record_opts o = {.chunk = a->p.chunk, .min_margin = a->p.min_margin, .log = &c->log};
    if (st == MLA_OK) st = mla_record_contexts(&w->ref, &added, NULL, w->base.rt, &in, &o, err);
    mla_free(length);
    return st;
}

static mla_status answer(cli *c, const args *a, work *w, mla_err *err)
{
    mla_verdict v, paths = MLA_PASS;
    if (a->contexts.n && add_contexts(w, c, a, err) != MLA_OK) return err->status;
    mla_parity_input in = {.model = w->model.rt, .base = w->base.rt, .ref = w->ref.n ? &w->ref : NULL};
    if (w->corpus.ids.n) in.corpus = w->corpus.ids.id, in.n_corpus = w->corpus.ids.n, in.row_tokens = a->row_tokens;
    mla_status st = verify_not_usage(mla_parity_run(&w->result, &in, &a->p, err), err);
    if (st == MLA_OK) st = begin_doc(w, c, a, err);
    if (st != MLA_OK) return st;
    mla_jv *doc = mla_json_root(w->doc);
    st = mla_parity_report(doc, &w->result, &v, err);
    if (st == MLA_OK && a->paths.n) {
        verify_paths p = {.name = a->paths.v, .n = a->paths.n, .run = a->run, .model = &w->model, .be = w->be, .near_tie = a->p.near_tie};
        p.from = (mla_path_source){a->reference ? &w->ref : NULL, w->corpus.ids.id, w->corpus.ids.n, 4, a->path_tokens};
        st = verify_not_usage(verify_paths_run(doc, &p, c, &paths, err), err);
        if (paths == MLA_FAIL || v == MLA_PASS) v = paths;
        mla_jv_set_str(doc, "verdict", mla_verdict_name(v));
    }
    if (st == MLA_OK) st = verify_write(&a->files, doc, mla_parity_svg, err);
    if (st == MLA_OK && c->json) {
        st = cli_print_json(doc, err);
    } else if (st == MLA_OK) {
        mla_str text = MLA_STR_MAX((size_t)1 << 24);
        mla_parity_text(&text, doc);
        st = cli_print(&text, err);
        mla_str_free(&text);
    }
    if (st != MLA_OK || v == MLA_PASS) return st;
    return mla_fail(err, v == MLA_FAIL ? MLA_EDIFFER : MLA_EUNSUPPORTED, "%s: %s", mla_verdict_name(v), verify_first_reason(doc, v, NULL));
}

mla_status cmd_verify_parity(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {.against_kv = "f32", .rows = 8, .row_tokens = 1024, .path_tokens = 320, .answer_tokens = 32, .run = verify_run_defaults(), .p = mla_parity_defaults()};
    size_t seed = (size_t)a.p.bootstrap.seed;
    static const char *const GATE = "the gate", *const FILES = "report files", *const PATHS = "paths of a server";
    cli_option opts[20 + VERIFY_RUN_OPTIONS] = {
        {"reference", 'r', CLI_STR, &a.reference, "FILE", "recorded ids: mla-reference/1 or probe.json", NULL, "what to compare with"},
        {"against", 'b', CLI_STR, &a.against, "BASE", "a model run beside it: KL divergence, perplexity ratio, and top-1 agreement where there is no reference", NULL, "what to compare with"},
        {"corpus", 'c', CLI_LIST, &a.corpus, "FILE", "text, jsonl or token ids for --against; default: the bundled evaluation text, or the reference's own positions", NULL, "what to compare with"},
        {"rows", 0, CLI_SIZE, &a.rows, "N", "rows of the corpus to use, each its own sequence; 0: all", "8", "what to compare with"},
        {"row-tokens", 0, CLI_SIZE, &a.row_tokens, "N", "tokens per row", "1024", "what to compare with"},
        {"context", 0, CLI_LIST, &a.contexts, "N", "the base also answers a prompt from the corpus that ends at N tokens with its answer (1024, 4096, ...): compared as a reference's answers are", NULL, "what to compare with"},
        {"answer-tokens", 0, CLI_SIZE, &a.answer_tokens, "N", "tokens of an answer for --context", "32", "what to compare with"},
        {"against-kv-dtype", 0, CLI_CHOICE, &a.against_kv, MLA_KV_TYPES, "the base's KV cache", "f32", "what to compare with"},
        {"min-agreement", 0, CLI_DOUBLE, &a.p.min_agreement, "X", "required lower end of the 95 % Wilson interval of top-1 agreement at confident positions; 0: not gated", "0.995", GATE},
        {"max-kld", 0, CLI_DOUBLE, &a.p.max_kld, "X", "largest mean KL divergence from --against, nats", "not gated", GATE},
        {"near-tie", 0, CLI_DOUBLE, &a.p.near_tie, "X", "margin in nats up to which a disagreement is a near-tie", "0.1", GATE},
        {"aa-positions", 0, CLI_SIZE, &a.p.aa_positions, "N", "positions repeated with other chunks, to find the floor; 0: none", "256", GATE},
        {"no-decode", 0, CLI_FLAG, &a.no_decode, NULL, "leave out free decoding", NULL, GATE},
        {"seed", 0, CLI_SIZE, &seed, "N", "seed of the bootstrap over prompts", "1", GATE},
        {"resamples", 0, CLI_SIZE, &a.p.bootstrap.resamples, "N", "resamples of the bootstrap", "2000", GATE},
        {"paths", 0, CLI_LIST, &a.paths, "PATH", "take texts through this path of a server, too, and compare with one call: " VERIFY_PATHS_HELP "; all: every one", NULL, PATHS},
        {"path-tokens", 0, CLI_SIZE, &a.path_tokens, "N", "tokens of the longest of the four texts for --paths", "320", PATHS},
        {"junit", 0, CLI_STR, &a.files.junit, "FILE", "write JUnit XML", NULL, FILES},
        {"markdown", 0, CLI_STR, &a.files.markdown, "FILE", "write Markdown (for a job summary)", NULL, FILES},
        {"svg", 0, CLI_STR, &a.files.svg, "FILE", "write a chart of the KL divergence by position", NULL, FILES},
    };
    verify_run_options(&a.run, opts + 20);
    cli_option chunk = {"chunk", 0, CLI_SIZE, &a.p.chunk, "N", "tokens per prefill step", "as 128 MiB of logits allow, 16 to 512", opts[20].group};
    cli_option all[21 + VERIFY_RUN_OPTIONS];
    memcpy(all, opts, sizeof opts);
    all[20 + VERIFY_RUN_OPTIONS] = chunk;
    const cli_spec spec = {
        .args = "MODEL (--reference FILE | --against BASE [--corpus FILE]...)",
        .about = "Forces recorded texts through MODEL and compares its argmax at every position; decodes the recorded answers freely until "
                 "they part. With a base, measures the KL divergence and the perplexity ratio. Confident positions (margin of at least 1 nat) "
                 "are gated by the lower end of their interval; a sample that is too small to show it is \"not enough evidence\" (exit 3).\n"
                 "MODEL and BASE are a checkpoint folder or a .gguf file.",
        .opt = all,
        .nopt = sizeof all / sizeof *all,
        .min_args = 1,
        .max_args = 1,
        .common = CLI_JSON | CLI_DEVICE,
    };
    work w = {0};
    mla_status st;
    if (cli_parse(c, &spec, argc, argv, err)) {
        a.p.free_decode = !a.no_decode;
        a.p.bootstrap.seed = seed;
        a.p.log = &c->log;
        st = check(&a, err);
        if (st == MLA_OK) st = open_all(&w, c, &a, err);
        if (st == MLA_OK) st = answer(c, &a, &w, err);
    } else {
        st = err->status;
    }
    work_free(&w);
    cli_list_free(&a.corpus);
    cli_list_free(&a.paths);
    cli_list_free(&a.contexts);
    return st;
}
