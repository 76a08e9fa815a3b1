/* mla-verify receipts: every file, config claim and tensor of a finished folder against its receipt. */
#include "verify/folder/receipts.h"
#include "verify.h"
#include "verify_common.h"

typedef struct {
    const char *base;
    cli_list consumer;
    bool values, no_receipt;
    verify_files files;
} args;

static mla_status check(cli *c, const args *a, mla_err *err)
{
    mla_json *d = NULL;
    mla_pool *pool = NULL;
    mla_verdict v = MLA_NO_EVIDENCE;
    mla_str text = MLA_STR_MAX((size_t)1 << 28);
    mla_status st = mla_json_new_object(&d, err);
    if (st == MLA_OK) st = mla_pool_new(&pool, c->threads, err);
    mla_jv *doc = st == MLA_OK ? mla_json_root(d) : NULL;
    if (st == MLA_OK) {
        mla_jv_set_str(doc, "schema", MLA_RECEIPTS_SCHEMA);
        mla_jv_set_str(doc, "verdict", "");
        verify_put_tool(doc, c);
        st = mla_receipts_check(doc, c->arg[0], &(mla_receipts_opts){.base = a->base, .values = a->values, .no_receipt = a->no_receipt, .consumer = a->consumer.v, .consumers = a->consumer.n, .pool = pool, .log = &c->log}, &v, err);
    }
    if (st == MLA_OK) st = verify_write(&a->files, doc, NULL, err);
    if (st == MLA_OK && c->json) st = cli_print_json(doc, err);
    if (st == MLA_OK && !c->json) {
        mla_receipts_text(&text, doc);
        st = cli_print(&text, err);
    }
    if (st == MLA_OK && v == MLA_FAIL)
        st = mla_fail(err, MLA_EDIFFER, "%s: %zu findings", c->arg[0], mla_jv_len(mla_jv_get(doc, "findings")));
    if (st == MLA_OK && v == MLA_NO_EVIDENCE) st = mla_fail(err, MLA_EUNSUPPORTED, "%s: the files hold; what config.json claims could not be judged", c->arg[0]);
    mla_str_free(&text);
    mla_json_free(d);
    mla_pool_free(pool);
    return st;
}

mla_status cmd_verify_receipts(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {0};
    const cli_option opts[] = {
        {"base", 0, CLI_STR, &a.base, "DIR", "compare this base folder with the one that the receipt records, too", NULL, NULL},
        {"consumer", 0, CLI_LIST, &a.consumer, "NAME", "replay what this engine does with every stored KV scale: mla-toolkit, vllm-0.33, vllm-auto, "
         "vllm-remap, vllm-twice, sglang, tensorrt-llm (docs/format-kv-scales.md)", NULL, NULL},
        {"no-receipt", 0, CLI_FLAG, &a.no_receipt, NULL, "judge configuration, scales, weights and consumers of a folder that has no receipt", NULL, NULL},
        {"values", 0, CLI_FLAG, &a.values, NULL, "decode every weight and look for values that are not finite", NULL, NULL},
        {"junit", 0, CLI_STR, &a.files.junit, "FILE", "write JUnit XML", NULL, "report files"},
        {"markdown", 0, CLI_STR, &a.files.markdown, "FILE", "write Markdown (for a job summary)", NULL, "report files"},
    };
    const cli_spec spec = {
        .args = "DIR",
        .about = "Hashes every file of DIR and compares it with mla_receipt.json; then opens the model and checks what config.json claims: "
                 "factor file and digest, ranks, shapes, types, finite factors, finite weight scales, a KV scale that is finite and above zero in every layer "
                 "where one is declared. Each difference is named.",
        .opt = opts,
        .nopt = sizeof opts / sizeof *opts,
        .min_args = 1,
        .max_args = 1,
        .common = CLI_JSON | CLI_THREADS,
    };
    mla_status st = cli_parse(c, &spec, argc, argv, err) ? check(c, &a, err) : err->status;
    cli_list_free(&a.consumer);
    return st;
}
