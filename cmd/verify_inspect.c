/* mla-verify inspect: what is inside a file or folder, from headers alone. */
#include "verify/inspect/inspect.h"
#include "verify.h"

mla_status cmd_verify_inspect(cli *c, int argc, char **argv, mla_err *err)
{
    bool summary = false;
    const cli_option opts[] = {
        {"summary", 's', CLI_FLAG, &summary, NULL, "leave out the lists of tensors and metadata", NULL, NULL},
    };
    const cli_spec spec = {
        .args = "PATH",
        .about = "PATH is a checkpoint folder, a .safetensors or .gguf file, an index, a config.json, or a receipt, reference, "
                 "statistics, token or report file of this toolkit. Only headers are read, so files of any size take "
                 "milliseconds. A file that is damaged or hostile is refused with one line that names the defect.",
        .opt = opts,
        .nopt = sizeof opts / sizeof *opts,
        .min_args = 1,
        .max_args = 1,
        .common = CLI_JSON,
    };
    mla_json *doc = NULL;
    mla_str text = MLA_STR_MAX((size_t)1 << 30);
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    mla_status st = mla_inspect(&doc, c->arg[0], err);
    if (st == MLA_OK && c->json) st = cli_print_json(mla_json_root(doc), err);
    if (st == MLA_OK && !c->json) {
        mla_inspect_text(&text, mla_json_root(doc), &(mla_inspect_text_opts){.tensors = !summary, .metadata = !summary});
        st = cli_print(&text, err);
    }
    mla_str_free(&text);
    mla_json_free(doc);
    return st;
}
