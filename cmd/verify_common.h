/* What the subcommands of mla-verify that run a model share: opening it, its options, writing reports. */
#ifndef MLA_CMD_VERIFY_COMMON_H
#define MLA_CMD_VERIFY_COMMON_H
#include "cli.h"
#include "model/model.h"
#include "runtime/runtime.h"
#include "tensor/kv_row.h"
#include "verify/folder/identity.h"
#include "verify/parity/stats.h"

/* Targets of the options that say how a model is run. Initialise with verify_run_defaults. */
typedef struct {
    const char *kv_dtype, *precision; /* one of MLA_KV_TYPES, "reference|fast" */
    size_t page;
    bool stream;
    bool mtp; /* open the MTP head, too; no option of its own */
} verify_run;
verify_run verify_run_defaults(void);
#define VERIFY_RUN_OPTIONS 4
void verify_run_options(verify_run *r, cli_option *out); /* fills VERIFY_RUN_OPTIONS rows */
mla_kv_type verify_kv_type(const char *name);

typedef struct { /* a model ready to run; verify_close frees all, zeroed struct is fine */
    mla_model *model;
    mla_rt *rt;
} verify_model;
MLA_CHECKED mla_status verify_open(verify_model *out, cli *c, const char *path, const verify_run *r, mla_backend *be, mla_err *err);
void verify_close(verify_model *m);
/* Once the command line was accepted and the models are open, what a run refuses (an FP8 cache without scales) is the
 * model's fault: MLA_EINVAL becomes MLA_EUNSUPPORTED, exit 3. */
mla_status verify_not_usage(mla_status st, mla_err *err);

/* The table of tested combinations that comes with the toolkit; and whether MLA_ALLOW_UNTESTED=1 overrules it. */
#define VERIFY_TESTED "manifests/tested.json"
bool verify_allow_untested(void);

/* The reason of the first of doc.gates with this verdict, for the error line; *name (may be NULL) gets that gate's name. Borrowed. */
const char *verify_first_reason(const mla_jv *doc, mla_verdict v, const char **name);

/* "tool": {name, version}. */
void verify_put_tool(mla_jv *doc, const cli *c);
/* Writes JUnit, Markdown and SVG where a path is given (NULL: not). svg renders the chart of this kind of document. */
typedef struct {
    const char *junit, *markdown, *svg;
} verify_files;
MLA_CHECKED mla_status verify_write(const verify_files *f, const mla_jv *doc, mla_status (*svg)(mla_str *, const mla_jv *, mla_err *),
                                    mla_err *err);
#endif
