/* Subcommands of mla-retrofit, one file each, and the options they share. */
#ifndef MLA_CMD_RETROFIT_H
#define MLA_CMD_RETROFIT_H
#include "cli.h"
#include "retrofit/build/build.h"

mla_status cmd_retrofit_build(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_retrofit_plan(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_retrofit_stats(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_retrofit_solve(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_retrofit_graft(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_retrofit_pack(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_retrofit_unpack(cli *c, int argc, char **argv, mla_err *err);

/* What the subcommands parse into. */
typedef struct {
    double keep;
    size_t rank, kv_bytes, groups, tokens, row_tokens, rotary_width, freq_fold, rounds, refine_steps, rotary_keys; /* refine_steps SIZE_MAX: not given */
    const char *report, *held_stats;
    const char *layout, *recipe, *held_out, *precision, *allocation, *factors_dtype, *objective, *balance;
    cli_list corpus;
    const char *ranks, *rank_set, *names;
    bool force, stream, nested, fast, sequential;
} retrofit_args;

#define RETROFIT_OPTIONS 26
/* Fills opt (RETROFIT_OPTIONS rows) and returns how many were used: recipe options, then, with `text`, corpus options. */
size_t retrofit_options(retrofit_args *a, cli_option *opt, bool text);
/* Two more rows: --report and --held-out-stats, for the commands that solve. */
#define RETROFIT_REPORT_OPTIONS 2
size_t retrofit_report_options(retrofit_args *a, cli_option *opt);
/* Recipe file first, then every option that was given. */
MLA_CHECKED mla_status retrofit_recipe(mla_recipe *out, const retrofit_args *a, mla_err *err);

/* "32,96,224" into out[0..*n), at most max numbers. */
MLA_CHECKED mla_status retrofit_sizes(size_t *out, size_t *n, size_t max, const char *text, mla_err *err);

/* A finished mla_build_opts with backend, pool and default corpora opened. Close with retrofit_end. */
typedef struct {
    mla_build_opts o;
    char *default_corpus, *default_held_out;
    const char *corpus1[1];
} retrofit_run;
MLA_CHECKED mla_status retrofit_begin(retrofit_run *r, cli *c, const retrofit_args *a, const char *base, bool text, mla_err *err);
void retrofit_end(retrofit_run *r);

/* The answer of build, solve and graft: the table of layers, or with --json one document; and the report where one was asked for. */
MLA_CHECKED mla_status retrofit_answer(cli *c, const mla_build_result *res, const char *what, const char *report, mla_err *err);
#endif
