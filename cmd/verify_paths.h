/* The paths of a server beside a parity report: which were asked for, and running them. */
#ifndef MLA_CMD_VERIFY_PATHS_H
#define MLA_CMD_VERIFY_PATHS_H
#include "verify/paths/paths.h"
#include "verify_common.h"

#define VERIFY_PATHS_HELP "chunked, prefix, batch, threads, fp8, split, mtp"
bool verify_path_known(const char *name);

typedef struct {
    const char *const *name; /* (n) as given; "all" stands for every one */
    size_t n;
    verify_run run;
    const verify_model *model;
    mla_backend *be;
    mla_path_source from;
    double near_tie;
} verify_paths;
/* Adds "paths" (and "mtp") to doc and their gates, "paths: NAME", to its gates; *verdict is the worst of them. */
MLA_CHECKED mla_status verify_paths_run(mla_jv *doc, const verify_paths *p, cli *c, mla_verdict *verdict, mla_err *err);
/* The same device with another thread count, for the path that must not depend on it. */
MLA_CHECKED mla_status verify_other_backend(mla_backend **out, const cli *c, mla_err *err);
#endif
