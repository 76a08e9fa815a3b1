/* mla-verify selfcheck: the attention kernels of this machine against fp64. */
#include <string.h>

#include "base/alloc.h"
#include "verify/selfcheck/selfcheck.h"
#include "verify/selfcheck/tested.h"
#include "verify.h"
#include "verify_common.h"

typedef struct {
    bool near;
    size_t slots, ranks;
    const char *record;
    verify_files files;
} args;

static mla_status check(cli *c, const args *a, mla_err *err)
{
    mla_backend *be = NULL;
    mla_model *m = NULL;
    mla_json *d = NULL;
    mla_verdict v = MLA_NO_EVIDENCE;
    mla_str text = MLA_STR_MAX((size_t)1 << 22);
    char *tested = NULL, combination[128];
    mla_status st = mla_json_new_object(&d, err);
    if (st == MLA_OK) st = cli_backend_open(c, &be, err);
    if (st == MLA_OK && !a->record) st = cli_data_file(&tested, VERIFY_TESTED, err);
    if (st == MLA_OK && c->nargs) st = mla_model_open(&m, c->arg[0], err);
    mla_jv *doc = st == MLA_OK ? mla_json_root(d) : NULL;
    if (st == MLA_OK) {
        mla_jv_set_str(doc, "schema", MLA_SELFCHECK_SCHEMA);
        mla_jv_set_str(doc, "verdict", "");
        verify_put_tool(doc, c);
        mla_jv_set_str(doc, "backend", be->ops->describe(be));
        mla_selfcheck_opts o = {.cfg = m ? mla_model_config(m) : NULL, .far = !a->near, .slots = a->slots, .ranks = a->ranks, .tested = tested,
                                .allow_untested = verify_allow_untested(), .log = &c->log};
        st = mla_selfcheck(doc, be, &o, &v, err);
    }
    if (st == MLA_OK && a->record && v == MLA_PASS) st = mla_tested_record(a->record, mla_tested_combination(be, a->ranks, combination, sizeof combination), err);
    if (st == MLA_OK) st = verify_write(&a->files, doc, NULL, err);
    if (st == MLA_OK && c->json) st = cli_print_json(doc, err);
    if (st == MLA_OK && !c->json) {
        mla_selfcheck_text(&text, doc);
        st = cli_print(&text, err);
    }
    if (st == MLA_OK && v != MLA_PASS)
        st = mla_fail(err, v == MLA_FAIL ? MLA_EDIFFER : MLA_EUNSUPPORTED, "%s", v == MLA_FAIL ? "a kernel differs from fp64" : verify_first_reason(doc, v, NULL));
    mla_free(tested);
    mla_str_free(&text);
    mla_json_free(d);
    mla_model_close(m);
    mla_backend_close(be);
    return st;
}

mla_status cmd_verify_selfcheck(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {0};
    const cli_option opts[] = {
        {"near", 0, CLI_FLAG, &a.near, NULL, "leave out pools that end beyond slot 2^31 / row (2 to 8 GiB of address space)", NULL, NULL},
        {"slots", 0, CLI_SIZE, &a.slots, "N", "also in a cache of N token slots, as a server would allocate; memory is touched only where tokens lie", NULL, NULL},
        {"tensor-parallel", 0, CLI_SIZE, &a.ranks, "N", "the shapes of one of N ranks: its heads, its groups of a latent", "1", NULL},
        {"record", 0, CLI_STR, &a.record, "FILE", "when everything passes, add this combination of kernels and machine to the table FILE (manifests/tested.json)", NULL, NULL},
        {"junit", 0, CLI_STR, &a.files.junit, "FILE", "write JUnit XML", NULL, "report files"},
        {"markdown", 0, CLI_STR, &a.files.markdown, "FILE", "write Markdown (for a job summary)", NULL, "report files"},
    };
    const cli_spec spec = {
        .args = "[MODEL]",
        .about = "Runs attention over paged f32, bf16 and FP8 caches whose tokens lie in the first, a middle and the last block, in decode and in "
                 "prefill, and compares every output with fp64 within a derived bound; again in a pool that ends beyond slot 2^31 / row, where "
                 "32-bit offsets wrap. With a MODEL its own shapes are checked, else common ones. A combination of kernels and machine that no "
                 "recorded run has checked is not judged (exit 3) unless MLA_ALLOW_UNTESTED=1.",
        .opt = opts,
        .nopt = sizeof opts / sizeof *opts,
        .min_args = 0,
        .max_args = 1,
        .common = CLI_JSON | CLI_DEVICE,
    };
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    return check(c, &a, err);
}
