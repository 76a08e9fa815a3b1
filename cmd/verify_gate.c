/* mla-verify gate: a release policy in one run, one verdict. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file.h"
#include "verify.h"
#include "verify/gate/gate.h"
#include "verify/report/report.h"
#include "verify_common.h"
#include "verify_paths.h"

typedef struct {
    const char *against, *out, *svg;
    cli_list reference, corpus;
    verify_files files;
} args;

typedef struct {
    mla_backend *be, *other;
    mla_pool *pool;
    char *tested, *default_corpus;
    mla_json *doc;
    bool written; /* the verdict files stand, whole */
} work;

/* The verdict files of this command line. A file of an earlier run goes before anything is judged, so that a run that
 * dies leaves none; one of this run goes when the command could not finish. */
static mla_status remove_one(const char *path, mla_err *err)
{
    if (!path || unlink(path) == 0 || errno == ENOENT) return MLA_OK;
    return mla_fail(err, MLA_EIO, "%s: cannot remove the verdict of an earlier run: %s", path, strerror(errno));
}

static mla_status remove_all(const args *a, mla_err *err)
{
    mla_status st = remove_one(a->out, err);
    if (st == MLA_OK) st = remove_one(a->files.junit, err);
    if (st == MLA_OK) st = remove_one(a->files.markdown, err);
    for (size_t i = 0; st == MLA_OK && a->svg && mla_gate_chart_name(i); i++) {
        char *path = mla_path_join(a->svg, mla_gate_chart_name(i));
        st = path ? remove_one(path, err) : mla_fail(err, MLA_ENOMEM, "path of a chart");
        mla_free(path);
    }
    return st;
}

static mla_status write_charts(const char *dir, const mla_jv *doc, mla_err *err)
{
    mla_status st = dir ? mla_dir_make(dir, err) : MLA_OK;
    for (size_t i = 0; st == MLA_OK && dir && mla_gate_chart_name(i); i++) {
        mla_str s = MLA_STR_MAX((size_t)1 << 24);
        bool drawn = false;
        char *path = mla_path_join(dir, mla_gate_chart_name(i));
        st = path ? mla_gate_chart(&s, i, doc, &drawn, err) : mla_fail(err, MLA_ENOMEM, "path of a chart");
        if (st == MLA_OK && drawn) st = mla_file_write(path, mla_str_c(&s), s.len, err);
        mla_str_free(&s);
        mla_free(path);
    }
    return st;
}

/* The JSON verdict last: where it stands, everything else does. */
static mla_status write_all(cli *c, const args *a, const mla_jv *doc, mla_err *err)
{
    mla_status st = verify_write(&a->files, doc, NULL, err);
    if (st == MLA_OK) st = write_charts(a->svg, doc, err);
    if (st == MLA_OK && a->out) st = mla_json_write(a->out, doc, err);
    if (st == MLA_OK && c->json) return cli_print_json(doc, err);
    if (st != MLA_OK) return st;
    mla_str text = MLA_STR_MAX((size_t)1 << 26);
    mla_gate_text(&text, doc);
    st = cli_print(&text, err);
    mla_str_free(&text);
    return st;
}

static mla_status open_work(work *w, cli *c, args *a, mla_err *err)
{
    mla_status st = cli_backend_open(c, &w->be, err);
    if (st == MLA_OK) st = verify_other_backend(&w->other, c, err);
    if (st == MLA_OK) st = mla_pool_new(&w->pool, c->threads, err);
    if (st == MLA_OK) st = cli_data_file(&w->tested, VERIFY_TESTED, err);
    if (st == MLA_OK && a->against && !a->corpus.n) {
        st = cli_data_file(&w->default_corpus, "calib/evaluation.jsonl", err);
    }
    return st;
}

static mla_status judge(cli *c, args *a, work *w, mla_err *err)
{
    mla_policy policy;
    mla_verdict v;
    const char *one, *name;
    mla_status st = mla_policy_read(&policy, c->arg[0], err);
    if (st == MLA_OK) st = open_work(w, c, a, err);
    if (st == MLA_OK) st = mla_json_new_object(&w->doc, err);
    if (st != MLA_OK) return st;
    one = w->default_corpus;
    mla_jv *doc = mla_json_root(w->doc);
    mla_gate_input in = {.dir = c->arg[1], .against = a->against, .reference = a->reference.v, .n_reference = a->reference.n,
                         .corpus = one ? &one : a->corpus.v, .n_corpus = one ? 1 : a->corpus.n, .be = w->be, .other = w->other,
                         .tested = w->tested, .allow_untested = verify_allow_untested(), .pool = w->pool, .log = &c->log};
    mla_jv_set_str(doc, "schema", MLA_GATE_SCHEMA);
    mla_jv_set_str(doc, "verdict", mla_verdict_name(MLA_NO_EVIDENCE));
    verify_put_tool(doc, c);
    st = mla_gate_run(doc, &in, &policy, &v, err);
    if (st == MLA_OK) st = write_all(c, a, doc, err);
    w->written = st == MLA_OK;
    if (st != MLA_OK || v == MLA_PASS) return st;
    const char *why = verify_first_reason(doc, v, &name);
    return mla_fail(err, v == MLA_FAIL ? MLA_EDIFFER : MLA_EUNSUPPORTED, "%s: %s: %s", mla_verdict_name(v), name, why);
}

static mla_status gate(cli *c, args *a, mla_err *err)
{
    work w = {0};
    mla_err ignored = {0};
    mla_status st = remove_all(a, err);
    if (st == MLA_OK) {
        st = judge(c, a, &w, err);
        if (!w.written && remove_all(a, &ignored) != MLA_OK) st = mla_fail(err, ignored.status, "%s", ignored.msg);
    }
    mla_json_free(w.doc);
    mla_backend_close(w.other);
    mla_backend_close(w.be);
    mla_pool_free(w.pool);
    mla_free(w.default_corpus);
    mla_free(w.tested);
    return st;
}

mla_status cmd_verify_gate(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {0};
    static const char *const WITH = "what to compare with", *const FILES = "verdict files; what an earlier run left there is removed first";
    const cli_option opts[] = {
        {"reference", 'r', CLI_LIST, &a.reference, "FILE", "recorded ids: mla-reference/1 or probe.json; several are judged as one sample", NULL, WITH},
        {"against", 'b', CLI_STR, &a.against, "BASE", "the base: KL divergence, long contexts, cache ratio, MTP acceptance", NULL, WITH},
        {"corpus", 'c', CLI_LIST, &a.corpus, "FILE", "text, jsonl or token ids for --against", "the bundled evaluation text", WITH},
        {"out", 'o', CLI_STR, &a.out, "FILE", "write the JSON verdict", NULL, FILES},
        {"junit", 0, CLI_STR, &a.files.junit, "FILE", "write JUnit XML", NULL, FILES},
        {"markdown", 0, CLI_STR, &a.files.markdown, "FILE", "write Markdown (for a job summary)", NULL, FILES},
        {"svg", 0, CLI_STR, &a.svg, "DIR", "write charts into this folder", NULL, FILES},
    };
    const cli_spec spec = {
        .args = "POLICY.json MODEL [--reference FILE]... [--against BASE]",
        .about = "Judges MODEL by every rule of a release policy (configs/gate-*.json; docs/gate.md) in one run: receipts, scales, kernels, parity "
                 "in all and per stratum, capacity. The verdict holds the digests of all inputs and every rule with value, interval, "
                 "threshold and reason. Exit 0: every rule passes; 1: one fails; 3: one could not be judged, or the sample is too small.\n"
                 "Verdict files are written whole or not at all, and never survive from an earlier run.",
        .opt = opts,
        .nopt = sizeof opts / sizeof *opts,
        .min_args = 2,
        .max_args = 2,
        .common = CLI_JSON | CLI_DEVICE,
    };
    mla_status st = cli_parse(c, &spec, argc, argv, err) ? gate(c, &a, err) : err->status;
    cli_list_free(&a.reference);
    cli_list_free(&a.corpus);
    return st;
}
