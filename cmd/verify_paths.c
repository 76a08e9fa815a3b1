/* Paths of a server: what `mla-verify parity --paths` runs. */
#include "verify_paths.h"

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "verify/paths/drafts.h"
#include "verify/report/report.h"

#define DRAFTS 4
#define DRAFT_TOKENS 64

static const char *const PATH[] = {"chunked", "prefix", "batch", "threads", "fp8", "split", "mtp"};
#define N_PATHS (sizeof PATH / sizeof *PATH)

bool verify_path_known(const char *name)
{
    for (size_t i = 0; i < N_PATHS; i++)
        if (!strcmp(PATH[i], name)) return true;
    return !strcmp(name, "all");
}

static bool asked(const verify_paths *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->name[i], name) || !strcmp(p->name[i], "all")) return true;
    return false;
}

mla_status verify_other_backend(mla_backend **out, const cli *c, mla_err *err)
{
    cli other = *c;
    size_t threads = c->threads ? c->threads : (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    other.threads = threads == 1 ? 2 : 1;
    return cli_backend_open(&other, out, err);
}

/* The gates of a part of the document, as gates of the whole. */
static void lift(mla_jv *doc, const char *key, mla_verdict v, mla_verdict *worst)
{
    mla_jv *gates = mla_jv_get(doc, "gates");
    for (const mla_jv *g = mla_jv_first(mla_jv_get(mla_jv_get(doc, key), "gates")); g; g = mla_jv_next(g)) {
        mla_str name = MLA_STR_MAX(256);
        mla_str_printf(&name, "%s: %s", key, mla_doc_str(g, "name", ""));
        mla_jv *o = mla_jv_add_obj(gates);
        mla_jv_set_str(o, "name", mla_str_c(&name));
        mla_jv_set_str(o, "verdict", mla_doc_str(g, "verdict", ""));
        mla_jv_set_str(o, "reason", mla_doc_str(g, "reason", ""));
        mla_str_free(&name);
    }
    if (v == MLA_FAIL || (v == MLA_NO_EVIDENCE && *worst == MLA_PASS)) *worst = v;
}

static mla_status drafting(mla_jv *doc, const verify_paths *p, cli *c, const mla_path_text *text, size_t n, mla_verdict *worst, mla_err *err)
{
    mla_drafts r[DRAFTS];
    verify_model m = {0};
    verify_run run = p->run;
    mla_verdict v;
    mla_jv *part = mla_jv_set_obj(doc, "mtp");
    run.mtp = true;
    if (!mla_rt_config(p->model->rt)->mtp_layers) {
        mla_jv_set_str(mla_doc_gate(mla_jv_set_arr(part, "gates"), "drafting", MLA_PASS, "the model has no MTP head"), "verdict", MLA_NOT_APPLICABLE);
        lift(doc, "mtp", MLA_PASS, worst);
        return MLA_OK;
    }
    mla_drafts_opts o = {.prompt = text, .n_prompt = n, .tokens = DRAFT_TOKENS, .most = DRAFTS, .near_tie = p->near_tie, .log = &c->log};
    mla_status st = verify_open(&m, c, c->arg[0], &run, p->be, err);
    if (st == MLA_OK) st = mla_drafts_run(r, m.rt, &o, err);
    if (st == MLA_OK) {
        mla_drafts_report(part, r, NULL, DRAFTS, 0, &v);
        lift(doc, "mtp", v, worst);
    }
    verify_close(&m);
    return st;
}

mla_status verify_paths_run(mla_jv *doc, const verify_paths *p, cli *c, mla_verdict *verdict, mla_err *err)
{
    mla_path_text *text = mla_alloc(p->from.cases, 1, sizeof *text);
    int32_t *buffer = NULL;
    mla_backend *be2 = NULL;
    verify_model other = {0};
    const char *name[N_PATHS];
    size_t n = 0, n_text = 0;
    mla_verdict v = MLA_PASS;
    verify_run streamed = p->run;
    streamed.stream = true;
    for (size_t i = 0; i < N_PATHS; i++)
        if (asked(p, PATH[i]) && strcmp(PATH[i], "mtp")) name[n++] = PATH[i];
    mla_status st = text ? mla_paths_texts(text, &n_text, &buffer, &p->from, err) : mla_fail(err, MLA_ENOMEM, "%zu texts", p->from.cases);
    if (st == MLA_OK && !n_text) st = mla_fail(err, MLA_EFORMAT, "--paths: no text of at least 8 tokens");
    if (st == MLA_OK && asked(p, "threads")) st = verify_other_backend(&be2, c, err);
    if (st == MLA_OK && be2) st = verify_open(&other, c, c->arg[0], &streamed, be2, err);
    mla_paths_opts o = {.rt = p->model->rt, .other = other.rt, .be = p->be, .kv = verify_kv_type(p->run.kv_dtype), .page = p->run.page, .text = text,
                        .n_text = n_text, .near_tie = p->near_tie, .max_logprob = 0.06, .max_change = MLA_PATHS_CHANGE(!strcmp(p->run.precision, "fast")), .max_fp8_kld = 0.01,
                        .max_split_error = strcmp(p->run.precision, "fast") ? 1e-4 : 0.02, .log = &c->log};
    if (st == MLA_OK && n) st = mla_paths_check(mla_jv_set_obj(doc, "paths"), &o, name, n, &v, err);
    if (st == MLA_OK && n) lift(doc, "paths", v, verdict);
    if (st == MLA_OK && asked(p, "mtp")) st = drafting(doc, p, c, text, n_text, verdict, err);
    verify_close(&other);
    mla_backend_close(be2);
    mla_free(text);
    mla_free(buffer);
    return st;
}
